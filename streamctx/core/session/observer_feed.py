"""One subscription's view of one producer's session: state first, then every event, joined by offsets.

A feed holds a position in the source's log and no events of its own; it makes the
next message when the connection has room for one. That is what keeps a slow
observer from costing memory, and from delaying anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import msgspec

from streamctx.core.documents.parts import cut, part_characters, part_count
from streamctx.core.documents.units import length_in
from streamctx.core.session.feed_log import FeedEntry, FeedLog
from streamctx.core.session.uri_pattern import uri_matches
from streamctx.limits import Limits
from streamctx.vocabulary import Encoding, Unit
from streamctx.wire.codec import encode_body
from streamctx.wire.messages import (
    SUPERSEDABLE_TYPES,
    ClientInfo,
    FeedEvent,
    Focus,
    Message,
    Open,
    Part,
    Snapshot,
    Sync,
    Synced,
    Update,
    Workspace,
)

__all__ = ["Feed", "FeedFilter", "FeedSource"]

SyncReason: TypeAlias = Literal["subscribed", "slow", "resynced"]

_PRESENCE = frozenset(SUPERSEDABLE_TYPES)
_TEXTS = frozenset({Open, Snapshot})
_ELSEWHERE = Focus()
"""The focus is on nothing that the observer may see."""
_BATCH_EVENTS_MAX = 256
_BATCH_WEIGHT_MAX = 64 * 1024


class FeedSource(Protocol):
    """What a feed needs of the session that it shows."""

    @property
    def session_id(self) -> str:
        """Its public id."""

    @property
    def epoch(self) -> str:
        """The life of its state."""

    @property
    def client(self) -> ClientInfo:
        """Who the producer says it is."""

    @property
    def workspace(self) -> Workspace | None:
        """The folders that it has open."""

    @property
    def source_unit(self) -> Unit:
        """The unit of its positions."""

    @property
    def log(self) -> FeedLog:
        """What it has shown."""

    def state_events(self, unit: Unit) -> list[tuple[FeedEvent, str | None]]:
        """Its state now, as events with the URIs that they are about."""


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """What of a session a subscription wants. Two equal filters share encoded updates."""

    documents: tuple[str, ...] | None = None
    presence: bool = True

    @property
    def takes_all(self) -> bool:
        """Whether there is nothing that it leaves out."""
        return self.documents is None and self.presence

    def takes(self, *, uri: str | None, is_presence: bool) -> bool:
        """Whether an event is wanted: one that is about no document always is, if of that kind."""
        if is_presence and not self.presence:
            return False
        if self.documents is None or uri is None:
            return True
        return any(uri_matches(pattern, uri) for pattern in self.documents)


class Feed:
    """The messages that one subscription gets of one session, made one at a time.

    `_position` is the offset up to which events were put into messages, `_told`
    the `to` of the last message. `_batch_stop` is the offset up to which events
    go without a pause: they were shown when the batch began, but one message may
    not hold them all. `_state` yields what has to go first: a `sync` with the
    state, or the parts of a long text.
    """

    __slots__ = (
        "_batch_stop",
        "_body_key",
        "_due_at",
        "_encoding",
        "_filter",
        "_frame_bytes_max",
        "_has_begun",
        "_log",
        "_min_interval_s",
        "_part_characters",
        "_position",
        "_state",
        "_told",
        "_unit",
        "resyncs",
        "source",
        "subscription",
        "unencodable",
    )

    def __init__(
        self,
        source: FeedSource,
        *,
        subscription: int,
        unit: Unit,
        encoding: Encoding,
        filter_: FeedFilter,
        min_interval_s: float,
        limits: Limits,
        reason: SyncReason = "subscribed",
    ) -> None:
        """Start with a `sync`.

        Args:
            min_interval_s: At least so long between two batches; the state is sent at once.
            limits: No body is longer than fits a frame, no text in it longer than a part may be.
        """
        self.source = source
        self._log = source.log
        self.subscription = subscription
        self.resyncs = 0
        self.unencodable = 0
        """Presence events left out because they would not fit a frame in this encoding."""
        self._unit = unit
        self._encoding = encoding
        self._filter = filter_
        # A string is hashed once, all that it says would be hashed for every update. Patterns, which may be
        # long, are not copied into it.
        self._body_key: object = (
            f"{unit} {encoding} {filter_.presence}"
            if filter_.documents is None
            else (unit, encoding, filter_)
        )
        self._min_interval_s = min_interval_s
        self._frame_bytes_max = limits.frame_bytes_max
        self._part_characters = part_characters(limits)
        self._due_at = 0.0
        self._batch_stop = 0
        self._position = 0
        self._told = 0
        self._has_begun = False
        self._state: Iterator[Message] | None = None
        self._resync(reason)

    @property
    def has_begun(self) -> bool:
        """Whether the first `sync` was taken."""
        return self._has_begun

    @property
    def has_more(self) -> bool:
        """Whether `next_body` has anything to say, now or at `due_at`."""
        return self._state is not None or self._position != self._log.offset

    @property
    def due_at(self) -> float:
        """When the next update may be sent, in seconds: the rest of a batch at any time (OBS-7)."""
        return self._due_at if self._position >= self._batch_stop else 0.0

    def end(self) -> None:
        """Let go of what was to be sent: its iterator holds this object, and so the session of the source."""
        self._state = None

    def next_body(self, now: float) -> bytes | None:
        """The encoded body of the next message, or `None` if there is none now."""
        while self._state is not None:
            message = next(self._state, None)
            if message is None:
                self._state = None
                break
            body = encode_body(message, self._encoding)
            if self._fits(body):
                return body
            self.unencodable += 1
        if self._position == self._log.offset:
            return None
        if self._position >= self._batch_stop:
            if now < self._due_at:
                return None
            # A pause within a batch would let an observer fall behind for ever: whole texts, of which a
            # message takes one, may come more often than once in an interval.
            self._batch_stop = self._log.offset
        return self._next_update(now)

    def _fits(self, body: bytes) -> bool:
        return len(body) + 64 <= self._frame_bytes_max

    def _resync(self, reason: SyncReason) -> None:
        self._state = self._sync_messages(reason)

    def _sync_messages(self, reason: SyncReason) -> Iterator[Message]:
        """The state of one moment: everything is looked up when the first message is asked for."""
        source = self.source
        offset = self._log.offset
        events = [
            event
            for event, uri in source.state_events(self._unit)
            if self._filter.takes(uri=uri, is_presence=_is_presence(event))
        ]
        self._position = self._told = offset
        self._has_begun = True
        yield Sync(
            session=source.session_id,
            epoch=source.epoch,
            offset=offset,
            reason=reason,
            client=source.client,
            workspace=source.workspace,
        )
        for event in events:
            first, text = self._say(event)
            yield self._update((first,), offset, offset)
            if text is not None:
                yield from self._part_messages(first, text, offset)
        yield Synced(session=source.session_id, offset=offset)

    def _next_update(self, now: float) -> bytes | None:
        log = self._log
        key = (self._told, log.offset, self._body_key)
        shared = log.bodies.get(key)
        if shared is not None:
            self._advance(log.offset, now)
            return shared
        entries = log.since(self._position)
        if entries is None:
            self.resyncs += 1
            self._resync("slow")
            return self.next_body(now)
        events, position, long_text = self._batch(entries)
        if not events:
            # All filtered out; the next update's `from` covers them (OBS-4).
            self._position = position
            return self._next_update(now) if position != log.offset else None
        body = encode_body(self._update(events, self._told, position), self._encoding)
        if not self._fits(body):
            return self._one_by_one(now)
        if position == log.offset and long_text is None:
            log.bodies[key] = body
        if long_text is not None:
            self._state = self._part_messages(events[-1], long_text, position)
        self._advance(position, now)
        return body

    def _one_by_one(self, now: float) -> bytes | None:
        """A batch does not fit a frame in this encoding: send its first event alone, or the state anew."""
        entries = self._log.since(self._position)
        assert entries is not None
        for entry in entries:
            self._position += 1
            if not self._takes(entry):
                continue
            shown = self._in_unit(entry)
            if shown is None:
                continue
            event, text = self._say(shown)
            body = encode_body(self._update((event,), self._told, self._position), self._encoding)
            if not self._fits(body):
                if entry.key is not None:
                    self.unencodable += 1  # Presence alone is not worth the whole state anew.
                    continue
                self.resyncs += 1
                self._resync("slow")
                return self.next_body(now)
            if text is not None:
                self._state = self._part_messages(event, text, self._position)
            self._advance(self._position, now)
            return body
        return None

    def _batch(self, entries: Iterator[FeedEntry]) -> tuple[list[FeedEvent], int, str | None]:
        """Take events for one update; of a supersedable key only the newest (OBS-7).

        Returns:
            The events, the position after them, and the long text that has to follow.
        """
        taken: list[FeedEntry] = []
        is_plain = self._unit is self.source.source_unit
        # In another unit, an event may have no form at all, for which `_takes` looks.
        takes_all = is_plain and self._filter.takes_all
        position = self._position
        weight = 0
        for entry in entries:
            position += 1
            if not takes_all and not self._takes(entry):
                continue
            taken.append(entry)
            weight += entry.weight
            if entry.key is not None:
                is_plain = False
            if type(entry.event) in _TEXTS:
                is_plain = False
                break
            if weight > _BATCH_WEIGHT_MAX or len(taken) >= _BATCH_EVENTS_MAX:
                break
        if is_plain:
            # As nearly always: durable events without a whole text, in the producer's unit.
            return [entry.event for entry in taken], position, None
        events: list[FeedEvent] = []
        seen: set[object] = set()
        long_text: str | None = None
        for entry in reversed(taken):
            shown = self._in_unit(entry)
            if shown is None:
                continue
            if entry.key is not None:
                if entry.key in seen:
                    continue
                seen.add(entry.key)
            event, text = self._say(shown)
            if text is not None:
                long_text = text
            events.append(event)
        events.reverse()
        return events, position, long_text

    def _takes(self, entry: FeedEntry) -> bool:
        filter_ = self._filter
        if filter_.takes(uri=entry.uri, is_presence=entry.key is not None):
            return True
        # That the focus has left a document which the observer sees is for it to know.
        return filter_.presence and isinstance(entry.event, Focus)

    def _in_unit(self, entry: FeedEntry) -> FeedEvent | None:
        """The event with the observer's numbers; `None` if they cannot be said."""
        if isinstance(entry.event, Focus) and not self._filter.takes(uri=entry.uri, is_presence=True):
            return _ELSEWHERE
        if self._unit is self.source.source_unit:
            return entry.event
        return entry.variants.get(self._unit, entry.event)

    def _say(self, event: FeedEvent) -> tuple[FeedEvent, str | None]:
        """An event as it goes out, and the text that follows it in parts, if it is long."""
        if not isinstance(event, Open | Snapshot):
            return event, None
        text = event.text
        assert text is not None
        length = event.length if self._unit is self.source.source_unit else length_in(text, self._unit)
        if len(text) <= self._part_characters:
            return msgspec.structs.replace(event, length=length), None
        parts = part_count(text, self._part_characters)
        return msgspec.structs.replace(event, length=length, text=None, parts=parts), text

    def _part_messages(self, announced: FeedEvent, text: str, offset: int) -> Iterator[Message]:
        assert isinstance(announced, Open | Snapshot)
        for index, piece in enumerate(cut(text, self._part_characters)):
            part = Part(document=announced.document, version=announced.version, index=index, text=piece)
            yield self._update((part,), offset, offset)

    def _update(self, events: tuple[FeedEvent, ...] | list[FeedEvent], start: int, stop: int) -> Update:
        return Update(session=self.source.session_id, from_=start, to=stop, events=tuple(events))

    def _advance(self, position: int, now: float) -> None:
        self._position = self._told = position
        self._due_at = now + self._min_interval_s


def _is_presence(event: FeedEvent) -> bool:
    return type(event) in _PRESENCE
