"""Turns what is to be stored into transactions: many operations, one commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from streamctx.core.session.stored import SessionRecord, SessionState
from streamctx.engine.base import StoreError
from streamctx.engine.sqlite import journal, quarantine, snapshots
from streamctx.engine.sqlite.archive import Exported
from streamctx.engine.sqlite.checks import row_check
from streamctx.engine.sqlite.counters import StoreCounters
from streamctx.engine.sqlite.library import CORRUPT, Database, DatabaseError, Value
from streamctx.engine.sqlite.room import Quotas
from streamctx.engine.sqlite.sessions import Entry, Sessions

__all__ = ["Append", "Fence", "Forget", "Refused", "Snapshot", "Write", "Writer"]


# Before sessions that have been deleted since are taken out of those that have failed.
_FAILED_MAX = 1000
# A record of up to so many bytes is taken at the quota, if its session is stored. They take some hundred.
_FREE_RECORD_BYTES = 1 << 16


class Fence(msgspec.Struct, frozen=True):
    """Store a record; one of another epoch replaces all that was stored of its session."""

    record: SessionRecord

    @property
    def session_id(self) -> str:
        """Whose it is."""
        return self.record.session_id


class Append(msgspec.Struct, frozen=True, gc=False):
    """Add an encoded batch."""

    session_id: str
    epoch: str
    payload: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """Store the state after all batches so far; with `purge`, and nothing that is older."""

    session_id: str
    epoch: str
    state: SessionState
    purge: bool = False


class Forget(msgspec.Struct, frozen=True):
    """Delete a session."""

    session_id: str


class Refused(msgspec.Struct, frozen=True):
    """Fail, in its turn, in place of an operation that was not even queued."""

    session_id: str
    error: StoreError
    is_snapshot: bool = False
    """Whether that was to be a snapshot."""


Write: TypeAlias = Fence | Append | Snapshot | Forget | Refused


class Writer:
    """Writes to a store; the statements of one `write` are one transaction.

    After an operation of a session has failed, all later ones of it are refused until `clear` is called, or
    it begins anew: otherwise the journal would go on behind a hole. A snapshot leaves none.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        counters: StoreCounters,
        *,
        run: int,
        quotas: Quotas,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._counters = counters
        self._run = run
        self._quotas = quotas
        self._clock = clock
        self._failed: dict[str, StoreError] = {}
        self._rows: list[Value] = []
        self.has_new_snapshots: dict[str, None] = {
            entry.id: None for entry in sessions.all() if entry.snapshots_bytes
        }
        """Sessions of which something may be deleted, now or later: they have got a snapshot, or had one at
        the start.

        Who looks at them takes them out.
        """
        self.has_purged = False
        """Whether SQLite's log may hold what was purged. Who empties it unsets it."""
        self.log_bytes = 0
        """A guess of what was added to SQLite's log. Who copies the log into the file sets it to 0."""

    def clear(self, session_id: str) -> None:
        """Let a session go on: its reader knows now what is stored."""
        self._failed.pop(session_id, None)

    def fail(self, operations: Sequence[Write], error: StoreError) -> list[StoreError | None]:
        """Let operations fail that were not tried."""
        for operation in operations:
            self._mark(operation, error)
        return [error] * len(operations)

    def write(self, operations: Sequence[Write]) -> list[StoreError | None]:
        """Make operations safe, in their order.

        Returns:
            For each what was wrong with it alone, so that it was left out; `None` if it is safe.

        Raises:
            DatabaseError: As the database fails. Nothing was done then; call `fail` with what it means.
        """
        began = time.perf_counter()
        now = round(self._clock() * 1000)
        # A lone statement is a transaction by itself, at two steps less.
        is_alone = len(operations) <= journal.INSERT_ROWS_MAX and all(
            isinstance(item, Append) for item in operations
        )
        try:
            if not is_alone:
                self._database.execute("BEGIN IMMEDIATE")
            results = [self._apply(operation, now) for operation in operations]
            self._insert_rows()
            if not is_alone:
                self._database.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise
        self._sessions.commit()
        self._count(operations, results)
        self._counters.commit_s_max = max(self._counters.commit_s_max, time.perf_counter() - began)
        return results

    def roll_back(self) -> None:
        """Take back what the present transaction did, in the file and in memory."""
        self._rows = []
        self._sessions.roll_back()
        if self._database.is_in_transaction:
            self._database.execute("ROLLBACK")

    def _apply(self, operation: Write, now: int) -> StoreError | None:
        entry = self._sessions.get(operation.session_id)
        if isinstance(operation, Append):
            refusal = self._append(entry, operation, now)
        elif isinstance(operation, Fence):
            refusal = self._fence(entry, operation.record, now)
        elif isinstance(operation, Snapshot):
            refusal = self._snapshot(entry, operation, now)
        elif isinstance(operation, Refused):
            refusal = operation.error
        else:
            refusal = None
            if entry is not None:
                self.forget(entry)
        if refusal is not None:
            self._counters.refused += 1
            self._mark(operation, refusal)
        return refusal

    def _append(self, entry: Entry | None, operation: Append, now: int) -> StoreError | None:
        payload = operation.payload
        if entry is None or entry.epoch != operation.epoch or entry.damage is not None:
            return _no_record(operation.session_id, operation.epoch)
        refusal = self._refusal(entry.id, entry.principal, len(payload))
        if refusal is not None:
            return refusal
        self._add_row(entry, payload, now)
        return None

    def _add_row(self, entry: Entry, payload: bytes, at: int) -> None:
        sessions = self._sessions
        sessions.touch(entry)
        row = sessions.next_row
        sessions.next_row = row + 1
        digest = row_check(row, entry.key, entry.head_row, at, content=payload)
        self._rows += (row, entry.key, entry.head_row, at, digest, payload)
        entry.head_row = row
        entry.head_count += 1
        entry.head_bytes += len(payload)
        entry.changed = at
        sessions.grow(entry, len(payload))

    def _fence(self, entry: Entry | None, record: SessionRecord, now: int) -> StoreError | None:
        content = msgspec.msgpack.encode(record)
        is_new = entry is None or entry.epoch != record.epoch
        if is_new:
            self.clear(record.session_id)
        # Whoever has a session can attach to it, at the quota too: a small record takes the place of another.
        is_free = entry is not None and len(content) <= _FREE_RECORD_BYTES
        refusal = (
            self._failed.get(record.session_id)
            if is_free
            else self._refusal(record.session_id, record.principal, len(content))
        )
        if refusal is not None:
            return refusal
        if entry is not None and entry.damage is not None and not is_new:
            return _no_record(record.session_id, record.epoch)
        if entry is not None and not is_new:
            self._sessions.replace_record(entry, content, changed=now, run=self._run)
            return None
        if entry is not None:
            self.forget(entry)
        self._sessions.insert(_new_entry(record, now=now, run=self._run), content)
        return None

    def _snapshot(self, entry: Entry | None, operation: Snapshot, now: int) -> StoreError | None:
        if entry is None or entry.epoch != operation.epoch or entry.damage is not None:
            return _no_record(operation.session_id, operation.epoch)
        if operation.purge:
            return self._failed.get(entry.id) or self._purge(entry, operation.state, now)
        prepared = snapshots.prepare(self._database, entry.key, operation.state)
        # A snapshot that will let as much go as it adds is what brings its owner back below the quota.
        gain_bytes = min(prepared.added_bytes, entry.stored_bytes - entry.record_bytes)
        refusal = self._refusal(entry.id, entry.principal, prepared.added_bytes - gain_bytes)
        if refusal is not None:
            return refusal
        self._add_snapshot(entry, prepared, at=now)
        self.has_new_snapshots[entry.id] = None
        return None

    def _add_snapshot(self, entry: Entry, prepared: snapshots.Prepared, *, at: int) -> None:
        self._insert_rows()
        self._sessions.touch(entry)
        total, added = snapshots.write_state(self._database, entry, prepared, at=at)
        self._sessions.grow(entry, added)
        self._counters.snapshots += 1
        entry.snapshots_bytes += added
        entry.snapshot_bytes = total
        entry.snapshot_count = entry.head_count
        entry.snapshot_head_bytes = entry.head_bytes
        entry.changed = at
        self._sessions.write_heads([entry])
        self.log_bytes += added

    def _purge(self, entry: Entry, state: SessionState, now: int) -> StoreError | None:
        self._insert_rows()
        self._database.execute("SAVEPOINT purge")
        try:
            self._delete_rows(entry)
            for key in quarantine.keys_of(self._database, entry.id):
                quarantine.delete(self._database, key)
        except DatabaseError as error:
            if error.primary != CORRUPT:
                raise
            # A page that cannot be read is no reason to store nothing of anybody any more.
            self._database.execute("ROLLBACK TO purge")
            return StoreError(f"the past of session {entry.id} is damaged: forget it", is_fatal=False)
        finally:
            if self._database.is_in_transaction:
                self._database.execute("RELEASE purge")
        self._sessions.touch(entry)
        before = entry.stored_bytes
        entry.keep_row, entry.keep_count, entry.keep_bytes = (
            entry.head_row,
            entry.head_count,
            entry.head_bytes,
        )
        entry.snapshots_bytes = 0
        self._sessions.grow(entry, entry.stored_bytes - before)
        self._add_snapshot(entry, snapshots.prepare(self._database, entry.key, state), at=now)
        self._allow_hole(entry)
        self.has_purged = True
        return None

    def add_session(self, exported: Exported) -> None:
        """Add a session that comes from elsewhere, within a transaction."""
        content = msgspec.msgpack.encode(exported.record)
        entry = _new_entry(exported.record, now=exported.opened, run=self._run)
        self._sessions.insert(entry, content)
        if exported.state is not None:
            prepared = snapshots.prepare(self._database, entry.key, exported.state)
            self._add_snapshot(entry, prepared, at=exported.state_at)
        for at, payload in exported.batches:
            self._add_row(entry, payload, at)
        self._insert_rows()
        # Deleted again by the next pruning, if it was not touched since.
        entry.changed = round(self._clock() * 1000)

    def quota_refusal(self, principal: str, more_bytes: int) -> StoreError | None:
        """Why an owner may not store so many bytes more; `None` if they may."""
        return self._quotas.refusal(
            principal_bytes=self._sessions.used_by(principal),
            store_bytes=self._sessions.used_bytes,
            more_bytes=more_bytes,
        )

    def forget(self, entry: Entry) -> None:
        """Delete all of a session within a transaction."""
        self._insert_rows()
        self._delete_rows(entry)
        self._sessions.remove(entry)
        self._allow_hole(entry)

    def _delete_rows(self, entry: Entry) -> None:
        journal.delete_chain(
            self._database,
            key=entry.key,
            head_row=entry.head_row,
            row_count=entry.head_count - entry.keep_count,
        )
        snapshots.delete_all(self._database, entry.key)

    def _allow_hole(self, entry: Entry) -> None:
        if entry.head_row > self._sessions.scanned:
            # A hole behind `scanned` would look like damage.
            self._sessions.flush()

    def _refusal(self, session_id: str, principal: str, more_bytes: int) -> StoreError | None:
        if self._failed and session_id in self._failed:
            return self._failed[session_id]
        return self.quota_refusal(principal, more_bytes)

    def _insert_rows(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            journal.insert_rows(self._database, rows)

    def _mark(self, operation: Write, error: StoreError) -> None:
        if isinstance(operation, Snapshot) or (isinstance(operation, Refused) and operation.is_snapshot):
            return
        # Without a session there is nothing that could be appended to behind a hole, and one begins anew.
        if self._sessions.get(operation.session_id) is None:
            return
        if len(self._failed) >= _FAILED_MAX:
            self._failed = {key: self._failed[key] for key in self._failed if self._sessions.get(key)}
        self._failed[operation.session_id] = error

    def _count(self, operations: Sequence[Write], results: Sequence[StoreError | None]) -> None:
        added = row_bytes = 0
        for operation, result in zip(operations, results, strict=True):
            if result is None and isinstance(operation, Append):
                added += 1
                row_bytes += len(operation.payload)
        counters = self._counters
        counters.commits += 1
        counters.rows += added
        counters.row_bytes += row_bytes
        # A commit writes the pages that it changed, whole: the last one of the table and the one above it at
        # least.
        self.log_bytes += 2 * 4096 + row_bytes + 4096 * (len(operations) - added)


def _no_record(session_id: str, epoch: str) -> StoreError:
    return StoreError(f"session {session_id} has no record in epoch {epoch}", is_fatal=False)


def _new_entry(record: SessionRecord, *, now: int, run: int) -> Entry:
    return Entry(
        key=0,
        id=record.session_id,
        epoch=record.epoch,
        principal=record.principal,
        client=record.client.name,
        opened=now,
        changed=now,
        run=run,
        head_row=0,
        head_count=0,
        head_bytes=0,
        snapshot_count=0,
        snapshot_head_bytes=0,
        snapshot_bytes=0,
        snapshots_bytes=0,
        keep_row=0,
        keep_count=0,
        keep_bytes=0,
        record_bytes=0,
    )
