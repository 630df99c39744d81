from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamctx.client.target import find_target, parse_url
from streamctx.discovery import ServerRecord, list_servers, run_directory
from streamctx.errors import ConfigurationError
from streamctx.server.announcement import announce

__all__: list[str] = []

NOWHERE = {"XDG_RUNTIME_DIR": "/nonexistent", "XDG_STATE_HOME": "/nonexistent"}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="servers run on POSIX systems")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def write(environ: dict[str, str], name: str = "1.json", mode: int = 0o600, **fields: object) -> Path:
    directory = run_directory(environ)
    directory.mkdir(mode=0o700, exist_ok=True)
    record = {
        "protocol": 1,
        "url": "ws://127.0.0.1:1/v1/stream",
        "http_url": "http://127.0.0.1:1",
        "version": "1",
        "pid": os.getpid(),
        "started": 1.0,
        **fields,
    }
    path = directory / name
    path.write_text(json.dumps(record))
    path.chmod(mode)
    return path


def write_token(tmp_path: Path, content: str = "secret-of-the-file\n") -> str:
    path = tmp_path / "token"
    path.write_text(content)
    return str(path)


def find(environ: dict[str, str], **arguments: str) -> tuple[str, int, str | None]:
    chosen = dict.fromkeys(("url", "token", "token_file", "uds")) | arguments
    target = find_target(environ=environ, **chosen)
    return target.uri.host, target.uri.port, target.token


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("ws://h", "/v1/stream"),
        ("ws://h/", "/v1/stream"),
        ("wss://h:1/other", "/other"),
        ("ws://[::1]:8", "/v1/stream"),
    ],
)
def test_url_gets_the_path_of_the_protocol(url: str, path: str) -> None:
    assert parse_url(url).path == path


@pytest.mark.parametrize("url", ["", "h:1", "http://h", "ws://", "ws://u:p@h", "ws://h?token=x", "ws://h:x"])
def test_wrong_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_url(url)
    assert "u:p" not in str(refused.value) and "token=x" not in str(refused.value)


def test_server_that_announced_itself_is_found(environ: dict[str, str], tmp_path: Path) -> None:
    record = ServerRecord(
        protocol=1,
        url="ws://127.0.0.1:7/v1/stream",
        http_url="http://127.0.0.1:7",
        pid=os.getpid(),
        started=1.0,
        version="1",
        token_file=write_token(tmp_path),
    )
    announce(record, run_directory(environ))
    assert find(environ) == ("127.0.0.1", 7, "secret-of-the-file")


def test_newest_server_wins(environ: dict[str, str]) -> None:
    write(environ, "2.json", url="ws://127.0.0.1:2", started=20.0)
    write(environ, "1.json", url="ws://127.0.0.1:1", started=10.0)
    assert find(environ)[1] == 2


def test_unix_socket_is_preferred_where_there_is_one(environ: dict[str, str]) -> None:
    write(environ, url="ws://localhost/v1/stream", uds="/run/s")
    assert find_target(url=None, token="t", token_file=None, uds=None, environ=environ).uds == "/run/s"
    write(environ, url="wss://localhost/v1/stream", uds="/run/s")
    assert find_target(url=None, token="t", token_file=None, uds=None, environ=environ).uds is None


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol": 2},
        {"pid": 0},
        {"pid": -1},
        {"pid": "1"},
        {"url": 1},
        {"url": "http://x"},
        {"started": "now"},
        {"token_file": 3},
        {"mode": 0o622},
    ],
)
def test_unsound_records_are_ignored(environ: dict[str, str], fields: dict[str, object]) -> None:
    write(environ, **fields)  # type: ignore[arg-type]
    with pytest.raises(ConnectionError, match="no server was found"):
        find(environ)


@pytest.mark.parametrize("content", ["", "[]", "x", "[" * 20_000])
def test_files_that_are_no_records_are_ignored(environ: dict[str, str], content: str) -> None:
    write(environ).write_text(content)
    assert list_servers(run_directory(environ)) == []


def test_record_of_a_dead_process_is_ignored(environ: dict[str, str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write(environ, pid=process.pid)
    with pytest.raises(ConnectionError, match="no server was found"):
        find(environ)


def test_nothing_found_says_where_it_looked(environ: dict[str, str]) -> None:
    with pytest.raises(ConnectionError, match=str(run_directory(environ))):
        find(environ)


def test_environment_wins_over_discovery_and_arguments_over_both(
    environ: dict[str, str], tmp_path: Path
) -> None:
    write(environ, token_file=write_token(tmp_path))
    environ["STREAMCTX_URL"] = "ws://env:5"
    assert find(environ) == ("env", 5, None)
    environ["STREAMCTX_TOKEN_FILE"] = write_token(tmp_path, "of-the-variable")
    assert find(environ)[2] == "of-the-variable"
    environ["STREAMCTX_TOKEN"] = "direct"
    assert find(environ)[2] == "direct"
    assert find(environ, url="ws://argument:6", token="mine") == ("argument", 6, "mine")


def test_discovered_token_goes_to_its_own_server_alone(environ: dict[str, str], tmp_path: Path) -> None:
    write(environ, url="ws://127.0.0.1:1/v1/stream", token_file=write_token(tmp_path), uds="/run/s")
    assert find(environ, url="ws://127.0.0.1:1")[2] == "secret-of-the-file"
    assert find(environ, uds="/run/s")[2] == "secret-of-the-file"
    assert find(environ, url="ws://127.0.0.1:2")[2] is None
    assert find(environ, url="wss://127.0.0.1:1")[2] is None
    assert find(environ, uds="/run/other")[2] is None


def test_two_tokens_are_one_too_many() -> None:
    with pytest.raises(ConfigurationError, match="both set"):
        find(NOWHERE, url="ws://h", token="t", token_file="f")


@pytest.mark.parametrize("content", ["", "\n", "two words", "é", "a\nb", "x" * 5000])
def test_unusable_token_file_is_refused_without_showing_it(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError, match="token_file") as refused:
        find(NOWHERE, url="ws://h", token_file=write_token(tmp_path, content))
    assert not content.strip() or content not in str(refused.value)


def test_missing_token_file_may_still_come(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="token_file"):
        find(NOWHERE, url="ws://h", token_file=str(tmp_path / "none"))


def test_token_is_not_shown() -> None:
    target = find_target(url="ws://h", token="hidden", token_file=None, uds=None, environ=NOWHERE)
    assert "hidden" not in repr(target)
    assert target.place == "ws://h:80"
