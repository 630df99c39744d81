"""Snapshots: a session's state at a row of its journal, each document in a row that equal ones share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from streamctx.core.documents.document_state import DocumentState
from streamctx.core.session.stored import SessionState
from streamctx.engine.sqlite.checks import Damage, content_check, row_check
from streamctx.engine.sqlite.library import Database
from streamctx.engine.sqlite.sessions import Entry

__all__ = ["Mark", "Prepared", "delete_all", "marks", "prepare", "read_state", "trim", "write_state"]


class _DocumentRow(NamedTuple):
    document: int
    digest: int
    byte_count: int


class Mark(NamedTuple):
    """Where and when a snapshot stands; not its content."""

    snapshot: int
    head_row: int
    head_count: int
    head_bytes: int
    at: int


_DOCUMENT_ROWS = msgspec.msgpack.Decoder(list[tuple[int, int, int]])
_DOCUMENTS = msgspec.msgpack.Decoder(DocumentState)
_STATES = msgspec.msgpack.Decoder(SessionState)
_MARKS = (
    "SELECT snapshot, head_row, head_count, head_bytes, at FROM snapshots WHERE session = ? ORDER BY snapshot"
)
# Placeholders of one statement.
_DELETE_COUNT = 500


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state as bytes: each document is a row that is stored already, or what is to be one."""

    documents: tuple[_DocumentRow | bytes, ...]
    own: bytes

    @property
    def added_bytes(self) -> int:
        """What it takes to store it, but for the list of its documents."""
        return len(self.own) + sum(len(item) for item in self.documents if isinstance(item, bytes))


def prepare(database: Database, key: int, state: SessionState) -> Prepared:
    """Encode a session's state, and find what of it the newest snapshot holds already."""
    before = _documents_of_newest(database, key)
    documents = []
    for document in state.documents:
        content = msgspec.msgpack.encode(document)
        documents.append(_equal_row(database, before, content) or content)
    return Prepared(tuple(documents), msgspec.msgpack.encode(msgspec.structs.replace(state, documents=())))


def write_state(database: Database, entry: Entry, prepared: Prepared, *, at: int) -> tuple[int, int]:
    """Store a session's state at the end of its chain.

    Returns:
        The bytes of the snapshot with all its documents, and those of them that were not stored before.
    """
    rows = [
        _write_document(database, entry.key, item) if isinstance(item, bytes) else item
        for item in prepared.documents
    ]
    listed, content = msgspec.msgpack.encode(rows), prepared.own
    mark = Mark(0, entry.head_row, entry.head_count, entry.head_bytes, at)
    database.execute(
        "INSERT INTO snapshots (session, head_row, head_count, head_bytes, at, digest, documents, state) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (entry.key, *mark[1:], _digest(entry.key, mark, listed, content), listed, content),
    )
    return (
        sum(row.byte_count for row in rows) + len(listed) + len(content),
        prepared.added_bytes + len(listed),
    )


def marks(database: Database, key: int) -> list[Mark]:
    """Where a session's snapshots stand, the oldest first.

    Raises:
        Damage: If one cannot be read.
        DatabaseError: If the file cannot be read.
    """
    rows = database.execute(_MARKS, (key,))
    if not all(isinstance(number, int) for row in rows for number in row):
        raise Damage("a snapshot holds other types than were written")
    return [Mark(*row) for row in rows]


def read_state(database: Database, key: int, mark: Mark) -> SessionState:
    """Read and check the snapshot at a mark.

    Raises:
        Damage: If it is not what was written.
        DatabaseError: If the file cannot be read.
    """
    rows = database.execute(
        "SELECT documents, state, digest FROM snapshots WHERE snapshot = ?", (mark.snapshot,)
    )
    if len(rows) != 1 or not isinstance(rows[0][0], bytes) or not isinstance(rows[0][1], bytes):
        raise Damage(f"snapshot {mark.snapshot} is missing")
    ((listed, content, digest),) = rows
    if digest != _digest(key, mark, listed, content):
        raise Damage(f"snapshot {mark.snapshot} does not fit its check")
    try:
        state = _STATES.decode(content)
        document_rows = [_DocumentRow(*row) for row in _DOCUMENT_ROWS.decode(listed)]
        documents = tuple(_read_document(database, row) for row in document_rows)
    except msgspec.DecodeError as error:
        raise Damage(f"snapshot {mark.snapshot} cannot be decoded") from error
    return msgspec.structs.replace(state, documents=documents)


def trim(database: Database, key: int, *, before: int) -> int:
    """Delete a session's snapshots that are older than `before`, the newest snapshot to keep.

    Documents go with the last snapshot that lists them.

    Returns:
        The bytes that this frees.

    Raises:
        Damage: If the lists of documents cannot be read; nothing is deleted then.
        DatabaseError: As the database fails.
    """
    kept: set[int] = set()
    dropped: dict[int, int] = {}
    freed = 0
    for snapshot, listed, own_bytes in database.execute(
        "SELECT snapshot, documents, length(documents) + length(state) FROM snapshots WHERE session = ?",
        (key,),
    ):
        try:
            rows = [_DocumentRow(*row) for row in _DOCUMENT_ROWS.decode(listed)]
        except (msgspec.DecodeError, TypeError) as error:
            raise Damage(f"the documents of snapshot {snapshot} cannot be decoded") from error
        if snapshot >= before:
            kept.update(row.document for row in rows)
        else:
            dropped.update((row.document, row.byte_count) for row in rows)
            freed += own_bytes
    gone = [document for document in dropped if document not in kept]
    for start in range(0, len(gone), _DELETE_COUNT):
        some = gone[start : start + _DELETE_COUNT]
        database.execute(f"DELETE FROM documents WHERE document IN ({', '.join('?' * len(some))})", some)
    database.execute("DELETE FROM snapshots WHERE session = ? AND snapshot < ?", (key, before))
    return freed + sum(dropped[document] for document in gone)


def delete_all(database: Database, key: int) -> None:
    """Delete all snapshots of a session."""
    database.execute("DELETE FROM snapshots WHERE session = ?", (key,))
    database.execute("DELETE FROM documents WHERE session = ?", (key,))


def _digest(key: int, mark: Mark, listed: bytes, content: bytes) -> int:
    # The content is bound to the list by the list's own check, which stands where another number would.
    return row_check(
        key, mark.head_row, mark.head_count, mark.head_bytes, mark.at, content_check(listed), content=content
    )


def _documents_of_newest(database: Database, key: int) -> Sequence[_DocumentRow]:
    found = database.execute(
        "SELECT documents FROM snapshots WHERE session = ? ORDER BY snapshot DESC LIMIT 1", (key,)
    )
    try:
        return [_DocumentRow(*row) for (listed,) in found for row in _DOCUMENT_ROWS.decode(listed)]
    except (msgspec.DecodeError, TypeError):
        # The next load finds the damage; until then nothing is shared with it.
        return ()


def _equal_row(database: Database, candidates: Sequence[_DocumentRow], content: bytes) -> _DocumentRow | None:
    digest = content_check(content)
    for row in candidates:
        if row.digest != digest or row.byte_count != len(content):
            continue
        # The check finds accidents only, so the bytes themselves decide whether two documents are one.
        if database.execute(
            "SELECT 1 FROM documents WHERE document = ? AND payload = ?", (row.document, content)
        ):
            return row
    return None


def _write_document(database: Database, key: int, content: bytes) -> _DocumentRow:
    ((document,),) = database.execute(
        "INSERT INTO documents (session, payload) VALUES (?, ?) RETURNING document", (key, content)
    )
    return _DocumentRow(document, content_check(content), len(content))


def _read_document(database: Database, row: _DocumentRow) -> DocumentState:
    found = database.execute("SELECT payload FROM documents WHERE document = ?", (row.document,))
    if len(found) != 1 or not isinstance(found[0][0], bytes):
        raise Damage(f"document row {row.document} is missing")
    if content_check(found[0][0]) != row.digest:
        raise Damage(f"document row {row.document} does not fit its check")
    return _DOCUMENTS.decode(found[0][0])
