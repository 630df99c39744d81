"""Files by which programs of the same user find the servers that run."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from streamctx.errors import ConfigurationError
from streamctx.server.private_files import (
    create_private,
    make_private_directory,
    read_private,
    replace_private,
    state_directory,
)

__all__ = ["PROTOCOL_VERSION", "ServerRecord", "announce", "list_servers", "run_directory", "write_record"]

PROTOCOL_VERSION = 1

_RECORD_BYTES_MAX = 16 * 1024

# A file under our own pid that is older than this module is a dead namesake's: in a container every server
# has the same pid.
_LOADED_AT = time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """What a running server says about itself. It holds no secret, only where the token lies."""

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
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(fields).encode() + b"\n"


def run_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the records lie: the user's runtime directory, which a reboot empties, or the state directory."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "streamctx"
    return state_directory(environ) / "run"


def announce(record: ServerRecord, directory: Path | None = None) -> Path:
    """Write a record for others to find.

    Returns:
        The file, to be unlinked when the server stops.

    Raises:
        ConfigurationError: If the directory is not private or cannot be written.
    """
    directory = directory or run_directory()
    make_private_directory(directory)
    path = directory / f"{record.pid}.json"
    try:
        if create_private(path, record.to_json()):
            return path
        found = _read(path)
        if found is None or found.started < _LOADED_AT:
            replace_private(path, record.to_json())
            return path
        # A second server of one process.
        path = directory / f"{record.pid}-{record.started:.6f}.json"
        replace_private(path, record.to_json())
    except OSError as error:
        raise ConfigurationError(f"discovery: {path}: {error.strerror}; it cannot be written") from error
    return path


def write_record(path: Path, record: ServerRecord) -> None:
    """Write a record under a name of the caller's choice (`ready_file`).

    Raises:
        ConfigurationError: If it cannot be written.
    """
    try:
        replace_private(path, record.to_json())
    except OSError as error:
        raise ConfigurationError(f"ready_file: {path}: {error.strerror}; it cannot be written") from error


def list_servers(directory: Path | None = None) -> list[ServerRecord]:
    """The servers that run, oldest first; records of dead processes are removed on the way."""
    directory = directory or run_directory()
    records = []
    for path in sorted(directory.glob("*.json")):
        record = _read(path)
        if record is None:
            continue
        if _is_alive(record.pid):
            records.append(record)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(records, key=lambda record: record.started)


def _read(path: Path) -> ServerRecord | None:
    """A record, or `None` if the file is not one that a server of this user wrote."""
    try:
        fields = json.loads(read_private(path, _RECORD_BYTES_MAX))
        # Fields of a newer version are ignored.
        record = ServerRecord(**{name: fields[name] for name in ServerRecord.__slots__ if name in fields})
        return record if _is_valid(asdict(record)) else None
    except (OSError, ConfigurationError, ValueError, TypeError):
        return None


def _is_valid(fields: dict[str, object]) -> bool:
    pid = fields["pid"]
    return (
        isinstance(pid, int)
        and pid > 0
        and isinstance(fields["started"], float | int)
        and isinstance(fields["url"], str)
        and isinstance(fields["http_url"], str)
    )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
