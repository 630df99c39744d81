"""`ReceiveWindow` beside a dict from number to what became of it."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamctx.core.delivery.receive_window import ReceiveWindow, Verdict
from streamctx.errors import LocalProtocolError, RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import INTEGER_MAX
from tests.core.machines import machine_settings

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

SPAN = 8


def _limits(*, events: int, bytes_: int, history: int) -> Limits:
    return replace(
        DEFAULT_LIMITS,
        part_text_bytes_max=9,
        frame_bytes_max=10,
        window_events_max=2,
        window_bytes_max=10,
        reorder_events_max=events,
        reorder_bytes_max=bytes_,
        reorder_span_max=SPAN,
        digest_history=history,
    )


# One bound or another is the first to be met; the last of these holds all that the span lets in.
LIMITS = {
    "few events": _limits(events=2, bytes_=1000, history=2),
    "few bytes": _limits(events=8, bytes_=25, history=4),
    "few of both": _limits(events=3, bytes_=30, history=3),
    "enough": _limits(events=8, bytes_=80, history=64),
}
OFFSETS = st.integers(-6, SPAN)
# Eight bytes, as both algorithms have or fill up; the highest bit is one that an `int` of 64 bits would lose.
SIZES = st.sampled_from([0, 1, 9, 10])
IS_ORDERED = st.sampled_from([True, True, True, False])
LENGTHS = st.sampled_from([1, 1, 1, 2, 3, SPAN, SPAN + 1, SPAN + 2])
CONTENTS = st.sampled_from([b"\x00" * 8, b"\x00" * 7 + b"\x01", b"\x80" + b"\x00" * 7])


def numbers(ranges: list[tuple[int, int]]) -> list[int]:
    return [number for start, stop in ranges for number in range(start, stop)]


def assert_canonical(ranges: list[tuple[int, int]]) -> None:
    assert all(start < stop for start, stop in ranges)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


class ReceiveWindowMachine(RuleBasedStateMachine):
    """What a receiver relies on, whatever a network does to numbered frames."""

    @initialize(bounds=st.sampled_from(sorted(LIMITS)))
    def start(self, bounds: str) -> None:
        self.limits = LIMITS[bounds]
        self.window: ReceiveWindow[str] = ReceiveWindow(self.limits)
        self.fate: dict[int, str] = {}
        """What became of each present number."""
        self.content: dict[int, bytes] = {}
        """The digest of each number that was received."""
        self.held: dict[int, int] = {}
        """The bytes of what was held and not yet handed out."""
        self.in_order: list[int] = []
        """What was handed out in its turn, as opposed to over a gap."""
        self.over_gap: list[int] = []
        self.dropped: set[int] = set()
        self.seen_stop = self.known_stop = 1
        self.duplicates = self.conflicts = self.overflowed = self.held_ever = 0

    # The model.

    @property
    def expected(self) -> int:
        return next(number for number in itertools.count(1) if number not in self.fate)

    @property
    def ready(self) -> list[int]:
        return sorted(number for number in self.held if number < self.expected)

    @property
    def is_drained(self) -> bool:
        return not self.ready

    def view(self) -> tuple[object, ...]:
        """All that a window shows."""
        window = self.window
        return (
            (window.expected, window.known_stop, window.has_gap, window.has_ready, window.is_full),
            (window.held_count, window.held_bytes),
            window.missing(),
            window.selective_ranges(SPAN),
            replace(window.counters),
        )

    def _receive(self, sequence: int, content: bytes, size_bytes: int, *, ordered: bool) -> Verdict:
        item = f"{sequence} {content!r}"
        return self.window.receive(sequence, content, item, size_bytes, ordered=ordered)

    def _take_in(self, sequence: int, content: bytes, size_bytes: int, *, ordered: bool) -> None:
        """Receive a number that is missing."""
        expected = self.expected
        has_room = (
            len(self.held) < self.limits.reorder_events_max
            and sum(self.held.values()) + size_bytes <= self.limits.reorder_bytes_max
        )
        verdict = self._receive(sequence, content, size_bytes, ordered=ordered)
        self._see(sequence + 1)
        if sequence != expected and ordered and not has_room:
            assert verdict is Verdict.OVERFLOW
            self.overflowed += 1
            self.dropped.add(sequence)
            return
        self.dropped.discard(sequence)
        self.fate[sequence] = "received"
        self.content[sequence] = content
        if sequence == expected:
            assert verdict is Verdict.ACCEPT
            self.in_order.append(sequence)
        elif ordered:
            assert verdict is Verdict.HELD
            self.held[sequence] = size_bytes
            self.held_ever += 1
        else:
            assert verdict is Verdict.APPLY_NOW
            self.over_gap.append(sequence)

    def _see(self, stop: int) -> None:
        self.seen_stop = max(self.seen_stop, stop)
        self.known_stop = max(self.known_stop, stop)

    # What the network does.

    @precondition(lambda self: self.is_drained)
    @rule(offset=OFFSETS, content=CONTENTS, size_bytes=SIZES, ordered=IS_ORDERED)
    def receive(self, offset: int, content: bytes, size_bytes: int, ordered: bool) -> None:
        sequence = max(1, self.expected + offset)
        if sequence not in self.fate:
            self._take_in(sequence, content, size_bytes, ordered=ordered)
        elif sequence in self.content:
            self._repeat(sequence, content, ordered=ordered)
        else:
            # It was skipped or lost, and comes late: nothing is known of its content.
            self._expect_duplicate(sequence, content, ordered=ordered)

    @precondition(lambda self: self.is_drained)
    @rule(frames=st.lists(st.tuples(st.integers(1, SPAN), CONTENTS, SIZES, IS_ORDERED), max_size=6))
    def receive_behind_a_gap(self, frames: list[tuple[int, bytes, int, bool]]) -> None:
        for offset, content, size_bytes, ordered in frames:
            sequence = self.expected + offset
            if sequence not in self.fate:
                self._take_in(sequence, content, size_bytes, ordered=ordered)

    @precondition(lambda self: self.is_drained)
    @rule(content=CONTENTS, size_bytes=SIZES, ordered=IS_ORDERED)
    def receive_next(self, content: bytes, size_bytes: int, ordered: bool) -> None:
        self._take_in(self.expected, content, size_bytes, ordered=ordered)

    @precondition(lambda self: self.is_drained and self.content)
    @rule(data=st.data(), is_same=st.booleans(), ordered=st.booleans())
    def receive_again(self, data: st.DataObject, is_same: bool, ordered: bool) -> None:
        latest = sorted(self.content, reverse=True)[: SPAN + 2]
        sequence = data.draw(st.sampled_from(latest), label="sequence")
        content = self.content[sequence]
        self._repeat(sequence, content if is_same else bytes([content[0] ^ 1, *content[1:]]), ordered=ordered)

    def _repeat(self, sequence: int, content: bytes, *, ordered: bool) -> None:
        if content == self.content[sequence]:
            self._expect_duplicate(sequence, content, ordered=ordered)
            return
        before = self.view()[:-1]
        verdict = self._receive(sequence, content, 1, ordered=ordered)
        # Older content may be forgotten; it is known still of the last numbers at the least.
        if verdict is Verdict.DUPLICATE:
            assert sequence <= max(self.content) - self.limits.digest_history
            self.duplicates += 1
        else:
            assert verdict is Verdict.CONFLICT
            self.conflicts += 1
        assert self.view()[:-1] == before

    def _expect_duplicate(self, sequence: int, content: bytes, *, ordered: bool) -> None:
        before = self.view()[:-1]
        assert self._receive(sequence, content, 1, ordered=ordered) is Verdict.DUPLICATE
        self.duplicates += 1
        assert self.view()[:-1] == before

    @rule(offset=OFFSETS, length=LENGTHS)
    def skip(self, offset: int, length: int) -> None:
        start = max(1, self.expected + offset)
        stop = min(start + length, self.expected + SPAN + 1)
        self._fill(self.window.skip(start, stop), start, stop, "skipped")

    @rule(offset=OFFSETS, length=LENGTHS)
    def lose(self, offset: int, length: int) -> None:
        start = max(1, self.expected + offset)
        stop = min(start + length, self.window.known_stop)
        if start >= stop:
            return
        self._fill(self.window.lose(start, stop), start, stop, "lost")

    def _fill(self, filled: list[tuple[int, int]], start: int, stop: int, fate: str) -> None:
        missing = [number for number in range(start, stop) if number not in self.fate]
        assert numbers(filled) == missing
        assert_canonical(filled)
        self.fate.update(dict.fromkeys(missing, fate))
        self.dropped.difference_update(missing)
        if missing:
            self.known_stop = max(self.known_stop, stop)

    @rule(offset=st.integers(-3, SPAN + 5))
    def announce_next(self, offset: int) -> None:
        self._announce(max(1, self.expected + offset))

    @rule(last=st.sampled_from([INTEGER_MAX, INTEGER_MAX - 1]))
    def announce_a_lie(self, last: int) -> None:
        self._announce(last + 1)

    def _announce(self, next_sequence: int) -> None:
        self.window.announce_next(next_sequence)
        self._see(next_sequence)

    @rule(offset=st.integers(-3, SPAN + 5))
    def connect_again(self, offset: int) -> None:
        next_sequence = max(1, self.expected + offset)
        self.window.restart(next_sequence)
        self.known_stop = max(self.known_stop, next_sequence)
        self.seen_stop = 1

    @precondition(lambda self: not self.is_drained)
    @rule(count=st.integers(1, 3))
    def release_some(self, count: int) -> None:
        ready = self.ready[:count]
        assert self.window.has_ready
        released = list(itertools.islice(self.window.release(), len(ready)))
        self._hand_out(released, ready)

    @precondition(lambda self: not self.is_drained)
    @rule()
    def release_all(self) -> None:
        self._hand_out(list(self.window.release()), self.ready)

    def _hand_out(self, released: list[tuple[int, str]], ready: list[int]) -> None:
        assert released == [(number, f"{number} {self.content[number]!r}") for number in ready]
        for number in ready:
            del self.held[number]
        self.in_order += ready

    @rule(beyond=st.integers(1, 3), ordered=st.booleans())
    def refuse(self, beyond: int, ordered: bool) -> None:
        """What no honest peer, or caller, does changes nothing."""
        window, expected = self.window, self.expected
        before = self.view()
        refused = {1 - beyond, INTEGER_MAX + beyond}
        undrained = {expected + SPAN + beyond} | (set() if self.is_drained else {1, expected, expected + 1})
        for sequence in refused | undrained:
            is_ours = sequence in undrained and not self.is_drained
            with pytest.raises(LocalProtocolError if is_ours else RemoteProtocolError):
                self._receive(sequence, b"\x01" * 8, 1, ordered=ordered)
        for start, stop in (
            (1 - beyond, 2),
            (beyond, beyond),
            (2, 1),
            (expected, expected + SPAN + 1 + beyond),
            (INTEGER_MAX, INTEGER_MAX + 1),
        ):
            with pytest.raises(RemoteProtocolError):
                window.skip(start, stop)
        for start, stop in ((1 - beyond, 2), (beyond, beyond), (2, 1), (1, window.known_stop + beyond)):
            with pytest.raises(LocalProtocolError):
                window.lose(start, stop)
        for next_sequence in (1 - beyond, INTEGER_MAX + 1 + beyond):
            with pytest.raises(RemoteProtocolError):
                window.announce_next(next_sequence)
            with pytest.raises(RemoteProtocolError):
                window.restart(next_sequence)
        assert self.view() == before

    # What holds.

    @invariant()
    def nothing_comes_twice_or_out_of_order(self) -> None:
        assert self.in_order == sorted(set(self.in_order))
        assert not set(self.in_order) & set(self.over_gap)

    @invariant()
    def what_is_acknowledged_was_received_skipped_or_announced_as_lost(self) -> None:
        window, expected = self.window, self.expected
        assert window.expected == expected
        ranges = window.selective_ranges(SPAN)
        assert_canonical(ranges)
        assert numbers(ranges) == sorted(number for number in self.fate if number > expected)
        assert window.selective_ranges(1) == ranges[:1]
        assert all(
            number >= expected and all(not start <= number < stop for start, stop in ranges)
            for number in self.dropped
        )

    @invariant()
    def exactly_what_is_missing_is_asked_for(self) -> None:
        window, expected = self.window, self.expected
        missing = window.missing()
        assert_canonical(missing)
        stop = min(self.seen_stop, expected + SPAN + 1)
        assert numbers(missing) == [n for n in range(expected, stop) if n not in self.fate]
        absent = window.absent_within(1, expected + SPAN)
        assert_canonical(absent)
        known = range(1, min(self.known_stop, expected + SPAN))
        assert numbers(absent) == [n for n in known if n not in self.fate]
        assert window.known_stop == max(self.known_stop, expected)
        assert window.has_gap == bool(missing)

    @invariant()
    def the_bounds_hold(self) -> None:
        window, limits = self.window, self.limits
        assert window.has_ready == (not self.is_drained)
        assert window.held_count == len(self.held) <= limits.reorder_events_max
        assert window.held_bytes == sum(self.held.values()) <= limits.reorder_bytes_max
        assert window.is_full == (
            len(self.held) >= limits.reorder_events_max
            or sum(self.held.values()) + limits.frame_bytes_max > limits.reorder_bytes_max
        )

    @invariant()
    def everything_is_counted_once(self) -> None:
        counters, fates = self.window.counters, list(self.fate.values())
        assert (counters.skipped, counters.lost) == (fates.count("skipped"), fates.count("lost"))
        assert (counters.duplicates, counters.conflicts) == (self.duplicates, self.conflicts)
        assert (counters.held, counters.overflowed) == (self.held_ever, self.overflowed)

    @override
    def teardown(self) -> None:
        """Once all gaps are closed, everything received was handed out, each once."""
        if sys.exc_info()[0] is not None or not hasattr(self, "window"):
            return  # What failed before is not to be hidden.
        self.release_if_ready()
        for number in range(1, max(self.fate, default=0) + 1):
            if number not in self.fate:
                self._take_in(number, b"\x07" * 8, 1, ordered=True)
                self.release_if_ready()
        assert sorted(self.in_order + self.over_gap) == sorted(self.content)
        assert self.window.held_count == self.window.held_bytes == 0
        assert self.window.selective_ranges(1) == []

    def release_if_ready(self) -> None:
        if not self.is_drained:
            self.release_all()


TestReceiveWindow = ReceiveWindowMachine.TestCase
TestReceiveWindow.settings = machine_settings(examples=120, steps=50)
