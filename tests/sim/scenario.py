"""What the simulations share: a typist, settings, and what it means that all copies are equal."""

from __future__ import annotations

import random

from streamctx.core.documents.presence import Key, key_of
from streamctx.core.session.client_session import ClientDocument, ClientEvent, ClientSettings, FeedChanged
from streamctx.core.session.observed import ObservedSession
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo, Cursor, Focus, Selection, SupersedableEvent
from tests.sim.pair import PRINCIPAL, TOKEN, Faults, SimClient, World

__all__ = [
    "BAD",
    "FAR_WORSE",
    "WORSE",
    "Typist",
    "converge",
    "converge_presence",
    "editor_texts",
    "observed_of",
    "observer_texts",
    "server_texts",
    "settings",
    "type_for_a_while",
    "watch",
    "watch_all",
]

BAD = Faults(drop=0.05, duplicate=0.05, reorder=0.05, corrupt=0.02, cut=0.005)
WORSE = Faults(drop=0.2, duplicate=0.1, reorder=0.2, corrupt=0.05, cut=0.02)
FAR_WORSE = Faults(drop=0.4, duplicate=0.3, reorder=0.4, corrupt=0.15, cut=0.05, latency_s=0.02)


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
        self.name = seed
        self.random = random.Random(seed)
        self.documents: list[ClientDocument] = []
        self.steps = 0
        self.texts: dict[tuple[str, int], str] = {}
        """The text of every document at every version that there was."""
        self.present: dict[Key, SupersedableEvent] = {}
        """The last value of every key of the documents that are open."""

    def note(self, document: ClientDocument) -> None:
        """Remember a text, as what may be shown under its version."""
        self.texts[document.metadata.uri, document.version] = document.buffer.text()

    def open(self, uri: str, text: str) -> None:
        session, now = self.client.session, self.client.world.now
        self.documents.append(session.open(uri, text, now, language="python"))
        self.note(self.documents[-1])

    def paste(self, document: ClientDocument, characters: int) -> None:
        line, character = self._point(document)
        text = "".join(self.random.choice("ab\n\x02é😀") for _ in range(characters))
        change = Change(line, character, line, character, text)
        self.client.session.edit(document.alias, [change], self.client.world.now)
        self.note(document)

    def put(self, event: SupersedableEvent) -> None:
        self.present[key_of(event)] = event
        self.client.session.put(event, self.client.world.now)

    def step(self) -> None:
        session, now, chance = self.client.session, self.client.world.now, self.random
        self.steps += 1
        if not self.documents or (len(self.documents) < 4 and chance.random() < 0.02):
            text = "".join(chance.choice(PIECES) for _ in range(chance.choice([0, 3, 30, 9000])))
            self.open(f"file:///work/{self.name}/{self.steps}.py", text)
        elif len(self.documents) > 1 and chance.random() < 0.01:
            alias = self.documents.pop().alias
            session.close_document(alias, now)
            for key in [key for key, event in self.present.items() if event.document == alias]:
                del self.present[key]
        else:
            document = chance.choice(self.documents)
            changes = [self._change(document) for _ in range(1)]
            session.edit(document.alias, changes, now)
            self.note(document)
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

    def present_at(self, document: ClientDocument) -> None:
        """Put the cursor and the focus there."""
        self.put(Cursor(document=document.alias, version=document.version, position=(0, 1)))
        self.put(Focus(document=document.alias))

    def _present(self, document: ClientDocument) -> None:
        line, character = self._point(document)
        self.put(Cursor(document=document.alias, version=document.version, position=(line, character)))
        if self.random.random() < 0.2:
            ranges = ((line, character, line, character),)
            self.put(Selection(document=document.alias, version=document.version, ranges=ranges))
        if self.random.random() < 0.1:
            self.put(Focus(document=document.alias))


PIECES = ["a", "word ", "\n", "\r\n", "\r", "é", "😀", "\u2028", "👩‍👩‍👧", "x = 1\n", ""]
CODEC = {Unit.UTF_8: "utf-8", Unit.UTF_16: "utf-16-le", Unit.UTF_32: "utf-32-le"}
WIDTH = {Unit.UTF_8: 1, Unit.UTF_16: 2, Unit.UTF_32: 4}


def watch(observer: SimClient, typist: Typist) -> None:
    """Demand of everything that the observer sees as sound that it is the editor's text of that version."""
    watch_all(observer, [typist])


def watch_all(observer: SimClient, typists: list[Typist]) -> None:
    """As `watch`; every text belongs to one of the typists, and to those that were."""
    texts: dict[tuple[str, int], str] = {}

    def check(event: ClientEvent) -> None:
        if not isinstance(event, FeedChanged) or event.observed is None or not event.is_synced:
            return
        for document in event.observed.documents.values():
            if document.buffer is None or document.is_stale or document.is_receiving:
                continue
            for typist in typists:
                texts.update(typist.texts)
            assert document.buffer.text() == texts[document.uri, document.version], document.version

    observer.on_event = check


def observer_presence(observer: SimClient, typist: Typist) -> dict[Key, object]:
    seen = observed_of(observer, typist.client)
    if seen is None:
        return {}
    return {key: _plain(event) for key, event in seen.presence.items() if key in typist.present}


def _plain(event: SupersedableEvent) -> object:
    return (
        event.document,
        getattr(event, "version", None),
        getattr(event, "position", None),
        getattr(event, "ranges", None),
    )


def editor_presence(typist: Typist) -> dict[Key, object]:
    return {key: _plain(event) for key, event in typist.present.items()}


def converge_presence(world: World, typist: Typist, *observers: SimClient, seconds: float = 30) -> None:
    """Demand that the last value of every key is the one that observers see; their unit is the producer's."""

    def is_equal() -> bool:
        return all(observer_presence(observer, typist) == editor_presence(typist) for observer in observers)

    assert world.run_until(is_equal, seconds), (
        editor_presence(typist),
        [observer_presence(observer, typist) for observer in observers],
    )


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
