"""A command finds its server by option or discovery, and sends a token only where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamctx.cli.target import NoServerError, Target, find_target
from streamctx.discovery import ServerRecord
from streamctx.errors import ConfigurationError

TOKEN = "0123456789abcdef"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


def record(port: int, token_file: Path | None, *, uds: str | None = None) -> ServerRecord:
    authority = f"127.0.0.1:{port}" if port else "localhost"
    return ServerRecord(
        protocol=1,
        url=f"ws://{authority}/v1/stream",
        http_url=f"http://{authority}",
        pid=port or 1,
        started=float(port),
        version="1",
        token_file=None if token_file is None else str(token_file),
        uds=uds,
    )


def find(
    url: str | None = None, *running: ServerRecord, option: Path | None = None, **environ: str
) -> Target:
    return find_target(url, option, environ=environ, records=lambda: list(running))


@pytest.mark.parametrize(
    ("given", "url", "http_url"),
    [
        ("ws://host:1", "ws://host:1/v1/stream", "http://host:1"),
        ("host:1", "ws://host:1/v1/stream", "http://host:1"),
        ("wss://host/v1/stream", "wss://host/v1/stream", "https://host"),
        ("https://host/below/", "wss://host/below/v1/stream", "https://host/below"),
        ("http://[::1]:1/", "ws://[::1]:1/v1/stream", "http://[::1]:1"),
    ],
)
def test_url_names_both_sides(given: str, url: str, http_url: str) -> None:
    target = find(given, STREAMCTX_TOKEN=TOKEN)
    assert (target.url, target.http_url, target.token) == (url, http_url, TOKEN)


@pytest.mark.parametrize(
    "url", ["ftp://host", "ws://", "ws://host:port", "ws://user@host", "ws://host?token=x"]
)
def test_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--url"):
        find(url, STREAMCTX_TOKEN=TOKEN)


def test_newest_server_is_taken(token_file: Path) -> None:
    target = find(None, record(1, None), record(2, token_file))
    assert (target.http_url, target.token) == ("http://127.0.0.1:2", TOKEN)


def test_no_server_says_how_to_start_one() -> None:
    with pytest.raises(NoServerError, match="streamctx serve"):
        find()


def test_token_of_a_server_that_runs_here_goes_to_no_other_one(token_file: Path) -> None:
    with pytest.raises(ConfigurationError, match="no token is known"):
        find("ws://elsewhere:1", record(1, token_file))


def test_url_of_a_server_that_runs_here_finds_its_token(token_file: Path) -> None:
    assert find("ws://127.0.0.1:1", record(1, token_file)).token == TOKEN


def test_token_in_no_file_has_to_be_given() -> None:
    with pytest.raises(ConfigurationError, match="no token is known"):
        find(None, record(1, None))
    assert find(None, record(1, None), STREAMCTX_TOKEN=f"{TOKEN}\n").token == TOKEN


def test_token_file_option_wins_over_the_environment(token_file: Path) -> None:
    assert find(None, record(1, None), option=token_file, STREAMCTX_TOKEN="another-token").token == TOKEN


def test_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        find(None, record(1, None), option=tmp_path / "nothing")


def test_token_that_fits_no_header_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="visible ASCII"):
        find(None, record(1, None), STREAMCTX_TOKEN="a\nb")


def test_socket_is_used_where_there_is_no_port(token_file: Path) -> None:
    assert find(None, record(0, token_file, uds="/run/s")).uds == Path("/run/s")
    assert find(None, record(1, token_file, uds="/run/s")).uds is None


def test_token_is_not_in_the_representation(token_file: Path) -> None:
    assert TOKEN not in repr(find(None, record(1, token_file)))
