from __future__ import annotations

import stat
from pathlib import Path

import pytest

from streamctx.discovery import state_directory
from streamctx.errors import ConfigurationError
from streamctx.server.config import ServerConfig
from streamctx.server.private_files import (
    create_private,
    make_private_directory,
    replace_private,
)
from streamctx.server.tokens import new_token, resolve_token, token_file_of

__all__: list[str] = []


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_token_file_is_created_private_and_read_again(tmp_path: Path) -> None:
    config = ServerConfig(token_file=tmp_path / "state" / "token")
    assert config.token_file is not None

    token = resolve_token(config)

    assert resolve_token(config) == token
    assert len(token) == 43
    assert _mode(config.token_file) == 0o600
    assert _mode(config.token_file.parent) == 0o700
    assert [path.name for path in config.token_file.parent.iterdir()] == ["token"]


def test_default_token_file_is_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")

    assert token_file_of(ServerConfig()) == tmp_path / "streamctx" / "token"


def test_token_that_was_given_has_no_file() -> None:
    config = ServerConfig(token="a-token-of-enough-characters")

    assert resolve_token(config) == config.token
    assert token_file_of(config) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o700 | 0o010])
def test_token_file_with_a_wider_mode_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text(new_token())
    path.chmod(mode)

    with pytest.raises(ConfigurationError, match=f"mode {mode:04o}.*chmod 0600"):
        resolve_token(ServerConfig(token_file=path))


def test_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)

    with pytest.raises(ConfigurationError, match="mode 0777"):
        resolve_token(ServerConfig(token_file=directory / "token"))


@pytest.mark.parametrize("content", [b"", b"\n", b"short\n", b"two lines of it\nand another\n", b"\xff" * 32])
def test_unusable_token_is_refused_without_repeating_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    create_private(path, content)

    with pytest.raises(ConfigurationError, match="at least 16 visible") as caught:
        resolve_token(ServerConfig(token_file=path))

    assert "short" not in str(caught.value)


def test_token_file_that_is_a_link_a_directory_or_too_long_is_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    create_private(real, new_token().encode())
    link = tmp_path / "link"
    link.symlink_to(real)
    long = tmp_path / "long"
    create_private(long, b"x" * 4097)

    for path in (link, tmp_path, long):
        with pytest.raises(ConfigurationError, match=path.name):
            resolve_token(ServerConfig(token_file=path))


def test_creating_leaves_a_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "file"

    assert create_private(path, b"first")
    assert not create_private(path, b"second")
    assert path.read_bytes() == b"first"
    replace_private(path, b"third")
    assert path.read_bytes() == b"third"
    assert _mode(path) == 0o600
    assert len(list(tmp_path.iterdir())) == 1


def test_directory_cannot_be_made_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="file"):
        make_private_directory(tmp_path / "file")


def test_state_directory_follows_the_platform() -> None:
    home = Path.home()

    assert state_directory({}, "linux") == home / ".local/state/streamctx"
    assert state_directory({"XDG_STATE_HOME": "/s"}, "linux") == Path("/s/streamctx")
    assert state_directory({"XDG_STATE_HOME": "relative"}, "linux") == home / ".local/state/streamctx"
    assert (
        state_directory({"XDG_STATE_HOME": "/s"}, "darwin") == home / "Library/Application Support/streamctx"
    )
