"""Sessions and documents in words: what is open, where the person is, what linters say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from streamctx.cli.excerpt import Mark, excerpt
from streamctx.cli.output import age_text, printable, styled
from streamctx.cli.views import DocumentHead, DocumentView, HistoryView, PastMoment, SessionView
from streamctx.wire.messages import (
    Cursor,
    DesignSelection,
    Diagnostics,
    Focus,
    Selection,
    State,
    SupersedableEvent,
)

__all__ = ["describe_document", "describe_history", "describe_moment", "describe_session"]

_AROUND_IN_SESSION = 2
_DIAGNOSTICS_MAX = 20
_SEVERITIES = {1: "error", 2: "warning", 3: "information", 4: "hint"}


def describe_session(session: SessionView, texts: Mapping[int, DocumentView | None]) -> Iterator[str]:
    """Head, documents with a few lines around the person's places, design documents."""
    client = " ".join(filter(None, (session.client.name, session.client.version)))
    idle = age_text(session.idle_s)
    yield styled(f"{printable(client)}: {session.standing}, last heard {idle} ago", bold=True)
    yield f"session {session.session}, {session.offset} changes shown, {session.observers} observers"
    if session.workspace is not None:
        for folder in session.workspace.folders:
            yield f"folder  {printable(folder)}"
    focused = next((event.document for event in session.presence if isinstance(event, Focus)), None)
    # What the person is in comes first.
    for document in sorted(session.documents, key=lambda document: document.document != focused):
        yield ""
        view = texts.get(document.document)
        presence = [event for event in session.presence if event.document == document.document]
        yield from describe_document(
            # The text was asked for a moment later; its own head and presence fit it.
            document if view is None else view,
            view,
            presence if view is None else view.presence,
            around=_AROUND_IN_SESSION,
            is_focused=document.document == focused,
        )
    selections = {event.document: event for event in session.presence if isinstance(event, DesignSelection)}
    for design in session.designs:
        yield ""
        yield f"{design.document}  {printable(design.uri)}  {printable(design.tool.name)}"
        selection = selections.get(design.document)
        if selection is not None:
            names = ", ".join(f"{node.name} ({node.kind})" for node in selection.nodes)
            yield printable(f"   {selection.total} selected on page {selection.page}: {names}")
    if not session.documents and not session.designs:
        yield "nothing is open"


def describe_history(history: HistoryView, *, now: float) -> Iterator[str]:
    """One line a version, the newest first, then how far back they go."""
    rows = [_moment_row(moment, now) for moment in history.versions]
    widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, *row[3:]]).rstrip()
    older = history.count - len(history.versions)
    if older:
        yield f"and {older:,} older ones"
    if history.complete:
        yield "This is all since the session began."
    elif history.since is not None:
        yield f"What is kept begins {age_text(max(0.0, now - history.since))} ago."


def describe_moment(moment: PastMoment, openings: Sequence[int], *, now: float) -> str:
    """One line about a text of the past, and about others of the same version."""
    _, age, length, note = _moment_row(moment, now)
    line = f"version {moment.version} of {printable(moment.uri)}: {age}, {length}"
    if note:
        line += f", {note}"
    others = [str(opened) for opened in openings if opened != moment.opened]
    if others:
        line += f"\nThat version was reached in other openings too: --opened {' or '.join(others)}"
    return line


def _moment_row(moment: PastMoment, now: float) -> tuple[str, str, str, str]:
    age = "earlier" if moment.at is None else f"{age_text(max(0.0, now - moment.at))} ago"
    notes = ["verified"] if moment.verified else []
    if moment.stale:
        notes.append("STALE: not the editor's text")
    if moment.opened > 1:
        notes.append(f"opening {moment.opened}")
    return str(moment.version), age, f"{moment.length:,} characters", ", ".join(notes)


def describe_document(
    head: DocumentHead,
    view: DocumentView | None,
    presence: Sequence[SupersedableEvent],
    *,
    around: int,
    is_focused: bool = False,
) -> Iterator[str]:
    """One line of facts, then the lines around cursors and selections, then diagnostics."""
    facts = [f"version {head.version}"]
    if head.saved_version is not None:
        facts.append("saved" if head.saved_version == head.version else f"saved at {head.saved_version}")
    if any(isinstance(event, State) and event.dirty for event in presence):
        facts.append("unsaved changes")
    if head.length is not None:
        facts.append(f"{head.length:,} characters, {head.lines:,} lines")
    if not head.complete:
        facts.append("its text is still coming")
    focus = styled("*", bold=True) if is_focused else " "
    title = f"{focus} {head.document}  {styled(printable(head.uri), bold=True)}"
    yield title if head.language is None else f"{title}  {printable(head.language)}"
    stale = styled("STALE: not, or not provably, the editor's text; ", fg="red") if head.stale else ""
    yield f"     {stale}{', '.join(facts)}"
    places = [event for event in presence if isinstance(event, Cursor | Selection)]
    for place in places:
        yield from (f"     {line}" for line in _place_lines(place, version=head.version))
    if view is not None:
        yield from (f"     {line}" for line in _excerpt_lines(view, places, around=around))
    for event in presence:
        if isinstance(event, Diagnostics):
            yield from (f"     {line}" for line in _diagnostic_lines(event, version=head.version))


def _place_lines(event: Cursor | Selection, *, version: int) -> Iterator[str]:
    view = f" in view {printable(event.view)}" if event.view else ""
    of = "" if event.version == version else f" (of version {event.version})"
    if isinstance(event, Cursor):
        yield f"cursor at {_place(event.position)}{view}{of}"
        return
    for span in event.ranges:
        if span[:2] != span[2:]:
            yield f"selected from {_place(span[:2])} to {_place(span[2:])}{view}{of}"


def _excerpt_lines(view: DocumentView, places: Iterable[Cursor | Selection], *, around: int) -> list[str]:
    marks: list[Mark] = []
    for event in places:
        if isinstance(event, Cursor):
            marks.append(Mark(event.position, event.position))
        else:
            marks += [Mark.of_span(span) for span in event.ranges]
    return excerpt(view.text, marks, unit=view.unit, around=around)


def _diagnostic_lines(event: Diagnostics, *, version: int) -> Iterator[str]:
    of = "" if event.version == version else f" (of version {event.version})"
    for item in event.items[:_DIAGNOSTICS_MAX]:
        origin = f" ({printable(' '.join(filter(None, (item.source, item.code))))})" if item.source else ""
        severity = _SEVERITIES[item.severity]
        yield f"{severity} at {_place(item.range[:2])}: {printable(item.message)}{origin}{of}"
    if len(event.items) > _DIAGNOSTICS_MAX:
        yield f"… and {len(event.items) - _DIAGNOSTICS_MAX} more"


def _place(position: tuple[int, int]) -> str:
    """As editors show it, from 1."""
    return f"{position[0] + 1}:{position[1] + 1}"
