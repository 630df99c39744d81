"""Looks at a store that no server has, as the next start would read it, and changes nothing.

The file alone is read where it is. With a log beside it, it would have to be locked and the log be written
to, so that a copy of both is read.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamctx.engine.base import SetAside
from streamctx.engine.sqlite import journal, quarantine
from streamctx.engine.sqlite.library import Database, DatabaseError, StandardDatabase
from streamctx.engine.sqlite.opening import read_meta
from streamctx.engine.sqlite.place import FILE_NAME
from streamctx.engine.sqlite.schema import SCHEMA_VERSION, version_of
from streamctx.engine.sqlite.sessions import read_entries
from streamctx.errors import ConfigurationError

__all__ = ["Inspection", "inspect", "is_in_use"]

# Of both files; more would take too long and too much room for a look.
_COPY_BYTES_MAX = 256 << 20
# SQLite's locks: the pending byte, the reserved byte and the shared range (https://sqlite.org/lockingv3.html).
_LOCK_START = 0x40000000
_LOCK_BYTES = 512

_DAMAGED = "the file is damaged: restore a backup, or move it away to begin anew"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found."""

    fault: str | None = None
    """Why a server would not start with it."""
    session_count: int | None = None
    """`None` if it was not read: a server has it, or it is too much."""
    set_aside: Sequence[SetAside] = ()


def is_in_use(path: Path) -> bool:
    """Whether another process has the store. Not for a store of this process: it would lose its lock.

    Raises:
        OSError: If the file cannot be read.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_START)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(file, fcntl.LOCK_UN, _LOCK_BYTES, _LOCK_START)
    return False


def inspect(path: Path) -> Inspection:
    """Look at the file of a store that has no fault in its head.

    Raises:
        OSError: If it cannot be read or copied.
    """
    if is_in_use(path):
        return Inspection()
    found = _inspect(path)
    # A server that began meanwhile has changed what was read.
    return Inspection() if found.fault is not None and is_in_use(path) else found


def _inspect(path: Path) -> Inspection:
    log = path.with_name(f"{FILE_NAME}-wal")
    log_bytes = log.stat().st_size if log.exists() else 0
    if not log_bytes:
        fault = _fault_in_size(path)
        return Inspection(fault) if fault else _read(path, is_frozen=True)
    if path.stat().st_size + log_bytes > _COPY_BYTES_MAX:
        return Inspection()
    # Its mode is 0700.
    with tempfile.TemporaryDirectory(prefix="streamctx-") as directory:
        for each in (path, log):
            shutil.copyfile(each, Path(directory) / each.name)
        return _read(Path(directory) / path.name, is_frozen=False)


def _fault_in_size(path: Path) -> str | None:
    """Whether the end is missing. More than was written does no harm."""
    with path.open("rb") as file:
        head = file.read(100)
        found_bytes = file.seek(0, 2)
    page_bytes = int.from_bytes(head[16:18])
    page_bytes = 1 << 16 if page_bytes == 1 else page_bytes
    written_bytes = page_bytes * int.from_bytes(head[28:32])
    if found_bytes < written_bytes:
        return (
            f"the file is cut off, with {found_bytes} bytes of {written_bytes}: "
            "restore a backup, or move it away to begin anew"
        )
    return None


def _read(path: Path, *, is_frozen: bool) -> Inspection:
    try:
        database = StandardDatabase(path, is_frozen=is_frozen)
        try:
            return _read_tables(database)
        finally:
            database.close()
    except ConfigurationError as error:
        return Inspection(str(error))
    except DatabaseError:
        return Inspection(_DAMAGED)


def _read_tables(database: Database) -> Inspection:
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    version = version_of(database)
    if version == 0:
        return Inspection("the file is empty or cut off; restore a backup, or move it away")
    if version < SCHEMA_VERSION:
        # The next start brings it to the present tables.
        return Inspection()
    meta = read_meta(database)
    entries = read_entries(database, lambda: None)
    for _ in journal.scan(database, meta.scanned):
        pass
    return Inspection(None, len(entries), quarantine.read_all(database, principal=None))
