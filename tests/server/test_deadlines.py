from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from streamctx.limits import Limits
from streamctx.server.deadlines import Deadlines, Due

__all__: list[str] = []

_LIMITS = Limits(heartbeat_s=10, dead_s=40, send_deadline_s=8, close_wait_s=2)


class _Handle:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class _Loop:
    """A loop whose time goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.armed: list[tuple[float, Callable[[], None], _Handle]] = []
        self.arm_count = 0

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> _Handle:
        self.arm_count += 1
        handle = _Handle()
        self.armed.append((at, call, handle))
        return handle

    def run_until(self, end: float) -> None:
        while True:
            self.armed = [entry for entry in self.armed if not entry[2].is_cancelled]
            due = min(
                (entry for entry in self.armed if entry[0] <= end), key=lambda entry: entry[0], default=None
            )
            if due is None:
                break
            self.armed.remove(due)
            self.now = max(self.now, due[0])
            due[1]()
        self.now = end


class _Transport:
    waiting_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes


class _World:
    def __init__(self) -> None:
        self.loop = _Loop()
        self.transport = _Transport()
        self.due: list[tuple[Due, float]] = []
        self.deadlines = Deadlines(
            cast(asyncio.AbstractEventLoop, self.loop),
            _LIMITS,
            cast(asyncio.WriteTransport, self.transport),
            lambda due, now: self.due.append((due, now - 100)),
        )

    def run_until(self, seconds: float) -> None:
        self.loop.run_until(100 + seconds)


@pytest.fixture
def world() -> _World:
    return _World()


def test_silence_is_death(world: _World) -> None:
    world.run_until(39.9)
    assert world.due == []

    world.run_until(60)
    assert world.due == [(Due.DEAD, 40)]


def test_a_byte_postpones_death_without_arming_the_timer(world: _World) -> None:
    for second in range(1, 30):
        world.run_until(second)
        world.deadlines.heard_at = world.loop.now
    assert world.loop.arm_count == 1

    world.run_until(80)
    assert world.due == [(Due.DEAD, 69)]


def test_silence_while_we_do_not_read_proves_nothing(world: _World) -> None:
    world.deadlines.stop_hearing()
    world.run_until(100)
    assert world.due == []

    world.deadlines.resume_hearing(world.loop.now)
    world.run_until(200)
    assert world.due == [(Due.DEAD, 140)]


def test_wish_comes_due_once_and_the_last_one_counts(world: _World) -> None:
    world.deadlines.wish(105)
    world.deadlines.wish(103)
    world.deadlines.wish(107)
    world.run_until(20)

    assert world.due == [(Due.WISH, 7)]


def test_wish_can_be_taken_back(world: _World) -> None:
    world.deadlines.wish(103)
    world.deadlines.wish(None)
    world.run_until(20)

    assert world.due == []


def test_peer_has_its_time_to_answer_a_close(world: _World) -> None:
    world.deadlines.expect_close(world.loop.now)
    world.run_until(20)

    assert world.due == [(Due.CLOSE, 2)]


def test_transport_that_hands_over_nothing_is_stalled(world: _World) -> None:
    world.transport.waiting_bytes = 500
    assert world.deadlines.wrote(1000) == 500
    world.run_until(7.9)
    assert world.due == []

    world.run_until(20)
    assert world.due == [(Due.STALLED, 8)]


def test_every_byte_that_is_taken_starts_the_send_deadline_again(world: _World) -> None:
    world.transport.waiting_bytes = 500
    world.deadlines.wrote(1000)
    world.run_until(7)
    # Writing more is no progress, taking one byte of it is.
    world.transport.waiting_bytes = 1499
    world.deadlines.wrote(1000)
    world.run_until(15.9)
    assert world.due == []

    world.run_until(20)
    assert world.due == [(Due.STALLED, 16)]


def test_empty_buffer_ends_the_watch(world: _World) -> None:
    world.transport.waiting_bytes = 500
    world.deadlines.wrote(1000)
    world.run_until(1)
    world.transport.waiting_bytes = 0
    world.run_until(30)
    assert world.due == []

    world.transport.waiting_bytes = 10
    world.deadlines.wrote(10)
    world.run_until(39)
    assert world.due == [(Due.STALLED, 38)]


def test_nothing_comes_due_after_cancel(world: _World) -> None:
    world.deadlines.wish(101)
    world.deadlines.cancel()
    world.deadlines.wish(102)
    world.deadlines.expect_close(world.loop.now)
    world.run_until(100)

    assert world.due == []


def test_early_call_of_a_coarse_clock_is_asked_again(world: _World) -> None:
    world.deadlines.wish(105)
    at, call, handle = world.loop.armed[-1]
    handle.cancel()
    world.loop.now = at - 0.0004

    call()

    assert world.due == []
    world.run_until(6)
    assert [due for due, _ in world.due] == [Due.WISH]
    assert world.due[0][1] >= 5
