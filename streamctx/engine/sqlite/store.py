"""A store of sessions in one SQLite file: opened, written, read, kept tidy and closed by one thread at a
time.

What it promises is in `streamctx.engine.base`; `streamctx.engine.sqlite.engine` puts a thread around it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState, StoredSession
from streamctx.engine.base import Damaged, History, SetAside, StoreError, Summary
from streamctx.engine.sqlite import journal, opening, place
from streamctx.engine.sqlite.codec import encode_batch
from streamctx.engine.sqlite.counters import StoreCounters
from streamctx.engine.sqlite.library import FULL, Database, DatabaseError, StandardDatabase
from streamctx.engine.sqlite.management import Management
from streamctx.engine.sqlite.opening import FileDurability
from streamctx.engine.sqlite.reader import Reader
from streamctx.engine.sqlite.recovery import extend_chains
from streamctx.engine.sqlite.room import Quotas, Room
from streamctx.engine.sqlite.sessions import Sessions, read_entries
from streamctx.engine.sqlite.upkeep import Thresholds, Upkeep
from streamctx.engine.sqlite.writer import Append, Fence, Forget, Snapshot, Write, Writer

__all__ = ["SqliteStore"]

_T = TypeVar("_T")
_LOG = logging.getLogger("streamctx.engine")

# A load reads the rows since the last snapshot, 65,536 small ones in 0.7 s. Snapshots are kept as long as the
# history, so rows ask for one only where they are a fourth of it in bytes, or so many that a load takes long.
_SNAPSHOT_ROWS = 4096
_SNAPSHOT_ROWS_FRACTION = 4
_SNAPSHOT_ROWS_MAX = 16 * _SNAPSHOT_ROWS
_SNAPSHOT_BYTES = 1 << 20
_THRESHOLDS = Thresholds()


class SqliteStore:
    """An open store. Make it with `open`, and `close` it.

    After an error that is fatal every call fails with that error: what was written since the last commit may
    or may not be there, and only the next start can tell.
    """

    def __init__(
        self,
        directory: Path,
        database: Database,
        *,
        durability: FileDurability,
        history_s: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        quotas: Quotas,
        thresholds: Thresholds,
    ) -> None:
        self.durability: FileDurability = durability
        self.counters = StoreCounters()
        self._database = database
        self._broken: StoreError | None = None
        self._is_closed = False
        # What could not be deleted for want of room: the ids of sessions, and their keys.
        self._unforgotten: dict[str, int] = {}
        self._room = Room(directory, monotonic, ballast_bytes=thresholds.ballast_bytes)
        meta = opening.read_meta(database)
        self.store_id = meta.store_id
        """Random; another one means that nothing of what clients know is stored here."""
        run = meta.run + 1
        self._sessions = self._recover(meta.scanned, meta.run if meta.is_open else None)
        self._writer = Writer(database, self._sessions, self.counters, run=run, quotas=quotas, clock=clock)
        self._reader = Reader(database, self._sessions, self.counters, clock=clock)
        self._upkeep = Upkeep(
            database,
            self._sessions,
            self._writer,
            self.counters,
            history_s=history_s,
            clock=clock,
            thresholds=thresholds,
            is_check_due=meta.is_open,
        )
        self._management = Management(database, self._sessions, self._writer, self._reader, self._upkeep)
        self._begin_run(run)

    @property
    def has_failed(self) -> bool:
        """Whether it can never store anything again."""
        return self._broken is not None

    @property
    def fault(self) -> StoreError | None:
        """Why nothing can be stored now; `None` if the last write was stored. May be called on any thread."""
        if self._broken is not None:
            return self._broken
        return self._room.no_room() if self._room.is_full else None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        durability: FileDurability = "full",
        history_s: float = 900.0,
        principal_bytes_max: int = 4 << 30,
        store_bytes_max: int = 16 << 30,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        database: Callable[[Path], Database] = StandardDatabase,
        thresholds: Thresholds = _THRESHOLDS,
    ) -> SqliteStore:
        """Open the store in a directory, or make one.

        Args:
            directory: Made with mode 0700 unless it is there.
            durability: What a write without an error means, as in `streamctx.engine.base`.
            history_s: How far back `tail` reaches, at least.
            principal_bytes_max: What one owner may store.
            store_bytes_max: What all may.
            clock: Seconds since 1970.
            monotonic: Seconds, for when to try again after the disk was full.
            database: Opens the file.
            thresholds: When deferred work is due.

        Raises:
            ConfigurationError: If the directory or the file cannot be used; the message says what to do.
            StoreError: If the disk fails or is full.
        """
        if place.has_lost_all(directory):
            _LOG.warning("%s was empty: a new store is begun", place.FILE_NAME)
        path = place.prepare(directory)
        quotas = Quotas(principal_bytes_max=principal_bytes_max, store_bytes_max=store_bytes_max)
        with opening.opened(path, database, durability=durability) as opened:
            return cls(
                directory,
                opened,
                durability=durability,
                history_s=history_s,
                clock=clock,
                monotonic=monotonic,
                quotas=quotas,
                thresholds=thresholds,
            )

    def close(self) -> None:
        """Write what the next start would have to find out, and close the file.

        Raises:
            StoreError: If that fails. What was stored is safe all the same.
        """
        if self._is_closed or self._broken is not None:
            return
        self._is_closed = True
        try:
            if not self._room.is_full:
                self._upkeep.end_run()
            self._database.close()
        except DatabaseError as error:
            failure = self._failure(error)
            if not failure.is_fatal:
                # Closed it is even so; the log stays beside it then.
                with contextlib.suppress(DatabaseError):
                    self._database.close()
            raise failure from error

    def write(self, operations: Sequence[Write]) -> list[StoreError | None]:
        """Make operations safe, in their order, with one commit.

        Returns:
            An error for each that failed, alone or with all others; `None` for each that is safe.
        """
        deletions = [operation for operation in operations if isinstance(operation, Forget)]
        if len(deletions) == len(operations):
            results = self._write_deletions(operations)
        else:
            error = self._room.refusal()
            results = self._write(operations) if error is None else self._writer.fail(operations, error)
            if deletions and self._room.is_full:
                # All has failed for want of room, which is no reason to keep what is to be deleted.
                done = iter(self._write_deletions(deletions))
                results = [
                    next(done) if isinstance(operation, Forget) else result
                    for operation, result in zip(operations, results, strict=True)
                ]
        self._remember(operations, results)
        return results

    def fence(self, record: SessionRecord) -> None:
        """Store a record, as `Engine.fence`.

        Raises:
            StoreError: If it is not stored.
        """
        self._write_one(Fence(record))

    def append(self, session_id: str, epoch: str, batch: JournalBatch) -> None:
        """Add a batch, as `Engine.append`.

        Raises:
            StoreError: If it is not stored.
        """
        self._write_one(Append(session_id, epoch, encode_batch(batch)))

    def snapshot(self, session_id: str, epoch: str, state: SessionState, *, purge: bool = False) -> None:
        """Store a state, as `Engine.snapshot`.

        Raises:
            StoreError: If it is not stored.
        """
        self._write_one(Snapshot(session_id, epoch, state, purge))

    def forget(self, session_id: str) -> None:
        """Delete a session, as `Engine.forget`.

        Raises:
            StoreError: If it is not deleted.
        """
        self._write_one(Forget(session_id))

    def is_snapshot_due(self, session_id: str) -> bool:
        """Whether a snapshot would pay. May be called on any thread."""
        entry = self._sessions.get(session_id)
        if entry is None:
            return False
        rows = entry.head_count - entry.snapshot_count
        appended_bytes = entry.head_bytes - entry.snapshot_head_bytes
        if rows >= _SNAPSHOT_ROWS and appended_bytes >= entry.snapshot_bytes // _SNAPSHOT_ROWS_FRACTION:
            return True
        return rows >= _SNAPSHOT_ROWS_MAX or appended_bytes >= max(_SNAPSHOT_BYTES, entry.snapshot_bytes)

    def load(self, session_id: str) -> StoredSession | Damaged | None:
        """Read a session, as `Engine.load`.

        Raises:
            StoreError: If the file fails.
        """
        self._demand_whole()
        self._writer.clear(session_id)
        self._unforgotten.pop(session_id, None)
        entry = self._sessions.get(session_id)
        return None if entry is None else self._guarded(lambda: self._reader.load(entry))

    def tail(self, session_id: str, since: float) -> History | None:
        """Read the past of a session, as `Engine.tail`.

        Raises:
            StoreError: If it is damaged, or the file fails.
        """
        self._demand_whole()
        entry = self._sessions.get(session_id)
        if entry is None:
            return None
        past = self._guarded(lambda: self._reader.tail(entry, since))
        if isinstance(past, StoreError):
            raise past
        return past

    def summary(self, session_id: str) -> Summary | None:
        """One stored session; may be called on any thread."""
        entry = self._sessions.get(session_id)
        return None if entry is None else entry.summary()

    def summaries(self) -> list[Summary]:
        """All stored sessions. May be called on any thread."""
        return [entry.summary() for entry in self._sessions.all()]

    def upkeep(self, *, is_idle: bool, is_wanted: Callable[[], bool] = lambda: False) -> bool:
        """Do one piece of deferred work; see `Upkeep.step`.

        Raises:
            StoreError: If it fails; later calls then do nothing, or try again when there is room.
        """
        if self._broken is not None or self._is_closed or self._room.refusal() is not None:
            return False
        self._room.restore_ballast()
        if self._unforgotten:
            self._forget_again()
            return True
        return self._guarded(lambda: self._upkeep.step(is_idle=is_idle, is_wanted=is_wanted))

    def prune(
        self,
        before: float,
        *,
        principal: str | None = None,
        is_live: Container[str] = frozenset(),
        count_max: int | None = None,
    ) -> int:
        """Delete all sessions of which nothing was written since `before`, and what was set aside before it.

        Args:
            before: In seconds since 1970.
            principal: Only those of this owner.
            is_live: Sessions that are in use, and stay.
            count_max: How many to delete at most; `None` for all.

        Returns:
            How many sessions are gone.

        Raises:
            StoreError: If not all of them are.
        """
        return self._deletion(
            lambda: self._management.prune(before, principal=principal, is_live=is_live, count_max=count_max)
        )

    def set_aside(self, principal: str | None = None) -> list[SetAside]:
        """What was set aside as damaged, the oldest first; of one owner, or of all.

        Raises:
            StoreError: If the file fails.
        """
        return self._guarded(lambda: self._management.set_aside(principal))

    def forget_set_aside(self, keys: Iterable[int]) -> None:
        """Delete some of what was set aside, by their `SetAside.key`.

        Raises:
            StoreError: If not all of it is gone.
        """
        self._deletion(lambda: self._management.forget_set_aside(keys))

    def export(self, session_id: str) -> bytes | None:
        """Give a session as bytes that `import_session` takes, without what resumes it.

        It is read whole: its newest state and all batches behind it. `None` if there is no such session.

        Raises:
            StoreError: If it is damaged, or the file fails.
        """
        entry = self._sessions.get(session_id)
        return None if entry is None else self._guarded(lambda: self._management.export(entry))

    def import_session(self, data: bytes, *, principal: str | None = None) -> str:
        """Store an exported session, which can be read and not be resumed.

        Args:
            data: From `export`.
            principal: Whose it is to be; `None` for whose it was.

        Returns:
            The id of the session. It may have been stored before, if it was the same.

        Raises:
            ImportRefused: If the bytes are no good, or another session has that id.
            StoreError: If it cannot be stored; so too, not to tell of it, where that id is stored and not for
                `principal`.
        """
        return self._guarded(lambda: self._management.import_session(data, principal=principal))

    def backup(self, path: Path, on_step: Callable[[], None] = lambda: None) -> None:
        """Copy the store into a new file, with mode 0600.

        Args:
            path: Where to; it must not be there yet.
            on_step: Called between two steps of the copy. What it writes to this store is in the copy too.

        Raises:
            ConfigurationError: If the file is there or cannot be made.
            StoreError: If the copy fails; the file is removed then.
        """

        def step() -> None:
            on_step()
            self._demand_whole()

        self._guarded(lambda: self._management.backup(path, step))

    def _guarded(self, do: Callable[[], _T]) -> _T:
        self._demand_whole()
        try:
            return do()
        except DatabaseError as error:
            raise self._failure(error) from error

    def _recover(self, scanned: int, run: int | None) -> Sessions:
        def count_damaged() -> None:
            self.counters.quarantined += 1
            _LOG.error("a session is damaged beyond being named, and is left out")

        entries = read_entries(self._database, count_damaged)
        last, changed = extend_chains(
            entries, journal.scan(self._database, scanned), scanned=scanned, run=run
        )
        sessions = Sessions(self._database, entries, scanned=scanned, next_row=last + 1)
        sessions.mark_dirty(changed)
        return sessions

    def _begin_run(self, run: int) -> None:
        def begin() -> None:
            self._sessions.flush()
            self._database.execute("UPDATE meta SET value = ? WHERE name = 'run'", (run,))
            self._database.execute("UPDATE meta SET value = 1 WHERE name = 'is_open'")

        try:
            self._upkeep.transact(begin)
        except DatabaseError as error:
            if error.primary != FULL:
                raise
            # The ballast has room enough for this, and then what is stored can be read at least.
            self._room.run_out()
            self._room.release_ballast()
            self._upkeep.transact(begin)

    def _write_one(self, operation: Write) -> None:
        (error,) = self.write((operation,))
        if error is not None:
            raise error

    def _write(self, operations: Sequence[Write]) -> list[StoreError | None]:
        if self._broken is not None or self._is_closed:
            return self._writer.fail(operations, self._broken or _closed())
        try:
            results = self._writer.write(operations)
        except DatabaseError as failure:
            return self._writer.fail(operations, self._failure(failure))
        self._room.recover()
        return results

    def _write_deletions(self, operations: Sequence[Write]) -> list[StoreError | None]:
        def write() -> list[StoreError | None]:
            results = self._writer.write(operations)
            self._room.recover()
            return results

        try:
            return self._deletion(write)
        except StoreError as error:
            return self._writer.fail(operations, error)

    def _remember(self, operations: Sequence[Write], results: Sequence[StoreError | None]) -> None:
        """Keep in mind what could not be deleted; not what somebody went on with."""
        for operation, error in zip(operations, results, strict=True):
            if isinstance(operation, Forget) and error is not None and not error.is_fatal:
                entry = self._sessions.get(operation.session_id)
                if entry is not None:
                    self._unforgotten[entry.id] = entry.key
            elif self._unforgotten and isinstance(operation, (Fence, Forget)) and error is None:
                self._unforgotten.pop(operation.session_id, None)

    def _forget_again(self) -> None:
        session_id, key = next(iter(self._unforgotten.items()))
        entry = self._sessions.get(session_id)
        if entry is not None and entry.key == key:
            (error,) = self._write_deletions((Forget(session_id),))
            if error is not None:
                raise error
        self._unforgotten.pop(session_id, None)

    def _deletion(self, delete: Callable[[], _T]) -> _T:
        """Delete something, if need be with the room that is kept for that."""
        if not self._room.is_full:
            try:
                return self._guarded(delete)
            except StoreError as error:
                if error.is_fatal or not self._room.is_full:
                    raise
        self._demand_whole()
        self._room.release_ballast()
        self._shorten_log()
        # To overwrite what is deleted would take as much of the log. Its pages are the next to be used again.
        self._guarded(lambda: self._database.execute("PRAGMA secure_delete = FAST"))
        try:
            return self._guarded(delete)
        finally:
            if self._broken is None:
                self._guarded(lambda: self._database.execute("PRAGMA secure_delete = ON"))
                self._shorten_log()

    def _demand_whole(self) -> None:
        if self._broken is not None or self._is_closed:
            raise self._broken or _closed()

    def _failure(self, error: DatabaseError) -> StoreError:
        if error.primary == FULL:
            self.counters.full_errors += 1
            # Not logged here: small writes may succeed between two that fail. The hub tells it now and then.
            self._room.run_out()
            self._shorten_log()
            return self._broken or self._room.no_room()
        return self._break(error)

    def _shorten_log(self) -> None:
        """Give back the room of SQLite's log, if what it holds has its place in the file."""
        try:
            self._upkeep.checkpoint()
        except DatabaseError as error:
            if error.primary != FULL:
                self._break(error)

    def _break(self, error: DatabaseError) -> StoreError:
        return self.give_up(str(error))

    def give_up(self, reason: str) -> StoreError:
        """Never store anything again.

        Args:
            reason: What happened, for an operator.

        Returns:
            The error that every call fails with from now on.
        """
        self.counters.fatal_errors += 1
        _LOG.error("the store has failed, and stores nothing any more: %s", reason)
        self._broken = StoreError(
            f"the store has failed ({reason}): nothing is stored any more, and the server has to end; "
            f"look at the disk, then start it again",
            is_fatal=True,
        )
        self._database.abandon()
        return self._broken


def _closed() -> StoreError:
    return StoreError("the store is closed", is_fatal=True)
