"""Where the server is and which token it wants: arguments, environment, then the discovery files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from streamctx.discovery import ServerRecord, list_servers, run_directory
from streamctx.errors import ConfigurationError

__all__ = ["STREAM_PATH", "Target", "find_target", "parse_url"]

STREAM_PATH = "/v1/stream"
_TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and with what."""

    uri: WebSocketURI
    token: str | None = field(repr=False)
    uds: str | None = None

    @property
    def address(self) -> str:
        """What tells one server from another, without the token."""
        if self.uds is not None:
            # A path may hold what is no text.
            return f"unix:{os.path.abspath(self.uds).encode('utf-8', 'backslashreplace').decode()}"
        uri = self.uri
        return f"{'wss' if uri.secure else 'ws'}://{uri.host.lower()}:{uri.port}{uri.path}"

    @property
    def place(self) -> str:
        """For people: the address, without the token."""
        if self.uds is not None:
            return "the Unix socket"
        host = f"[{self.uri.host}]" if ":" in self.uri.host else self.uri.host
        return f"{'wss' if self.uri.secure else 'ws'}://{host}:{self.uri.port}"


def parse_url(url: str) -> WebSocketURI:
    """Take an address apart; without a path it gets that of the protocol.

    Raises:
        ConfigurationError: If it is not `ws://…` or `wss://…`, or holds what belongs elsewhere.
    """
    try:
        uri = parse_uri(url)
    except (InvalidURI, ValueError) as error:
        # The text itself may hold a password: it is not shown.
        raise ConfigurationError("url is not a WebSocket address; write ws://host:port") from error
    if uri.username is not None:
        raise ConfigurationError("url holds a user name; give the token as token or token_file")
    if uri.query:
        raise ConfigurationError("url holds a query; give the token as token or token_file")
    if uri.path in ("", "/"):
        uri.path = STREAM_PATH
    return uri


def find_target(
    *,
    url: str | None,
    token: str | None,
    token_file: str | os.PathLike[str] | None,
    uds: str | os.PathLike[str] | None,
    environ: Mapping[str, str] = os.environ,
) -> Target:
    """Decide where to connect. Arguments win over the environment, and that over the discovery files.

    Without any, it is the server of this user that was started last. A token that discovery names goes to
    the server that named it alone.

    Raises:
        ConfigurationError: If an argument or a variable is wrong.
        ConnectionError: If no server, or no token file, is there; both may still come.
    """
    if uds is None and url is None:
        url = environ.get("STREAMCTX_URL") or None
    if token is None and token_file is None:
        token = environ.get("STREAMCTX_TOKEN") or None
        if token is None:
            token_file = environ.get("STREAMCTX_TOKEN_FILE") or None
    if token is not None and token_file is not None:
        raise ConfigurationError("token and token_file are both set; one is allowed")
    found: ServerRecord | None = None
    if url is None and uds is None:
        found = _newest(environ)
    elif token is None and token_file is None:
        found = _named(url, uds, environ)
    if token is None and token_file is None and found is not None:
        token_file = found.token_file
    if url is None and uds is None and found is not None and not parse_url(found.url).secure:
        uds = found.uds  # Where there is a socket there may be no port.
    address = url or (found.url if found is not None else "ws://localhost")
    return Target(
        parse_url(address),
        token if token_file is None else _read_token(Path(token_file)),
        None if uds is None else os.fspath(uds),
    )


def _newest(environ: Mapping[str, str]) -> ServerRecord:
    directory = run_directory(environ)
    servers = [server for server in list_servers(directory) if _is_address(server.url)]
    if not servers:
        raise ConnectionError(
            f"no server was found: url and STREAMCTX_URL are not set, and {directory} names none that runs; "
            "start one with `streamctx serve`"
        )
    return servers[-1]


def _named(
    url: str | None, uds: str | os.PathLike[str] | None, environ: Mapping[str, str]
) -> ServerRecord | None:
    """The running server of that address, of which discovery may know the token's file."""
    for server in reversed(list_servers(run_directory(environ))):
        if uds is not None and server.uds is not None and os.path.abspath(uds) == server.uds:
            return server
        if url is not None and _is_address(server.url) and _same_address(url, server.url):
            return server
    return None


def _is_address(url: str) -> bool:
    try:
        parse_url(url)
    except ConfigurationError:
        return False
    return True


def _same_address(one: str, other: str) -> bool:
    first, second = parse_url(one), parse_url(other)
    return (first.secure, first.host, first.port, first.path) == (
        second.secure,
        second.host,
        second.port,
        second.path,
    )


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise ConnectionError(f"token_file: {path}: {error.strerror}") from error
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or len(content) > _TOKEN_BYTES_MAX or not token.isprintable() or " " in token:
        raise ConfigurationError(f"token_file: {path} does not hold one line of visible ASCII characters")
    return token
