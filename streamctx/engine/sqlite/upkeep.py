"""What a store does when it has time: deletes what nothing can reach, and copies the log into the file.

Each call does one small step, so that what waits to be stored waits for no more than that.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from streamctx.engine.sqlite import snapshots
from streamctx.engine.sqlite.checks import Damage
from streamctx.engine.sqlite.counters import StoreCounters
from streamctx.engine.sqlite.library import INTERRUPT, Database, DatabaseError
from streamctx.engine.sqlite.sessions import Entry, Sessions
from streamctx.engine.sqlite.writer import Writer

__all__ = ["Thresholds", "Upkeep"]

_LOG = logging.getLogger("streamctx.engine")

# Rows that one step of a sweep looks at.
_SWEEP_STEP_ROWS = 2048
# What deleting adds to the log for each row that is looked at: a row of some 300 bytes, on a page with
# others.
_SWEPT_ROW_BYTES = 330
# Of a larger file a check would keep writers waiting; its sessions are verified as they are loaded.
_CHECK_PAGES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When deferred work is due even under load, and what is kept for when the disk is full."""

    checkpoint_bytes: int = 1000 * 4096
    """Of the log, before it is copied into the file.

    Who waits to be stored waits for that: at most 15 to 25 ms here, and 25 to 50 with four times as much, for
    the same work in all.
    """
    flush_rows: int = 50_000
    """Rows that a start has to read at most; it takes about 100 ms."""
    ballast_bytes: int = 8 << 20
    """More than the log holds before it is copied into the file.

    With so much room it can be copied, and be written again from its beginning, without a byte more.
    """
    sweep_rows_min: int = 8192
    """Rows that can go, before a sweep deletes them; they have to be as many as those that stay, too."""


class Upkeep:
    """The deferred work of a store. The methods raise `DatabaseError` as the database fails.

    Rows of the journal are not deleted session by session: a session's rows lie on pages that they share with
    those of all others, and each deletion would write the page anew. A sweep goes through all rows once half
    of them can go. It takes the lines between what stays and what goes from its start, so that
    what is left of a session is always the end of its chain, and a chain can be followed to delete it.
    """

    def __init__(
        self,
        database: Database,
        sessions: Sessions,
        writer: Writer,
        counters: StoreCounters,
        *,
        history_s: float,
        clock: Callable[[], float],
        thresholds: Thresholds,
        is_check_due: bool,
    ) -> None:
        self._database = database
        self._sessions = sessions
        self._writer = writer
        self._counters = counters
        self._history_ms = round(history_s * 1000)
        self._clock = clock
        self._thresholds = thresholds
        self._is_check_due = is_check_due
        # The last row that was looked at; `None` while no sweep runs.
        self._swept: int | None = None
        self._sweep_stop = 0
        self._step_at_row = 0
        self._garbage_rows = _read_garbage(database)
        self._garbage_rows_at_start = 0
        self._is_sweep_due = self._has_enough_garbage()
        # When something of a session becomes older than its history, in ms since 1970; each session once.
        self._trims: list[tuple[int, str]] = []
        self._trims_of: set[str] = set()
        # The log of a run that was killed may hold what it purged.
        writer.has_purged = is_check_due

    def step(self, *, is_idle: bool, is_wanted: Callable[[], bool] = lambda: False) -> bool:
        """Do one piece of what is due.

        Args:
            is_idle: Whether nothing waits to be stored; then also what could wait is done.
            is_wanted: Asked during a long piece; if so, that is put off.

        Returns:
            Whether anything was done, so that asking again may do more.
        """
        if self._writer.has_purged:
            self._empty_log()
        elif self._writer.log_bytes >= self._thresholds.checkpoint_bytes:
            self.checkpoint()
        elif (session_id := self._next_to_trim()) is not None:
            self._trim_session(session_id)
        elif is_idle and self._writer.log_bytes:
            self.checkpoint()
        elif self._sessions.next_row - 1 - self._sessions.scanned >= self._thresholds.flush_rows:
            self.flush()
        elif self._swept is not None and (is_idle or self._sessions.next_row - self._step_at_row >= 1024):
            self._sweep(self._swept)
        elif self._swept is None and self._is_sweep_due:
            self._begin_sweep()
        elif is_idle and self._is_check_due:
            self._check(is_wanted)
        else:
            return False
        return True

    def checkpoint(self) -> None:
        """Copy the log into the file, so that the log starts again from its beginning."""
        ((_, pages, copied),) = self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._writer.log_bytes = (pages - copied) * 4096
        self._counters.checkpoints += 1

    def _empty_log(self) -> None:
        # What was purged is in the log as it was, and nothing else writes over its end for a long time.
        # Never busy: the file is locked, so that nobody else reads the log.
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._writer.has_purged = False
        self._writer.log_bytes = 0
        self._counters.checkpoints += 1

    def flush(self) -> None:
        """Write the heads of all chains, so that the next start has nothing to read."""
        self.transact(self._sessions.flush)

    def end_run(self) -> None:
        """Leave nothing to be found out by the next start."""
        self.transact(self._end_run)
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def transact(self, change: Callable[[], None]) -> None:
        """Do a change in a transaction of its own; if it fails nothing of it is done, in memory neither."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            change()
            self._database.execute("COMMIT")
        except BaseException:
            self._writer.roll_back()
            raise
        self._sessions.commit()

    def _end_run(self) -> None:
        self._sessions.flush()
        self._database.execute("UPDATE meta SET value = 0 WHERE name = 'is_open'")

    def _next_to_trim(self) -> str | None:
        # At its time, not with the next snapshot: an owner at the quota would never get one.
        while self._trims and self._trims[0][0] <= self._clock() * 1000:
            _, session_id = heapq.heappop(self._trims)
            self._trims_of.discard(session_id)
            self._writer.has_new_snapshots[session_id] = None
        return next(iter(self._writer.has_new_snapshots), None)

    def _trim_session(self, session_id: str) -> None:
        entry = self._sessions.get(session_id)
        try:
            if entry is not None:
                self._trim(entry)
                self._trim_later(entry)
        except Damage as damage:
            # The next load finds it; until then what is there stays there.
            _LOG.error("session %s: old snapshots cannot be deleted: %s", session_id, damage)
        del self._writer.has_new_snapshots[session_id]

    def _trim_later(self, entry: Entry) -> None:
        marks = snapshots.marks(self._database, entry.key)
        if marks and marks[0].head_row <= entry.keep_row:
            del marks[0]
        if marks and entry.id not in self._trims_of:
            heapq.heappush(self._trims, (marks[0].at + self._history_ms, entry.id))
            self._trims_of.add(entry.id)

    def _trim(self, entry: Entry) -> None:
        horizon = math.floor(self._clock() * 1000) - self._history_ms
        marks = snapshots.marks(self._database, entry.key)
        first = 0
        while first + 1 < len(marks) and marks[first + 1].at <= horizon:
            first += 1
        if not marks or marks[first].at > horizon:
            return
        if first or marks[first].head_row > entry.keep_row:
            self.transact(lambda: self._drop_before(entry, marks[first]))
            self._is_sweep_due = self._has_enough_garbage()

    def _drop_before(self, entry: Entry, oldest: snapshots.Mark) -> None:
        self._sessions.touch(entry)
        before = entry.stored_bytes
        self._garbage_rows += oldest.head_count - entry.keep_count
        entry.snapshots_bytes -= snapshots.trim(self._database, entry.key, before=oldest.snapshot)
        entry.keep_row, entry.keep_count = oldest.head_row, oldest.head_count
        entry.keep_bytes = oldest.head_bytes
        self._sessions.grow(entry, entry.stored_bytes - before)
        self._sessions.write_heads([entry])
        self._write_garbage()

    def _has_enough_garbage(self) -> bool:
        if self._garbage_rows < self._thresholds.sweep_rows_min:
            return False
        return self._garbage_rows >= sum(
            entry.head_count - entry.keep_count for entry in self._sessions.all()
        )

    def _begin_sweep(self) -> None:
        self._database.execute("DELETE FROM temp.lines")
        self._database.execute("INSERT INTO temp.lines SELECT key, keep_row FROM sessions WHERE keep_row > 0")
        self._swept, self._sweep_stop = 0, self._sessions.scanned
        self._garbage_rows_at_start = self._garbage_rows
        self._is_sweep_due = False

    def _sweep(self, after: int) -> None:
        ((stop, count),) = self._database.execute(
            "SELECT max(row), count(*) FROM "
            "(SELECT row FROM journal WHERE row > ? AND row <= ? ORDER BY row LIMIT ?)",
            (after, self._sweep_stop, _SWEEP_STEP_ROWS),
        )
        self._step_at_row = self._sessions.next_row
        if not count:
            self._swept = None
            self._garbage_rows -= self._garbage_rows_at_start
            self.transact(self._write_garbage)
            return
        self._database.execute(
            "DELETE FROM journal WHERE row > ? AND row <= ? "
            "AND row <= (SELECT lines.row FROM temp.lines WHERE lines.session = journal.session)",
            (after, stop),
        )
        self._swept = stop
        self._counters.rows_swept += count
        self._writer.log_bytes += count * _SWEPT_ROW_BYTES

    def _write_garbage(self) -> None:
        self._database.execute("INSERT OR REPLACE INTO meta VALUES ('garbage', ?)", (self._garbage_rows,))

    def _check(self, is_wanted: Callable[[], bool]) -> None:
        ((page_count,),) = self._database.execute("PRAGMA page_count")
        if page_count > _CHECK_PAGES_MAX:
            self._is_check_due = False
            _LOG.info("the stop before was not in order, and the file is too large to be checked as a whole")
            return
        self._database.interrupt_when(is_wanted)
        try:
            found = self._database.execute("PRAGMA quick_check(1)")
        except DatabaseError as error:
            if error.primary != INTERRUPT:
                raise
            return
        finally:
            self._database.interrupt_when(None)
        self._is_check_due = False
        if found == [("ok",)]:
            self._counters.checks_passed += 1
            _LOG.info("the stop before was not in order; the file has been checked and is whole")
        else:
            self._counters.checks_failed += 1
            _LOG.error(
                "the file of the store is damaged in places: each session is verified when it is loaded; "
                "make a backup, and look at the disk"
            )


def _read_garbage(database: Database) -> int:
    database.execute("CREATE TEMP TABLE lines (session INTEGER PRIMARY KEY, row INTEGER NOT NULL)")
    found = database.execute("SELECT value FROM meta WHERE name = 'garbage'")
    return found[0][0] if found and isinstance(found[0][0], int) else 0
