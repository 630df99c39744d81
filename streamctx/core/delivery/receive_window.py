"""Which numbered frames of one direction of a session have arrived.

Decides for each frame whether it is applied, held behind a gap, known already or
in conflict with what came before. When to ask again for what is missing is the
gap detector's; what a frame means is the session's.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, TypeVar

from streamctx.core.delivery.range_set import RangeSet
from streamctx.errors import CloseCode, ErrorCode, LocalProtocolError, RemoteProtocolError
from streamctx.limits import Limits
from streamctx.vocabulary import INTEGER_MAX

__all__ = ["ReceiveCounters", "ReceiveWindow", "Verdict"]

Item = TypeVar("Item")


class Verdict(enum.Enum):
    """What to do with a frame."""

    ACCEPT = "accept"
    """Apply it, then whatever `release` yields."""
    HELD = "held"
    """It waits behind a gap; `release` will yield it in its turn."""
    APPLY_NOW = "apply_now"
    """Apply it although numbers below it are missing; it will not be yielded."""
    DUPLICATE = "duplicate"
    """It is known; acknowledge again and drop it."""
    CONFLICT = "conflict"
    """Its number came before with other content; the session must end."""
    OVERFLOW = "overflow"
    """There is no room; it was dropped and is missing still, do not acknowledge it."""


# Looking up a member through the class costs more than all else in the in-order path.
_ACCEPT = Verdict.ACCEPT

_FIRST_SLOTS = 64


@dataclass(slots=True)
class ReceiveCounters:
    """How often each thing happened, in frames or, for the last two, in numbers."""

    duplicates: int = 0
    conflicts: int = 0
    held: int = 0
    overflowed: int = 0
    skipped: int = 0
    lost: int = 0


class ReceiveWindow(Generic[Item]):
    """Numbers from 1, received in any order, released in order, each once.

    A number is *present* once it was received, skipped or lost. All numbers below
    `expected` are present, `expected` is not, and `_present` holds the present
    ones above it. `_order` is a heap of the numbers in `_held`; those of them
    below `expected` are ready. What is not present below `_seen_stop` is missing: something sent
    behind it has come on this connection. No present number is at or above `known_stop`.
    `_is_plain` is true if and only if nothing is present above `expected` and
    nothing is held.

    The digests of received frames are kept in two rings, indexed by number
    modulo `digest_history`, which grow to that size as numbers do: an idle session
    costs 1 KiB, a busy one 64 KiB.

    Source: SPEC SEQ-3 to SEQ-6, SKP-1; RFC 9000 section 2.2.
    """

    __slots__ = (
        "_digest_of_slot",
        "_digest_slots",
        "_expected",
        "_held",
        "_held_bytes",
        "_is_plain",
        "_limits",
        "_number_of_slot",
        "_order",
        "_present",
        "_promised_stop",
        "_seen_stop",
        "counters",
    )

    def __init__(self, limits: Limits) -> None:
        self.counters = ReceiveCounters()
        self._limits = limits
        self._expected = 1
        self._seen_stop = 1
        self._promised_stop = 1
        self._is_plain = True
        self._present = RangeSet()
        self._held: dict[int, tuple[Item, int]] = {}
        self._held_bytes = 0
        self._order: list[int] = []
        self._digest_slots = limits.digest_history
        slots = min(_FIRST_SLOTS, self._digest_slots)
        # Zero is no number, so a slot that was never written matches none.
        self._number_of_slot = array("Q", bytes(8 * slots))
        self._digest_of_slot = array("Q", bytes(8 * slots))

    @property
    def expected(self) -> int:
        """The lowest number not present: the watermark `received`."""
        return self._expected

    @property
    def known_stop(self) -> int:
        """One past the highest number that the peer is known to have used."""
        return max(self._seen_stop, self._promised_stop, self._expected)

    @property
    def has_gap(self) -> bool:
        """Whether any number is missing; cheap enough to ask after each frame."""
        return self._seen_stop > self._expected

    @property
    def has_ready(self) -> bool:
        """Whether `release` would yield anything; cheap enough to ask after each frame."""
        order = self._order
        return bool(order) and order[0] < self._expected

    @property
    def held_count(self) -> int:
        """Frames held, those not yet released included."""
        return len(self._held)

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames held."""
        return self._held_bytes

    @property
    def is_full(self) -> bool:
        """Whether a frame of the largest size could not be held."""
        limits = self._limits
        return (
            len(self._held) >= limits.reorder_events_max
            or self._held_bytes + limits.frame_bytes_max > limits.reorder_bytes_max
        )

    def receive(self, sequence: int, digest: bytes, item: Item, size_bytes: int, *, ordered: bool) -> Verdict:
        """Classify one frame whose digest was verified.

        After ACCEPT apply the item first and then drain `release`.

        Args:
            sequence: Its number.
            digest: The frame's digest, at most eight bytes and of one length throughout.
            item: Returned by `release` if the verdict is HELD; otherwise not kept.
            size_bytes: What the item counts for while it is held.
            ordered: Whether it has to wait for all numbers below it. False for
                supersedable events, which apply over an open gap.

        Raises:
            RemoteProtocolError: If the number is not positive, above 2^53 - 1, or more
                than `reorder_span_max` above `expected`; nothing was changed.
            LocalProtocolError: If `release` was not drained before this call.
        """
        if sequence == self._expected and self._is_plain:
            self._expected = sequence + 1
            slot = sequence % self._digest_slots
            try:
                self._number_of_slot[slot] = sequence
                self._digest_of_slot[slot] = int.from_bytes(digest, "big")
            except IndexError:
                self._remember(sequence, digest)
            return _ACCEPT
        return self._receive_beside_gap(sequence, digest, item, size_bytes, ordered)

    def _receive_beside_gap(
        self, sequence: int, digest: bytes, item: Item, size_bytes: int, ordered: bool
    ) -> Verdict:
        if not 1 <= sequence <= INTEGER_MAX:
            raise _bad_sequence(f"sequence {sequence} is out of range, expected 1 to {INTEGER_MAX}")
        if self.has_ready:
            raise LocalProtocolError(f"sequence {sequence} came before release() was drained")
        limits = self._limits
        if sequence > self._expected + limits.reorder_span_max:
            raise _bad_sequence(
                f"sequence {sequence} is {sequence - self._expected} ahead, limit {limits.reorder_span_max}"
            )
        if sequence < self._expected or sequence in self._present:
            if self._contradicts(sequence, digest):
                self.counters.conflicts += 1
                return Verdict.CONFLICT
            self.counters.duplicates += 1
            return Verdict.DUPLICATE
        self._seen_stop = max(self._seen_stop, sequence + 1)
        if sequence == self._expected:
            self._remember(sequence, digest)
            self._advance(sequence + 1)
            return _ACCEPT
        if ordered and (
            len(self._held) >= limits.reorder_events_max
            or self._held_bytes + size_bytes > limits.reorder_bytes_max
        ):
            self.counters.overflowed += 1
            return Verdict.OVERFLOW
        self._remember(sequence, digest)
        self._present.add(sequence, sequence + 1)
        self._is_plain = False
        if not ordered:
            return Verdict.APPLY_NOW
        self._held[sequence] = (item, size_bytes)
        self._held_bytes += size_bytes
        heappush(self._order, sequence)
        self.counters.held += 1
        return Verdict.HELD

    def next_ready(self) -> tuple[int, Item] | None:
        """Take the next held item before which nothing is missing, or `None`."""
        order = self._order
        if not order or order[0] >= self._expected:
            return None
        sequence = heappop(order)
        item, size_bytes = self._held.pop(sequence)
        self._held_bytes -= size_bytes
        self._is_plain = not order and len(self._present) == 0
        return sequence, item

    def release(self) -> Iterator[tuple[int, Item]]:
        """Take all held items before which nothing is missing, in order.

        What is not consumed stays and is yielded by the next call.
        """
        while (ready := self.next_ready()) is not None:
            yield ready

    def skip(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Note that the peer will never send `[start, stop)`; then drain `release`.

        Numbers that are present stay as they are, held items are kept: the same
        SKIP may come twice, late, or for frames that did arrive.

        Returns:
            Those ranges of it that were missing until now.

        Raises:
            RemoteProtocolError: If the range is empty, begins below 1 or reaches more
                than `reorder_span_max` above `expected`, as for a frame. An honest peer
                has at most `window_events_max` numbers under way; refusing the rest
                keeps a range from carrying us to 2^53. Nothing was changed.
        """
        if not 1 <= start < stop:
            raise _bad_sequence(f"skipped range [{start}, {stop}) is empty or begins below 1")
        span = self._limits.reorder_span_max
        if stop > self._expected + span + 1:
            raise _bad_sequence(f"skipped range reaches {stop - 1 - self._expected} ahead, limit {span}")
        filled = self._fill(start, stop)
        self.counters.skipped += sum(filled_stop - filled_start for filled_start, filled_stop in filled)
        return filled

    def lose(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Give up what of `[start, stop)` is missing; then drain `release`.

        Returns:
            Those ranges of it that were missing until now: announce them as lost.

        Raises:
            LocalProtocolError: If the range is empty or not all below `known_stop`.
        """
        if not 1 <= start < stop <= self.known_stop:
            raise LocalProtocolError(
                f"range [{start}, {stop}) cannot be lost, the numbers known are 1 to {self.known_stop - 1}"
            )
        filled = self._fill(start, stop)
        self.counters.lost += sum(filled_stop - filled_start for filled_start, filled_stop in filled)
        return filled

    def announce_next(self, next_sequence: int) -> None:
        """Note that the peer has used all numbers below `next_sequence`.

        A lower value than before is an older heartbeat and changes nothing.

        Raises:
            RemoteProtocolError: If it is not positive or above 2^53.
        """
        _check_next(next_sequence)
        if next_sequence > self._seen_stop:
            self._seen_stop = next_sequence

    def restart(self, next_sequence: int) -> None:
        """Begin a connection on which the peer sends all that is not present below `next_sequence`, in order.

        None of it is missing until something behind it comes: it may take long to arrive.

        Raises:
            RemoteProtocolError: If `next_sequence` is not positive or above 2^53.
        """
        _check_next(next_sequence)
        self._promised_stop = max(self.known_stop, next_sequence)
        self._seen_stop = self._expected

    def begin_at(self, expected: int) -> None:
        """Take all numbers below `expected` as present, and none above, of which what was held is forgotten.

        Of what comes again from `expected` on nothing is known: it may have other content than before.
        """
        self._expected = self._seen_stop = self._promised_stop = expected
        self._present = RangeSet()
        self._held.clear()
        self._held_bytes = 0
        self._order.clear()
        self._is_plain = True
        for slot, number in enumerate(self._number_of_slot):
            if number >= expected:
                self._number_of_slot[slot] = 0

    def missing(self) -> list[tuple[int, int]]:
        """Return the missing ranges: below the highest number that came or was announced on this connection.

        It ends `reorder_span_max` above `expected`, whatever the peer claims, and so
        has at most half as many ranges.
        """
        expected = self._expected
        if self._seen_stop <= expected:
            return []
        return self._present.gaps(
            expected, min(self._seen_stop, expected + self._limits.reorder_span_max + 1)
        )

    def absent_within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of `[start, stop)` that are known to be used and not present, missing or not yet.

        As those of `missing` they end `reorder_span_max` above `expected`.
        """
        furthest = self._expected + self._limits.reorder_span_max + 1
        return self._present.gaps(max(start, self._expected), min(stop, self.known_stop, furthest))

    def selective_ranges(self, max_count: int) -> list[tuple[int, int]]:
        """Return the lowest `max_count` present ranges above `expected`, for an ACK."""
        return self._present.first(max_count)

    def _fill(self, start: int, stop: int) -> list[tuple[int, int]]:
        missing = self._present.gaps(max(start, self._expected), stop)
        if not missing:
            return missing
        self._promised_stop = max(self._promised_stop, stop)
        for missing_start, missing_stop in missing:
            self._present.add(missing_start, missing_stop)
        if missing[0][0] == self._expected:
            self._advance(missing[0][1])
        self._is_plain = not self._order and len(self._present) == 0
        return missing

    def _advance(self, number: int) -> None:
        """Move `expected` to the first number from `number` on that is not present."""
        self._expected = self._present.first_absent(number)
        self._present.clear_below(self._expected)
        self._is_plain = not self._order and len(self._present) == 0

    def _contradicts(self, sequence: int, digest: bytes) -> bool:
        slot = sequence % self._digest_slots
        return (
            slot < len(self._number_of_slot)
            and self._number_of_slot[slot] == sequence
            and self._digest_of_slot[slot] != int.from_bytes(digest, "big")
        )

    def _remember(self, sequence: int, digest: bytes) -> None:
        slot = sequence % self._digest_slots
        slots = len(self._number_of_slot)
        if slot >= slots:
            # Doubling keeps the copying amortised; in order, `slot` is `slots`.
            more = bytes(8 * (min(self._digest_slots, max(2 * slots, slot + 1)) - slots))
            self._number_of_slot.frombytes(more)
            self._digest_of_slot.frombytes(more)
        # A late frame does not make us forget one of the last `digest_history` numbers.
        if self._number_of_slot[slot] < sequence:
            self._number_of_slot[slot] = sequence
            self._digest_of_slot[slot] = int.from_bytes(digest, "big")


def _check_next(sequence: int) -> None:
    if not 1 <= sequence <= INTEGER_MAX + 1:
        raise _bad_sequence(f"next sequence {sequence} is out of range")


def _bad_sequence(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME, message)
