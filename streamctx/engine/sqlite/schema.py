"""The tables of a store, and how an older store is brought to them.

- `journal`: one row a batch, only ever added at its end and deleted, with no further index: every other
  layout that was measured costs up to seven times as much. A session's rows form a chain by `previous` (0 at
  its start).
- `sessions`: one row a session, found by `id`. `head_row`, `head_count` and `head_bytes` are the end of its
  chain, of which they may lag behind: what the journal holds after row `scanned` (in `meta`) is read at
  start.
- `snapshots`: a session's state after the first `head_count` batches, the last of which is row `head_row`.
  `documents` lists the rows of `documents` that belong to it, which later snapshots share while they are
  equal.
- `quarantine`: sessions that cannot be read as they were written. Their other rows stay where they are.
- `meta`: `store_id` (random), `run` (starts so far), `is_open` (1 unless it was closed in order), `scanned`.

Times are milliseconds since 1970. Keys of sessions are never used again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from streamctx.engine.sqlite.library import Database
from streamctx.errors import ConfigurationError

__all__ = ["APPLICATION_ID", "MIGRATIONS", "SCHEMA_VERSION", "migrate", "version_of"]

# "sctx" in ASCII.
APPLICATION_ID = 0x73637478

_FIRST = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID",
    """CREATE TABLE sessions (
        key INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        epoch TEXT NOT NULL,
        principal TEXT NOT NULL,
        client TEXT NOT NULL,
        opened INTEGER NOT NULL,
        changed INTEGER NOT NULL,
        run INTEGER NOT NULL,
        head_row INTEGER NOT NULL,
        head_count INTEGER NOT NULL,
        head_bytes INTEGER NOT NULL,
        snapshot_count INTEGER NOT NULL,
        snapshot_head_bytes INTEGER NOT NULL,
        snapshot_bytes INTEGER NOT NULL,
        snapshots_bytes INTEGER NOT NULL,
        keep_row INTEGER NOT NULL,
        keep_count INTEGER NOT NULL,
        keep_bytes INTEGER NOT NULL,
        record_bytes INTEGER NOT NULL,
        record BLOB NOT NULL,
        digest INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE journal (
        row INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        previous INTEGER NOT NULL,
        at INTEGER NOT NULL,
        digest INTEGER NOT NULL,
        payload BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE snapshots (
        snapshot INTEGER PRIMARY KEY AUTOINCREMENT,
        session INTEGER NOT NULL,
        head_row INTEGER NOT NULL,
        head_count INTEGER NOT NULL,
        head_bytes INTEGER NOT NULL,
        at INTEGER NOT NULL,
        digest INTEGER NOT NULL,
        documents BLOB NOT NULL,
        state BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX snapshots_of_session ON snapshots (session)",
    """CREATE TABLE documents (
        document INTEGER PRIMARY KEY AUTOINCREMENT,
        session INTEGER NOT NULL,
        payload BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX documents_of_session ON documents (session)",
    "INSERT INTO meta VALUES ('run', 0), ('is_open', 0), ('scanned', 0)",
)

_QUARANTINE = (
    # The session's row goes in there as it was, but for what can be read from its record.
    """CREATE TABLE quarantine (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL,
        epoch TEXT NOT NULL,
        principal TEXT NOT NULL,
        head_row INTEGER NOT NULL,
        head_count INTEGER NOT NULL,
        at INTEGER NOT NULL,
        reason TEXT NOT NULL,
        record BLOB NOT NULL,
        digest INTEGER NOT NULL
    ) STRICT""",
    # Why a session has to be set aside when it is loaded next; found when the store was opened.
    "ALTER TABLE sessions ADD COLUMN damage TEXT",
)


def _create(database: Database) -> None:
    for statement in _FIRST:
        database.execute(statement)
    database.execute("INSERT INTO meta VALUES ('store_id', ?)", (secrets.token_hex(16),))


def _add_quarantine(database: Database) -> None:
    for statement in _QUARANTINE:
        database.execute(statement)


MIGRATIONS: tuple[Callable[[Database], None], ...] = (_create, _add_quarantine)
"""The n-th, counted from 1, brings a store of version n - 1 to version n; a new file has version 0."""

SCHEMA_VERSION = len(MIGRATIONS)


def version_of(database: Database) -> int:
    """Tell the schema version of a store; 0 for an empty file.

    Raises:
        ConfigurationError: If it is the database of another program, or a store of a newer version.
        DatabaseError: If it cannot be read.
    """
    ((application,),) = database.execute("PRAGMA application_id")
    ((version,),) = database.execute("PRAGMA user_version")
    ((table_count,),) = database.execute("SELECT count(*) FROM sqlite_schema")
    if application == 0 and table_count == 0:
        return 0
    if application != APPLICATION_ID:
        raise ConfigurationError(
            "the file store.db is a database of another program, and no store of streamctx: "
            "name another data directory"
        )
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"the store has schema version {version}, and this streamctx knows {SCHEMA_VERSION} and older: "
            f"start the newer streamctx that wrote it, or name another data directory"
        )
    return int(version)


def migrate(database: Database) -> None:
    """Bring a store, or an empty file, to the present version, each step in a transaction of its own.

    Raises:
        ConfigurationError: As `version_of`.
        DatabaseError: As SQLite fails; the store then has the version that it had, or one between.
    """
    for index in range(version_of(database), SCHEMA_VERSION):
        database.execute("BEGIN IMMEDIATE")
        MIGRATIONS[index](database)
        database.execute(f"PRAGMA user_version = {index + 1}")
        database.execute("COMMIT")
