"""Both ends together: whatever the link does, all copies end equal to the editor's."""

from __future__ import annotations

import random

import pytest

from streamctx.vocabulary import DigestAlgorithm, Encoding, Unit
from tests.sim.pair import Faults, World
from tests.sim.scenario import BAD, WORSE, Typist, converge, settings, type_for_a_while

__all__: list[str] = []


def test_lossless_link_needs_no_repair() -> None:
    world = World(1)
    producer = world.client(settings())
    observer = world.client(settings("observe"))
    observer.session.subscribe("*", world.now)
    type_for_a_while(world, Typist(producer, 1), 600)
    converge(world, producer, observer)
    for client in (producer, observer):
        counters = client.session.counters
        assert counters.nacks_sent == counters.nacks_received == counters.retransmitted == 0
        assert client.session.resumes == client.session.resets == client.session.resubscribed == 0
    assert producer.session.collapsed == 0


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("faults", [BAD, WORSE], ids=["bad", "worse"])
@pytest.mark.parametrize("seed", range(5))
def test_bad_link_converges(seed: int, faults: Faults, encoding: Encoding) -> None:
    world = World(seed, faults)
    chance = random.Random(seed)
    unit, other = chance.choice(list(Unit)), chance.choice(list(Unit))
    producer = world.client(
        settings(encoding=encoding, unit=unit, digest=chance.choice(list(DigestAlgorithm)))
    )
    observer = world.client(settings("observe", unit=other, encoding=chance.choice(list(Encoding))))
    observer.session.subscribe("*", world.now)
    type_for_a_while(world, Typist(producer, seed), 400)
    converge(world, producer, observer)
    assert world.injected > 0
    assert observer.session.resubscribed == 0


@pytest.mark.parametrize("seed", range(5))
def test_server_that_lost_its_state_is_given_all_texts_anew(seed: int) -> None:
    world = World(seed, BAD)
    producer = world.client(settings())
    observer = world.client(settings("observe"))
    observer.session.subscribe("*", world.now)
    typist = Typist(producer, seed)
    for _ in range(4):
        type_for_a_while(world, typist, 60)
        world.restart()
    type_for_a_while(world, typist, 60)
    converge(world, producer, observer)
    assert producer.session.resets >= 1
