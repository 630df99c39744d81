"""Supersedable events of a session: which value of each key is the present one (SPEC section 11)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.messages import (
    Cursor,
    DesignSelection,
    Diagnostics,
    Focus,
    Selection,
    State,
    SupersedableEvent,
    Viewport,
)

__all__ = ["Key", "Presence", "Slot", "Variants", "check_positions", "check_span", "key_of"]

Key: TypeAlias = tuple[str, int, str]
"""Kind, alias (0 for the session itself), view."""

Variants: TypeAlias = Mapping[Unit, SupersedableEvent | None]
"""The same event in other units, where its numbers differ; `None` where its positions cannot be said."""


_WEIGHT_MAX = 8 * 1024 * 1024
"""Bytes that the events of one session may take. A thousand ranges take 0.15 MB, and each view is a key."""


@dataclass(slots=True)
class Slot:
    """What is known of one key.

    `sequence` is that of the newest event of the key; `current` is what is shown,
    `parked` an event that waits for its document to reach a version.
    """

    sequence: int
    current: SupersedableEvent | None = None
    variants: Variants = field(default_factory=dict)
    parked: SupersedableEvent | None = None
    weight: int = 0


class Presence:
    """The slots of one session, at most `keys_max`; beyond that the oldest is forgotten (PRS-3).

    The oldest are forgotten too while all of them are too heavy. `_weight` is the sum of theirs.
    """

    __slots__ = ("_keys_max", "_parked", "_slots", "_weight", "discarded", "forgotten")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._slots: OrderedDict[Key, Slot] = OrderedDict()
        self._parked: dict[int, dict[Key, None]] = {}
        self._weight = 0
        self.forgotten = 0
        """Keys that were given up because there were too many, or they were too heavy."""
        self.discarded = 0
        """Events that waited, and were never shown."""

    def __len__(self) -> int:
        """Return how many keys are kept."""
        return len(self._slots)

    def is_newer(self, key: Key, sequence: int) -> bool:
        """Whether an event of that number supersedes what is known of its key (SEQ-4)."""
        slot = self._slots.get(key)
        return slot is None or slot.sequence < sequence

    def show(self, key: Key, sequence: int, event: SupersedableEvent, variants: Variants) -> None:
        """Make an event the present value of its key."""
        slot = self._slot(key)
        slot.sequence = sequence
        slot.current = event
        slot.variants = variants
        if slot.parked is not None:
            self._discard(key, slot)
        self._weigh(slot)
        self._shed(key)

    def park(self, key: Key, sequence: int, event: SupersedableEvent) -> None:
        """Keep an event until its document is ready for it (PRS-2)."""
        slot = self._slot(key)
        if slot.parked is not None:
            self._discard(key, slot)  # A newer focus may wait for another document.
        slot.sequence = sequence
        slot.parked = event
        self._parked.setdefault(event.document or 0, {})[key] = None
        self._weigh(slot)
        self._shed(key)

    def take_parked(self, alias: int, version: int | None) -> list[tuple[Key, int, SupersedableEvent]]:
        """Take what waited for a document to reach `version`; `None` takes what has no version."""
        keys = self._parked.get(alias)
        if keys is None:
            return []
        ready = []
        for key in list(keys):
            slot = self._slots[key]
            event = slot.parked
            assert event is not None
            wants = getattr(event, "version", None)
            if wants is not None and (version is None or wants > version):
                continue
            self._unpark(key, slot)
            ready.append((key, slot.sequence, event))
        return ready

    @property
    def waiting(self) -> int:
        """How many events wait for their documents."""
        return sum(len(keys) for keys in self._parked.values())

    @property
    def has_parked(self) -> bool:
        """Whether anything waits; cheap enough to ask after every edit."""
        return bool(self._parked)

    def forget_document(self, alias: int) -> bool:
        """Drop all keys of a document, and what waits for it (PRS-5).

        Returns:
            Whether a focus was waiting for it.
        """
        waiting = self._parked.pop(alias, {})
        self.discarded += len(waiting)
        for key in waiting:
            self._slots[key].parked = None
        for key in [key for key in self._slots if key[1] == alias]:
            self._weight -= self._slots.pop(key).weight
        return any(key[1] != alias for key in waiting)

    def sequence_of(self, key: Key) -> int:
        """The number of the newest event of a key; 0 if there is none."""
        slot = self._slots.get(key)
        return 0 if slot is None else slot.sequence

    def current(self) -> Iterator[tuple[Key, SupersedableEvent, Variants]]:
        """Yield every present value, in the order in which the keys appeared."""
        for key, slot in self._slots.items():
            if slot.current is not None:
                yield key, slot.current, slot.variants

    def _slot(self, key: Key) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= self._keys_max:
                self._forget_oldest()
            slot = self._slots[key] = Slot(0)
        return slot

    def _weigh(self, slot: Slot) -> None:
        weight = 0 if slot.current is None else _weight(slot.current) * (1 + len(slot.variants))
        if slot.parked is not None:
            weight += _weight(slot.parked)
        self._weight += weight - slot.weight
        slot.weight = weight

    def _shed(self, key: Key) -> None:
        """Forget the oldest while all are too heavy, but not the one that has just come."""
        if self._weight <= _WEIGHT_MAX:
            return
        self._slots.move_to_end(key)
        while self._weight > _WEIGHT_MAX and len(self._slots) > 1:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest, forgotten = self._slots.popitem(last=False)
        if forgotten.parked is not None:
            self._discard(oldest, forgotten)
        self._weight -= forgotten.weight
        self.forgotten += 1

    def _discard(self, key: Key, slot: Slot) -> None:
        self.discarded += 1
        self._unpark(key, slot)

    def _unpark(self, key: Key, slot: Slot) -> None:
        assert slot.parked is not None
        alias = slot.parked.document or 0
        slot.parked = None
        keys = self._parked[alias]
        del keys[key]
        if not keys:
            del self._parked[alias]


def _weight(event: SupersedableEvent) -> int:
    """Bytes of memory, roughly."""
    if isinstance(event, Selection):
        return 300 + 150 * len(event.ranges)
    if isinstance(event, Diagnostics):
        return 300 + sum(500 + len(item.message) for item in event.items)
    if isinstance(event, DesignSelection):
        return 300 + sum(500 + len(node.text or "") for node in event.nodes)
    return 300


def key_of(event: SupersedableEvent) -> Key:
    """The key that an event is the latest value of (SPEC section 11)."""
    if isinstance(event, Cursor):
        return ("cursor", event.document, event.view)
    if isinstance(event, Selection):
        return ("selection", event.document, event.view)
    if isinstance(event, Viewport):
        return ("viewport", event.document, event.view)
    if isinstance(event, Focus):
        return ("focus", 0, "")
    if isinstance(event, Diagnostics):
        return ("diagnostics", event.document, "")
    if isinstance(event, State):
        return ("state", event.document, "")
    return ("design.selection", event.document, "")


def check_positions(event: SupersedableEvent, buffer: TextBuffer) -> None:
    """Check every position of an event against the text that it speaks of.

    Raises:
        EventRefused: `bad_position`, or `bad_change` for a range that ends before it starts.
    """
    if isinstance(event, Cursor):
        buffer.check_position(*event.position)
    elif isinstance(event, Selection):
        for line, character, active_line, active_character in event.ranges:
            buffer.check_position(line, character)
            buffer.check_position(active_line, active_character)
    elif isinstance(event, Diagnostics):
        for item in event.items:
            check_span(item.range, buffer)
    elif isinstance(event, Viewport):
        if not event.first_line <= event.last_line < buffer.line_count:
            raise EventRefused(
                ErrorCode.BAD_POSITION,
                f"lines {event.first_line} to {event.last_line}, the text has {buffer.line_count}",
                expected=buffer.line_count,
            )
    else:
        assert isinstance(event, Focus | State | DesignSelection)


def check_span(span: tuple[int, int, int, int], buffer: TextBuffer) -> None:
    """Check a range of text.

    Raises:
        EventRefused: As `check_positions`.
    """
    line, character, end_line, end_character = span
    buffer.check_position(line, character)
    buffer.check_position(end_line, end_character)
    if (end_line, end_character) < (line, character):
        raise EventRefused(ErrorCode.BAD_CHANGE, "the range ends before it starts")
