"""Where the server is and which token it wants: arguments, environment, then the files of SPEC section 16.

Only reads. The writing side is the server's; the two share the specification and no code, since
client and server do not import each other.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from websockets.exceptions import InvalidURI
from websockets.uri import WebSocketURI, parse_uri

from streamctx.errors import ConfigurationError

__all__ = ["STREAM_PATH", "Found", "Target", "find_servers", "find_target", "parse_url", "run_directory"]

STREAM_PATH = "/v1/stream"
_RECORD_BYTES_MAX = 16 * 1024
_TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """What a running server says about itself."""

    url: str
    pid: int
    started: float
    token_file: str | None
    uds: str | None


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and with what."""

    uri: WebSocketURI
    token: str | None = field(repr=False)
    uds: str | None = None

    @property
    def place(self) -> str:
        """For people: the address, without the token."""
        if self.uds is not None:
            return "the Unix socket"
        host = f"[{self.uri.host}]" if ":" in self.uri.host else self.uri.host
        return f"{'wss' if self.uri.secure else 'ws'}://{host}:{self.uri.port}"


class _Record(msgspec.Struct, frozen=True):
    protocol: int
    url: str
    pid: int
    started: float
    token_file: str | None = None
    uds: str | None = None


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
    found: Found | None = None
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


def run_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the servers of this user announce themselves."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "streamctx"
    return _state_directory(environ) / "run"


def find_servers(directory: Path) -> list[Found]:
    """The servers that run, oldest first (DSC-1)."""
    records = (_read_record(path) for path in sorted(directory.glob("*.json")))
    running = [record for record in records if record is not None and _is_alive(record.pid)]
    return sorted(running, key=lambda record: record.started)


def _newest(environ: Mapping[str, str]) -> Found:
    directory = run_directory(environ)
    servers = find_servers(directory)
    if not servers:
        raise ConnectionError(
            f"no server was found: url and STREAMCTX_URL are not set, and {directory} names none that runs; "
            "start one with `streamctx serve`"
        )
    return servers[-1]


def _named(url: str | None, uds: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Found | None:
    """The running server of that address, of which discovery may know the token's file."""
    for server in reversed(find_servers(run_directory(environ))):
        if uds is not None and server.uds is not None and os.path.abspath(uds) == server.uds:
            return server
        if url is not None and _same_address(url, server.url):
            return server
    return None


def _same_address(one: str, other: str) -> bool:
    first, second = parse_url(one), parse_url(other)
    return (first.secure, first.host, first.port, first.path) == (
        second.secure,
        second.host,
        second.port,
        second.path,
    )


def _state_directory(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / "streamctx"
    home = Path(environ.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "streamctx"
    return home / ".local" / "state" / "streamctx"


def _read_record(path: Path) -> Found | None:
    """A record, or `None` if the file is not one that a server of this user wrote."""
    try:
        with path.open("rb") as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = file.read(_RECORD_BYTES_MAX + 1)
        if len(content) > _RECORD_BYTES_MAX:
            return None
        record = msgspec.json.decode(content, type=_Record)
        parse_url(record.url)
    except (OSError, ConfigurationError, msgspec.DecodeError):
        return None
    if record.protocol != 1 or record.pid <= 0:
        return None
    return Found(record.url, record.pid, record.started, record.token_file, record.uds)


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    # Whoever could write the record could send us, and our token, elsewhere.
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # There, signal 0 would end the process; a dead server refuses the connection.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


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
