"""One end of a session's two directions: numbers, repair, acknowledgement, liveness.

Both endpoints compose the same machine. It knows frames and the unnumbered
messages of SPEC section 8; everything else it hands up to the endpoint, in order
and once, or takes from the endpoint to number and keep.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from msgspec.structs import replace

from streamctx.core.delivery.corruption import CorruptionMeter
from streamctx.core.delivery.gap_detector import GapDetector
from streamctx.core.delivery.lost_ranges import LostRanges
from streamctx.core.delivery.range_set import RangeSet
from streamctx.core.delivery.receive_window import ReceiveWindow, Verdict
from streamctx.core.delivery.retransmit_ring import Answer, Frame, RetransmitRing
from streamctx.core.delivery.round_trip import RoundTrip
from streamctx.core.session.outbox_journal import OutboxJournal
from streamctx.core.session.outbox_records import FrameSent, FramesEvicted
from streamctx.core.session.outbox_state import OutboxState
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.limits import Limits
from streamctx.vocabulary import INTEGER_MAX, DigestAlgorithm, Encoding
from streamctx.wire.codec import BodyDecoder, Malformed, UnknownType, encode_body
from streamctx.wire.digests import DIGESTS, crc32_digest
from streamctx.wire.frames import KIND_CHUNK, pack_frame, parse_frame
from streamctx.wire.messages import (
    SUPERSEDABLE_TYPES,
    UNNUMBERED_TYPES,
    Ack,
    Ended,
    ErrorMessage,
    Heartbeat,
    Hello,
    Message,
    Nack,
    Skip,
    Sync,
    Synced,
    Update,
    Welcome,
)

__all__ = [
    "Addressed",
    "Delivered",
    "Delivery",
    "DeliveryCounters",
    "GivenUp",
    "Item",
    "TooLarge",
]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A frame over the limit, which was not decoded (FRM-3)."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Addressed:
    """A message of one subscription: `stream` is not 0."""

    stream: int
    message: Message


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Messages of ours that the peer never got and will not ask for again (ACK-6).

    Each is its number, and its body as it was sent.
    """

    messages: tuple[tuple[int, bytes | memoryview], ...]


Item: TypeAlias = Message | Addressed | Malformed | UnknownType | TooLarge | GivenUp
"""What a frame turned out to be."""

Delivered: TypeAlias = tuple[int, Item, bool]
"""Sequence number (0 if unnumbered), what came, and whether all numbers below it have come."""

# Looking up a member through its class, for each frame, would cost as much as the digest.
_ACCEPT = Verdict.ACCEPT
_SUPERSEDABLE = frozenset(SUPERSEDABLE_TYPES)
_UNNUMBERED = frozenset(UNNUMBERED_TYPES)
_MAY_BE_UNNUMBERED = _UNNUMBERED | {ErrorMessage}
_OF_A_STREAM = frozenset((Sync, Update, Synced, Ended))
_NOTHING: tuple[Delivered, ...] = ()
_RANGES_PER_MESSAGE = 64
_RESUME_ITEMS_MAX = 1024
"""So many ranges, and so many documents, HELLO takes (SPEC 9.1)."""


@dataclass(slots=True)
class DeliveryCounters:
    """What happened so far, in frames."""

    received: int = 0
    corrupt: int = 0
    ignored: int = 0
    sent: int = 0
    retransmitted: int = 0
    nacks_sent: int = 0
    nacks_received: int = 0
    skips_sent: int = 0
    lost: int = 0


class Delivery:
    """Numbers, repairs and acknowledges the frames of a session at one end.

    Call `receive` for each WebSocket message, apply what it returns, then `flush`
    once per read. Frames to send collect in `_out`; `flush` hands them over.

    `applied` follows `received`, because what `receive` returns is applied at once;
    `durable` stays behind the number given to `hold_durable`, and while it does an ACK waits for it a while.
    """

    __slots__ = (
        "_ack_at",
        "_ack_due",
        "_counters",
        "_decode",
        "_digest",
        "_durable_stop",
        "_encoding",
        "_evicted",
        "_gaps",
        "_heartbeat_due",
        "_journal",
        "_last_corrupt_nack",
        "_last_received",
        "_last_sent",
        "_limit",
        "_limits",
        "_lost",
        "_meter",
        "_out",
        "_peer_limit",
        "_probe_at",
        "_probes",
        "_progress_at",
        "_releases_at_durable",
        "_ring",
        "_rtt",
        "_window",
    )

    def __init__(
        self,
        *,
        encoding: Encoding,
        digest: DigestAlgorithm,
        decoder: BodyDecoder[object],
        limits: Limits,
        jitter: Callable[[], float],
        now: float,
        ring_events_max: int,
        ring_bytes_max: int,
        releases_at_durable: bool = False,
        journal: OutboxJournal | None = None,
    ) -> None:
        """Start a new epoch: both directions from 1.

        Args:
            jitter: Returns a number in [0, 1).
            releases_at_durable: Whether durable frames are kept until the peer says
                that they are durable, and not just applied (ACK-3).
            journal: Takes what another process needs to send again, as a client's has it.
        """
        self._encoding = encoding
        self._digest = DIGESTS[digest]
        self._decode = decoder.decode
        self._limits = limits
        self._window: ReceiveWindow[Item] = ReceiveWindow(limits)
        self._gaps = GapDetector(limits, jitter)
        self._ring = RetransmitRing(events_max=ring_events_max, bytes_max=ring_bytes_max)
        self._rtt = RoundTrip()
        self._meter = CorruptionMeter(limits.corrupt_window_frames)
        self._counters = DeliveryCounters()
        self._releases_at_durable = releases_at_durable
        self._journal = journal
        self._durable_stop: int | None = None
        self._limit = 1 + limits.window_events_max
        self._peer_limit = 1 + limits.window_events_max
        self._evicted: dict[int, int] = {}
        self._lost = LostRanges()
        self._out: list[bytes] = []
        self.attach(now)

    # What it looks like.

    @property
    def counters(self) -> DeliveryCounters:
        """Counts since the epoch began."""
        return self._counters

    @property
    def duplicates(self) -> int:
        """Numbered frames that had arrived before."""
        return self._window.counters.duplicates

    @property
    def expected(self) -> int:
        """The lowest number of the peer that has not arrived."""
        return self._window.expected

    @property
    def known_stop(self) -> int:
        """One past the highest number that the peer is known to have used."""
        return self._window.known_stop

    @property
    def has_gap(self) -> bool:
        """Whether any number of the peer is known to be missing."""
        return self._window.has_gap

    @property
    def next_sequence(self) -> int:
        """The number that our next new frame will have."""
        return self._ring.next_sequence

    @property
    def kept_events(self) -> int:
        """Frames kept because they may have to be sent again."""
        return len(self._ring)

    @property
    def kept_bytes(self) -> int:
        """Bytes of the frames kept."""
        return self._ring.held_bytes

    @property
    def is_settled(self) -> bool:
        """Whether everything sent has been received and may be forgotten."""
        return self._ring.released == self._ring.next_sequence

    @property
    def released(self) -> int:
        """All our numbers below are acknowledged for good."""
        return self._ring.released

    @property
    def safe_stop(self) -> int:
        """One past the highest of our durable frames that is forgotten."""
        return self._ring.safe_stop

    @property
    def last_received(self) -> float:
        """When the peer was last heard."""
        return self._last_received

    @property
    def rtt_s(self) -> float:
        """Smoothed round trip."""
        return self._rtt.rtt_s

    @property
    def given_up_ranges(self) -> tuple[tuple[int, int], ...]:
        """The ranges of the peer that were given up and that it may not know of, as every ACK tells them."""
        return self._lost.to_tell(self._window.known_stop) if self._lost else ()

    def received_ranges(self) -> tuple[tuple[int, int], ...]:
        """What has arrived above `expected`, for WELCOME."""
        return tuple(self._window.selective_ranges(self._limits.ack_ranges_max))

    def can_send(self, size_bytes: int = 0) -> bool:
        """Whether credit, window and ring take one more numbered frame of that size."""
        ring, limits = self._ring, self._limits
        return ring.next_sequence < self._peer_limit and ring.may_send(
            size_bytes,
            in_flight_events_max=limits.window_events_max,
            in_flight_bytes_max=limits.window_bytes_max,
        )

    # What happened outside.

    def attach(self, now: float) -> None:
        """Begin a connection: timers start anew, nothing of the old one is left to send."""
        self._out.clear()
        self._ack_due = False
        self._ack_at: float | None = None
        self._heartbeat_due = False
        self._last_received = now
        self._last_sent = now
        self._progress_at = now
        self._last_corrupt_nack = -math.inf
        self._probe_at: float | None = None
        self._probes = 0
        self._meter = CorruptionMeter(self._limits.corrupt_window_frames)
        self._gaps.restart()

    def receive(self, data: bytes, now: float) -> Sequence[Delivered]:
        """Take one frame and return what is to be applied because of it, in order.

        Raises:
            RemoteProtocolError: The peer broke a rule that ends the connection.
        """
        self._last_received = now
        frame = parse_frame(data, encoding=self._encoding, digest=self._digest)
        if frame is None:
            return self._receive_corrupt(data, now)
        self._meter.record(False)
        self._counters.received += 1
        if frame.kind == KIND_CHUNK:
            self._counters.ignored += 1
            return _NOTHING
        sequence = frame.sequence
        item: Item = (
            self._decode(frame.body)  # type: ignore[assignment]
            if len(data) <= self._limits.frame_bytes_max
            else TooLarge(len(data))
        )
        if frame.stream and type(item) in _OF_A_STREAM:
            item = Addressed(frame.stream, cast(Message, item))
        if sequence:
            if type(item) in _UNNUMBERED:
                raise _bad_sequence(f"{_type_name(item)} carries the number {sequence}, expected 0")
            return self._receive_numbered(sequence, frame.digest, item, len(data))
        return self._receive_unnumbered(item, now)

    def _receive_numbered(
        self, sequence: int, digest: bytes, item: Item, size_bytes: int
    ) -> Sequence[Delivered]:
        self._ack_due = True
        window = self._window
        verdict = window.receive(sequence, digest, item, size_bytes, ordered=type(item) not in _SUPERSEDABLE)
        if verdict is _ACCEPT:
            if window.has_ready:
                return [(sequence, item, True), *self._released()]
            return ((sequence, item, True),)
        if verdict is Verdict.APPLY_NOW:
            return ((sequence, item, False),)
        if verdict is Verdict.CONFLICT:
            raise RemoteProtocolError(
                ErrorCode.CONFLICT,
                CloseCode.CONFLICT,
                f"sequence {sequence} came again with other content",
            )
        return _NOTHING

    def _released(self) -> list[Delivered]:
        return [(sequence, item, True) for sequence, item in self._window.release()]

    def _receive_unnumbered(self, item: Item, now: float) -> Sequence[Delivered]:
        if isinstance(item, Ack):
            given_up = self._given_up(item.lost) if item.lost else _NOTHING
            self._take_ack(item, now)
            return given_up
        if isinstance(item, Heartbeat):
            self._ack_due = True
            self._ack_at = -math.inf
            given_up = self._given_up(item.lost) if item.lost else _NOTHING
            self._take_ack(item, now)
            self._window.announce_next(item.next)
            return given_up
        if isinstance(item, Nack):
            self._answer(item, now)
            return _NOTHING
        if isinstance(item, Skip):
            return self._take_skip(item)
        if isinstance(item, UnknownType):
            self._counters.ignored += 1
            return _NOTHING
        if isinstance(item, Message | Addressed) and type(item) not in _MAY_BE_UNNUMBERED:
            raise _bad_sequence(f"{_type_name(item)} carries no number")
        return ((0, item, True),)

    def _receive_corrupt(self, data: bytes, now: float) -> Sequence[Delivered]:
        """Believe nothing but a repeated HELLO or WELCOME (DIG-5); act on the evidence of loss (NAK-5)."""
        handshake = parse_frame(data, encoding=self._encoding, digest=crc32_digest)
        if handshake is not None:
            item = self._decode(handshake.body)
            if isinstance(item, Hello | Welcome | ErrorMessage) and handshake.sequence == 0:
                return ((0, item, True),)
        self._counters.corrupt += 1
        if self._meter.record(True):
            raise RemoteProtocolError(
                ErrorCode.CORRUPTION,
                CloseCode.CORRUPTION,
                f"more than half of the last {self._limits.corrupt_window_frames} frames were corrupt",
            )
        if not self._window.has_gap and now - self._last_corrupt_nack >= self._rtt.rtt_s:
            self._last_corrupt_nack = now
            expected = self._window.expected
            self._send_nack(((expected, expected + 1),), "corrupt")
        return _NOTHING

    def _given_up(self, ranges: Sequence[tuple[int, int]]) -> Sequence[Delivered]:
        """Hand up what is still held of what the peer has given up, and evict its durable events (ACK-6)."""
        found: list[tuple[int, bytes | memoryview]] = []
        for sequence, data in self._ring.given_up(ranges):
            frame = parse_frame(cast(bytes, data), encoding=self._encoding, digest=self._digest)
            assert frame is not None
            found.append((sequence, frame.body))
        if not found:
            return _NOTHING
        self._evict_given_up({sequence for sequence, _ in found})
        return ((0, GivenUp(tuple(found)), True),)

    def _evict_given_up(self, numbers: set[int]) -> None:
        """Never send these events again: what matters of them goes under other numbers.

        The peer may die before it has stored that it gave them up, and would take both. Requests and
        supersedable events stay, since to get one of these twice changes nothing.
        """
        # Of a durable event the key is its document, of a supersedable one a tuple.
        self._evict(lambda sequence, key: key if sequence in numbers and isinstance(key, int) else None)

    def _evict(self, document_of: Callable[[int, Hashable | None], int | None]) -> list[tuple[int, int]]:
        """Give up kept frames and remember their documents; returns the ranges that were not received.

        Args:
            document_of: As for `evict`, given the number too.
        """
        chosen: dict[int, int] = {}

        def is_chosen(sequence: int, key: Hashable | None) -> bool:
            document = document_of(sequence, key)
            if document is not None:
                chosen[sequence] = document
            return document is not None

        gone = self._ring.evict(is_chosen)
        # Also what the peer has received: it may lose that again, until it has made it safe.
        self._evicted.update(chosen)
        if self._journal is not None and chosen:
            self._journal.add(FramesEvicted(tuple(chosen.items())))
        return gone

    def _take_ack(self, ack: Ack | Heartbeat, now: float) -> None:
        if not ack.durable <= ack.applied <= ack.received:
            raise _bad_sequence(
                f"durable {ack.durable}, applied {ack.applied}, received {ack.received} do not rise"
            )
        ring = self._ring
        release = ack.durable if self._releases_at_durable else ack.applied
        before = (ring.received, ring.released, ring.in_flight_events)
        sample = ring.acknowledge(ack.received, ack.ranges, release)
        if ack.received > before[0]:
            self._progress_at = now
        if sample is not None:
            self._rtt.record(now - sample)
        if ack.limit > self._peer_limit:
            self._peer_limit = ack.limit
        if self._evicted:
            self._forget_evicted(release)
        if before != (ring.received, ring.released, ring.in_flight_events):
            self._probes = 0
            # Only what says something new puts a probe off: the heartbeats of a peer could for ever.
            self._probe_at = None

    def _take_skip(self, skip: Skip) -> Sequence[Delivered]:
        self._ack_due = True
        # All of it is checked first: what was filled of a SKIP that is refused would be lost without a word.
        furthest = self._window.expected + self._limits.reorder_span_max + 1
        for start, stop in skip.ranges:
            if not 1 <= start < stop <= furthest:
                raise _bad_sequence(f"skipped range [{start}, {stop}), the furthest number is {furthest - 1}")
        missing = [part for start, stop in skip.ranges for part in self._window.skip(start, stop)]
        delivered = self._released()
        if missing and skip.reason == "evicted":
            # Before what it lets through: the snapshot that heals the document is behind it.
            return [(0, replace(skip, ranges=tuple(sorted(missing))), True), *delivered]
        return delivered

    def _answer(self, nack: Nack, now: float) -> None:
        self._counters.nacks_received += 1
        # A peer asks again after two seconds at most: however long the round trip was once, that is no echo.
        linger_s = min(max(self._limits.linger_s, self._rtt.rtt_s), self._limits.nack_interval_max_s / 2)
        answer = self._ring.frames_for(nack.ranges, now, linger_s, self._limits.retransmit_bytes_max)
        self._send_answer(answer)
        if answer.is_unsent:
            self._heartbeat_due = True
        self._probe_at = None

    # What goes out.

    def send(
        self,
        message: Message,
        now: float,
        *,
        key: Hashable | None = None,
        durable: bool = True,
        stream: int = 0,
    ) -> int:
        """Number a message, keep it, and queue it for the socket.

        Returns:
            Its sequence number.

        Raises:
            LocalProtocolError: If the ring has no room; ask `can_send` first.
        """
        return self.send_body(
            encode_body(message, self._encoding), now, key=key, durable=durable, stream=stream
        )

    def send_body(
        self,
        body: bytes,
        now: float,
        *,
        key: Hashable | None = None,
        durable: bool = True,
        stream: int = 0,
    ) -> int:
        """As `send`, for a body that was encoded already."""
        if not self._ring.in_flight_events:
            self._progress_at = now
        sequence = self._ring.next_sequence
        frame = pack_frame(
            body, encoding=self._encoding, digest=self._digest, sequence=sequence, stream=stream
        )
        self._ring.record(sequence, frame, len(frame), now, key=key, durable=durable)
        self._out.append(frame)
        self._counters.sent += 1
        # The number of one that is superseded is used, as `Marks` say, and it is not sent again.
        if self._journal is not None and durable:
            self._journal.add(FrameSent(sequence, frame, cast("int | None", key)))
        return sequence

    def send_unnumbered(self, message: Message) -> None:
        """Queue a message that repairs itself, or an ERROR before a close."""
        self._out.append(self.last_words(message))

    def last_words(self, message: Message) -> bytes:
        """The frame of an unnumbered message, with which nothing else is sent, be it an ACK."""
        body = encode_body(message, self._encoding)
        return pack_frame(body, encoding=self._encoding, digest=self._digest)

    def can_resume_sending(self, received: int) -> bool:
        """Whether the peer can go on from a number: it was sent, and what was safe is not lacking."""
        return self._ring.safe_stop <= received <= self._ring.next_sequence

    def resume_sending(self, received: int, ranges: Sequence[tuple[int, int]], now: float) -> None:
        """Queue what the peer lacks after a new connection, before anything new (RSM-6).

        Raises:
            RemoteProtocolError: If the peer claims what was never sent, or lost what was safe.
        """
        answer = self._ring.resume(received, ranges, now)
        for gone, frames in _in_strides(answer, received, self._limits.reorder_span_max):
            # SKIP first, so that no frame makes the peer ask for what is gone.
            self._send_skips(gone)
            self._send_frames(frames)
        self._peer_limit = max(self._peer_limit, received + self._limits.window_events_max)

    def restart_sending(self, next_sequence: int) -> None:
        """Number from `next_sequence` on: what was sent from there is forgotten, and the peer was told."""
        self._ring.reset(next_sequence)
        self._peer_limit = next_sequence + self._limits.window_events_max

    def restart_receiving(self, expected: int, lost: Iterable[tuple[int, int]] = ()) -> None:
        """Go on as one that has everything below `expected` and nothing else.

        Args:
            lost: What had been given up before, to be told on (ACK-6).
        """
        self._window.begin_at(expected)
        self._lost.restore(lost)
        self._limit = max(self._limit, expected + self._limits.window_events_max)

    def expect_welcome(self) -> None:
        """Call when a WELCOME has been decided upon: it raises the peer's limit (ACK-5).

        The peer may know a higher one, from before our death; but none is further above the numbers that
        it has used than the window.
        """
        self._lost.expect_welcome(max(self._limit, self.known_stop + self._limits.window_events_max))

    def resume_receiving(self, next_sequence: int) -> None:
        """After a handshake: the peer has sent all numbers below, and sends again what is not here (RSM-6).

        Raises:
            RemoteProtocolError: If there is no such number.
        """
        self._window.restart(next_sequence)

    def missing_within(self, ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        """What of these numbers of the peer has not arrived, of those that it is known to have used."""
        return tuple(part for start, stop in ranges for part in self._window.absent_within(start, stop))

    def lose(self, ranges: Iterable[tuple[int, int]]) -> list[Delivered]:
        """Give up missing numbers of the peer for good; return what that lets through."""
        for start, stop in ranges:
            for lost_start, lost_stop in self._window.lose(start, stop):
                self._counters.lost += lost_stop - lost_start
                self._lost.add(lost_start, lost_stop, self._limit)
        self._ack_due = True
        return self._released()

    def evict(self, document_of: Callable[[Hashable | None], int | None]) -> frozenset[int]:
        """Give up our own kept frames of some documents, and announce that (SKP-2).

        Args:
            document_of: Given a frame's key, the document to name if the frame is given
                up, or `None` if it is kept.

        Returns:
            The numbers given up that the peer is not known to have received.
        """
        gone = self._evict(lambda _, key: document_of(key))
        self._send_skips(gone)
        return frozenset(sequence for start, stop in gone for sequence in range(start, stop))

    def evicted(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """Numbers given up and not yet safe, and their documents, for HELLO; a resume's SKIPs tell all."""
        ranges = RangeSet((sequence, sequence + 1) for sequence in self._evicted)
        documents = dict.fromkeys(self._evicted.values())
        return tuple(ranges)[:_RESUME_ITEMS_MAX], tuple(documents)[:_RESUME_ITEMS_MAX]

    def is_evicted(self, sequence: int | None) -> bool:
        """Whether an event of ours was given up and is not known to be safe."""
        return sequence in self._evicted

    def has_evicted(self, document: int, sequence: int) -> bool:
        """Whether an event of that document was given up which has that number or a higher one."""
        return any(alias == document and number >= sequence for number, alias in self._evicted.items())

    def note_all(self, journal: OutboxJournal) -> None:
        """Note all that another process needs, but for the numbers in `Marks`."""
        for sequence, frame, key in self._ring.held():
            journal.add(FrameSent(sequence, cast(bytes, frame), cast("int | None", key)))
        if self._evicted:
            journal.add(FramesEvicted(tuple(self._evicted.items())))

    def holds_of(self, document: int) -> bool:
        """Whether a frame of that document is kept."""
        return any(key == document for _, _, key in self._ring.held())

    def restore(self, state: OutboxState) -> None:
        """Begin where another process has left; then a resume follows, as after any connection."""
        marks = state.marks
        self._ring.restore(
            next_sequence=marks.next,
            released=marks.released,
            safe_stop=marks.safe_stop,
            frames=((sequence, kept.frame, kept.document) for sequence, kept in sorted(state.frames.items())),
        )
        self._window.begin_at(marks.expected)
        self._evicted.update(state.evicted)

    def _forget_evicted(self, released: int) -> None:
        # Not before the peer has made safe that it was told: it may have to be told again.
        for sequence in [sequence for sequence in self._evicted if sequence < released]:
            del self._evicted[sequence]
            self._ring.note_safe(sequence)

    def hold_durable(self, sequence: int | None) -> None:
        """Keep `durable` at `sequence`, the first number not yet journalled; `None` frees it."""
        before, self._durable_stop = self._durable_stop, sequence
        self._ack_due = True
        if before is not None and (sequence is None or sequence > before):
            # It goes on: what the ACK waited for is there.
            self._ack_at = -math.inf

    def flush(self, now: float) -> list[bytes]:
        """Hand over all frames that are to be sent now: answers and data first, the ACK last."""
        if self._gaps.is_active or self._window.has_gap:
            self._ask(now)
        if self._heartbeat_due:
            self._heartbeat_due = self._ack_due = False
            self._ack_at = None
            self.send_heartbeat()
        elif self._ack_due and not self._is_ack_early(now):
            self._ack_due = False
            self._ack_at = None
            self.send_ack()
        if self._probe_at is None and self._ring.released != self._ring.next_sequence:
            # Also after an ACK that leaves something under way: the end of a burst may be what was lost.
            self._probe_at = now + self._probe_interval()
        if not self._out:
            return []
        out, self._out = self._out, []
        self._last_sent = now
        return out

    def _is_ack_early(self, now: float) -> bool:
        """Whether an ACK had better wait for what is becoming durable (ACK-2).

        Sent at once it would be followed by another one some milliseconds later, and to send costs the server
        more than all else that it does for an event.
        """
        if self._durable_stop is None or self._window.has_gap:
            return False
        if self._ack_at is None:
            self._ack_at = now + self._limits.ack_delay_s
        return now < self._ack_at

    def next_timeout(self) -> float:
        """When `handle_timeout` is due."""
        limits = self._limits
        due = self._last_sent + limits.heartbeat_s
        dead = self._last_received + limits.dead_s
        if dead < due:
            due = dead
        if self._probe_at is not None and self._probe_at < due:
            due = self._probe_at
        if self._ack_at is not None and self._ack_at < due:
            due = self._ack_at
        if self._gaps.is_active:
            gap_due = self._gaps.next_timeout()
            if gap_due is not None and gap_due < due:
                due = gap_due
        return due

    def handle_timeout(self, now: float) -> None:
        """Do what is due; then call `expired` and `flush`.

        Raises:
            RemoteProtocolError: If the peer has been silent, or has acknowledged nothing, for too long.
        """
        # The sums are those of `next_timeout`, so that rounding cannot make a timer early.
        if now >= self._last_received + self._limits.dead_s:
            raise RemoteProtocolError(
                ErrorCode.SLOW,
                CloseCode.HEARTBEAT,
                f"nothing was received for {self._limits.dead_s:g} s",
            )
        if self._ring.in_flight_events and now - self._progress_at >= self._limits.send_deadline_s:
            raise RemoteProtocolError(
                ErrorCode.SLOW,
                CloseCode.SLOW,
                f"nothing of what was sent was acknowledged for {self._limits.send_deadline_s:g} s",
            )
        if self._probe_at is not None and now >= self._probe_at:
            if not self.is_settled:
                self._probes += 1
                self._heartbeat_due = True
            self._probe_at = None
        if now >= self._last_sent + self._limits.heartbeat_s:
            self._heartbeat_due = True

    def expired(self, now: float) -> list[tuple[int, int]]:
        """The gaps to be given up now (NAK-4)."""
        return self._gaps.expired(now) if self._gaps.is_active else []

    def _probe_interval(self) -> float:
        base = max(self._limits.tail_probe_s, 2 * self._rtt.rtt_s)
        if not self._probes:
            return min(base, self._limits.heartbeat_s)
        return float(min(base * 2 ** min(self._probes, 10), self._limits.heartbeat_s))

    def _ask(self, now: float) -> None:
        self._gaps.update(self._window.missing(), now, is_full=self._window.is_full)
        ranges = self._gaps.ranges_to_ask(now, self._rtt.rtt_s)
        if ranges:
            self._send_nack(tuple(ranges), "gap")

    def _send_nack(self, ranges: tuple[tuple[int, int], ...], reason: str) -> None:
        self._counters.nacks_sent += 1
        self.send_unnumbered(Nack(ranges=ranges, reason=reason))

    def _send_answer(self, answer: Answer) -> None:
        self._send_frames(answer.frames)
        self._send_skips(answer.gone)

    def _send_frames(self, frames: Sequence[tuple[int, Frame]]) -> None:
        for _, frame in frames:
            assert isinstance(frame, bytes)
            self._out.append(frame)
        self._counters.retransmitted += len(frames)

    def _send_skips(self, gone: Iterable[tuple[int, int]]) -> None:
        """Announce numbers that will not be sent: one SKIP for each document that lost events (SKP-2)."""
        by_document: dict[int | None, RangeSet] = {}
        for start, stop in gone:
            if not self._evicted:
                by_document.setdefault(None, RangeSet()).add(start, stop)
                continue
            for sequence in range(start, stop):
                document = self._evicted.get(sequence)
                by_document.setdefault(document, RangeSet()).add(sequence, sequence + 1)
        for document, numbers in by_document.items():
            ranges = tuple(numbers)
            for first in range(0, len(ranges), _RANGES_PER_MESSAGE):
                self._counters.skips_sent += 1
                self.send_unnumbered(
                    Skip(
                        ranges=ranges[first : first + _RANGES_PER_MESSAGE],
                        reason="superseded" if document is None else "evicted",
                        documents=() if document is None else (document,),
                    )
                )

    def _watermarks(self) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        received = self._window.expected
        durable = received if self._durable_stop is None else min(received, self._durable_stop)
        self._limit = max(self._limit, received + self._limits.window_events_max)
        ranges = self.received_ranges() if self._window.has_gap else ()
        return received, durable, ranges

    def send_ack(self) -> None:
        """Queue an ACK now, and not just behind all else that `flush` sends."""
        received, durable, ranges = self._watermarks()
        self.send_unnumbered(
            Ack(
                received=received,
                applied=received,
                durable=durable,
                limit=self._limit,
                ranges=ranges,
                lost=self.given_up_ranges,
            )
        )

    def send_heartbeat(self, next_sequence: int | None = None) -> None:
        """Queue a HEARTBEAT.

        Args:
            next_sequence: One past the highest number that goes before it on this connection; by default all.
        """
        received, durable, ranges = self._watermarks()
        self.send_unnumbered(
            Heartbeat(
                next=self._ring.next_sequence if next_sequence is None else next_sequence,
                received=received,
                applied=received,
                durable=durable,
                limit=self._limit,
                ranges=ranges,
                lost=self.given_up_ranges,
            )
        )


def _in_strides(
    answer: Answer, start: int, span: int
) -> Iterator[tuple[list[tuple[int, int]], list[tuple[int, Frame]]]]:
    """Cut what is gone and what is held into strides that a receiver can follow (SEQ-3)."""
    gone, frames = deque(answer.gone), deque(answer.frames)
    while gone or frames:
        end = start + span if gone and gone[-1][1] > start + span else INTEGER_MAX
        gone_here: list[tuple[int, int]] = []
        while gone and gone[0][0] < end:
            first, stop = gone.popleft()
            gone_here.append((first, min(stop, end)))
            if stop > end:
                gone.appendleft((end, stop))
        frames_here: list[tuple[int, Frame]] = []
        while frames and frames[0][0] < end:
            frames_here.append(frames.popleft())
        yield gone_here, frames_here
        start = end


def _bad_sequence(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME, message)


def _type_name(item: Item) -> str:
    return type(item).__name__.lower()
