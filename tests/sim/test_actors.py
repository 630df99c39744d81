"""Several clients, deaths, takeovers, stalls: who owns a session, and what a slow one costs."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from streamctx.core.session.client_session import SessionEnd, Welcomed
from streamctx.core.session.state import ClientState
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import Encoding
from streamctx.wire.changes import Change
from streamctx.wire.messages import Snapshot
from tests.sim.pair import PRINCIPAL, SimClient, World
from tests.sim.scenario import (
    BAD,
    FAR_WORSE,
    Typist,
    converge,
    converge_presence,
    observed_of,
    settings,
    type_for_a_while,
    watch,
)

__all__: list[str] = []


def pair(world: World, **options: object) -> tuple[SimClient, Typist, SimClient]:
    producer = world.client(settings(**options))  # type: ignore[arg-type]
    observer = world.client(settings("observe"))
    observer.session.subscribe("*", world.now)
    typist = Typist(producer, 7)
    watch(observer, typist)
    return producer, typist, observer


def copied(world: World, client: SimClient) -> SimClient:
    """Another process that has read what the first one had written to disk."""
    session = copy.deepcopy(client.session)
    if session.state is not ClientState.DETACHED:
        session.disconnected(world.now, None)
    return world.client(client.session.settings, session)


def test_a_copied_session_takes_over_and_the_first_client_has_no_effect_any_more() -> None:
    world = World(1)
    first, typist, observer = pair(world)
    type_for_a_while(world, typist, 50)
    world.run(1)
    second = copied(world, first)
    world.run(0.1)
    assert first.session.state is ClientState.CLOSED
    assert [event.code for event in first.events if isinstance(event, SessionEnd)] == ["superseded"]
    assert second.session.session_id == first.session.session_id
    successor = Typist(second, 8)
    successor.documents = list(second.session.documents.values())
    successor.texts = typist.texts
    type_for_a_while(world, successor, 50)
    converge(world, second, observer)


@pytest.mark.parametrize("seed", range(6))
def test_of_two_copies_one_ends_with_the_session_and_no_edit_is_doubled(seed: int) -> None:
    world = World(seed, BAD)
    first, typist, observer = pair(world)
    type_for_a_while(world, typist, 60)
    second = copied(world, first)
    world.run(30)
    alive = [client for client in (first, second) if client.session.state is not ClientState.CLOSED]
    assert alive
    for client in alive:
        converge(world, client, *([observer] if len(alive) == 1 else []))


@pytest.mark.parametrize("seed", range(6))
def test_a_client_that_was_killed_opens_anew_with_the_same_texts(seed: int) -> None:
    world = World(seed, BAD)
    killed, typist, observer = pair(world)
    type_for_a_while(world, typist, 20 + 10 * seed)
    killed.die()
    texts = [(document.metadata.uri, document.buffer.text()) for document in typist.documents]
    reborn = world.client(settings())
    heir = Typist(reborn, seed)
    watch(observer, heir)
    observer.on_event = None
    for uri, text in texts:
        heir.open(uri, text)
    reborn.pump()
    converge(world, reborn, observer)
    converge_presence(world, heir, observer)


def test_a_detached_session_is_shown_as_such_and_ends_in_time() -> None:
    world = World(1)
    producer, typist, observer = pair(world)
    type_for_a_while(world, typist, 20)
    world.run(1)
    session_id = producer.session.session_id
    assert session_id is not None
    producer.die()
    world.run(1)
    seen = observed_of(observer, producer)
    assert seen is not None
    assert not seen.is_connected
    world.run(DEFAULT_LIMITS.detached_session_s - 3)
    world.sweep()
    assert world.hub.session(PRINCIPAL, session_id) is not None
    world.run(3)
    world.sweep()
    world.run(1)
    assert world.hub.session(PRINCIPAL, session_id) is None
    assert observed_of(observer, producer) is None


def test_a_stalled_observer_costs_a_bounded_log_and_is_given_the_state_anew() -> None:
    limits = replace(DEFAULT_LIMITS, feed_log_events_max=100, send_deadline_s=1e6)
    world = World(1, limits=limits)
    producer, typist, observer = pair(world)
    type_for_a_while(world, typist, 20)
    world.run(1)
    observer.is_stalled = True
    type_for_a_while(world, typist, 800)
    assert producer.session.is_settled or world.run_until(lambda: producer.session.is_settled, 5)
    seen = observed_of(observer, producer)
    assert seen is not None
    before = seen.counters.syncs
    observer.is_stalled = False
    assert observer.link is not None
    observer.link.writable()
    converge(world, producer, observer)
    converge_presence(world, typist, observer)
    assert seen.counters.syncs == before + 1
    assert observer.session.resubscribed == 0


def test_a_stalled_observer_delays_nobody() -> None:
    times = []
    for is_stalled in (False, True):
        world = World(1)
        producer, typist, observer = pair(world)
        other = world.client(settings("observe"))
        other.session.subscribe("*", 0.0)
        world.run(0.1)
        observer.is_stalled = is_stalled
        type_for_a_while(world, typist, 100)
        converge(world, producer, other)
        times.append(world.now)
    assert times[0] == times[1]


@pytest.mark.parametrize("seed", range(4))
def test_several_producers_and_observers_on_a_far_worse_link_converge(seed: int) -> None:
    world = World(seed, FAR_WORSE)
    producers = [world.client(settings(encoding=encoding)) for encoding in Encoding]
    observers = [world.client(settings("observe", encoding=encoding)) for encoding in Encoding]
    for observer in observers:
        observer.session.subscribe("*", world.now)
    typists = [Typist(producer, seed + 10 * index) for index, producer in enumerate(producers)]
    for _ in range(60):
        for typist in typists:
            typist.step()
        world.run(0.01)
    for typist in typists:
        converge(world, typist.client, *observers, seconds=120)
        converge_presence(world, typist, *observers)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("seed", range(5))
def test_without_faults_nothing_is_asked_for_or_sent_twice(seed: int, encoding: Encoding) -> None:
    world = World(seed)
    producer, typist, observer = pair(world, encoding=encoding)
    type_for_a_while(world, typist, 150)
    typist.paste(typist.documents[0], 300_000)
    producer.pump()
    type_for_a_while(world, typist, 30)
    converge(world, producer, observer)
    converge_presence(world, typist, observer)
    for counters in (producer.session.counters, observer.session.counters):
        assert counters.nacks_sent == counters.nacks_received == counters.retransmitted == 0
    server = world.hub.counters()
    assert server["frames_nacks_sent"] == server["frames_retransmitted"] == server["events_refused"] == 0


@pytest.mark.parametrize("encoding", Encoding)
def test_a_divergence_is_found_at_the_next_version_and_healed_by_one_snapshot(encoding: Encoding) -> None:
    world = World(3)
    producer, typist, observer = pair(world, encoding=encoding)
    typist.open("file:///a.py", "hello\n")
    producer.pump()
    world.run(1)
    (document,) = typist.documents
    # The editor's text changes, and nobody is told: the server's copy is wrong from now on.
    document.buffer.apply([Change(0, 0, 0, 1, "J")], simultaneous=False)
    observer.on_event = None
    producer.session.save(document.alias, world.now)
    producer.pump()
    seen = observed_of(observer, producer)
    assert seen is not None
    was_stale = []
    observer.on_event = lambda _: was_stale.append(seen.documents[document.alias].is_stale)
    for _ in range(20):
        producer.session.edit(document.alias, [Change(0, 1, 0, 1, "x")], world.now)
        producer.pump()
        world.run(0.001)
    converge(world, producer, observer)
    assert world.hub.counters()["events_healed"] == 1
    assert was_stale[0]
    assert not was_stale[-1]
    assert seen.text(document.alias) == document.buffer.text()


def test_a_snapshot_already_on_its_way_answers_a_request() -> None:
    world = World(3)
    producer, typist, observer = pair(world)
    typist.open("file:///a.py", "hello\n")
    producer.pump()
    world.run(1)
    observer.on_event = None
    (document,) = typist.documents
    document.buffer.apply([Change(0, 0, 0, 1, "J")], simultaneous=False)
    producer.session.save(document.alias, world.now)
    producer.session.snapshot(document.alias)
    producer.pump()
    sent = producer.session.next_sequence
    world.run(1)
    assert producer.session.next_sequence - sent <= 1, Snapshot
    converge(world, producer)


def test_a_connection_that_is_cut_at_once_again_and_again_is_resumed() -> None:
    world = World(5)
    producer, typist, observer = pair(world)
    type_for_a_while(world, typist, 20)
    world.run(1)
    for _ in range(10):
        if producer.link is not None:
            producer.link.cut()
        world.run(0.6)
    type_for_a_while(world, typist, 20)
    converge(world, producer, observer)
    verdicts = [event.verdict for event in producer.events if isinstance(event, Welcomed)]
    assert verdicts == ["new", *["resumed"] * (len(verdicts) - 1)]
