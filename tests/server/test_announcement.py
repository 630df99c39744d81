from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from streamctx.discovery import ServerRecord, list_servers, run_directory
from streamctx.errors import ConfigurationError
from streamctx.server.announcement import announce, write_record

__all__: list[str] = []

_RECORD = ServerRecord(
    protocol=1,
    url="ws://127.0.0.1:1/v1/stream",
    http_url="http://127.0.0.1:1",
    token_file="/t",
    pid=os.getpid(),
    started=time.time() + 1,
    version="1",
)


def _dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_announced_server_is_found_by_its_own_user_only(tmp_path: Path) -> None:
    directory = tmp_path / "run"

    path = announce(_RECORD, directory)

    assert path.name == f"{os.getpid()}.json"
    assert list_servers(directory) == [_RECORD]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert "uds" not in json.loads(path.read_bytes())


def test_record_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    path = announce(msgspec.structs.replace(_RECORD, pid=_dead_pid()), tmp_path)

    assert list_servers(tmp_path) == []
    assert not path.exists()


def test_record_of_a_dead_namesake_is_replaced(tmp_path: Path) -> None:
    old = announce(msgspec.structs.replace(_RECORD, started=1.0, url="ws://old/"), tmp_path)

    assert announce(_RECORD, tmp_path) == old
    assert list_servers(tmp_path) == [_RECORD]


def test_second_server_of_one_process_has_its_own_record(tmp_path: Path) -> None:
    second = msgspec.structs.replace(_RECORD, started=_RECORD.started + 1, url="ws://127.0.0.1:2/v1/stream")

    assert announce(_RECORD, tmp_path) != announce(second, tmp_path)
    assert list_servers(tmp_path) == [_RECORD, second]


def test_file_that_no_server_of_ours_wrote_is_ignored(tmp_path: Path) -> None:
    announce(_RECORD, tmp_path)
    nested = '{"a":' + "[" * 10_000
    for name, content in {
        "a": "",
        "b": "[]",
        "c": "{}",
        "d": '{"pid": "x"}',
        "e": "\0",
        "f": nested,
    }.items():
        (tmp_path / f"{name}.json").write_text(content)
        (tmp_path / f"{name}.json").chmod(0o600)
    wide = tmp_path / "wide.json"
    wide.write_bytes(_RECORD.to_json())
    wide.chmod(0o644)

    assert list_servers(tmp_path) == [_RECORD]
    assert wide.exists()


def test_field_of_a_newer_version_is_ignored(tmp_path: Path) -> None:
    path = announce(_RECORD, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"newer": 1}))

    assert list_servers(tmp_path) == [_RECORD]


def test_missing_directory_holds_no_servers(tmp_path: Path) -> None:
    assert list_servers(tmp_path / "none") == []


def test_runtime_directory_is_preferred_if_it_is_there(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": "/s"}

    assert run_directory(environ) == tmp_path / "streamctx"
    assert run_directory(environ | {"XDG_RUNTIME_DIR": "/nonexistent"}).name == "run"


def test_ready_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ready_file"):
        write_record(tmp_path / "none" / "ready", _RECORD)
