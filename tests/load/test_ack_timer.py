from __future__ import annotations

import pytest

from streamctx.core.session.client_session import ClientSettings
from streamctx.load.performer import AckTimer
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo, Cursor
from tests.sim.pair import TOKEN, Faults, SimClient, World

__all__: list[str] = []

LATENCY_S = 0.002


def _producer(world: World) -> SimClient:
    client = world.client(ClientSettings(client=ClientInfo(name="test"), role="produce", token=TOKEN))
    client.session.open("file:///a", "", world.now)
    return client


def _edit(client: SimClient, timer: AckTimer, world: World) -> None:
    version = client.session.edit(1, (Change(0, 0, 0, 0, "x"),), world.now)
    timer.edited(world.now, 1)
    client.session.put(Cursor(document=1, version=version, position=(0, 1)), world.now)


def test_an_edit_is_timed_to_its_own_acknowledgement() -> None:
    world = World(1, Faults(latency_s=LATENCY_S))
    producer = _producer(world)
    world.run(1.0)
    timer = AckTimer(producer.session)
    for _ in range(3):
        _edit(producer, timer, world)
        producer.pump()
        # Not before the way there and back.
        world.run(LATENCY_S * 1.9)
        timer.settle(world.now)
        assert timer.waiting == 1
        assert world.run_until(lambda: not producer.session.pending, 1.0)
        timer.settle(world.now)
        assert timer.waiting == timer.bytes == 0
    assert timer.latencies.values == pytest.approx([2 * LATENCY_S] * 3)


def test_edits_before_the_first_connection_are_timed() -> None:
    world = World(1)
    producer = _producer(world)
    timer = AckTimer(producer.session)
    for _ in range(5):
        _edit(producer, timer, world)
    timer.settle(world.now)
    assert timer.waiting == timer.bytes == 5
    producer.pump()
    world.run(1.0)
    timer.settle(world.now)
    assert timer.waiting == 0
    assert len(timer.latencies.values) == 5


def test_edits_that_a_lost_server_took_along_are_timed_to_the_next_one() -> None:
    world = World(1)
    producer = _producer(world)
    world.run(1.0)
    timer = AckTimer(producer.session)
    for _ in range(200):
        _edit(producer, timer, world)
    world.restart()
    world.run_until(lambda: producer.session.resets == 1, 10.0)
    timer.settle(world.now)
    assert timer.waiting == 200
    producer.pump()
    world.run(1.0)
    timer.settle(world.now)
    assert timer.waiting == 0
    assert len(timer.latencies.values) == 200
