"""A scripted session, cut at every message: whatever was under way, nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streamctx.vocabulary import Encoding
from streamctx.wire.changes import Change
from streamctx.wire.messages import Mention
from tests.sim.pair import Faults, SimClient, World
from tests.sim.scenario import Typist, converge, converge_presence, settings, watch

__all__: list[str] = []


class Script:
    """Always the same steps: a short text, a long one, edits, a reload, presence, a close."""

    def __init__(self, cut_at: set[int] = frozenset(), *, restarts: bool = False) -> None:  # type: ignore[assignment]
        self.world = World(1, Faults())
        self.world.cut_at = cut_at
        if restarts:
            self.world.on_cut = self.world.restart
        self.observer = self.world.client(settings("observe", encoding=Encoding.JSON))
        self.observer.session.subscribe("*", 0.0)
        self.producer: SimClient = self.world.client(settings())
        self.typist = Typist(self.producer, 1)
        watch(self.observer, self.typist)

    def run(self) -> None:
        typist, session = self.typist, self.producer.session
        self.do(lambda: typist.open("file:///a.py", "one\ntwo\n"))
        self.do(lambda: typist.open("file:///long.py", "é" * 40_000))
        for number in range(6):
            self.do(lambda number=number: self.edit(number % 2))  # type: ignore[misc]
        self.do(lambda: session.save(1, self.world.now))
        self.do(lambda: session.mention(Mention(document=1, version=3, range=(0, 0, 0, 1)), self.world.now))
        self.do(self.reload)
        self.do(lambda: self.edit(0))
        self.do(lambda: typist.open("file:///c.py", ""))
        self.do(lambda: session.close_document(typist.documents.pop().alias, self.world.now))
        self.world.run(1.0)
        converge(self.world, self.producer, self.observer)
        converge_presence(self.world, self.typist, self.observer)
        assert self.observer.session.resubscribed == 0

    def do(self, step: Callable[[], object]) -> None:
        step()
        self.producer.pump()
        self.world.run(0.003)

    def edit(self, index: int) -> None:
        document = self.typist.documents[index]
        self.producer.session.edit(document.alias, [Change(0, 1, 0, 1, "x")], self.world.now)
        self.typist.note(document)
        self.typist.present_at(document)

    def reload(self) -> None:
        document = self.typist.documents[0]
        self.producer.session.replace_text(document.alias, "new\n" * 10_000, self.world.now)
        self.typist.note(document)


def messages_of_the_script() -> int:
    script = Script()
    script.run()
    assert script.producer.session.counters.nacks_received == 0
    return script.world.sent


MESSAGES = messages_of_the_script()


@pytest.mark.parametrize("block", range(4))
def test_a_cut_at_any_message_changes_nothing(block: int) -> None:
    for index in range(1 + block, MESSAGES + 1, 4):
        script = Script({index})
        script.run()
        assert script.producer.session.resets == 0 or index < 16, index


@pytest.mark.parametrize("block", range(4))
def test_a_server_that_dies_at_any_message_is_given_everything_anew(block: int) -> None:
    for index in range(1 + block, MESSAGES + 1, 4):
        Script({index}, restarts=True).run()


@pytest.mark.parametrize("block", range(4))
def test_a_second_cut_soon_after_the_first_changes_nothing(block: int) -> None:
    for index in range(1 + block, MESSAGES + 1, 4):
        Script({index, index + 1 + index % 7}).run()
