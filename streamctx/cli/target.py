"""Which server a command talks to, and with which token: options, environment, discovery, in this order.

As in the client, a token that discovery names goes to the server that named it alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import click

from streamctx.cli.path_option import PathOption
from streamctx.discovery import ServerRecord, list_servers
from streamctx.errors import ConfigurationError, StreamctxError
from streamctx.server.tokens import read_token

__all__ = ["NoServerError", "Target", "find_target", "target_options"]

_STREAM_PATH = "/v1/stream"
_SCHEMES = {"ws": "http", "wss": "https", "http": "http", "https": "https"}

F = TypeVar("F", bound=Callable[..., object])


class NoServerError(StreamctxError):
    """No server runs here, and none was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how to reach it."""

    url: str
    """Of the WebSocket."""
    http_url: str
    """Without path and final slash."""
    token: str = field(repr=False)
    uds: Path | None = None
    """Set if the server listens on a Unix socket alone."""


def target_options(function: F) -> F:
    """Give a command the options `--url` and `--token-file`."""
    url = click.option(
        "--url",
        envvar="STREAMCTX_URL",
        show_envvar=True,
        metavar="URL",
        help="The server, such as ws://127.0.0.1:8787; without it, the one that runs here.",
    )
    token_file = click.option(
        "--token-file",
        envvar="STREAMCTX_TOKEN_FILE",
        show_envvar=True,
        type=PathOption(),
        help="File with the server's token. STREAMCTX_TOKEN can hold the token itself.",
    )
    return url(token_file(function))


def find_target(
    url: str | None = None,
    token_file: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    records: Callable[[], list[ServerRecord]] = list_servers,
) -> Target:
    """The server that was named, or of those that run here the one that was started last.

    Args:
        url: From `--url`.
        token_file: From `--token-file`.
        environ: Where `STREAMCTX_TOKEN` may be.
        records: The servers that run here, oldest first.

    Raises:
        NoServerError: If none was named and none runs.
        ConfigurationError: If the URL is not one, or there is no token.
    """
    running = records()
    if url is not None:
        url, http_url = _urls_of(url)
        record = next((record for record in running if record.http_url == http_url), None)
    else:
        record = _newest(running)
        url, http_url = record.url, record.http_url
    return Target(
        url=url,
        http_url=http_url,
        token=_token(token_file, record, environ),
        uds=None if record is None or record.uds is None or urlsplit(url).port else Path(record.uds),
    )


def _newest(running: list[ServerRecord]) -> ServerRecord:
    if not running:
        raise NoServerError("no server runs here; start one with `streamctx serve`, or name one with --url")
    if len(running) > 1:
        click.echo(
            f"{len(running)} servers run here; this is {running[-1].http_url}, the newest. "
            "--url names another one.",
            err=True,
        )
    return running[-1]


def _urls_of(url: str) -> tuple[str, str]:
    """The WebSocket's URL and the HTTP side's, from either."""
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConfigurationError(f"--url: {url!r} is not a URL ({error})") from error
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not host:
        raise ConfigurationError(f"--url: {url!r}; write ws://host:port or wss://host:port")
    if parts.username is not None or parts.query:
        raise ConfigurationError("--url: a token never stands in a URL; use --token-file or STREAMCTX_TOKEN")
    path = parts.path.removesuffix("/").removesuffix(_STREAM_PATH)
    authority = f"[{host}]" if ":" in host else host
    if port is not None:
        authority += f":{port}"
    stream_scheme = "wss" if scheme == "https" else "ws"
    return f"{stream_scheme}://{authority}{path}{_STREAM_PATH}", f"{scheme}://{authority}{path}"


def _token(token_file: Path | None, record: ServerRecord | None, environ: Mapping[str, str]) -> str:
    if token_file is not None:
        return _read(token_file)
    token = environ.get("STREAMCTX_TOKEN", "").strip()
    if token:
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigurationError("STREAMCTX_TOKEN holds a character that is not visible ASCII")
        return token
    if record is None or record.token_file is None:
        raise ConfigurationError(
            "no token is known for that server; set --token-file, STREAMCTX_TOKEN_FILE or STREAMCTX_TOKEN"
        )
    return _read(Path(record.token_file))


def _read(path: Path) -> str:
    try:
        return read_token(path)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"token_file {path} does not exist; set --token-file or STREAMCTX_TOKEN"
        ) from error
