"""A session in words: what a person has to know, first what matters."""

from __future__ import annotations

import time

import pytest

from streamctx.cli.describe import (
    describe_document,
    describe_history,
    describe_moment,
    describe_session,
)
from streamctx.cli.sessions import session_rows
from streamctx.cli.views import DocumentHead, DocumentView, HistoryView, PastMoment, SessionView
from streamctx.vocabulary import Unit
from streamctx.wire.messages import (
    ClientInfo,
    Cursor,
    DesignNode,
    DesignOpen,
    DesignSelection,
    DesignTool,
    Diagnostic,
    Diagnostics,
    Selection,
    State,
    SupersedableEvent,
)


def view(text: str, *presence: SupersedableEvent, stale: bool = False, version: int = 3) -> DocumentView:
    return DocumentView(
        document=1,
        uri="file:///a.py",
        version=version,
        stale=stale,
        complete=True,
        unit=Unit.UTF_16,
        length=1234567,
        lines=1,
        saved_version=2,
        session="abc",
        hash="",
        text=text,
        presence=presence,
    )


def described(document: DocumentView) -> list[str]:
    return list(describe_document(document, document, document.presence, around=0))


def test_stale_document_says_so_before_anything_else() -> None:
    assert described(view("", stale=True))[1] == (
        "     STALE: not, or not provably, the editor's text; "
        "version 3, saved at 2, 1,234,567 characters, 1 lines"
    )


def test_unsaved_changes_are_told() -> None:
    assert "unsaved changes" in described(view("", State(document=1, dirty=True)))[1]


def test_places_of_another_version_are_marked_as_such() -> None:
    lines = described(view("ab", Cursor(document=1, version=2, position=(0, 1), view="left")))
    assert lines[2] == "     cursor at 1:2 in view left (of version 2)"


def test_empty_selections_are_no_selections() -> None:
    lines = described(view("ab", Selection(document=1, version=3, ranges=((0, 1, 0, 1), (0, 1, 0, 0)))))
    assert lines[2] == "     selected from 1:2 to 1:1"
    assert lines[3:] == ["     1 | ab", "       | ~^"]


def test_many_diagnostics_are_cut_with_their_count() -> None:
    items = tuple(Diagnostic(range=(0, 0, 0, 0), severity=4, message="m\n") for _ in range(25))
    lines = described(view("ab", Diagnostics(document=1, version=3, items=items)))
    assert lines[-2:] == ["     hint at 1:1: m␊", "     … and 5 more"]


def session(**fields: object) -> SessionView:
    return SessionView(
        session="abc",
        client=ClientInfo(name="editor"),
        role="produce",
        connected=False,
        idle_ms=300_000,
        unit=Unit.UTF_16,
        offset=7,
        observers=1,
        **{"documents": (), **fields},  # type: ignore[arg-type]
    )


def test_session_without_documents_says_so() -> None:
    assert list(describe_session(session(), {})) == [
        "editor: detached, last heard 5 min ago",
        "session abc, 7 changes shown, 1 observers",
        "nothing is open",
    ]


def test_text_that_is_still_coming_is_told() -> None:
    head = DocumentHead(
        document=1, uri="file:///a.py", version=0, stale=False, complete=False, unit=Unit.UTF_16
    )
    lines = list(describe_session(session(documents=(head,)), {1: None}))
    assert lines[-2:] == ["  1  file:///a.py", "     version 0, its text is still coming"]


def test_selected_design_nodes_are_named() -> None:
    design = DesignOpen(document=2, uri="figma:x", tool=DesignTool(name="Figma"), file_name="x", pages=())
    node = DesignNode(id="1:2", kind="FRAME", name="Button\x1b")
    selection = DesignSelection(document=2, page="p1", nodes=(node,), total=1)
    lines = list(describe_session(session(designs=(design,), presence=(selection,)), {}))
    assert lines[-2:] == ["2  figma:x  Figma", "   1 selected on page p1: Button␛ (FRAME)"]


def moment(version: int, *, at: float | None = 1000.0, opened: int = 1, **facts: bool) -> PastMoment:
    return PastMoment(
        version=version,
        at=at,
        opened=opened,
        document=1,
        uri="file:///a\x1b.py",
        length=1234,
        bytes=1300,
        verified=facts.get("verified", False),
        stale=facts.get("stale", False),
    )


def history(*moments: PastMoment, count: int | None = None, complete: bool = True) -> HistoryView:
    return HistoryView(
        session="abc",
        complete=complete,
        since=400.0,
        count=len(moments) if count is None else count,
        versions=moments,
    )


def test_versions_are_lines_and_how_far_back_they_go_is_told() -> None:
    told = history(
        moment(12, verified=True),
        moment(9, stale=True),
        moment(3, at=None, opened=2),
        count=1003,
        complete=False,
    )
    assert list(describe_history(told, now=1003.5)) == [
        "12  3 s ago  1,234 characters  verified",
        " 9  3 s ago  1,234 characters  STALE: not the editor's text",
        " 3  earlier  1,234 characters  opening 2",
        "and 1,000 older ones",
        "What is kept begins 10 min ago.",
    ]
    assert list(describe_history(history(), now=0.0)) == ["This is all since the session began."]


def test_a_text_of_the_past_says_what_it_is_and_where_else_it_might_be() -> None:
    assert describe_moment(moment(4), [1], now=1000.0) == (
        "version 4 of file:///a␛.py: 0 s ago, 1,234 characters"
    )
    assert describe_moment(moment(4, verified=True), [1, 2, 5], now=1000.0).splitlines()[1] == (
        "That version was reached in other openings too: --opened 2 or 5"
    )


def test_a_stored_session_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    session = SessionView(
        session="abc",
        client=ClientInfo(name="vim"),
        connected=False,
        live=False,
        stored=True,
        changed=9_940.0,
    )
    assert next(describe_session(session, {})) == "vim: stored, last heard 60 s ago"
    assert session_rows([session]) == [("abc", "vim", "-", "stored", "60 s", "-", "-")]
