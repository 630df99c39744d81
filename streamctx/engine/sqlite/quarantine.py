"""Sessions that were set aside as damaged: what there is of them, and how they are deleted.

They have no name in `sessions` any more, so that their ids are free, but their rows stay where they were.
"""

from __future__ import annotations

from streamctx.engine.base import SetAside
from streamctx.engine.sqlite import journal, snapshots
from streamctx.engine.sqlite.library import CORRUPT, Database, DatabaseError

__all__ = ["delete", "keys_of", "read_all"]

# As far as the chain can be followed: the journal has no index by session, and to read it all takes long.
_BYTES = """
    WITH RECURSIVE chain (row, previous, size) AS (
        SELECT row, previous, length(payload) FROM journal WHERE row = ?2 AND session = ?1
        UNION ALL
        SELECT journal.row, journal.previous, length(journal.payload) FROM chain
        JOIN journal ON journal.row = chain.previous
        WHERE journal.session = ?1 AND journal.row < chain.row
    )
    SELECT (SELECT coalesce(sum(size), 0) FROM chain)
        + (SELECT coalesce(sum(length(state)), 0) FROM snapshots WHERE session = ?1)
        + (SELECT coalesce(sum(length(payload)), 0) FROM documents WHERE session = ?1)
"""


def read_all(database: Database, *, principal: str | None) -> list[SetAside]:
    """All that were set aside, the oldest first; of one owner, or of all.

    Raises:
        DatabaseError: As the database fails.
    """
    rows = database.execute(
        "SELECT key, id, principal, at, reason, head_row, length(record) FROM quarantine "
        "WHERE ?1 IS NULL OR principal = ?1 ORDER BY at, key",
        (principal,),
    )
    return [
        SetAside(
            key=key,
            session_id=session_id,
            principal=owner,
            at=at / 1000,
            reason=reason,
            stored_bytes=record_bytes + _rows_bytes(database, key, head_row),
        )
        for key, session_id, owner, at, reason, head_row, record_bytes in rows
    ]


def keys_of(database: Database, session_id: str) -> list[int]:
    """The keys of all that was set aside under an id."""
    return [key for (key,) in database.execute("SELECT key FROM quarantine WHERE id = ?", (session_id,))]


def delete(database: Database, key: int) -> None:
    """Delete one with all its rows, within a transaction; nothing happens if there is none.

    Raises:
        DatabaseError: As the database fails.
    """
    if database.execute("DELETE FROM quarantine WHERE key = ? RETURNING key", (key,)):
        journal.delete_rows(database, key=key)
        snapshots.delete_all(database, key)


def _rows_bytes(database: Database, key: int, head_row: int) -> int:
    try:
        ((byte_count,),) = database.execute(_BYTES, (key, head_row))
    except DatabaseError as error:
        # A page that cannot be read may be why it was set aside.
        if error.primary != CORRUPT:
            raise
        return 0
    return int(byte_count)
