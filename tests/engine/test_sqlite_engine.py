"""What the thread around a store adds to it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from streamctx.core.session.stored import StoredSession
from streamctx.engine.base import StoreError
from streamctx.engine.sqlite import SqliteEngine, SqliteStore
from streamctx.engine.sqlite.library import DatabaseError, Row, StandardDatabase, Value
from tests.engine.calls import Calls
from tests.engine.model import content
from tests.engine.samples import batch, document, record, state

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

pytestmark = pytest.mark.asyncio


def _started(store: SqliteStore) -> SqliteEngine:
    engine = SqliteEngine(store)
    engine.start(asyncio.get_running_loop())
    return engine


class Gate:
    """Holds the thread of an engine until it is opened."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._event = threading.Event()
        self._held = asyncio.ensure_future(engine.run(lambda _: self._event.wait(30)))

    async def open(self) -> None:
        self._event.set()
        await self._held


async def _all_called() -> None:
    """Let the tasks that were begun make their calls."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_queued_is_one_commit(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    await calls.fence(record())
    before = engine.counters.commits
    gate = Gate(engine)
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(calls.append("s1", "e1", *[batch(number) for number in range(1, 401, 2)]))
    await asyncio.sleep(0)
    await gate.open()
    await waiting
    assert engine.counters.commits == before + 1
    await engine.close()


async def test_a_large_queue_is_several_commits(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    await calls.fence(record())
    before = engine.counters.commits
    gate = Gate(engine)
    await asyncio.sleep(0)
    large = [batch(4, "x" * 600_000)] * 4
    waiting = asyncio.gather(calls.append("s1", "e1", *[batch(1)] * 1001), calls.append("s1", "e1", *large))
    await _all_called()
    await gate.open()
    await waiting
    # A thousand; one and two large ones; two large ones.
    assert engine.counters.commits == before + 3
    await engine.close()


async def test_the_past_is_read_alone_and_after_the_writes_that_came_before(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    for session_id in ("s1", "s2"):
        await calls.fence(record(session_id))
    gate = Gate(engine)
    await asyncio.sleep(0)
    completed: list[str] = []
    engine.load("s2", lambda _: completed.append("load"))
    engine.tail("s2", 0.0, lambda _: completed.append("past"))
    engine.append("s1", "e1", batch(1), lambda _: completed.append("write"))
    engine.tail("s2", 0.0, lambda _: completed.append("past"))
    await gate.open()
    await calls.append("s1", "e1", batch(3))
    assert completed == ["load", "past", "write", "past"]
    await engine.close()


async def test_calls_made_before_the_start_wait_for_it(tmp_path: Path) -> None:
    engine = SqliteEngine(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    waiting = asyncio.ensure_future(calls.fence(record()))
    await asyncio.sleep(0)
    assert not waiting.done()
    engine.start(asyncio.get_running_loop())
    await waiting
    await engine.close()


async def test_closing_stores_and_completes_what_is_queued(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    completed: list[StoreError | None] = []
    engine.fence(record(), completed.append)
    for number in range(1, 41, 2):
        engine.append("s1", "e1", batch(number), completed.append)
    assert await engine.close()
    assert completed == [None] * 21
    store = SqliteStore.open(tmp_path)
    assert len(content(store)["s1"].batches) == 20
    store.close()


async def test_a_closed_engine_completes_nothing_any_more(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    await calls.fence(record())
    await engine.close()
    completed: list[object] = []
    engine.fence(record(), completed.append)
    engine.append("s1", "e1", batch(1), completed.append)
    engine.load("s1", completed.append)
    await asyncio.sleep(0.02)
    assert completed == []
    assert await engine.close()


async def test_an_engine_that_takes_too_long_to_close_completes_nothing_after_it(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    completed: list[object] = []
    gate = Gate(engine)
    await asyncio.sleep(0)
    engine.fence(record(), completed.append)
    assert not await engine.close(timeout_s=0.01)
    held = gate.open()
    # The answer to the gate is one of those that do not come.
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(held, 0.05)
    assert completed == []


async def test_one_that_was_never_started_can_be_closed(tmp_path: Path) -> None:
    engine = SqliteEngine(SqliteStore.open(tmp_path))
    assert await engine.close()
    SqliteStore.open(tmp_path).close()


async def test_more_than_may_wait_fails_in_its_turn(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    await calls.fence(record("s1"))
    await calls.fence(record("s2"))
    gate = Gate(engine)
    await asyncio.sleep(0)
    order: list[str] = []

    def done(name: str) -> Callable[[StoreError | None], None]:
        return lambda error: order.append(name if error is None else f"{name}: {error.is_fatal}")

    large = batch(4, "x" * (1 << 20))
    for _ in range(64):
        engine.append("s1", "e1", large, done("large"))
    assert engine.waiting_bytes > 64 << 20
    engine.append("s1", "e1", batch(1), done("behind"))
    engine.load("s2", lambda loaded: order.append(type(loaded).__name__))
    engine.append("s2", "e1", batch(1), done("other"))
    await gate.open()
    loaded = await calls.load("s1")
    assert [name for name in order if name in {"large", "behind: False"}] == ["large"] * 64 + [
        "behind: False"
    ]
    assert [name for name in order if name in {"StoredSession", "other: False"}] == [
        "StoredSession",
        "other: False",
    ]
    assert isinstance(loaded, StoredSession)
    assert loaded.batches == (large,) * 64
    assert engine.waiting_bytes == 0
    await calls.append("s1", "e1", batch(1))
    await engine.close()


async def test_a_large_state_that_waits_keeps_nobody_from_storing(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    await calls.fence(record("s1"))
    await calls.fence(record("s2"))
    gate = Gate(engine)
    await asyncio.sleep(0)
    large = state(1, document(1, "x" * (65 << 20)))
    results: list[StoreError | None] = []
    engine.append("s1", "e1", batch(1), results.append)
    engine.snapshot("s1", "e1", large, results.append)
    engine.append("s1", "e1", batch(3), results.append)
    engine.append("s2", "e1", batch(1), results.append)
    await gate.open()
    loaded = await calls.load("s1")
    assert results == [None] * 4
    assert isinstance(loaded, StoredSession)
    assert loaded.batches == (batch(3),)
    assert await calls.load("s2") == StoredSession(record("s2"), None, (batch(1),))
    await engine.close()


@pytest.mark.parametrize(("more_bytes", "is_taken"), [(-2048, True), (-2047, False)])
async def test_more_states_than_may_wait_fail_alone_and_none_is_due_for_a_while(
    tmp_path: Path, more_bytes: int, is_taken: bool
) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    calls = Calls(engine)
    for name in ("s1", "s2"):
        await calls.fence(record(name))
        await calls.append(name, "e1", *[batch(1)] * 4096)
    assert engine.is_snapshot_due("s2")
    gate = Gate(engine)
    await asyncio.sleep(0)
    results: list[StoreError | None] = []
    engine.snapshot("s1", "e1", state(1, document(1, "x" * (32 << 20))), results.append)
    more = state(1, document(1, "x" * ((32 << 20) + more_bytes)))
    engine.snapshot("s2", "e1", more, results.append)
    assert not engine.is_snapshot_due("s2")
    purged: list[StoreError | None] = []
    engine.snapshot("s2", "e1", more, purged.append, purge=True)
    await gate.open()
    await calls.append("s2", "e1", *[batch(1)] * 4096)
    assert [result is None for result in results] == [True, is_taken]
    assert not any(result is not None and result.is_fatal for result in results)
    assert purged == [None]
    await engine.close()


@pytest.mark.parametrize(("snapshot_retry_s", "is_due"), [(1000.0, False), (0.0, True)])
async def test_no_snapshot_is_due_for_a_while_after_one_has_failed(
    tmp_path: Path, snapshot_retry_s: float, is_due: bool
) -> None:
    store = SqliteStore.open(tmp_path, principal_bytes_max=1 << 20)
    engine = SqliteEngine(store, snapshot_retry_s=snapshot_retry_s)
    engine.start(asyncio.get_running_loop())
    calls = Calls(engine)
    await calls.fence(record())
    await calls.append("s1", "e1", *[batch(1)] * 4096)
    assert engine.is_snapshot_due("s1")
    with pytest.raises(StoreError, match="quota"):
        await calls.snapshot("s1", "e1", state(1, document(1, "x" * (2 << 20))))
    assert engine.is_snapshot_due("s1") == is_due
    await calls.append("s1", "e1", batch(1))
    await engine.close()


async def test_a_task_sees_all_that_was_queued_before_it(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    engine.fence(record(), lambda _: None)
    engine.append("s1", "e1", batch(1), lambda _: None)
    found = await engine.run(content)
    assert found["s1"].batches == (batch(1),)

    def fail(_: SqliteStore) -> None:
        raise StoreError("of the test", is_fatal=False)

    with pytest.raises(StoreError, match="of the test"):
        await engine.run(fail)
    await engine.close()


async def test_a_task_that_is_cancelled_harms_nothing(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path))
    gate = Gate(engine)
    await asyncio.sleep(0)
    task = asyncio.ensure_future(engine.run(content))
    await asyncio.sleep(0)
    task.cancel()
    await gate.open()
    await Calls(engine).fence(record())
    assert task.cancelled()
    await engine.close()


async def test_appends_go_on_during_a_backup(tmp_path: Path) -> None:
    engine = _started(SqliteStore.open(tmp_path / "data"))
    calls = Calls(engine)
    await calls.fence(record())
    await calls.snapshot("s1", "e1", state(1, document(1, "x" * 20_000_000)))
    during = 0
    backup = asyncio.ensure_future(engine.backup(tmp_path / "copy.db"))
    while not backup.done():
        await calls.append("s1", "e1", batch(during * 2 + 1))
        during += 1
    await backup
    assert during > 3
    await engine.close()
    directory = tmp_path / "restored"
    directory.mkdir(mode=0o700)
    (tmp_path / "copy.db").rename(directory / "store.db")
    store = SqliteStore.open(directory)
    batches = content(store)["s1"].batches
    assert batches == tuple(batch(index * 2 + 1) for index in range(len(batches)))
    store.close()


async def test_pruning_takes_turns_with_others(tmp_path: Path) -> None:
    now = 1_000_000.0
    engine = _started(SqliteStore.open(tmp_path, clock=lambda: now))
    calls = Calls(engine)
    for number in range(50):
        await calls.fence(record(f"s{number}"))
    now += 10
    await calls.fence(record("fresh"))
    steps = 0

    def is_live() -> set[str]:
        nonlocal steps
        steps += 1
        return {"s7"}

    assert await engine.prune(now, is_live=is_live) == 49
    assert steps == 3
    assert {summary.session_id for summary in engine.summaries()} == {"s7", "fresh"}
    await engine.close()


class ToldDatabase(StandardDatabase):
    """Tells when the log is copied into the file."""

    told: Callable[[], object] = staticmethod(lambda: None)

    @override
    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        rows = super().execute(sql, parameters)
        if "wal_checkpoint(PASSIVE)" in sql:
            self.told()
        return rows


async def test_an_idle_engine_copies_the_log_into_the_file(tmp_path: Path) -> None:
    databases: list[ToldDatabase] = []

    def factory(path: Path) -> ToldDatabase:
        databases.append(ToldDatabase(path))
        return databases[0]

    engine = SqliteEngine(SqliteStore.open(tmp_path, database=factory), idle_s=0.001)
    loop, copied = asyncio.get_running_loop(), asyncio.Event()
    databases[0].told = lambda: loop.call_soon_threadsafe(copied.set)
    engine.start(loop)
    await Calls(engine).fence(record())
    await asyncio.wait_for(copied.wait(), 5)
    await engine.close()
    assert engine.counters.checkpoints == 1


class FailingDatabase(StandardDatabase):
    """Fails once it was told to, at each statement that begins so."""

    fails_at = ""
    error: Exception = DatabaseError(1034, "disk I/O error")

    @override
    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        if self.fails_at and sql.lstrip().startswith(self.fails_at):
            raise self.error
        return super().execute(sql, parameters)


def _failing(tmp_path: Path) -> tuple[SqliteEngine, FailingDatabase]:
    databases: list[FailingDatabase] = []

    def factory(path: Path) -> FailingDatabase:
        databases.append(FailingDatabase(path))
        return databases[0]

    return _started(SqliteStore.open(tmp_path, database=factory)), databases[0]


@pytest.mark.parametrize("error", [DatabaseError(1034, "disk I/O error"), RuntimeError("of the test")])
async def test_after_a_failed_commit_every_call_fails_for_good(tmp_path: Path, error: Exception) -> None:
    engine, database = _failing(tmp_path)
    calls = Calls(engine)
    await calls.fence(record())
    database.error = error
    database.fails_at = "INSERT INTO journal"
    with pytest.raises(StoreError) as caught:
        await calls.append("s1", "e1", batch(1))
    assert caught.value.is_fatal
    database.fails_at = ""
    for call in (
        calls.append("s1", "e1", batch(1)),
        calls.fence(record("s2")),
        calls.snapshot("s1", "e1", state(1)),
        calls.load("s1"),
        calls.tail("s1", 0.0),
        calls.forget("s1"),
    ):
        with pytest.raises(StoreError) as caught:
            await call
        assert caught.value.is_fatal
    assert await engine.close()


async def test_a_session_that_cannot_be_read_for_the_disk_is_not_set_aside(tmp_path: Path) -> None:
    engine, database = _failing(tmp_path)
    calls = Calls(engine)
    await calls.fence(record())
    database.fails_at = "SELECT record"
    with pytest.raises(StoreError) as caught:
        await calls.load("s1")
    assert caught.value.is_fatal
    assert engine.counters.quarantined == 0
    await engine.close()


async def test_failed_upkeep_is_told_to_who_writes_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, database = _failing(tmp_path)
    calls = Calls(engine)
    await calls.fence(record())
    database.fails_at = "SELECT snapshot, head_row"
    await calls.snapshot("s1", "e1", state(1))
    with pytest.raises(StoreError) as caught:
        await calls.append("s1", "e1", batch(1))
    assert caught.value.is_fatal
    assert "the store has failed" in caplog.text
    await engine.close()
