"""Frames that were sent and may have to be sent again.

Knows what the peer has received and what it has made safe, and answers its
requests. What to evict under pressure, and what a skipped range means, is the
session's to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from streamctx.core.delivery.range_set import RangeSet
from streamctx.errors import CloseCode, ErrorCode, LocalProtocolError, RemoteProtocolError

__all__ = ["Answer", "Frame", "RetransmitRing"]

Frame = bytes | str
"""An encoded frame: bytes, or text for the JSON twin. Never looked into."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send in answer to a request for retransmission."""

    frames: list[tuple[int, Frame]]
    """Number and bytes as first sent, ascending."""
    gone: list[tuple[int, int]]
    """Ranges that will never be sent again: answer with SKIP."""
    is_unsent: bool
    """Whether a number was asked for that is not yet in use: answer with a heartbeat."""


# One number in use: frame, size in bytes, when it was sent, key, whether it is durable. The
# frame is `None` once it need not be sent again. A plain tuple is made six times as fast as a
# `NamedTuple`, and one is made for every frame that is sent.
_Entry = tuple[Frame | None, int, float, Hashable | None, bool]


class RetransmitRing:
    """The sent frames of one direction of a session, by number from 1.

    A number is *received* if it is below `received` or in `_received_above`, which
    holds only numbers above. An entry exists for each number that is not
    received, and for each durable one at or above `released`. The entry of an
    unreceived number that was superseded or evicted has lost its frame: it counts as in
    flight still, but no longer in `held_bytes`. `_newest_of_key` has one entry for
    each key that has a supersedable frame. `_given_up` are numbers from `released` on
    of which the peer has told that it will never have them.

    It is a dict rather than a deque with a base number, because freed supersedable
    frames then leave no slots behind while an old durable one is waited for.

    Source: SPEC ACK-3, ACK-4, NAK-3, RSM-6; RFC 2018 section 8 (what was selectively
    acknowledged is kept); RFC 6298 section 3 (Karn's rule).
    """

    __slots__ = (
        "_answered_at",
        "_bytes_max",
        "_entries",
        "_events_max",
        "_frame_count",
        "_given_up",
        "_held_bytes",
        "_in_flight_bytes",
        "_in_flight_events",
        "_newest_of_key",
        "_next_sequence",
        "_received",
        "_received_above",
        "_released",
        "_safe_stop",
    )

    def __init__(self, *, events_max: int, bytes_max: int) -> None:
        """Start empty.

        Args:
            events_max: Entries; an evicted or superseded frame is one until it is received.
            bytes_max: Bytes of all frames held.
        """
        self._events_max = events_max
        self._bytes_max = bytes_max
        self.reset()

    def reset(self, next_sequence: int = 1) -> None:
        """Forget everything, and number from `next_sequence` on; the peer has all numbers below."""
        self._entries: dict[int, _Entry] = {}
        self._newest_of_key: dict[Hashable, int] = {}
        self._answered_at: dict[int, float] = {}
        self._received_above = RangeSet()
        self._given_up = RangeSet()
        self._next_sequence = next_sequence
        self._received = next_sequence
        self._released = next_sequence
        self._safe_stop = next_sequence
        self._frame_count = 0
        self._held_bytes = 0
        self._in_flight_events = 0
        self._in_flight_bytes = 0

    def restore(
        self,
        *,
        next_sequence: int,
        released: int,
        safe_stop: int,
        frames: Iterable[tuple[int, Frame, Hashable | None]],
    ) -> None:
        """Begin, in place of empty, with what another ring had; then `resume`.

        Args:
            next_sequence: Its `next_sequence`.
            released: Its `released`.
            safe_stop: Its `safe_stop`.
            frames: Of the numbers between, the durable frames that may have to be sent again, in number
                order, with their keys.
        """
        self._next_sequence = next_sequence
        self._received = self._released = released
        self._safe_stop = safe_stop
        for sequence, frame, key in frames:
            self._entries[sequence] = (frame, len(frame), 0.0, key, True)
            self._frame_count += 1
            self._held_bytes += len(frame)
            self._in_flight_events += 1
            self._in_flight_bytes += len(frame)

    def held(self) -> Iterator[tuple[int, Frame, Hashable | None]]:
        """The durable frames held, in number order, with their keys."""
        for sequence, (frame, _, _, key, durable) in self._entries.items():
            if durable and frame is not None:
                yield sequence, frame, key

    @property
    def next_sequence(self) -> int:
        """The number of the next frame to record."""
        return self._next_sequence

    @property
    def received(self) -> int:
        """The peer has received all numbers below."""
        return self._received

    @property
    def released(self) -> int:
        """The peer has made all durable frames below safe; none of them is held."""
        return self._released

    @property
    def safe_stop(self) -> int:
        """One past the highest durable frame that was freed since the peer had made it safe.

        A peer that lacks it has lost what it had promised to keep. What it may lack between here and
        `released` were supersedable frames, whose numbers a restarted peer need not know.
        """
        return self._safe_stop

    @property
    def in_flight_events(self) -> int:
        """Numbers sent and not received, those superseded or evicted included.

        Not included are numbers that a `resume` took back after their frame was freed.
        """
        return self._in_flight_events

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the frames that `in_flight_events` counts, as they were sent."""
        return self._in_flight_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of all frames held, received or not."""
        return self._held_bytes

    def note_safe(self, sequence: int) -> None:
        """Note that the peer has made it safe that an evicted durable frame is gone."""
        self._safe_stop = max(self._safe_stop, sequence + 1)

    def __len__(self) -> int:
        """Return how many frames are held."""
        return self._frame_count

    def has_room(self, size_bytes: int) -> bool:
        """Whether `record` would take a frame of that size."""
        return len(self._entries) < self._events_max and self._held_bytes + size_bytes <= self._bytes_max

    def may_send(self, size_bytes: int, *, in_flight_events_max: int, in_flight_bytes_max: int) -> bool:
        """Whether a frame of that size keeps what is in flight within a window, and there is room for it."""
        return (
            self._in_flight_events < in_flight_events_max
            and self._in_flight_bytes + size_bytes <= in_flight_bytes_max
            and len(self._entries) < self._events_max
            and self._held_bytes + size_bytes <= self._bytes_max
        )

    def record(
        self,
        sequence: int,
        frame: Frame,
        size_bytes: int,
        now: float,
        *,
        key: Hashable | None,
        durable: bool,
    ) -> None:
        """Keep a frame that is being handed to the socket.

        A supersedable frame takes the place of the older one of its key, as if
        `supersede` had been called.

        Args:
            sequence: Has to be `next_sequence`.
            frame: What is sent again, unchanged, if need be.
            size_bytes: What the frame counts for, in flight and while it is held.
            now: When it is sent, in seconds.
            key: What a supersedable frame is the latest value of. For a durable one it
                only says what it belongs to, for `evict`, and may be `None`.
            durable: Whether it is kept until it is released, rather than received.

        Raises:
            LocalProtocolError: If the number is not `next_sequence` or there is no room;
                nothing was changed.
        """
        if sequence != self._next_sequence:
            raise LocalProtocolError(f"recorded sequence {sequence}, expected {self._next_sequence}")
        held_bytes = self._held_bytes + size_bytes
        if held_bytes > self._bytes_max or len(self._entries) >= self._events_max:
            raise LocalProtocolError(
                f"no room for {size_bytes} bytes beside {self._held_bytes}, limit {self._bytes_max}, "
                f"or for one more than {len(self._entries)} events, limit {self._events_max}"
            )
        self._held_bytes = held_bytes
        self._entries[sequence] = (frame, size_bytes, now, key, durable)
        self._next_sequence = sequence + 1
        self._frame_count += 1
        self._in_flight_events += 1
        self._in_flight_bytes += size_bytes
        if not durable and key is not None:
            older = self._newest_of_key.get(key)
            if older is not None:
                self._bury(older)
            self._newest_of_key[key] = sequence

    def supersede(self, key: Hashable, sequence: int) -> None:
        """Give up the supersedable frame of `key` that has a number below `sequence`, if held."""
        older = self._newest_of_key.get(key)
        if older is not None and older < sequence:
            del self._newest_of_key[key]
            self._bury(older)

    def evict(self, predicate: Callable[[int, Hashable | None], bool]) -> list[tuple[int, int]]:
        """Give up all frames, durable ones too, whose number and key the predicate accepts.

        Takes time in proportion to the frames held.

        Returns:
            The ranges that are gone and not received: announce them with SKIP. Frames
            that are received, and were kept only until they are safe, are freed unlisted.
        """
        gone = RangeSet()
        chosen = [
            sequence
            for sequence, (frame, _, _, key, _) in self._entries.items()
            if frame is not None and predicate(sequence, key)
        ]
        for sequence in chosen:
            if self._is_received(sequence):
                self._free(sequence)
                continue
            _, _, _, key, durable = self._entries[sequence]
            if not durable and self._newest_of_key.get(key) == sequence:
                del self._newest_of_key[key]
            self._bury(sequence)
            gone.add(sequence, sequence + 1)
        return list(gone)

    def acknowledge(
        self, received: int, ranges: Sequence[tuple[int, int]], release_below: int
    ) -> float | None:
        """Take over an ACK.

        Supersedable frames are freed once received, durable ones once they are below
        `release_below` too: what was acknowledged selectively, or lives only in the
        peer's memory, may have to be sent again. Older values than before
        change nothing.

        Args:
            received: The peer has all numbers below.
            ranges: What it has above that.
            release_below: Its watermark `durable` or `applied`, whichever was agreed on.

        Returns:
            When the highest frame that this call made received was sent, in seconds, for
            a round-trip sample; `None` if it made none received, or only such that were
            retransmitted.

        Raises:
            RemoteProtocolError: If a number was never sent, a range is empty or
                `release_below` is above `received`; nothing was changed.
        """
        next_sequence = self._next_sequence
        if received > next_sequence:
            raise _bad_sequence(f"received is {received}, the next number to be sent {next_sequence}")
        if release_below > received:
            raise _bad_sequence(f"released below {release_below}, received only below {received}")
        if ranges:
            _require_sent(ranges, next_sequence)

        samples: list[float] = []
        was_received = self._received
        above = self._received_above
        release_below = max(release_below, self._released)
        if received > was_received:
            if len(above) == 0:
                self._mark_received(was_received, received, release_below, samples)
                self._received = received
            else:
                for start, stop in above.gaps(was_received, received):
                    self._mark_received(start, stop, release_below, samples)
                for start, stop in above.within(was_received, release_below):
                    self._release(start, stop)
                # It may have reached what was received above.
                self._received = above.first_absent(received)
                above.clear_below(self._received)
        if release_below > self._released:
            if was_received > self._released:
                self._release(self._released, min(release_below, was_received))
            self._released = release_below
        if ranges:
            for start, stop in RangeSet(ranges):
                for new_start, new_stop in above.gaps(max(start, self._received), stop):
                    self._mark_received(new_start, new_stop, release_below, samples)
                    above.add(new_start, new_stop)
            # A range may continue where `received` ends.
            self._received = above.first_absent(self._received)
            above.clear_below(self._received)
        return samples[-1] if samples else None

    def frames_for(
        self, ranges: Sequence[tuple[int, int]], now: float, linger_s: float, bytes_max: int
    ) -> Answer:
        """Answer a NACK.

        What the peer has acknowledged meanwhile, and what was sent again less than
        `linger_s` ago, is left out.

        Args:
            ranges: Half-open, in any order, overlapping or not.
            now: When the answer is sent, in seconds.
            linger_s: One round trip, or a minimum if that is shorter.
            bytes_max: Of the frames returned, together; one frame is returned however
                large it is. The peer asks again for what is left out.

        Raises:
            RemoteProtocolError: If a range is empty or begins below 1.
        """
        for start, stop in ranges:
            if not 1 <= start < stop:
                raise _bad_sequence(f"range [{start}, {stop}) was asked for")
        frames: list[tuple[int, Frame]] = []
        gone = RangeSet()
        frames_bytes = 0
        is_unsent = False
        for start, stop in RangeSet(ranges):
            if stop > self._next_sequence:
                is_unsent = True
                stop = self._next_sequence
            for gap_start, gap_stop in self._received_above.gaps(max(start, self._received), stop):
                for sequence in range(gap_start, gap_stop):
                    entry = self._entries.get(sequence)
                    answered_at = self._answered_at.get(sequence)
                    if answered_at is not None and now - answered_at < linger_s:
                        continue
                    if entry is None:
                        gone.add(sequence, sequence + 1)
                        continue
                    frame, size_bytes, *_ = entry
                    if frame is None:
                        gone.add(sequence, sequence + 1)
                    elif frames and frames_bytes + size_bytes > bytes_max:
                        continue
                    else:
                        frames.append((sequence, frame))
                        frames_bytes += size_bytes
                    self._answered_at[sequence] = now
        return Answer(frames, list(gone), is_unsent)

    def resume(self, received: int, ranges: Sequence[tuple[int, int]], now: float) -> Answer:
        """Take over what the peer has after a new connection, and return all that it lacks.

        Unlike an ACK this may take back what was received before: a peer that restarted
        has what it made durable. No limit applies to the frames returned: hand them to
        the socket in order, ahead of new ones.

        Numbers below `released` that the peer lacks are gone; that is no loss from `safe_stop` on. A gone
        range may be longer than the peer's `reorder_span_max`: announce it in parts, in number order.

        Args:
            received: The peer has all numbers below.
            ranges: What it has above that.
            now: When the frames returned count as answered.

        Raises:
            RemoteProtocolError: If a number was never sent, or a range is empty; nothing
                was changed.
        """
        next_sequence = self._next_sequence
        if not 1 <= received <= next_sequence:
            raise _bad_sequence(f"resumed at {received}, expected 1 to {next_sequence}")
        _require_sent(ranges, next_sequence)

        above = RangeSet(ranges)
        self._received = above.first_absent(received)
        above.clear_below(self._received)
        self._received_above = above
        self._answered_at.clear()
        self._in_flight_events = self._in_flight_bytes = 0
        frames: list[tuple[int, Frame]] = []
        held = RangeSet()
        for sequence, (frame, size_bytes, _, _, durable) in list(self._entries.items()):
            if self._is_received(sequence):
                if not durable or frame is None:
                    self._free(sequence)
                continue
            self._in_flight_events += 1
            self._in_flight_bytes += size_bytes
            self._answered_at[sequence] = now
            if frame is not None:
                frames.append((sequence, frame))
                held.add(sequence, sequence + 1)
        gone = [gone_range for start, stop in self.unreceived() for gone_range in held.gaps(start, stop)]
        return Answer(frames, gone, is_unsent=False)

    def given_up(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, Frame]]:
        """Take over which numbers the peer has given up; call it before `acknowledge`, which frees them.

        Returns:
            Of the frames held, those of a number that was not told before, in number order.

        Raises:
            RemoteProtocolError: If a number was never sent, or a range is empty; nothing
                was changed.
        """
        _require_sent(ranges, self._next_sequence)
        told = self._given_up
        told.clear_below(self._released)
        found: list[tuple[int, Frame]] = []
        for start, stop in RangeSet(ranges):
            for new_start, new_stop in told.gaps(max(start, self._released), stop):
                told.add(new_start, new_stop)
                for sequence in range(new_start, new_stop):
                    entry = self._entries.get(sequence)
                    if entry is not None and entry[0] is not None:
                        found.append((sequence, entry[0]))
        return found

    def unreceived(self) -> list[tuple[int, int]]:
        """Return the ranges that were sent and are not received, held or gone."""
        return self._received_above.gaps(self._received, self._next_sequence)

    def _is_received(self, sequence: int) -> bool:
        return sequence < self._received or sequence in self._received_above

    def _mark_received(self, start: int, stop: int, release_below: int, samples: list[float]) -> None:
        """Account for `[start, stop)`, not received until now, and free what can be.

        Appends to `samples` when the highest of it that was sent only once was sent.
        """
        sample: float | None = None
        entries = self._entries
        answered_at = self._answered_at
        newest_of_key = self._newest_of_key
        events = sent_bytes = freed_frames = freed_bytes = safe_stop = 0
        for sequence in range(start, stop):
            entry = entries.get(sequence)
            if entry is None:
                continue
            frame, size_bytes, sent_at, key, durable = entry
            events += 1
            sent_bytes += size_bytes
            if not answered_at or answered_at.pop(sequence, None) is None:
                sample = sent_at
            if durable and sequence >= release_below and frame is not None:
                continue
            del entries[sequence]
            if frame is not None:
                freed_frames += 1
                freed_bytes += size_bytes
                if durable:
                    safe_stop = sequence + 1
                elif newest_of_key.get(key) == sequence:
                    del newest_of_key[key]
        self._in_flight_events -= events
        self._in_flight_bytes -= sent_bytes
        self._frame_count -= freed_frames
        self._held_bytes -= freed_bytes
        self._safe_stop = max(self._safe_stop, safe_stop)
        if sample is not None:
            samples.append(sample)

    def _release(self, start: int, stop: int) -> None:
        """Free the durable frames in `[start, stop)`, which were received before."""
        for sequence in range(start, stop):
            if sequence in self._entries:
                self._free(sequence)
                self._safe_stop = max(self._safe_stop, sequence + 1)

    def _free(self, sequence: int) -> None:
        """Drop the entry of a received number."""
        frame, size_bytes, _, key, durable = self._entries.pop(sequence)
        if frame is None:
            return
        self._frame_count -= 1
        self._held_bytes -= size_bytes
        if not durable and self._newest_of_key.get(key) == sequence:
            del self._newest_of_key[key]

    def _bury(self, sequence: int) -> None:
        """Drop the frame of a number that is not received; its entry stays until it is."""
        _, size_bytes, sent_at, key, durable = self._entries[sequence]
        self._entries[sequence] = (None, size_bytes, sent_at, key, durable)
        self._frame_count -= 1
        self._held_bytes -= size_bytes


def _require_sent(ranges: Sequence[tuple[int, int]], next_sequence: int) -> None:
    for start, stop in ranges:
        if not 1 <= start < stop <= next_sequence:
            raise _bad_sequence(f"range [{start}, {stop}) is empty or not within 1 to {next_sequence - 1}")


def _bad_sequence(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME, message)
