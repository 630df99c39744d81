"""Opens the file of a store, or refuses it with a reason.

SQLite 3.7.0 to 3.51.2 can lose commits when two connections of one file write, or copy the log, at the very
moment at which the log is reset. A store has one connection only, which holds an exclusive lock on the file
from its first read to its end; so no second one can be there, and the versions in that range are safe. Never
open a second connection to a store with the standard library's module, not even to read: backups go through
the same connection. The exclusive lock, set before the log is first used, also means that SQLite needs no
shared memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from streamctx.engine.base import StoreError
from streamctx.engine.sqlite.library import (
    CORRUPT,
    FULL,
    LOCKED_CODES,
    NOTADB,
    Database,
    DatabaseError,
    Value,
)
from streamctx.engine.sqlite.schema import migrate, version_of
from streamctx.errors import ConfigurationError

__all__ = ["FileDurability", "Meta", "opened", "read_meta"]

FileDurability = Literal["full", "relaxed"]

# STRICT tables came with it.
_OLDEST_VERSION = (3, 37, 0)
# The file cannot be used, and the disk has done nothing wrong.
_HARMLESS_CODES = LOCKED_CODES | {CORRUPT, FULL, NOTADB}
_SYNCHRONOUS = {"full": "FULL", "relaxed": "NORMAL"}


class Meta(msgspec.Struct, frozen=True):
    """What a store knows of itself."""

    store_id: str
    run: int
    """Starts so far."""
    is_open: bool
    """Whether its last run did not end in order, or goes on."""
    scanned: int
    """The row of the journal up to which the heads are known."""


@contextlib.contextmanager
def opened(
    path: Path, factory: Callable[[Path], Database], *, durability: FileDurability
) -> Iterator[Database]:
    """Open and lock the file of a store, and bring it to the present schema.

    If what is done with it fails it is closed again.

    Raises:
        ConfigurationError: If the library is too old, or the file is in use, damaged, of a newer streamctx or
            of another program.
        StoreError: If the disk fails or is full.
    """
    database: Database | None = None
    try:
        database = factory(path)
        if database.version < _OLDEST_VERSION:
            raise ConfigurationError(
                f"this Python has SQLite {_dotted(database.version)}, and a store needs "
                f"{_dotted(_OLDEST_VERSION)} or newer: use a newer Python, or --ephemeral to store nothing"
            )
        _configure(database, durability)
        yield database
    except DatabaseError as error:
        if database is not None:
            _let_go(database, is_disk_good=error.primary in _HARMLESS_CODES)
        raise _translation(path, error) from error
    except BaseException:
        if database is not None:
            _let_go(database, is_disk_good=True)
        raise


def read_meta(database: Database) -> Meta:
    """Read what a store knows of itself.

    Raises:
        ConfigurationError: If that is not what was written.
        DatabaseError: If it cannot be read.
    """
    values: dict[str, Value] = dict(database.execute("SELECT name, value FROM meta"))
    try:
        return msgspec.convert(values, Meta, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            "the store is damaged where it says what it is: restore a backup, or move it away to begin anew"
        ) from error


def _let_go(database: Database, *, is_disk_good: bool) -> None:
    if not is_disk_good:
        database.abandon()
        return
    with contextlib.suppress(DatabaseError):
        database.close()


def _translation(path: Path, error: DatabaseError) -> Exception:
    if error.primary in LOCKED_CODES:
        return ConfigurationError(
            f"{path} is in use by another server: stop that one, or name another data directory"
        )
    if error.primary in {CORRUPT, NOTADB}:
        return ConfigurationError(
            f"{path} is damaged, or no store of streamctx: restore a backup, or move it away to begin anew"
        )
    if error.primary == FULL:
        return StoreError(
            "the store cannot be opened, since the disk with the data directory is full: make room",
            is_fatal=True,
        )
    return StoreError(f"the store cannot be opened: {error}: look at the disk", is_fatal=True)


def _configure(database: Database, durability: FileDurability) -> None:
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    database.execute("PRAGMA mmap_size = 0")
    database.execute("PRAGMA temp_store = MEMORY")
    database.execute("PRAGMA cache_size = -16384")
    # A sync that reaches the disk on macOS as well; no effect elsewhere.
    database.execute("PRAGMA fullfsync = ON")
    database.execute("PRAGMA checkpoint_fullfsync = ON")
    database.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
    database.execute("PRAGMA secure_delete = ON")
    version_of(database)
    if database.execute("PRAGMA journal_mode = WAL") != [("wal",)]:
        raise ConfigurationError(
            "the file system of the data directory cannot hold a store: name another directory"
        )
    database.execute("PRAGMA wal_autocheckpoint = 0")
    # What a large snapshot makes of the log is given back once the log begins anew.
    database.execute("PRAGMA journal_size_limit = 16777216")
    migrate(database)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
