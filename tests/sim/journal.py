"""A reader of the journal who knows the specification and nothing of the product: plain strings alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, Edit, Event, Open, Part, Snapshot
from tests.sim.model import positions_of

__all__ = ["read_journal"]


@dataclass(slots=True)
class _Text:
    """`text` is `None` while the reader cannot say what it is."""

    version: int
    text: str | None
    coming: tuple[int, int, str] | None = None
    """The version of a text that comes in parts, how many parts are left, and what has come."""


def read_journal(events: Iterable[Event], unit: Unit) -> dict[int, str | None]:
    """The text of every open document by alias; `None` where an event did not fit and no text came since."""
    found: dict[int, _Text] = {}
    for event in events:
        if isinstance(event, Open | Snapshot):
            known = found.setdefault(event.document, _Text(event.version, None))
            if event.parts is None:
                found[event.document] = _Text(event.version, event.text)
            else:
                known.coming = event.version, event.parts, ""
        elif isinstance(event, Part):
            _add_part(found, event)
        elif isinstance(event, Edit):
            known = found.setdefault(event.document, _Text(event.version, None))
            if known.text is not None and known.version == event.base and known.coming is None:
                known.text = _edited(known.text, event.changes, unit, is_at_once=event.mode == "sim")
                known.version = event.version
            else:
                known.text = None
        elif isinstance(event, Close):
            found.pop(event.document, None)
    return {alias: known.text for alias, known in found.items()}


def _add_part(found: dict[int, _Text], part: Part) -> None:
    known = found.get(part.document)
    if known is None or known.coming is None:
        return
    version, left, text = known.coming
    known.coming = version, left - 1, text + part.text
    if left == 1:
        found[part.document] = _Text(version, text + part.text)


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
