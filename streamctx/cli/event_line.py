"""One event in a few words, for a line of a terminal."""

from __future__ import annotations

from collections import Counter

from streamctx.cli.output import printable
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Attachment,
    Close,
    Cursor,
    DesignClose,
    DesignOpen,
    DesignSelection,
    Diagnostics,
    Edit,
    FeedEvent,
    Focus,
    Mention,
    Open,
    Part,
    Save,
    Selection,
    Snapshot,
    Stale,
    State,
    Version,
    Viewport,
)

__all__ = ["event_summary"]

_TEXT_CHARACTERS_MAX = 40
_SEVERITIES = {1: "error", 2: "warning", 3: "information", 4: "hint"}


def event_summary(event: FeedEvent) -> str:
    """What happened; places count from 1, as editors show them."""
    match event:
        case Open():
            return f"open at version {event.version}, {event.length:,} characters"
        case Snapshot():
            return f"whole text of version {event.version}, {event.length:,} characters"
        case Part():
            return f"part {event.index + 1} of the text"
        case Edit():
            return _edit_summary(event)
        case Version():
            return f"version {event.version} proved by its hash"
        case Save():
            return f"saved version {event.version}"
        case Close():
            return "closed"
        case Cursor():
            return f"cursor at {_place(event.position[0], event.position[1])}"
        case Selection():
            return _selection_summary(event)
        case Viewport():
            return f"lines {event.first_line + 1} to {event.last_line + 1} visible"
        case Focus():
            return "no document has the focus" if event.document is None else "focus"
        case Diagnostics():
            return _diagnostics_summary(event)
        case State():
            return "unsaved changes" if event.dirty else "no unsaved changes"
        case Mention():
            note = "" if event.note is None else f": {_short(event.note)}"
            return f"mentioned {_range(event.range)}{note}"
        case DesignOpen():
            return f"design open in {printable(event.tool.name)}, {len(event.pages)} pages"
        case DesignSelection():
            names = ", ".join(_short(node.name) for node in event.nodes[:3])
            return f"{event.total} nodes selected: {names}" if event.total else "no node selected"
        case DesignClose():
            return f"design closed ({event.reason})"
        case Stale():
            return f"STALE: {_short(event.reason)}"
        case Attachment():
            return "editor connected" if event.connected else "editor disconnected"


def _edit_summary(edit: Edit) -> str:
    first = _change_summary(edit.changes[0])
    more = len(edit.changes) - 1
    return f"edit to version {edit.version}: {first}" + (f" and {more} more" if more else "")


def _change_summary(change: Change) -> str:
    start = _place(change.start_line, change.start_character)
    is_insertion = (change.start_line, change.start_character) == (change.end_line, change.end_character)
    place = start if is_insertion else f"{start}-{_place(change.end_line, change.end_character)}"
    if not change.text:
        return f"{place} deleted"
    return f"{place} {'insert' if is_insertion else 'replace by'} {_short(change.text)!r}"


def _selection_summary(selection: Selection) -> str:
    spans = [span for span in selection.ranges if span[:2] != span[2:]]
    if not spans:
        return "nothing selected"
    more = len(spans) - 1
    return f"selected {_range(spans[0])}" + (f" and {more} more" if more else "")


def _diagnostics_summary(diagnostics: Diagnostics) -> str:
    if not diagnostics.items:
        return "no diagnostics"
    counts = Counter(item.severity for item in diagnostics.items)
    return "diagnostics: " + ", ".join(f"{counts[key]} {_SEVERITIES[key]}" for key in sorted(counts))


def _range(span: tuple[int, int, int, int]) -> str:
    return f"{_place(span[0], span[1])}-{_place(span[2], span[3])}"


def _place(line: int, character: int) -> str:
    return f"{line + 1}:{character + 1}"


def _short(text: str) -> str:
    cut = text[:_TEXT_CHARACTERS_MAX].replace("\r\n", "\n").replace("\n", "↵")
    return printable(cut) + ("…" if len(text) > _TEXT_CHARACTERS_MAX else "")
