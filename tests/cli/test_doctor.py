"""`streamctx doctor` finds what is broken, and leaves what is sound alone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import sqlite3
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamctx import __version__
from streamctx.cli import checks
from streamctx.cli.checks import DEPENDENCIES, EXTRAS, check_extras, check_import_name
from streamctx.discovery import ServerRecord
from streamctx.engine.base import Damaged
from streamctx.engine.sqlite import SqliteStore
from tests.cli.running import Home
from tests.engine.samples import record

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def names_of(requirements: list[str]) -> tuple[str, ...]:
    return tuple(re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in requirements)


def findings(home: Home, *, status: int) -> dict[str, dict[str, Any]]:
    result = home.run("doctor", "--json")
    assert (result.returncode, result.stderr) == (status, "")
    report = json.loads(result.stdout)
    assert report["ok"] is (status == 0)
    return {finding["check"]: finding for finding in report["findings"]}


def test_dependencies_are_those_of_the_distribution() -> None:
    assert set(names_of(PROJECT["dependencies"])) == set(DEPENDENCIES)


def test_extras_are_those_of_the_distribution() -> None:
    extras = {extra: names_of(names) for extra, names in PROJECT["optional-dependencies"].items()}
    assert extras == EXTRAS


def test_missing_extra_is_no_fault_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", no_version)
    [finding] = check_extras()
    assert finding.status == "ok"
    assert finding.message == "not installed; pip install 'streamctx-server[watch]'"


def test_other_project_of_that_name_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "packages_distributions", lambda: {"streamctx": ["streamctx-server", "other"]}
    )
    [finding] = check_import_name()
    assert finding.status == "warning"
    assert finding.message.startswith("other also provides the module streamctx")


@pytest.mark.e2e
def test_sound_installation_passes(home: Home) -> None:
    found = findings(home, status=0)
    assert {finding["status"] for finding in found.values()} == {"ok"}
    assert found["servers"]["message"].startswith("none runs")
    assert "went over a WebSocket on loopback" in found["self-test"]["message"]
    result = home.run("doctor")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == len(found)
    # It has left nothing behind.
    assert not (home.path / "state").exists()


@pytest.mark.e2e
def test_running_server_is_asked(home: Home) -> None:
    with home.serve() as server:
        found = findings(home, status=0)
        message = found[f"server {server.process.pid}"]["message"]
        assert message.startswith(server.ready["http_url"])
        assert message.endswith("health ok, token accepted")
        assert "mode 0600 in a directory of mode 0700" in found["token file"]["message"]


@pytest.mark.e2e
def test_the_store_is_looked_at_and_left_alone(home: Home) -> None:
    directory = home.path / "state" / "streamctx" / "data"
    assert "store" not in findings(home, status=0)
    with home.serve():
        message = findings(home, status=0)["store"]["message"]
        assert message.startswith(f"{directory}, mode 0700, ")
        assert " MB, " in message
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert findings(home, status=0)["store"]["status"] == "ok"
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert re.fullmatch(r"3\.\d+\.\d+", findings(home, status=0)["sqlite"]["message"])


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda store: store.parent.chmod(0o755), "run chmod 700 on it"),
        (lambda store: store.chmod(0o640), "run chmod 600 on it"),
        (lambda store: store.write_bytes(b""), "the file is empty or cut off"),
        (lambda store: store.write_bytes(bytes(4096)), "the file is no database"),
        (lambda store: patch(store, 68, 1), "the database of another program"),
        (lambda store: patch(store, 60, 99), "a newer streamctx (schema 99, known is "),
        (
            lambda store: store.write_bytes(store.read_bytes()[:6000]),
            "cut off, with 6000 bytes of ",
        ),
        (lambda store: store.write_bytes(store.read_bytes()[:-4096]), "the file is cut off, with "),
        (lambda store: flip(store, 20), "is damaged"),
        (lambda store: flip(store, 4100), "is damaged"),
    ],
)
def test_a_store_that_cannot_be_used_is_broken(
    home: Home, harm: Callable[[Path], object], message: str
) -> None:
    with home.serve():
        pass
    harm(home.path / "state" / "streamctx" / "data" / "store.db")
    found = findings(home, status=1)["store"]
    assert found["status"] == "broken"
    assert message in found["message"]


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.e2e
def test_a_store_elsewhere_is_looked_at(home: Home) -> None:
    directory = home.path / "elsewhere"
    result = home.run("doctor", "--data", str(directory))
    assert result.returncode == 1
    assert f"there is no store in {directory}" in result.stdout
    assert not directory.exists()
    with home.serve_to_death("--data", str(directory)):
        pass
    # What the server did not copy into the file is in the log.
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert before["store.db-wal"]
    result = home.run("doctor", "--data", str(directory))
    assert (result.returncode, result.stderr) == (0, "")
    assert " are free, 0 sessions\n" in result.stdout
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


@pytest.mark.e2e
def test_what_was_set_aside_is_a_warning(home: Home) -> None:
    (home.path / "state" / "streamctx").mkdir(parents=True, mode=0o700)
    directory = home.path / "state" / "streamctx" / "data"
    store = SqliteStore.open(directory)
    store.fence(record(principal="owner"))
    store.close()
    with contextlib.closing(sqlite3.connect(directory / "store.db")) as connection, connection:
        connection.execute("UPDATE sessions SET digest = digest + 1")
    store = SqliteStore.open(directory)
    assert isinstance(store.load("s1"), Damaged)
    store.close()
    found = findings(home, status=0)["damaged"]
    assert found["status"] == "warning"
    assert found["message"].startswith(f"in {directory} 1 session set aside as damaged: ")
    with home.serve() as server:
        found = findings(home, status=0)["damaged"]
        assert found["message"].startswith(f"in {server.ready['http_url']} 1 session set aside")


@pytest.mark.e2e
def test_a_server_that_stores_nothing_is_told(home: Home) -> None:
    with home.serve("--ephemeral") as server:
        message = findings(home, status=0)[f"server {server.process.pid}"]["message"]
        assert ", stores nothing, health ok" in message


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        (None, "ok", "stores in /d, health"),
        ("the disk", "broken", "; cannot store: the disk"),
    ],
)
def test_a_server_that_cannot_store_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str | None, status: str, text: str
) -> None:
    answers: dict[str, object] = {
        "/healthz": {"status": "ok"},
        "/version": {"version": __version__},
        "/v1/sessions?stored=true": {"sessions": [], "damaged": []},
        "/v1/store": {"directory": "/d", "durability": "full", "fault": fault},
    }
    token_file = tmp_path / "token"
    token_file.write_text("t" * 43)
    token_file.chmod(0o600)
    server = ServerRecord(
        protocol=1,
        url="ws://127.0.0.1:1/v1/stream",
        http_url="http://127.0.0.1:1",
        pid=1,
        started=1.0,
        version=__version__,
        token_file=str(token_file),
    )
    monkeypatch.setattr(checks, "list_servers", lambda: [server])
    monkeypatch.setattr(checks, "get_json", lambda _, path: answers[path])
    [finding] = checks.check_servers()
    assert finding.status == status
    assert text in finding.message


def patch(path: Path, offset: int, number: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + 4] = number.to_bytes(4)
    path.write_bytes(content)


@pytest.mark.e2e
def test_token_file_that_others_can_read_is_broken(home: Home) -> None:
    with home.serve() as server:
        os.chmod(server.ready["token_file"], 0o644)
        found = findings(home, status=1)
        assert found["token file"]["status"] == "broken"
        assert "chmod 0600" in found["token file"]["message"]


@pytest.mark.e2e
def test_server_that_does_not_answer_is_broken(home: Home) -> None:
    directory = home.runtime / "streamctx"
    directory.mkdir(mode=0o700)
    file = directory / f"{os.getpid()}.json"
    file.write_text(
        json.dumps(
            {
                "protocol": 1,
                "url": "ws://127.0.0.1:1/v1/stream",
                "http_url": "http://127.0.0.1:1",
                "pid": os.getpid(),
                "started": 1.0,
                "version": "1",
            }
        )
    )
    file.chmod(0o600)
    found = findings(home, status=1)
    assert found[f"server {os.getpid()}"] == {
        "check": f"server {os.getpid()}",
        "status": "broken",
        "message": "http://127.0.0.1:1 cannot be reached: Connection refused",
    }
