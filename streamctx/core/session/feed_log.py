"""What a producer's session has shown to observers: a bounded log addressed by feed offset.

One log serves all observers of a session; each has its own position in it. An
observer that falls behind the log's beginning is given the state anew (OBS-8).
While there is no observer nothing is kept: one that comes starts with the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from streamctx.core.documents.presence import Key
from streamctx.limits import Limits
from streamctx.vocabulary import Unit
from streamctx.wire.messages import (
    DesignOpen,
    DesignSelection,
    Diagnostics,
    Edit,
    FeedEvent,
    Mention,
    Open,
    Selection,
    Snapshot,
)

__all__ = ["FeedEntry", "FeedLog"]

BodyKey: TypeAlias = tuple[int, int, object]
"""From one offset to another, and what is equal where unit, encoding and filter are."""

_NO_VARIANTS: Mapping[Unit, FeedEvent | None] = {}
_EVENT_BYTES = 100
"""What an event weighs besides its text: a typical encoded size."""


class FeedEntry(msgspec.Struct, frozen=True, gc=False):
    """One event, as shown.

    `variants` holds it in other units, where the numbers differ, or `None` where
    they cannot be said. `key` is set for
    supersedable events; `uri` is that of the event's document, if it is about one.
    A struct of msgspec, since one is made for every event: that takes a third of the time.
    """

    event: FeedEvent
    uri: str | None
    key: Key | None
    variants: Mapping[Unit, FeedEvent | None]
    weight: int


class FeedLog:
    """The last events of a session, kept while it `is_observed`; `offset` counts all that there ever were.

    `units` are those that observers want besides the producer's own; events get
    variants for them as they are applied, since their text is at hand only then.
    `bodies` shares encoded updates among observers at the same offset.
    """

    __slots__ = ("_bytes", "_entries", "_is_observed", "_limits", "bodies", "offset", "units")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._entries: deque[FeedEntry] = deque()
        self._bytes = 0
        self._is_observed = True
        self.offset = 0
        self.units: tuple[Unit, ...] = ()
        self.bodies: dict[BodyKey, bytes] = {}

    @property
    def first_offset(self) -> int:
        """The lowest offset from which the log can still go on."""
        return self.offset - len(self._entries)

    @property
    def is_observed(self) -> bool:
        """Whether events are kept, as they are at first."""
        return self._is_observed

    def set_observed(self, observed: bool) -> None:
        """Keep events from now on, or let go of all and only count.

        A feed needs all events since its `sync`, so there must be none while they are not kept.
        """
        self._is_observed = observed
        if not observed:
            self._entries.clear()
            self._bytes = 0
            self.bodies.clear()

    def append(
        self,
        event: FeedEvent,
        *,
        uri: str | None = None,
        key: Key | None = None,
        variants: Mapping[Unit, FeedEvent | None] = _NO_VARIANTS,
    ) -> None:
        """Show one event. Of those that are kept, the newest one always is, however large it is."""
        self.offset += 1
        if not self._is_observed:
            return
        weight = _weight(event)
        entries = self._entries
        entries.append(FeedEntry(event, uri, key, variants, weight))
        self._bytes += weight
        if self.bodies:
            self.bodies.clear()
        limits = self._limits
        while (self._bytes > limits.feed_log_bytes_max or len(entries) > limits.feed_log_events_max) and len(
            entries
        ) > 1:
            self._bytes -= entries.popleft().weight

    def since(self, offset: int) -> Iterator[FeedEntry] | None:
        """The events after an offset, oldest first; `None` if the first of them is no longer held."""
        behind = self.offset - offset
        if behind > len(self._entries):
            return None
        if behind * 2 < len(self._entries):
            # The near end: a deque indexes from both ends, but walks from one.
            return (self._entries[-index] for index in range(behind, 0, -1))
        entries = iter(self._entries)
        for _ in range(len(self._entries) - behind):
            next(entries)
        return entries


def _weight(event: FeedEvent) -> int:
    if type(event) is Edit:
        if len(event.changes) == 1:
            return _EVENT_BYTES + len(event.changes[0].text)
        return _EVENT_BYTES + sum(20 + len(change.text) for change in event.changes)
    if isinstance(event, Open | Snapshot | Mention):
        return _EVENT_BYTES + len(event.text or "")
    if isinstance(event, Selection):
        return _EVENT_BYTES + 20 * len(event.ranges)
    if isinstance(event, Diagnostics):
        return _EVENT_BYTES + sum(60 + len(item.message) for item in event.items)
    if isinstance(event, DesignSelection):
        return _EVENT_BYTES + sum(100 + len(node.name) + len(node.text or "") for node in event.nodes)
    if isinstance(event, DesignOpen):
        return _EVENT_BYTES + sum(40 + len(page.id) + len(page.name) for page in event.pages)
    return _EVENT_BYTES
