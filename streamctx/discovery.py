"""How programs of one user find the servers that run: the files of SPEC section 16, read alike by everybody.

Servers write them (`streamctx.server.announcement`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = [
    "PROTOCOL_VERSION",
    "ServerRecord",
    "list_servers",
    "read_record",
    "run_directory",
    "state_directory",
]

PROTOCOL_VERSION = 1

_RECORD_BYTES_MAX = 16 * 1024


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a running server says about itself. It holds no secret, only where the token lies.

    Fields of a newer version are ignored.
    """

    protocol: int
    url: str
    http_url: str
    pid: int
    started: float
    """Seconds since 1970."""
    version: str
    token_file: str | None = None
    """`None` if the token is in no file."""
    uds: str | None = None

    def to_json(self) -> bytes:
        """One line of JSON; a field without a value is left out."""
        return msgspec.json.encode(self) + b"\n"


def state_directory(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Where tokens and journals live on this platform; it is not created here."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "Application Support" / "streamctx"
    base = environ.get("XDG_STATE_HOME", "")
    # The XDG specification has relative paths ignored.
    root = Path(base) if os.path.isabs(base) else home / ".local" / "state"
    return root / "streamctx"


def run_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the records lie: the user's runtime directory, which a reboot empties, or the state directory."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "streamctx"
    return state_directory(environ) / "run"


def list_servers(directory: Path | None = None) -> list[ServerRecord]:
    """The servers that run, oldest first (DSC-1); records of dead processes are removed on the way."""
    records = []
    for path in sorted((directory or run_directory()).glob("*.json")):
        record = read_record(path)
        if record is None:
            continue
        if _is_alive(record.pid):
            records.append(record)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(records, key=lambda record: record.started)


def read_record(path: Path) -> ServerRecord | None:
    """A record, or `None` if the file is not one that a server of this user wrote."""
    try:
        with open(path, "rb", opener=_open) as file:
            if not _is_ours(os.fstat(file.fileno())):
                return None
            content = file.read(_RECORD_BYTES_MAX + 1)
        if len(content) > _RECORD_BYTES_MAX:
            return None
        record = msgspec.json.decode(content, type=ServerRecord)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    return record if record.protocol == PROTOCOL_VERSION and record.pid > 0 else None


def _open(path: str, flags: int) -> int:
    # A pipe in place of the file must not keep us waiting.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))


def _is_ours(status: os.stat_result) -> bool:
    if not stat.S_ISREG(status.st_mode):
        return False
    if sys.platform == "win32":
        return True
    # Whoever could write the record could send us, and our token, elsewhere; servers write it 0600.
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


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
