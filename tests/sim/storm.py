"""Everything at once, from one seed: a bad link, many producers and observers, restarts, stalls, deaths."""

from __future__ import annotations

import random
from dataclasses import replace

from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.messages import Mention
from tests.sim.pair import SimClient, World
from tests.sim.scenario import (
    BAD,
    FAR_WORSE,
    WORSE,
    Typist,
    converge,
    converge_presence,
    settings,
    watch_all,
)

__all__ = ["SMALL", "storm"]

SMALL = replace(
    DEFAULT_LIMITS,
    window_events_max=16,
    reorder_events_max=16,
    feed_log_events_max=64,
    feed_log_bytes_max=64 * 1024,
    ring_events_max=150,
)
"""Limits that a fast typist reaches."""


class Storm:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        self.limits: Limits = chance.choice([DEFAULT_LIMITS, SMALL])
        self.world = World(seed, chance.choice([BAD, WORSE, WORSE, FAR_WORSE]), self.limits)
        self.typists: list[Typist] = []
        self.ever: list[Typist] = []
        self.units: list[Unit] = []
        self.observers: list[SimClient] = []
        for _ in range(chance.randint(1, 2)):
            self.add_producer()
        for _ in range(chance.randint(1, 3)):
            observer = self.client("observe")
            observer.session.subscribe("*", self.world.now, min_interval_ms=chance.choice([0, 0, 30, 200]))
            watch_all(observer, self.ever)
            self.observers.append(observer)

    def client(self, role: str) -> SimClient:
        chance = self.random
        return self.world.client(
            replace(
                settings(
                    role,
                    encoding=chance.choice(list(Encoding)),
                    digest=chance.choice(list(DigestAlgorithm)),
                    unit=chance.choice(list(Unit)),
                    hash_=chance.choice(list(HashAlgorithm)),
                ),
                limits=self.limits,
            )
        )

    def add_producer(self) -> None:
        self.typists.append(Typist(self.client("produce"), self.random.randrange(2**32)))
        self.ever.append(self.typists[-1])

    def step(self) -> None:
        chance, world = self.random, self.world
        typist = chance.choice(self.typists)
        luck = chance.random()
        session = typist.client.session
        if luck < 0.004:
            world.restart()
        elif luck < 0.008:
            self.die(typist)
        elif luck < 0.02:
            observer = chance.choice(self.observers)
            observer.is_stalled = not observer.is_stalled
        elif luck < 0.03 and typist.documents:
            document = chance.choice(typist.documents)
            text = "".join(
                chance.choice(["x", "é\n", "😀", "\x01"]) for _ in range(chance.choice([10, 20_000, 70_000]))
            )
            session.replace_text(document.alias, text, world.now)
            typist.note(document)
        elif luck < 0.04 and typist.documents:
            document = chance.choice(typist.documents)
            session.mention(
                Mention(document=document.alias, version=document.version, range=(0, 0, 0, 0), text="look"),
                world.now,
            )
        elif luck < 0.06 and typist.documents:
            session.save(chance.choice(typist.documents).alias, world.now)
        elif luck < 0.07 and typist.documents:
            typist.paste(chance.choice(typist.documents), chance.choice([100, 90_000]))
        else:
            for _ in range(chance.choice([1, 1, 1, 5, 40])):
                typist.step()
        typist.client.pump()
        world.run(chance.choice([0.0, 0.001, 0.01, 0.1]))

    def die(self, typist: Typist) -> None:
        """The editor's process is killed and started again; it opens the documents that it had."""
        texts = [(document.metadata.uri, document.buffer.text()) for document in typist.documents]
        typist.client.die()
        self.typists.remove(typist)
        self.add_producer()
        for uri, text in texts:
            self.typists[-1].open(uri + "'", text)

    def end(self) -> None:
        for observer in self.observers:
            observer.is_stalled = False
            if observer.link is not None:
                observer.link.writable()
        for typist in self.typists:
            converge(self.world, typist.client, *self.observers, seconds=200)
            same_unit = [
                o for o in self.observers if o.session.settings.unit is typist.client.session.settings.unit
            ]
            converge_presence(self.world, typist, *same_unit)
        for observer in self.observers:
            assert observer.session.resubscribed == 0


def storm(seed: int, steps: int = 60) -> World:
    """Run one storm and demand that all copies end equal."""
    run = Storm(seed)
    for _ in range(steps):
        run.step()
    run.end()
    return run.world
