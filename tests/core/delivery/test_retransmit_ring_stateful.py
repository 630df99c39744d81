"""`RetransmitRing` beside a list of everything that was ever sent, and a peer that says what it has."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamctx.core.delivery.retransmit_ring import Answer, Frame, RetransmitRing
from streamctx.errors import LocalProtocolError, RemoteProtocolError
from tests.core.machines import machine_settings

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

LINGER_S = 0.5
KEYS = st.sampled_from(["a", "b", None])
Draft = tuple[int, str | None, bool]
FRAMES = st.lists(st.tuples(st.sampled_from([0, 1, 9, 12]), KEYS, st.booleans()), min_size=1, max_size=5)


@dataclass(slots=True)
class Sent:
    """One number in use, and what became of its frame."""

    frame: Frame
    size_bytes: int
    sent_at: float
    key: str | None
    durable: bool
    is_received: bool = False
    is_gone: bool = False
    """Whether it will never be sent again, even if the peer turns out to lack it."""
    is_freed: bool = False
    """Whether it was gone as received: if a peer takes that back, the number is in flight no more."""
    answered_at: float | None = None


def numbers(ranges: list[tuple[int, int]]) -> list[int]:
    assert all(start < stop for start, stop in ranges)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))
    return [number for start, stop in ranges for number in range(start, stop)]


class RetransmitRingMachine(RuleBasedStateMachine):
    """What a sender relies on, whatever an honest peer says that it has."""

    @initialize(bounds=st.sampled_from([(3, 400), (40, 25), (8, 60), (40, 400)]), frames=FRAMES)
    def start(self, bounds: tuple[int, int], frames: list[Draft]) -> None:
        events_max, bytes_max = bounds
        self.events_max, self.bytes_max = events_max, bytes_max
        self.ring = RetransmitRing(events_max=events_max, bytes_max=bytes_max)
        self.sent: dict[int, Sent] = {}
        self.given_up: set[int] = set()
        self.released = 1
        self.now = 0.0
        self.record(frames)

    # The model.

    @property
    def next_sequence(self) -> int:
        return len(self.sent) + 1

    @property
    def received(self) -> int:
        return next(n for n in itertools.count(1) if n not in self.sent or not self.sent[n].is_received)

    @property
    def held(self) -> list[Sent]:
        return [sent for sent in self.sent.values() if not sent.is_gone]

    @property
    def in_flight(self) -> list[Sent]:
        return [sent for sent in self.sent.values() if not sent.is_received and not sent.is_freed]

    @property
    def entries(self) -> int:
        return len(self.in_flight) + sum(sent.is_received for sent in self.held)

    def settle(self) -> None:
        """Free what is received, and safe if it is durable."""
        for number, sent in self.sent.items():
            if sent.is_received and (sent.is_gone or not sent.durable or number < self.released):
                sent.is_gone = sent.is_freed = True

    def view(self) -> tuple[object, ...]:
        """All that a ring shows, besides its frames."""
        ring = self.ring
        return (
            (ring.next_sequence, ring.received, ring.released, ring.unreceived()),
            (ring.in_flight_events, ring.in_flight_bytes, ring.held_bytes, len(ring)),
        )

    # What is sent.

    @rule(frames=FRAMES)
    def record(self, frames: list[Draft]) -> None:
        for size_bytes, key, durable in frames:
            self._record(size_bytes, key, durable=durable)

    def _record(self, size_bytes: int, key: str | None, *, durable: bool) -> None:
        self.now += 1.0
        sequence = self.next_sequence
        frame: Frame = f"frame {sequence}" if sequence % 2 else b"frame %d" % sequence
        held_bytes = sum(sent.size_bytes for sent in self.held)
        has_room = self.entries < self.events_max and held_bytes + size_bytes <= self.bytes_max
        assert self.ring.has_room(size_bytes) == has_room
        if not has_room:
            before = self.view()
            with pytest.raises(LocalProtocolError):
                self.ring.record(sequence, frame, size_bytes, self.now, key=key, durable=durable)
            assert self.view() == before
            return
        self.ring.record(sequence, frame, size_bytes, self.now, key=key, durable=durable)
        if not durable and key is not None:
            self._supersede(key, sequence)
        self.sent[sequence] = Sent(frame, size_bytes, self.now, key, durable)

    @rule(size_bytes=st.integers(0, 12), events=st.integers(0, 9), bytes_=st.integers(0, 60))
    def ask_whether_a_window_lets_it_through(self, size_bytes: int, events: int, bytes_: int) -> None:
        in_flight_bytes = sum(sent.size_bytes for sent in self.in_flight)
        fits_window = len(self.in_flight) < events and in_flight_bytes + size_bytes <= bytes_
        may_send = self.ring.may_send(size_bytes, in_flight_events_max=events, in_flight_bytes_max=bytes_)
        assert may_send == (fits_window and self.ring.has_room(size_bytes))

    @rule(key=st.sampled_from(["a", "b"]), back=st.sampled_from([0, 0, 1, 2]))
    def supersede(self, key: str, back: int) -> None:
        sequence = self.next_sequence - back
        self.ring.supersede(key, sequence)
        self._supersede(key, sequence)

    def _supersede(self, key: str, sequence: int) -> None:
        for number, sent in self.sent.items():
            if number < sequence and sent.key == key and not sent.durable and not sent.is_received:
                sent.is_gone = True

    @rule(key=KEYS, remainder=st.integers(0, 1))
    def evict(self, key: str | None, remainder: int) -> None:
        evicted = self.ring.evict(lambda number, other: other == key and number % 2 == remainder)
        announced = []
        for number, sent in self.sent.items():
            if sent.key == key and number % 2 == remainder and not sent.is_gone:
                sent.is_gone = True
                if not sent.is_received:
                    announced.append(number)
        self.settle()
        assert numbers(evicted) == announced

    # What the peer says.

    def draw_state(self, data: st.DataObject, *, lowest: int) -> tuple[int, list[tuple[int, int]]]:
        """A watermark, and ranges that may overlap, touch or lie below it."""
        stop = self.next_sequence
        near = st.sampled_from([self.received, self.received + 1, self.received + 2])
        received = min(stop, data.draw(near | st.integers(min(lowest, stop), stop), label="received"))
        above = st.lists(st.tuples(st.sampled_from([1, 1, 2, 4, 0, -2]), st.integers(1, 3)), max_size=3)
        starts = [(max(1, received + offset), length) for offset, length in data.draw(above, label="above")]
        return received, [(start, min(start + length, stop)) for start, length in starts if start < stop]

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        received, ranges = self.draw_state(data, lowest=1)
        behind = data.draw(st.sampled_from([0, 0, 1, 3, 100]), label="behind")
        release_below = max(1, received - behind)
        sample = self.ring.acknowledge(received, ranges, release_below)
        sampled: float | None = None
        for number, sent in self.sent.items():
            covered = number < received or any(start <= number < stop for start, stop in ranges)
            if covered and not sent.is_received:
                sent.is_received = True
                # A frame that was sent again says nothing of the round trip.
                if sent.answered_at is None and not sent.is_freed:
                    sampled = sent.sent_at
                sent.answered_at = None
        self.released = max(self.released, release_below)
        self.settle()
        assert sample == sampled

    @rule(back=st.integers(1, 12), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def give_up(self, back: int, lengths: list[int]) -> None:
        """The peer may say more than once what it will never have; each frame comes up once."""
        start, stop = max(1, self.next_sequence - back), self.next_sequence
        ranges = [(start, min(start + length, stop)) for length in lengths if start < stop]
        numbers_told = {number for pair in ranges for number in range(*pair)} - self.given_up
        found = self.ring.given_up(ranges)
        assert found == [
            (number, self.sent[number].frame)
            for number in sorted(numbers_told)
            if not self.sent[number].is_gone and number >= self.released
        ]
        self.given_up |= numbers_told

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        received, ranges = self.draw_state(data, lowest=max(1, self.released - 3))
        answer = self.ring.resume(received, ranges, self.now)
        for number, sent in self.sent.items():
            sent.is_received = number < received or any(start <= number < stop for start, stop in ranges)
            sent.answered_at = None if sent.is_received else self.now
        self.settle()
        lacking = {number: sent for number, sent in self.sent.items() if not sent.is_received}
        self._check_frames(answer)
        assert [number for number, _ in answer.frames] == [
            n for n, sent in lacking.items() if not sent.is_gone
        ]
        assert numbers(answer.gone) == [number for number, sent in lacking.items() if sent.is_gone]
        assert not answer.is_unsent

    @rule(
        asked=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=3),
        wait_s=st.sampled_from([0.0, 0.25, LINGER_S]),
        bytes_max=st.sampled_from([0, 10, 20, 1000]),
    )
    def ask(self, asked: list[tuple[int, int]], wait_s: float, bytes_max: int) -> None:
        self.now += wait_s
        # Counted from the end, since what was recorded last is what may still be there.
        ranges = [(max(1, self.next_sequence + 4 - back), length) for back, length in asked]
        ranges = [(start, start + length) for start, length in ranges]
        answer = self.ring.frames_for(ranges, self.now, LINGER_S, bytes_max)
        wanted = {number for start, stop in ranges for number in range(start, stop)}
        assert answer.is_unsent == any(number >= self.next_sequence for number in wanted)
        due = [
            number
            for number in sorted(wanted)
            if number in self.sent
            and not self.sent[number].is_received
            and (self.sent[number].is_freed or not self.lingers(number))
        ]
        assert numbers(answer.gone) == [number for number in due if self.sent[number].is_gone]
        self._check_frames(answer)
        answered = [number for number, _ in answer.frames]
        sizes = [self.sent[number].size_bytes for number in answered]
        assert sum(sizes) <= bytes_max or len(sizes) == 1
        for number in due:
            sent = self.sent[number]
            if not sent.is_gone and number not in answered:
                # It did not fit beside those before it.
                before = [self.sent[other].size_bytes for other in answered if other < number]
                assert before and sum(before) + sent.size_bytes > bytes_max
                continue
            sent.answered_at = self.now
        assert set(answered) <= set(due)

    def lingers(self, number: int) -> bool:
        answered_at = self.sent[number].answered_at
        return answered_at is not None and self.now - answered_at < LINGER_S

    def _check_frames(self, answer: Answer) -> None:
        """What is sent again is what was sent, in order, and never what was given up."""
        assert [number for number, _ in answer.frames] == sorted({number for number, _ in answer.frames})
        for number, frame in answer.frames:
            assert frame is self.sent[number].frame
            assert not self.sent[number].is_gone

    @rule(beyond=st.integers(1, 3))
    def refuse(self, beyond: int) -> None:
        """What no honest peer, or caller, does changes nothing."""
        ring, stop = self.ring, self.next_sequence
        before = self.view()
        for sequence in (stop - beyond, stop + beyond):
            with pytest.raises(LocalProtocolError):
                ring.record(sequence, b"", 0, self.now, key="a", durable=False)
        never_sent = [(stop, stop + beyond), (stop - 1, stop + beyond), (0, 1), (stop, stop), (2, 1)]
        for pair in never_sent:
            with pytest.raises(RemoteProtocolError):
                ring.acknowledge(stop, [pair], stop)
            with pytest.raises(RemoteProtocolError):
                ring.resume(stop, [pair], self.now)
            with pytest.raises(RemoteProtocolError):
                ring.given_up([(1, 2), pair])
        for received, release_below in ((stop + beyond, 1), (stop, stop + beyond), (1, 1 + beyond)):
            with pytest.raises(RemoteProtocolError):
                ring.acknowledge(received, [], release_below)
        for received in (1 - beyond, stop + beyond):
            with pytest.raises(RemoteProtocolError):
                ring.resume(received, [], self.now)
        for pair in ((1 - beyond, 2), (beyond, beyond), (2, 1)):
            with pytest.raises(RemoteProtocolError):
                ring.frames_for([(1, stop + 1), pair], self.now, LINGER_S, 1000)
        assert self.view() == before

    @precondition(lambda self: len(self.sent) > 12)
    @rule()
    def begin_a_new_epoch(self) -> None:
        self.ring.reset()
        self.sent.clear()
        self.given_up.clear()
        self.released = 1

    # What holds.

    @invariant()
    def the_bounds_hold(self) -> None:
        ring = self.ring
        assert ring.held_bytes <= self.bytes_max
        assert len(ring) <= self.entries <= self.events_max

    @invariant()
    def what_is_held_and_what_is_under_way_is_accounted_for(self) -> None:
        ring, held, in_flight = self.ring, self.held, self.in_flight
        assert (len(ring), ring.held_bytes) == (len(held), sum(sent.size_bytes for sent in held))
        assert ring.in_flight_events == len(in_flight)
        assert ring.in_flight_bytes == sum(sent.size_bytes for sent in in_flight)

    @invariant()
    def it_knows_what_the_peer_has(self) -> None:
        ring = self.ring
        assert ring.next_sequence == self.next_sequence
        assert ring.received == self.received
        assert ring.released == self.released
        assert numbers(ring.unreceived()) == [n for n, sent in self.sent.items() if not sent.is_received]

    @override
    def teardown(self) -> None:
        """A peer that goes on asking gets, or is told to be gone, all that it lacks; then nothing is left."""
        if sys.exc_info()[0] is not None or not hasattr(self, "ring"):
            return  # What failed before is not to be hidden.
        for _ in range(len(self.sent) + 1):
            lacking = self.ring.unreceived()
            if not lacking:
                break
            self.now += LINGER_S
            answer = self.ring.frames_for(lacking, self.now, LINGER_S, 10)
            self._check_frames(answer)
            assert answer.frames or answer.gone
            settled = [*answer.gone, *((number, number + 1) for number, _ in answer.frames)]
            self.ring.acknowledge(self.ring.received, settled, 1)
        stop = self.next_sequence
        assert self.ring.received == stop
        self.ring.acknowledge(stop, [], stop)
        assert (len(self.ring), self.ring.held_bytes) == (0, 0)
        assert (self.ring.in_flight_events, self.ring.in_flight_bytes) == (0, 0)
        assert self.ring.released == stop


TestRetransmitRing = RetransmitRingMachine.TestCase
TestRetransmitRing.settings = machine_settings(examples=120, steps=50)
