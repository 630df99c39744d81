"""The engine around a store: one thread that writes and reads, and an event loop that never waits for it.

Nothing waits for a batch to fill. The thread takes all that is queued and commits it at once; the next batch
forms while the disk syncs this one, or for some milliseconds where the disk is faster than that.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState
from streamctx.engine.base import Done, Durability, Loaded, Past, StoreError, Summary
from streamctx.engine.sqlite.codec import encode_batch
from streamctx.engine.sqlite.counters import StoreCounters
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.engine.sqlite.writer import Append, Fence, Forget, Refused, Snapshot, Write

__all__ = ["SqliteEngine"]

_LOG = logging.getLogger("streamctx.engine")
_T = TypeVar("_T")

# One transaction. More gains nothing, and everybody in it waits for all of it.
_OPERATIONS_MAX = 1000
_TRANSACTION_BYTES = 1 << 20
# Sessions read before what is queued is written.
_READS_MAX = 16
# What may wait for the disk, before it counts as too slow.
_WAITING_BYTES_MAX = 64 << 20
# What states may wait besides: a large one is no sign of a slow disk, and would count against all others. One
# that is larger waits alone.
_SNAPSHOTS_BYTES_MAX = 64 << 20
# After a snapshot has failed: to make a state takes time, and may do so in vain.
_SNAPSHOT_RETRY_S = 30.0
# Before sessions whose time is over are taken out of those.
_RETRIES_MAX = 1000
_IDLE_S = 1.0
# While nothing comes: what has become older than the history since.
_LATER_S = 60.0
# From one commit to the next. A commit wakes two threads, which costs more than all else that is done for an
# event where each has one of its own, as on a fast disk: at 4,000 events/s it left 99 of 146 µs of CPU.
_PACE_S = 0.004
# Sessions deleted before others have their turn.
_PRUNE_COUNT = 20
# A record, and what a queued call itself takes.
_CALL_BYTES = 1024


class _Put(msgspec.Struct, frozen=True, gc=False):
    operation: Write
    byte_count: int
    done: Done
    snapshot_bytes: int = 0
    """Those of a state, which count apart."""


class _Get(msgspec.Struct, frozen=True):
    """Something that runs by itself, not within a transaction. `session_id` is `None` if it concerns all."""

    session_id: str | None
    read: Callable[[SqliteStore], Any]
    done: Callable[[Any], None]
    is_long: bool = False
    """Whether it may take seconds, so that it goes alone and never before what was queued before it."""


_Answer: TypeAlias = tuple[Callable[[Any], None], Any]


class SqliteEngine:
    """An `Engine` on a `SqliteStore`. Its methods are called on the event loop's thread.

    Calls may be made before `start`; they wait for it.

    Args:
        store: It belongs to the engine from now on, and to its thread from `start` on.
        idle_s: Without work for so long the store does what could wait.
        snapshot_retry_s: For so long no snapshot of a session is due after one has failed.
    """

    def __init__(
        self, store: SqliteStore, *, idle_s: float = _IDLE_S, snapshot_retry_s: float = _SNAPSHOT_RETRY_S
    ) -> None:
        self.durability: Durability = store.durability
        self._store = store
        self._idle_s = idle_s
        self._queue: deque[_Put | _Get] = deque()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._served_at = -_PACE_S
        self._is_closed = False
        self._snapshots_waiting: set[str] = set()
        self._snapshots_bytes = 0
        self._snapshot_retry_s = snapshot_retry_s
        self._no_snapshot_before: dict[str, float] = {}
        # Each is changed by one thread only; the difference is what waits.
        self._queued_bytes = 0
        self._taken_bytes = 0

    @property
    def store_id(self) -> str:
        """Random; another one means that nothing of what clients know is stored here."""
        return self._store.store_id

    @property
    def counters(self) -> StoreCounters:
        """What the store has done so far."""
        return self._store.counters

    @property
    def fault(self) -> StoreError | None:
        """Why nothing can be stored now, as far as the last write tells."""
        if self.waiting_bytes > _WAITING_BYTES_MAX:
            return _too_slow(self.waiting_bytes, limit_bytes=_WAITING_BYTES_MAX)
        return self._store.fault

    @property
    def waiting_bytes(self) -> int:
        """What has been given to the engine and not yet to the disk, but for states."""
        return self._queued_bytes - self._taken_bytes

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to store; completions arrive on `loop`."""
        self._loop = loop
        self._ended = loop.create_future()
        self._thread = threading.Thread(target=self._run, name="streamctx-store", daemon=True)
        self._thread.start()

    async def close(self, *, timeout_s: float = 10.0) -> bool:
        """Store what is queued, complete it, and close the store in order. Calls from now on do nothing.

        Returns:
            Whether all that was done in time. If not, nothing is lost that was completed, but the next start
            has to look for it.
        """
        self._is_stopping = True
        if self._ended is None:
            self._is_closed = True
            self._store.close()
            return True
        self._wake.set()
        await asyncio.wait((self._ended,), timeout=timeout_s)
        self._is_closed = True
        return self._ended.done()

    def fence(self, record: SessionRecord, done: Done) -> None:
        """Store a session's record."""
        self._put(Fence(record), _CALL_BYTES, done)

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        """Add a batch."""
        payload = encode_batch(batch)
        self._put(Append(session_id, epoch, payload), len(payload), done)

    def is_snapshot_due(self, session_id: str) -> bool:
        """Whether a snapshot would pay; not while one waits to be stored, or soon after one has failed."""
        return (
            session_id not in self._snapshots_waiting
            and self._store.is_snapshot_due(session_id)
            and time.monotonic() >= self._no_snapshot_before.get(session_id, 0.0)
        )

    def snapshot(
        self, session_id: str, epoch: str, state: SessionState, done: Done, *, purge: bool = False
    ) -> None:
        """Store a state."""
        byte_count = _CALL_BYTES + sum(len(document.text or "") for document in state.documents)
        operation: Write = Snapshot(session_id, epoch, state, purge)
        # A purge is for what nobody may find any more, and waits as long as it takes.
        if not purge and self._snapshots_bytes and self._snapshots_bytes + byte_count > _SNAPSHOTS_BYTES_MAX:
            error = _too_slow(self._snapshots_bytes + byte_count, limit_bytes=_SNAPSHOTS_BYTES_MAX)
            operation, byte_count = Refused(session_id, error, is_snapshot=True), 0

        def finish(error: StoreError | None) -> None:
            self._snapshots_waiting.discard(session_id)
            self._snapshots_bytes -= byte_count
            if error is not None:
                self._put_snapshots_off(session_id)
            done(error)

        if not self._is_stopping:
            self._snapshots_waiting.add(session_id)
            self._snapshots_bytes += byte_count
            self._enqueue(_Put(operation, 0, finish, byte_count))

    def _put_snapshots_off(self, session_id: str) -> None:
        now = time.monotonic()
        if len(self._no_snapshot_before) >= _RETRIES_MAX:
            waiting = self._no_snapshot_before.items()
            self._no_snapshot_before = {key: until for key, until in waiting if until > now}
        self._no_snapshot_before[session_id] = now + self._snapshot_retry_s

    def load(self, session_id: str, done: Callable[[Loaded], None]) -> None:
        """Read a session."""
        self._get(session_id, lambda store: store.load(session_id), done)

    def tail(self, session_id: str, since: float, done: Callable[[Past], None]) -> None:
        """Read the past of a session."""
        self._get(session_id, lambda store: store.tail(session_id, since), done, is_long=True)

    def forget(self, session_id: str, done: Done) -> None:
        """Delete a session."""
        self._put(Forget(session_id), _CALL_BYTES, done)

    def summary(self, session_id: str) -> Summary | None:
        """One session, if it is stored."""
        return self._store.summary(session_id)

    def summaries(self) -> Sequence[Summary]:
        """All sessions that are stored."""
        return self._store.summaries()

    async def run(self, task: Callable[[SqliteStore], _T]) -> _T:
        """Do something with the store itself, after all that is queued; others wait for as long as it takes.

        Raises:
            StoreError: As the task does; all other exceptions of it too.
        """
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def answer(store: SqliteStore) -> Callable[[], None]:
            try:
                result = task(store)
            except Exception as error:
                failure = error
                return lambda: future.set_exception(failure)
            return lambda: future.set_result(result)

        def settle(tell: Callable[[], None]) -> None:
            if not future.done():
                tell()

        self._get(None, answer, settle)
        return await future

    async def prune(
        self,
        before: float,
        *,
        principal: str | None = None,
        is_live: Callable[[], Container[str]] = frozenset,
    ) -> int:
        """Delete old sessions as `SqliteStore.prune`, some at a time, so that others wait for no more than
        that.

        Args:
            is_live: Asked before each step which sessions are in use.

        Raises:
            StoreError: If not all of them are gone.
        """
        count = 0
        while True:
            gone = await self.run(
                functools.partial(
                    SqliteStore.prune,
                    before=before,
                    principal=principal,
                    is_live=is_live(),
                    count_max=_PRUNE_COUNT,
                )
            )
            count += gone
            if gone < _PRUNE_COUNT:
                return count

    async def backup(self, path: Path) -> None:
        """Copy the store into a new file; what is queued meanwhile is stored between its steps.

        Raises:
            ConfigurationError: If the file is there or cannot be made.
            StoreError: If the copy fails; the file is removed then.
        """
        await self.run(lambda store: store.backup(path, lambda: self._serve(with_tasks=False)))

    def _put(self, operation: Write, byte_count: int, done: Done) -> None:
        if self._is_stopping:
            return
        if self.waiting_bytes > _WAITING_BYTES_MAX:
            # It takes its turn, so that completions stay in order, but no room.
            error = _too_slow(self.waiting_bytes, limit_bytes=_WAITING_BYTES_MAX)
            operation, byte_count = Refused(operation.session_id, error), 0
        self._queued_bytes += byte_count
        self._enqueue(_Put(operation, byte_count, done))

    def _enqueue(self, item: _Put) -> None:
        self._queue.append(item)
        if not self._wake.is_set():
            self._wake.set()

    def _get(
        self,
        session_id: str | None,
        read: Callable[[SqliteStore], Any],
        done: Callable[[Any], None],
        *,
        is_long: bool = False,
    ) -> None:
        if self._is_stopping:
            return
        self._queue.append(_Get(session_id, read, done, is_long))
        self._wake.set()

    def _run(self) -> None:
        """The thread. It ends once it was told to stop and nothing is queued."""
        try:
            while not (self._is_stopping and not self._queue):
                if self._wake.wait(self._idle_s):
                    self._wake.clear()
                    self._serve(with_tasks=True)
                else:
                    self._keep_up()
                    while not self._wake.wait(_LATER_S):
                        self._keep_up()
            self._store.close()
        except StoreError as error:
            _LOG.error("the store could not be closed in order: %s", error)
        finally:
            self._call(self._end)

    def _pace(self) -> None:
        """Let more come in while the last commit is very young; who comes after a pause never waits."""
        wait_s = self._served_at + _PACE_S - time.monotonic()
        if wait_s > 0.0 and not self._is_stopping and len(self._queue) < _OPERATIONS_MAX:
            time.sleep(wait_s)
        self._served_at = time.monotonic()

    def _serve(self, *, with_tasks: bool) -> None:
        """Do all that is queued, in as few transactions as it takes."""
        while self._queue:
            self._pace()
            gets, puts = self._take(with_tasks=with_tasks)
            if not gets and not puts:
                return
            answers = [self._read(get) for get in gets]
            if puts:
                answers += self._write(puts)
            self._call(functools.partial(self._deliver, answers))
            self._upkeep(is_idle=False)

    def _take(self, *, with_tasks: bool) -> tuple[list[_Get], list[_Put]]:
        """Take what can be done together:

        reads first, then a transaction that no read of these has to see.
        """
        gets: list[_Get] = []
        puts: list[_Put] = []
        written: set[str] = set()
        byte_count = taken_bytes = 0
        queue = self._queue
        while queue and len(puts) < _OPERATIONS_MAX and byte_count < _TRANSACTION_BYTES:
            item = queue[0]
            if isinstance(item, _Put):
                if puts and item.snapshot_bytes > _TRANSACTION_BYTES:
                    # What came before a large state need not wait for it.
                    break
                puts.append(item)
                written.add(item.operation.session_id)
                byte_count += item.byte_count + item.snapshot_bytes
                taken_bytes += item.byte_count
            elif item.session_id is None:
                if puts or gets or not with_tasks:
                    break
                gets.append(item)
                queue.popleft()
                break
            elif item.is_long:
                if not puts and not gets:
                    gets.append(item)
                    queue.popleft()
                break
            elif item.session_id in written or len(gets) == _READS_MAX:
                break
            else:
                gets.append(item)
            queue.popleft()
        self._taken_bytes += taken_bytes
        return gets, puts

    def _read(self, get: _Get) -> _Answer:
        try:
            return get.done, get.read(self._store)
        except StoreError as error:
            return get.done, error
        except Exception:
            _LOG.exception("the store has failed while it read")
            return get.done, self._store.give_up("it failed while it read")

    def _write(self, puts: Sequence[_Put]) -> list[_Answer]:
        try:
            results = self._store.write([put.operation for put in puts])
        except Exception:
            _LOG.exception("the store has failed while it wrote")
            error = self._store.give_up("it failed while it wrote")
            return [(put.done, error) for put in puts]
        return [(put.done, result) for put, result in zip(puts, results, strict=True)]

    def _keep_up(self) -> None:
        while not self._queue and self._upkeep(is_idle=True):
            pass

    def _upkeep(self, *, is_idle: bool) -> bool:
        if self._store.has_failed:
            return False
        try:
            return self._store.upkeep(is_idle=is_idle, is_wanted=lambda: bool(self._queue))
        except StoreError:
            # The store has logged why, and whoever writes next is told.
            return False
        except Exception:
            _LOG.exception("the upkeep of the store failed")
            self._store.give_up("its upkeep failed")
            return False

    def _call(self, what: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            # The loop was closed before the engine: nobody is there to be told, and what is stored is stored.
            self._is_stopping = True

    def _deliver(self, answers: Sequence[_Answer]) -> None:
        for done, result in answers:
            if self._is_closed:
                return
            try:
                done(result)
            except Exception:
                _LOG.exception("a completion has failed")

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


def _too_slow(waiting_bytes: int, *, limit_bytes: int) -> StoreError:
    return StoreError(
        f"{waiting_bytes} bytes wait to be stored, limit {limit_bytes}: the disk is too slow",
        is_fatal=False,
        retry_after_s=1.0,
    )
