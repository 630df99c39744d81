"""The access token of a server: where it comes from and the file that keeps it."""

from __future__ import annotations

import secrets
from pathlib import Path

from streamctx.discovery import state_directory
from streamctx.errors import ConfigurationError
from streamctx.server.config import ServerConfig
from streamctx.server.private_files import (
    create_private,
    make_private_directory,
    read_private,
)

__all__ = ["default_token_file", "new_token", "read_token", "resolve_token", "token_file_of"]

_TOKEN_BYTES = 32
_TOKEN_LENGTH_MIN = 16
_TOKEN_FILE_BYTES_MAX = 4096


def new_token() -> str:
    """A fresh token: 256 random bits, safe in a header and in a shell."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def default_token_file() -> Path:
    """The token file of a server that was not told another one."""
    return state_directory() / "token"


def token_file_of(config: ServerConfig) -> Path | None:
    """The file that holds the token of such a server, `None` if no file does."""
    if config.token is not None:
        return None
    return config.token_file or default_token_file()


def resolve_token(config: ServerConfig) -> str:
    """The token of a server with this configuration; the first call creates its file.

    The hub is built with it, and later calls return the same.

    Raises:
        ConfigurationError: If the file or its directory is not private, or holds no usable token.
    """
    path = token_file_of(config)
    if path is None:
        assert config.token is not None
        return config.token
    make_private_directory(path.parent)
    try:
        return read_token(path)
    except FileNotFoundError:
        pass
    try:
        create_private(path, new_token().encode("ascii") + b"\n")
    except OSError as error:
        raise ConfigurationError(f"token_file {path}: {error.strerror}; it cannot be created") from error
    # Another server may have been first; the token is what the file says.
    return read_token(path)


def read_token(path: Path) -> str:
    """Read a token file.

    Raises:
        FileNotFoundError: If there is none.
        ConfigurationError: If it is not private or holds no usable token.
    """
    content = read_private(path, _TOKEN_FILE_BYTES_MAX)
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < _TOKEN_LENGTH_MIN or not token.isprintable() or " " in token:
        raise ConfigurationError(
            f"token_file {path} must hold one line of at least {_TOKEN_LENGTH_MIN} visible ASCII characters"
        )
    return token
