"""Sessions that observe another one, come and go: what they are shown, and what is kept for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.session.live_context import TextBudget
from streamctx.core.session.observed import ObservedSession
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import SessionRecord
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.capabilities import negotiated_limits
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    ClientInfo,
    Cursor,
    Edit,
    Message,
    Resume,
    Subscribe,
    Sync,
    Synced,
    Unsubscribe,
    Update,
)
from tests.core.session.ends import frame, read
from tests.core.session.feed_source import opening

__all__: list[str] = []

Step = tuple[Literal["edit", "point", "subscribe", "unsubscribe", "detach", "resume", "read", "end"], int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["edit", "edit", "point", "subscribe", "unsubscribe", "detach", "resume", "read", "end"]
        ),
        st.integers(0, 2),
    ),
    max_size=40,
)
UNITS = (Unit.UTF_16, Unit.UTF_8, Unit.UTF_16)


class End:
    """A session as its client uses it, and the copy that it makes of what it observes."""

    def __init__(self, session_id: str, unit: Unit, directory: Directory) -> None:
        self.session = ServerSession(
            SessionRecord(
                session_id=session_id,
                epoch="e",
                principal="p",
                role="both",
                client=ClientInfo(name="c"),
                workspace=None,
                encoding=Encoding.MSGPACK,
                digest=DigestAlgorithm.XXH3_64,
                unit=unit,
                hash=HashAlgorithm.XXH3_64,
                limits=negotiated_limits(DEFAULT_LIMITS),
                attempt=1,
                lease=0,
            ),
            limits=DEFAULT_LIMITS,
            jitter=lambda: 0.5,
            is_excluded=lambda uri: False,
            budget=TextBudget(10**9),
            directory=directory,
            journals=False,
            now=0.0,
        )
        self.session.attach(0.0)
        self.unit = unit
        self.sent = 0
        self.received = 0
        self.is_attached = True
        self.is_subscribed = False
        self.observed: ObservedSession | None = None

    def send(self, message: Message) -> None:
        self.sent += 1
        self.session.receive(frame(message, self.sent), 0.0)

    def read(self) -> None:
        for data in self.session.flush(0.0, is_writable=True):
            sequence, message = read(data)
            self.received = max(self.received, sequence)
            if isinstance(message, Sync):
                # It has lost nothing, so it is never told that it was too slow.
                assert message.reason == "subscribed"
                self.observed = ObservedSession("producer", unit=self.unit, limits=DEFAULT_LIMITS)
            if isinstance(message, Sync | Synced | Update):
                assert self.observed is not None
                self.observed.receive(message)

    def resume(self) -> None:
        resume = Resume(session="s", secret="x", epoch="e", expects=self.received + 1, next=self.sent + 1)
        assert self.session.can_resume(resume)
        self.session.attach(0.0)
        assert self.session.resume(resume, 0.0).verdict == "resumed"


class Directory:
    """One producer, to be found by everybody."""

    producer: ServerSession

    def find(self, observer: ServerSession, session_id: str) -> ServerSession:
        return self.producer

    def is_stored(self, observer: ServerSession, session_id: str) -> bool:
        return False

    def visible(self, observer: ServerSession) -> Iterable[ServerSession]:
        return [self.producer]


class World:
    """A producer with one document, and three that may observe it."""

    def __init__(self) -> None:
        directory = Directory()
        self.producer = End("producer", Unit.UTF_16, directory)
        directory.producer = self.producer.session
        self.directory = directory
        self.ends = [End(f"observer {number}", unit, directory) for number, unit in enumerate(UNITS)]
        self.text = "é😀"
        self.version = 1
        self.producer.send(opening(self.text, Unit.UTF_16))
        self.kept_from = self.producer.session.log.offset

    def take(self, step: Step) -> None:
        self._take(*step)
        if not any(end.is_subscribed for end in self.ends):
            self.kept_from = self.producer.session.log.offset

    def _take(self, kind: str, number: int) -> None:
        end = self.ends[number]
        if kind == "edit":
            change = Change(0, 1, 0, 1, "ä")
            self.producer.send(
                Edit(document=1, base=self.version, version=self.version + 1, changes=(change,))
            )
            self.text = self.text[:1] + "ä" + self.text[1:]
            self.version += 1
        elif kind == "point":
            self.producer.send(Cursor(document=1, version=self.version, position=(0, number % 2)))
        elif kind == "end":
            end.session.end("closed")
            self.ends[number] = End(end.session.session_id, end.unit, self.directory)
        elif kind == "resume" and not end.is_attached:
            end.resume()
            end.is_attached = True
        elif not end.is_attached:
            return
        elif kind == "detach":
            end.session.detach(0.0)
            end.is_attached = False
        elif kind == "subscribe":
            if not any(other.is_subscribed for other in self.ends if other is not end):
                # One that is replaced has ended before.
                self.kept_from = self.producer.session.log.offset
            end.send(Subscribe(subscription=1, session="producer"))
            end.is_subscribed = True
        elif kind == "unsubscribe":
            end.send(Unsubscribe(subscription=1))
            end.is_subscribed = False
        elif kind == "read":
            end.read()

    def check(self) -> None:
        log = self.producer.session.log
        observers = [end for end in self.ends if end.is_subscribed]
        assert set(self.producer.session.observers) == {end.session for end in observers}
        assert log.offset >= self.version
        if not observers:
            assert (log.bodies, log.units) == ({}, ())
        assert log.first_offset == self.kept_from
        for end in observers:
            if end.is_attached:
                end.read()
                assert end.observed is not None
                assert end.observed.offset == log.offset
                assert end.observed.text(1) == self.text


@given(STEPS)
def test_whenever_an_observer_comes_it_is_shown_the_state_and_all_that_follows(steps: list[Step]) -> None:
    world = World()
    for step in steps:
        world.take(step)
        if step[0] != "edit":
            continue
        world.check()
    world.check()
    for end in world.ends:
        if not end.is_attached:
            end.resume()
            end.is_attached = True
    world.check()


def test_what_was_kept_is_let_go_of_with_the_last_observer() -> None:
    world = World()
    log = world.producer.session.log
    world.take(("edit", 0))
    assert log.first_offset == log.offset
    for number in (0, 1):
        world.take(("subscribe", number))
        world.take(("read", number))
    world.take(("edit", 0))
    world.take(("read", 0))
    assert log.first_offset == log.offset - 1
    assert log.bodies
    world.take(("detach", 1))
    world.take(("unsubscribe", 0))
    assert log.first_offset == log.offset - 1
    world.take(("edit", 0))
    world.take(("resume", 1))
    world.check()
    world.take(("end", 1))
    assert (log.first_offset, log.bodies) == (log.offset, {})
