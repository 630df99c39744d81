"""Reads sessions back, verified, and sets aside those that are not what was written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from streamctx.core.session.stored import SessionRecord, SessionState, StoredSession
from streamctx.engine.base import Damaged, History, StoreError
from streamctx.engine.sqlite import journal, snapshots
from streamctx.engine.sqlite.archive import Exported
from streamctx.engine.sqlite.checks import Damage
from streamctx.engine.sqlite.counters import StoreCounters
from streamctx.engine.sqlite.library import CORRUPT, Database, DatabaseError
from streamctx.engine.sqlite.sessions import Entry, Sessions, read_record

__all__ = ["Reader"]

_T = TypeVar("_T")

_LOG = logging.getLogger("streamctx.engine")


class Reader:
    """Reads from a store. The methods raise `DatabaseError` where the file as a whole fails."""

    def __init__(
        self, database: Database, sessions: Sessions, counters: StoreCounters, *, clock: Callable[[], float]
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._counters = counters
        self._clock = clock

    def load(self, entry: Entry) -> StoredSession | Damaged:
        """Read a session; if it is damaged it is set aside, and its id is free."""
        self._counters.loads += 1
        record: SessionRecord | None = None
        try:
            record = self._guarded(lambda: read_record(self._database, entry))
            if entry.damage is not None:
                raise Damage(entry.damage)
            return self._guarded(lambda: self._read(entry, record))
        except Damage as damage:
            self._set_aside(entry, str(damage))
            return Damaged(str(damage), record)

    def tail(self, entry: Entry, since: float) -> History | StoreError:
        """Read the past of a session. Damage there is told, and the session left as it is.

        What is damaged may be older than all that a load needs, and the session may be live.
        """
        try:
            return self._guarded(lambda: self._read_tail(entry, since))
        except Damage as damage:
            self._counters.damaged_histories += 1
            _LOG.error("session %s: its past cannot be read: %s", entry.id, damage)
            return StoreError(f"the past of session {entry.id} cannot be read: {damage}", is_fatal=False)

    def export(self, entry: Entry) -> Exported:
        """Read a session as it is taken elsewhere.

        Raises:
            Damage: If it is not what was written; it is not set aside for that.
        """
        if entry.damage is not None:
            raise Damage(entry.damage)
        return self._guarded(lambda: self._read_export(entry))

    def _read_export(self, entry: Entry) -> Exported:
        record = read_record(self._database, entry)
        newest = self._newest(entry)
        rows = self._read_rows(entry, newest)
        for row in rows:
            journal.decode_batch(row)
        return Exported(
            record=record,
            opened=entry.opened,
            state=self._state(entry, newest),
            state_at=newest.at if newest else 0,
            batches=tuple((row.at, row.payload) for row in rows),
        )

    def _read_rows(self, entry: Entry, stop: snapshots.Mark | None) -> list[journal.JournalRow]:
        """Read the rows behind a snapshot, or all that are kept."""
        stop_row, stop_count = (stop.head_row, stop.head_count) if stop else (0, 0)
        rows = journal.read_chain(self._database, key=entry.key, head_row=entry.head_row, stop_row=stop_row)
        if len(rows) != entry.head_count - stop_count:
            raise Damage(
                f"the journal holds {len(rows)} batches, and {entry.head_count - stop_count} were written"
            )
        return rows

    def _read(self, entry: Entry, record: SessionRecord) -> StoredSession:
        newest = self._newest(entry)
        rows = self._read_rows(entry, newest)
        state = self._state(entry, newest)
        return StoredSession(record, state, tuple(journal.decode_batch(row) for row in rows))

    def _newest(self, entry: Entry) -> snapshots.Mark | None:
        marks = snapshots.marks(self._database, entry.key)
        newest = marks[-1] if marks else None
        covered = newest.head_count if newest else 0
        if covered != entry.snapshot_count or (newest is None and entry.snapshot_bytes):
            raise Damage("the newest snapshot is missing")
        return newest

    def _read_tail(self, entry: Entry, since: float) -> History:
        record = read_record(self._database, entry)
        marks = snapshots.marks(self._database, entry.key)
        older = [mark for mark in marks if mark.at <= since * 1000]
        if older:
            start: snapshots.Mark | None = older[-1]
        else:
            # From the first batch ever while it is kept, else from the oldest state that is.
            start = marks[0] if marks and marks[0].head_count <= entry.keep_count else None
        rows = self._read_rows(entry, start)
        batches = tuple((row.at / 1000, journal.decode_batch(row)) for row in rows)
        return History(record.unit, record.hash, self._state(entry, start), batches)

    def _state(self, entry: Entry, mark: snapshots.Mark | None) -> SessionState | None:
        return None if mark is None else snapshots.read_state(self._database, entry.key, mark)

    def _guarded(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except DatabaseError as error:
            if error.primary != CORRUPT:
                raise
            raise Damage("a page of the file cannot be read") from error

    def _set_aside(self, entry: Entry, reason: str) -> None:
        self._counters.quarantined += 1
        _LOG.error("session %s is damaged and set aside (quarantine): %s", entry.id, reason)
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute(
                "INSERT INTO quarantine "
                "SELECT key, id, epoch, principal, head_row, head_count, ?, ?, record, digest "
                "FROM sessions WHERE key = ?",
                (round(self._clock() * 1000), reason, entry.key),
            )
            self._sessions.remove(entry)
            # Its rows are of no session from now on, and its head is no longer known.
            self._sessions.flush()
            self._database.execute("COMMIT")
        except DatabaseError:
            self._sessions.roll_back()
            if self._database.is_in_transaction:
                self._database.execute("ROLLBACK")
            raise
        self._sessions.commit()
