"""A reader of the journal who knows the specification and nothing of the product: plain strings alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamctx.core.session.stored import JournalItem, Refused, SessionState, Spoilt, StoredSession
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, DesignClose, DesignOpen, Edit, Event, Open, Part, Snapshot
from tests.sim.model import positions_of

__all__ = ["Reading", "Text", "read_journal", "read_stored"]


@dataclass(slots=True)
class Text:
    """`text` is `None` while the reader cannot say what it is."""

    version: int
    text: str | None
    coming: tuple[int, int, str] | None = None
    """The version of a text that comes in parts, how many parts are left, and what has come."""


@dataclass(slots=True)
class Reading:
    """What there is after what was read so far, by alias."""

    unit: Unit
    texts: dict[int, Text] = field(default_factory=dict)
    designs: set[int] = field(default_factory=set)
    closed_designs: set[int] = field(default_factory=set)
    """Those whose plugin was closed, though they are open still."""
    refused: set[int] = field(default_factory=set)

    def begin(self, state: SessionState) -> None:
        """Begin with a snapshot."""
        for stored in state.documents:
            text = Text(stored.version, None if stored.stale_reason is not None else stored.text)
            if stored.transfer is not None:
                announced = stored.transfer.announced
                assert announced.parts is not None
                left = announced.parts - stored.transfer.part_count
                text.coming = announced.version, left, stored.transfer.text
            self.texts[stored.metadata.document] = text
        self.designs = {design.document for design in state.designs}
        self.closed_designs = set(state.stale_designs)
        self.refused = {alias for alias, _ in state.refused}

    def take(self, item: JournalItem) -> None:
        """Read on."""
        if isinstance(item, Spoilt):
            for alias in list(self.texts) if item.documents is None else item.documents:
                self._lose_text(alias)
        elif isinstance(item, Refused):
            self.texts.pop(item.document, None)
            self.designs.discard(item.document)
            self.closed_designs.discard(item.document)
            self.refused.add(item.document)
        elif isinstance(item, Open | Snapshot):
            self._take_text(item)
        elif isinstance(item, Part):
            self._add_part(item)
        elif isinstance(item, Edit):
            self._edit(item)
        elif isinstance(item, Close):
            self.refused.discard(item.document)
            self.texts.pop(item.document, None)
        elif isinstance(item, DesignOpen):
            self.refused.discard(item.document)
            self.designs.add(item.document)
            self.closed_designs.discard(item.document)
        elif isinstance(item, DesignClose):
            self._close_design(item)

    def _lose_text(self, alias: int) -> None:
        known = self.texts.get(alias)
        if known is not None:
            known.text = known.coming = None

    def _take_text(self, event: Open | Snapshot) -> None:
        if isinstance(event, Open):
            self.refused.discard(event.document)
        known = self.texts.setdefault(event.document, Text(event.version, None))
        if isinstance(event, Snapshot) and event.version < known.version:
            self._lose_text(event.document)
        elif event.parts is None:
            self.texts[event.document] = Text(event.version, event.text)
        else:
            known.coming = event.version, event.parts, ""

    def _add_part(self, part: Part) -> None:
        known = self.texts.get(part.document)
        if known is None or known.coming is None:
            return
        version, left, text = known.coming
        known.coming = version, left - 1, text + part.text
        if left == 1:
            self.texts[part.document] = Text(version, text + part.text)

    def _edit(self, edit: Edit) -> None:
        known = self.texts.setdefault(edit.document, Text(edit.version, None))
        if known.text is not None and known.version == edit.base and known.coming is None:
            known.text = _edited(known.text, edit.changes, self.unit, is_at_once=edit.mode == "sim")
            known.version = edit.version
        else:
            known.text = known.coming = None

    def _close_design(self, event: DesignClose) -> None:
        if event.reason == "plugin_closed":
            self.closed_designs.add(event.document)
            return
        self.refused.discard(event.document)
        self.designs.discard(event.document)
        self.closed_designs.discard(event.document)


def read_journal(events: Iterable[Event], unit: Unit) -> dict[int, str | None]:
    """The text of every open document by alias; `None` where an event did not fit and no text came since."""
    reading = Reading(unit)
    for event in events:
        reading.take(event)
    return {alias: known.text for alias, known in reading.texts.items()}


def read_stored(stored: StoredSession) -> Reading:
    """What a stored session is: its newest state, and all that came after it."""
    reading = Reading(Unit(stored.record.unit))
    if stored.state is not None:
        reading.begin(stored.state)
    for batch in stored.batches:
        for _, item in batch.entries:
            reading.take(item)
    return reading


def _start(change: Change) -> tuple[int, int]:
    return change.start_line, change.start_character


def _edited(text: str, changes: Sequence[Change], unit: Unit, *, is_at_once: bool) -> str | None:
    """Make the changes; `None` if one is outside the text."""
    if is_at_once:
        places = {point: index for index, point in positions_of(text, unit)}
        changes = sorted(changes, key=_start, reverse=True)
    for change in changes:
        if not is_at_once:
            places = {point: index for index, point in positions_of(text, unit)}
        start = places.get((change.start_line, change.start_character))
        end = places.get((change.end_line, change.end_character))
        if start is None or end is None:
            return None
        text = text[:start] + change.text + text[end:]
    return text
