"""Both ends together: whatever the link does, all copies end equal to the editor's."""

from __future__ import annotations

import random

import pytest

from streamctx.core.session.client_session import ClientDocument, ClientSettings
from streamctx.core.session.observed import ObservedSession
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo, Cursor, Focus, Selection
from tests.sim.pair import PRINCIPAL, TOKEN, Faults, SimClient, World

BAD = Faults(drop=0.05, duplicate=0.05, reorder=0.05, corrupt=0.02, cut=0.005)
WORSE = Faults(drop=0.2, duplicate=0.1, reorder=0.2, corrupt=0.05, cut=0.02)


def settings(
    role: str = "produce",
    *,
    encoding: Encoding = Encoding.MSGPACK,
    digest: DigestAlgorithm = DigestAlgorithm.XXH3_64,
    unit: Unit = Unit.UTF_16,
    hash_: HashAlgorithm = HashAlgorithm.XXH3_64,
) -> ClientSettings:
    return ClientSettings(
        client=ClientInfo(name=f"sim {role}"),
        encoding=encoding,
        digest=digest,
        unit=unit,
        hash=hash_,
        role=role,  # type: ignore[arg-type]
        token=TOKEN,
    )


class Typist:
    """Edits the documents of one client, at random."""

    def __init__(self, client: SimClient, seed: int) -> None:
        self.client = client
        self.random = random.Random(seed)
        self.documents: list[ClientDocument] = []
        self.steps = 0

    def step(self) -> None:
        session, now, chance = self.client.session, self.client.world.now, self.random
        self.steps += 1
        if not self.documents or (len(self.documents) < 4 and chance.random() < 0.02):
            text = "".join(chance.choice(PIECES) for _ in range(chance.choice([0, 3, 30, 9000])))
            uri = f"file:///work/{self.steps}.py"
            self.documents.append(session.open(uri, text, now, language="python"))
        elif len(self.documents) > 1 and chance.random() < 0.01:
            session.close_document(self.documents.pop().alias, now)
        else:
            document = chance.choice(self.documents)
            changes = [self._change(document) for _ in range(1)]
            session.edit(document.alias, changes, now)
            self._present(document)
        self.client.pump()

    def _point(self, document: ClientDocument) -> tuple[int, int]:
        buffer = document.buffer
        line = self.random.randrange(buffer.line_count)
        content = buffer.line(line).rstrip("\r\n")
        index = self.random.randint(0, len(content))
        return line, len(content[:index].encode(CODEC[buffer.unit])) // WIDTH[buffer.unit]

    def _change(self, document: ClientDocument) -> Change:
        start, end = sorted([self._point(document), self._point(document)])
        if end[0] - start[0] > 1 or self.random.random() < 0.7:
            end = start
        return Change(*start, *end, self.random.choice(PIECES))

    def _present(self, document: ClientDocument) -> None:
        session, now = self.client.session, self.client.world.now
        line, character = self._point(document)
        session.put(
            Cursor(document=document.alias, version=document.version, position=(line, character)), now
        )
        if self.random.random() < 0.2:
            ranges = ((line, character, line, character),)
            session.put(Selection(document=document.alias, version=document.version, ranges=ranges), now)
        if self.random.random() < 0.1:
            session.put(Focus(document=document.alias), now)


PIECES = ["a", "word ", "\n", "\r\n", "\r", "é", "😀", "\u2028", "👩‍👩‍👧", "x = 1\n", ""]
CODEC = {Unit.UTF_8: "utf-8", Unit.UTF_16: "utf-16-le", Unit.UTF_32: "utf-32-le"}
WIDTH = {Unit.UTF_8: 1, Unit.UTF_16: 2, Unit.UTF_32: 4}


def observed_of(observer: SimClient, producer: SimClient) -> ObservedSession | None:
    session_id = producer.session.session_id
    return next((seen for (_, name), seen in observer.session.observed.items() if name == session_id), None)


def server_texts(world: World, producer: SimClient) -> dict[str, object]:
    texts: dict[str, object] = {}
    session_id = producer.session.session_id or ""
    for document in producer.session.documents.values():
        view = world.hub.document(PRINCIPAL, session_id, str(document.alias))
        texts[document.metadata.uri] = (
            None if view is None else (view["text"], view["version"], view["stale"])
        )
    return texts


def editor_texts(producer: SimClient) -> dict[str, object]:
    return {
        document.metadata.uri: (document.buffer.text(), document.version, False)
        for document in producer.session.documents.values()
    }


def observer_texts(observer: SimClient, producer: SimClient) -> dict[str, object]:
    seen = observed_of(observer, producer)
    if seen is None or not seen.is_synced:
        return {}
    return {
        document.uri: (
            None if document.buffer is None else document.buffer.text(),
            document.version,
            document.is_stale,
        )
        for document in seen.documents.values()
    }


def converge(world: World, producer: SimClient, *observers: SimClient, seconds: float = 60) -> None:
    """Heal the network, and demand that all copies become equal."""
    world.faults = Faults()

    def is_converged() -> bool:
        return (
            producer.session.is_settled
            and server_texts(world, producer) == editor_texts(producer)
            and all(observer_texts(observer, producer) == editor_texts(producer) for observer in observers)
        )

    assert world.run_until(is_converged, seconds), (
        producer.session.is_settled,
        producer.session.pending,
        {uri: value[1:] for uri, value in editor_texts(producer).items()},  # type: ignore[index]
        {uri: value and value[1:] for uri, value in server_texts(world, producer).items()},  # type: ignore[index]
        [
            {uri: value[1:] for uri, value in observer_texts(observer, producer).items()}  # type: ignore[index]
            for observer in observers
        ],
    )


def type_for_a_while(world: World, typist: Typist, steps: int) -> None:
    for _ in range(steps):
        typist.step()
        world.run(typist.random.choice([0.0, 0.001, 0.01]))


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
