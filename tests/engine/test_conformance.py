"""What `streamctx.engine.base` says, of every engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from streamctx.core.session.stored import StoredSession
from streamctx.engine.base import Engine, History, StoreError
from streamctx.engine.memory import MemoryEngine
from streamctx.engine.sqlite import SqliteEngine, SqliteStore
from tests.engine.calls import Calls
from tests.engine.clock import Clock
from tests.engine.samples import batch, document, record, state

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

HISTORY_S = 900.0


Made: TypeAlias = tuple[Engine, Callable[[], Awaitable[object]]]


def _memory(_: Path, clock: Clock) -> Made:
    async def close() -> None:
        pass

    return MemoryEngine(durability="full", history_s=HISTORY_S, clock=clock), close


def _sqlite(path: Path, clock: Clock) -> Made:
    engine = SqliteEngine(SqliteStore.open(path / "data", history_s=HISTORY_S, clock=clock))
    engine.start(asyncio.get_running_loop())
    return engine, engine.close


@pytest_asyncio.fixture(params=[_memory, _sqlite], ids=["memory", "sqlite"])
async def calls(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[Calls]:
    engine, close = request.param(tmp_path, clock)
    yield Calls(engine)
    await close()


async def test_it_says_what_a_completion_means(calls: Calls) -> None:
    assert calls.engine.durability == "full"


async def test_what_was_appended_comes_back_in_order(calls: Calls) -> None:
    await calls.fence(record())
    batches = [batch(number) for number in range(1, 41, 2)]
    await calls.append("s1", "e1", *batches)
    assert await calls.load("s1") == StoredSession(record(), None, tuple(batches))


async def test_a_load_gives_the_newest_state_and_the_batches_after_it(calls: Calls) -> None:
    await calls.fence(record())
    await calls.append("s1", "e1", batch(1))
    await calls.snapshot("s1", "e1", state(3, document()))
    await calls.append("s1", "e1", batch(3))
    newest = state(5, document(), document(2, None))
    await calls.snapshot("s1", "e1", newest)
    await calls.append("s1", "e1", batch(5))
    assert await calls.load("s1") == StoredSession(record(), newest, (batch(5),))


async def test_a_load_of_an_unknown_session_gives_none(calls: Calls) -> None:
    assert await calls.load("s1") is None
    assert await calls.tail("s1", 0.0) is None


async def test_a_record_takes_the_place_of_the_one_before(calls: Calls) -> None:
    await calls.fence(record())
    await calls.append("s1", "e1", batch(1))
    await calls.fence(record(attempt=2, lease=2))
    await calls.append("s1", "e1", batch(3))
    assert await calls.load("s1") == StoredSession(record(attempt=2, lease=2), None, (batch(1), batch(3)))


async def test_another_epoch_forgets_what_was_stored_before(calls: Calls) -> None:
    await calls.fence(record())
    await calls.append("s1", "e1", batch(1))
    await calls.snapshot("s1", "e1", state(3))
    await calls.append("s1", "e1", batch(3))
    await calls.fence(record(epoch="e2"))
    assert await calls.load("s1") == StoredSession(record(epoch="e2"), None, ())
    assert await calls.tail("s1", 0.0) == History("utf-16", "sha-256", None, ())
    await calls.append("s1", "e2", batch(5))
    assert await calls.load("s1") == StoredSession(record(epoch="e2"), None, (batch(5),))


async def test_sessions_are_apart(calls: Calls) -> None:
    for name in ("s1", "s2"):
        await calls.fence(record(name))
    for number in range(1, 9, 2):
        await calls.append(f"s{1 + number % 4 // 2}", "e1", batch(number))
    await calls.forget("s2")
    loaded = await calls.load("s1")
    assert isinstance(loaded, StoredSession)
    assert loaded.batches == (batch(1), batch(5))


@pytest.mark.parametrize(("session_id", "epoch"), [("s2", "e1"), ("s1", "e2")])
async def test_what_has_no_record_is_not_stored(calls: Calls, session_id: str, epoch: str) -> None:
    await calls.fence(record())
    with pytest.raises(StoreError) as caught:
        await calls.append(session_id, epoch, batch(1))
    assert not caught.value.is_fatal
    with pytest.raises(StoreError):
        await calls.snapshot(session_id, epoch, state())
    assert await calls.load("s1") == StoredSession(record(), None, ())


async def test_after_a_failed_call_every_later_write_of_the_session_fails_until_it_is_loaded(
    calls: Calls,
) -> None:
    await calls.fence(record())
    await calls.fence(record("s2"))
    with pytest.raises(StoreError):
        await calls.append("s1", "e2", batch(1))
    with pytest.raises(StoreError):
        await calls.append("s1", "e1", batch(1))
    with pytest.raises(StoreError):
        await calls.fence(record(attempt=2))
    with pytest.raises(StoreError):
        await calls.snapshot("s1", "e1", state())
    await calls.append("s2", "e1", batch(1))
    assert await calls.load("s1") == StoredSession(record(), None, ())
    await calls.append("s1", "e1", batch(1))
    assert await calls.load("s1") == StoredSession(record(), None, (batch(1),))


async def test_after_a_failed_snapshot_the_session_goes_on(calls: Calls) -> None:
    await calls.fence(record())
    await calls.append("s1", "e1", batch(1))
    for purge in (False, True):
        with pytest.raises(StoreError) as caught:
            await calls.snapshot("s1", "e2", state(3), purge=purge)
        assert not caught.value.is_fatal
    await calls.append("s1", "e1", batch(3))
    await calls.fence(record(attempt=2))
    await calls.snapshot("s1", "e1", state(5))
    await calls.append("s1", "e1", batch(5))
    assert await calls.load("s1") == StoredSession(record(attempt=2), state(5), (batch(5),))


async def test_after_a_failed_append_a_snapshot_fails_until_the_session_is_loaded(calls: Calls) -> None:
    await calls.fence(record())
    with pytest.raises(StoreError):
        await calls.append("s1", "e2", batch(1))
    for purge in (False, True):
        with pytest.raises(StoreError):
            await calls.snapshot("s1", "e1", state(3), purge=purge)
    assert await calls.load("s1") == StoredSession(record(), None, ())
    await calls.snapshot("s1", "e1", state(3))


async def test_after_a_failed_call_a_session_may_begin_anew(calls: Calls) -> None:
    await calls.fence(record())
    with pytest.raises(StoreError):
        await calls.append("s1", "e0", batch(1))
    await calls.fence(record(epoch="e2"))
    await calls.append("s1", "e2", batch(1))
    assert await calls.load("s1") == StoredSession(record(epoch="e2"), None, (batch(1),))


async def test_calls_of_a_session_take_effect_and_complete_in_their_order(calls: Calls) -> None:
    order: list[object] = []
    engine = calls.engine
    engine.fence(record(), lambda _: order.append("fence"))
    engine.append("s1", "e1", batch(1), lambda _: order.append("append"))
    engine.load("s1", order.append)
    engine.append("s1", "e1", batch(3), lambda _: order.append("append"))
    engine.snapshot("s1", "e1", state(5), lambda _: order.append("snapshot"))
    engine.load("s1", order.append)
    engine.append("s1", "e0", batch(5), lambda error: order.append(type(error)))
    engine.append("s1", "e1", batch(5), lambda error: order.append(type(error)))
    engine.forget("s1", lambda _: order.append("forget"))
    await calls.load("s1")
    assert order == [
        "fence",
        "append",
        StoredSession(record(), None, (batch(1),)),
        "append",
        "snapshot",
        StoredSession(record(), state(5), ()),
        StoreError,
        StoreError,
        "forget",
    ]


async def test_a_completion_that_fails_does_not_keep_others_from_theirs(
    calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    if isinstance(calls.engine, MemoryEngine):
        pytest.skip("it completes within the call")

    def fail(_: object) -> None:
        raise RuntimeError("of the test")

    calls.engine.fence(record(), fail)
    await calls.append("s1", "e1", batch(1))
    assert "a completion has failed" in caplog.text


async def test_a_snapshot_is_due_after_many_batches_and_not_after_the_snapshot(calls: Calls) -> None:
    assert not calls.engine.is_snapshot_due("s1")
    await calls.fence(record())
    assert not calls.engine.is_snapshot_due("s1")
    await calls.append("s1", "e1", *[batch(1)] * 4096)
    assert calls.engine.is_snapshot_due("s1")
    waiting = asyncio.ensure_future(calls.snapshot("s1", "e1", state()))
    await asyncio.sleep(0)
    assert not calls.engine.is_snapshot_due("s1")
    await waiting
    assert not calls.engine.is_snapshot_due("s1")


async def test_what_is_forgotten_is_gone(calls: Calls) -> None:
    await calls.forget("s1")
    await calls.fence(record())
    await calls.append("s1", "e1", batch(1))
    await calls.snapshot("s1", "e1", state())
    await calls.forget("s1")
    assert await calls.load("s1") is None
    assert await calls.tail("s1", 0.0) is None
    assert list(calls.engine.summaries()) == []


async def test_summaries_tell_of_every_session(calls: Calls, clock: Clock) -> None:
    await calls.fence(record())
    clock.now += 5
    await calls.fence(record("s2", "e9", principal="ben"))
    await calls.append("s1", "e1", batch(1))
    first, second = sorted(calls.engine.summaries(), key=lambda summary: summary.session_id)
    assert (first.session_id, first.epoch, first.principal, first.client) == ("s1", "e1", "anna", "vim")
    assert (first.opened, first.changed) == (1_000_000.0, 1_000_005.0)
    assert (second.session_id, second.epoch, second.principal) == ("s2", "e9", "ben")
    assert first.stored_bytes > 0


async def _three_states(calls: Calls, clock: Clock) -> None:
    """A batch, then a state, at 0, 100 and 200 seconds each; a last batch at 300."""
    await calls.fence(record())
    for index in range(3):
        await calls.append("s1", "e1", batch(index * 2 + 1))
        await calls.snapshot("s1", "e1", state(index * 2 + 3))
        clock.now += 100
    await calls.append("s1", "e1", batch(7))


@pytest.mark.parametrize(
    ("since", "stop", "numbers"),
    [
        (-1, None, [1, 3, 5, 7]),
        (0, 3, [3, 5, 7]),
        (99, 3, [3, 5, 7]),
        (100, 5, [5, 7]),
        (500, 7, [7]),
    ],
)
async def test_a_tail_begins_with_the_newest_state_before_its_time(
    calls: Calls, clock: Clock, since: float, stop: int | None, numbers: list[int]
) -> None:
    start = clock.now
    await _three_states(calls, clock)
    past = await calls.tail("s1", start + since)
    assert past is not None
    assert (past.unit, past.hash) == ("utf-16", "sha-256")
    assert past.state == (None if stop is None else state(stop))
    assert [item for _, item in past.batches] == [batch(number) for number in numbers]
    times = {1: 0.0, 3: 100.0, 5: 200.0, 7: 300.0}
    assert [at - start for at, _ in past.batches] == [times[number] for number in numbers]


@pytest.mark.parametrize(
    ("later", "stop"),
    # The state of 100 is kept until that of 200 is as old as the history reaches back.
    [
        (HISTORY_S - 301, None),
        (HISTORY_S - 300, 3),
        (HISTORY_S - 201, 3),
        (HISTORY_S - 200, 5),
        (HISTORY_S, 7),
    ],
)
async def test_what_is_older_than_the_history_goes(
    calls: Calls, clock: Clock, later: float, stop: int | None
) -> None:
    start = clock.now
    await _three_states(calls, clock)
    clock.now += later
    await calls.snapshot("s1", "e1", state(9))
    await _settle(calls)
    past = await calls.tail("s1", start - 1000)
    assert past is not None
    assert past.state == (None if stop is None else state(stop))
    loaded = await calls.load("s1")
    assert loaded == StoredSession(record(), state(9), ())


async def test_nothing_older_than_a_purge_is_kept(calls: Calls, clock: Clock) -> None:
    await calls.fence(record("s2"))
    await calls.append("s2", "e1", batch(1))
    await _three_states(calls, clock)
    await calls.snapshot("s1", "e1", state(9, document()), purge=True)
    purged = await calls.tail("s1", 0.0)
    assert purged == History("utf-16", "sha-256", state(9, document()), ())
    await calls.append("s1", "e1", batch(9))
    assert await calls.load("s1") == StoredSession(record(), state(9, document()), (batch(9),))
    past = await calls.tail("s1", 0.0)
    assert past is not None
    assert past.state == state(9, document())
    assert [item for _, item in past.batches] == [batch(9)]
    await calls.snapshot("s1", "e1", state(11, document()))
    assert await calls.load("s1") == StoredSession(record(), state(11, document()), ())
    assert await calls.load("s2") == StoredSession(record("s2"), None, (batch(1),))


async def test_a_purge_of_what_has_no_record_deletes_nothing(calls: Calls, clock: Clock) -> None:
    await _three_states(calls, clock)
    with pytest.raises(StoreError):
        await calls.snapshot("s1", "e2", state(9), purge=True)
    assert await calls.load("s1") == StoredSession(record(), state(7), (batch(7),))


async def _settle(calls: Calls) -> None:
    """Have the engine do what it may do later."""
    if isinstance(calls.engine, SqliteEngine):
        await calls.engine.run(_keep_up)


def _keep_up(store: SqliteStore) -> None:
    while store.upkeep(is_idle=True):
        pass
