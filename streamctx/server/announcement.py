"""Tell the programs of the same user that a server runs, and where; `streamctx.discovery` reads it."""

from __future__ import annotations

import time
from pathlib import Path

from streamctx.discovery import ServerRecord, read_record, run_directory
from streamctx.errors import ConfigurationError
from streamctx.server.private_files import create_private, make_private_directory, replace_private

__all__ = ["announce", "write_record"]

# A file under our own pid that is older than this module is a dead namesake's: in a container every server
# has the same pid.
_LOADED_AT = time.time()


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
        found = read_record(path)
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
