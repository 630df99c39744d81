"""Opens the file of a store, or refuses it with a reason.

SQLite 3.7.0 to 3.51.2 can lose commits when two connections of one file write, or copy the log, at the very
moment at which the log is reset. A store has one connection only, which holds an exclusive lock on the file
from its first read to its end; so no second one can be there, and the versions in that range are safe. Never
open a second connection to a store with the standard library's module, not even to read: backups go through
the same connection. The exclusive lock, set before the log is first used, also means that SQLite needs no
shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from streamctx.engine.base import StoreError
from streamctx.engine.sqlite.library import CORRUPT, FULL, LOCKED_CODES, NOTADB, Database, DatabaseError
from streamctx.engine.sqlite.schema import migrate, version_of
from streamctx.errors import ConfigurationError

__all__ = ["FileDurability", "connect", "failure_at_start"]

FileDurability = Literal["full", "relaxed"]

# STRICT tables came with it.
_OLDEST_VERSION = (3, 37, 0)
_SYNCHRONOUS = {"full": "FULL", "relaxed": "NORMAL"}


def connect(path: Path, factory: Callable[[Path], Database], *, durability: FileDurability) -> Database:
    """Open and lock the file of a store, and bring it to the present schema.

    Raises:
        ConfigurationError: If the library is too old, or the file is in use, damaged, of a newer streamctx or
            of another program.
        DatabaseError: As the disk fails.
    """
    database = factory(path)
    try:
        if database.version < _OLDEST_VERSION:
            raise ConfigurationError(
                f"this Python has SQLite {_dotted(database.version)}, and a store needs "
                f"{_dotted(_OLDEST_VERSION)} or newer: use a newer Python, or --ephemeral to store nothing"
            )
        _configure(database, durability)
    except DatabaseError as error:
        database.close()
        if error.primary in LOCKED_CODES:
            raise ConfigurationError(
                f"{path} is in use by another server: stop that one, or name another data directory"
            ) from error
        if error.primary in {CORRUPT, NOTADB}:
            raise ConfigurationError(
                f"{path} is damaged, or no store of streamctx: "
                f"restore a backup, or move it away to begin anew"
            ) from error
        raise
    except ConfigurationError:
        database.close()
        raise
    return database


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
    migrate(database)


def failure_at_start(error: DatabaseError) -> StoreError:
    """The error of a store that cannot be opened since the disk fails."""
    if error.primary == FULL:
        return StoreError(
            "the store cannot be opened, since the disk with the data directory is full: make room",
            is_fatal=True,
        )
    return StoreError(f"the store cannot be opened: {error}", is_fatal=True)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
