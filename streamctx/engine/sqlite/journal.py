"""The rows of the journal:

added at the end, read back along a session's chain, deleted when nothing needs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from streamctx.core.session.stored import JournalBatch
from streamctx.engine.sqlite import codec
from streamctx.engine.sqlite.checks import Damage, row_check
from streamctx.engine.sqlite.library import CORRUPT, Database, DatabaseError, Value

__all__ = [
    "INSERT_ROWS_MAX",
    "JournalRow",
    "ScannedRow",
    "decode_batch",
    "delete_chain",
    "delete_rows",
    "insert_rows",
    "read_chain",
    "scan",
]

# Rows of one statement, which is prepared once for each number of rows; more gains nothing.
INSERT_ROWS_MAX = 256
_ROW_VALUES = 6
_INSERTS = {
    count: f"INSERT INTO journal VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * count)}"
    for count in range(1, INSERT_ROWS_MAX + 1)
}
# Of payloads, before one statement stops walking up a chain.
_CHUNK_BYTES = 4 << 20
_SCAN_ROWS = 2048

# A chain goes to ever lower rows; where damage says otherwise it ends, and the reader sees that it is not
# whole. All rows of a chunk come in one value, since every row by itself would let go of the interpreter
# lock.
_CHUNK = """
WITH RECURSIVE chain (row, previous, total) AS (
    SELECT row, previous, length(payload) FROM journal WHERE row = ?1 AND session = ?2
    UNION ALL
    SELECT journal.row, journal.previous, chain.total + length(journal.payload)
    FROM chain CROSS JOIN journal ON journal.row = chain.previous
    WHERE journal.session = ?2 AND journal.row > ?3 AND journal.row < chain.row AND chain.total < ?4
)
SELECT group_concat(
    journal.row || ',' || journal.previous || ',' || at || ',' || digest || ',' || hex(payload), ';'
) FROM chain CROSS JOIN journal ON journal.row = chain.row
"""
_DELETE_CHAIN = """
WITH RECURSIVE chain (row) AS (
    SELECT row FROM journal WHERE row = ?1 AND session = ?2
    UNION ALL
    SELECT journal.previous FROM chain CROSS JOIN journal ON journal.row = chain.row
    WHERE journal.session = ?2 AND journal.previous < chain.row
)
DELETE FROM journal WHERE session = ?2 AND row IN (SELECT row FROM chain)
"""


class JournalRow(NamedTuple):
    """One batch as it is stored; `at` is in milliseconds since 1970."""

    row: int
    previous: int
    at: int
    payload: bytes


class ScannedRow(NamedTuple):
    """A row as `scan` finds it. With `is_good` unset only `row` means anything."""

    row: int
    session: int
    previous: int
    at: int
    byte_count: int
    is_good: bool


def insert_rows(database: Database, values: Sequence[Value]) -> None:
    """Add rows, given as one list of all their columns in order.

    Up to `INSERT_ROWS_MAX` rows are one statement, which needs no transaction around it.
    """
    step = INSERT_ROWS_MAX * _ROW_VALUES
    for start in range(0, len(values), step):
        some = values[start : start + step]
        database.execute(_INSERTS[len(some) // _ROW_VALUES], some)


def read_chain(database: Database, *, key: int, head_row: int, stop_row: int) -> list[JournalRow]:
    """Read a session's rows behind `stop_row` (0: from the first) up to its head, the oldest first.

    Raises:
        Damage: If one is missing, or is not what was written.
        DatabaseError: If the file cannot be read.
    """
    found: list[JournalRow] = []
    expected = head_row
    while expected > stop_row:
        chunk = _read_chunk(database, key, expected, stop_row)
        if not chunk:
            raise Damage(f"row {expected} of the journal is missing")
        for row in chunk:
            if row.row != expected:
                raise Damage(f"row {expected} of the journal is missing")
            found.append(row)
            expected = row.previous
    if expected != stop_row:
        raise Damage(f"row {stop_row} of the journal is missing from the chain")
    found.reverse()
    return found


def _read_chunk(database: Database, key: int, head_row: int, stop_row: int) -> list[JournalRow]:
    ((text,),) = database.execute(_CHUNK, (head_row, key, stop_row, _CHUNK_BYTES))
    rows = []
    for line in text.split(";") if text else ():
        try:
            numbers, _, content = line.rpartition(",")
            row, previous, at, digest = map(int, numbers.split(","))
            payload = bytes.fromhex(content)
        except ValueError as error:
            raise Damage("a row of the journal holds other types than were written") from error
        if digest != row_check(row, key, previous, at, content=payload):
            raise Damage(f"row {row} of the journal does not fit its check")
        rows.append(JournalRow(row, previous, at, payload))
    rows.sort(reverse=True)
    return rows


def decode_batch(row: JournalRow) -> JournalBatch:
    """Give back the batch of a row.

    Raises:
        Damage: If it cannot be one.
    """
    try:
        return codec.decode_batch(row.payload)
    except msgspec.DecodeError as error:
        raise Damage(f"row {row.row} of the journal cannot be decoded") from error


def delete_chain(database: Database, *, key: int, head_row: int, row_count: int) -> None:
    """Delete the rows of a session.

    Args:
        head_row: The last.
        row_count: How many there are at least.
    """
    database.execute(_DELETE_CHAIN, (head_row, key))
    ((deleted,),) = database.execute("SELECT changes()")
    if deleted < row_count:
        # The chain is damaged, and some are beyond its end.
        delete_rows(database, key=key)


def delete_rows(database: Database, *, key: int) -> None:
    """Delete the rows of a session whose chain cannot be followed; this reads the whole journal."""
    database.execute("DELETE FROM journal WHERE session = ?", (key,))


def scan(database: Database, after: int) -> Iterator[ScannedRow]:
    """Read and check all rows behind `after`, in order; those that cannot be read come as not good.

    Raises:
        DatabaseError: If even their numbers cannot be read.
    """
    ((last,),) = database.execute("SELECT coalesce(max(row), 0) FROM journal")
    while after < last:
        stop = after + _SCAN_ROWS
        try:
            yield from _scan_range(database, after, stop)
        except DatabaseError as error:
            if error.primary != CORRUPT:
                raise
            for row in range(after, min(stop, last)):
                yield from _scan_one(database, row + 1)
        after = stop


def _scan_range(database: Database, after: int, stop: int) -> list[ScannedRow]:
    rows = database.execute(
        "SELECT row, session, previous, at, digest, payload FROM journal WHERE row > ? AND row <= ?",
        (after, stop),
    )
    return [_scanned(*row) for row in rows]


def _scan_one(database: Database, row: int) -> list[ScannedRow]:
    try:
        return _scan_range(database, row - 1, row)
    except DatabaseError as error:
        if error.primary != CORRUPT:
            raise
        return [ScannedRow(row, 0, 0, 0, 0, is_good=False)]


def _scanned(
    row: int, session: object, previous: object, at: object, digest: object, payload: object
) -> ScannedRow:
    if not (
        isinstance(session, int)
        and isinstance(previous, int)
        and isinstance(at, int)
        and isinstance(payload, bytes)
    ):
        return ScannedRow(row, 0, 0, 0, 0, is_good=False)
    is_good = digest == row_check(row, session, previous, at, content=payload)
    return ScannedRow(row, session, previous, at, len(payload), is_good)
