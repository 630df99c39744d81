"""Every event that a feed carries is told in a few words, and none drives the terminal."""

from __future__ import annotations

from typing import get_args

import pytest

from streamctx.cli.event_line import event_summary
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Attachment,
    Close,
    Cursor,
    DesignClose,
    DesignNode,
    DesignOpen,
    DesignSelection,
    DesignTool,
    Diagnostic,
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


def edit(*changes: Change) -> Edit:
    return Edit(document=1, base=1, version=2, changes=changes)


TOLD: list[tuple[FeedEvent, str]] = [
    (
        Open(document=1, uri="file:///a", version=3, length=1234, hash="", text=""),
        "open at version 3, 1,234 characters",
    ),
    (Snapshot(document=1, version=3, length=4, hash="", text=""), "whole text of version 3, 4 characters"),
    (Part(document=1, version=3, index=0, text=""), "part 1 of the text"),
    (edit(Change(0, 0, 0, 0, "a\nb")), "edit to version 2: 1:1 insert 'a↵b'"),
    (edit(Change(0, 0, 1, 2, "\x1b")), "edit to version 2: 1:1-2:3 replace by '␛'"),
    (edit(Change(0, 0, 0, 1, ""), Change(1, 0, 1, 1, "")), "edit to version 2: 1:1-1:2 deleted and 1 more"),
    (
        edit(Change(0, 0, 0, 0, "x" * 41)),
        "edit to version 2: 1:1 insert '" + "x" * 40 + "…'",
    ),
    (Version(document=1, version=3, length=0, hash=""), "version 3 proved by its hash"),
    (Save(document=1, version=3), "saved version 3"),
    (Close(document=1), "closed"),
    (Cursor(document=1, version=3, position=(4, 0)), "cursor at 5:1"),
    (Selection(document=1, version=3, ranges=((4, 0, 4, 0),)), "nothing selected"),
    (Selection(document=1, version=3, ranges=((0, 0, 0, 1), (2, 0, 2, 1))), "selected 1:1-1:2 and 1 more"),
    (Viewport(document=1, version=3, first_line=0, last_line=9), "lines 1 to 10 visible"),
    (Focus(document=1), "focus"),
    (Focus(), "no document has the focus"),
    (Diagnostics(document=1, version=3, items=()), "no diagnostics"),
    (
        Diagnostics(
            document=1,
            version=3,
            items=tuple(
                Diagnostic(range=(0, 0, 0, 0), severity=severity, message="") for severity in (2, 1, 1)
            ),
        ),
        "diagnostics: 2 error, 1 warning",
    ),
    (State(document=1, dirty=True), "unsaved changes"),
    (State(document=1, dirty=False), "no unsaved changes"),
    (Mention(document=1, version=3, range=(0, 0, 0, 4), note="this"), "mentioned 1:1-1:5: this"),
    (
        DesignOpen(document=1, uri="figma:x", tool=DesignTool(name="Figma"), file_name="x", pages=()),
        "design open in Figma, 0 pages",
    ),
    (DesignSelection(document=1, page="p", nodes=(), total=0), "no node selected"),
    (
        DesignSelection(document=1, page="p", nodes=(DesignNode(id="1", kind="k", name="n"),), total=1),
        "1 nodes selected: n",
    ),
    (DesignClose(document=1), "design closed (file_closed)"),
    (Stale(document=1, reason="mismatch"), "STALE: mismatch"),
    (Attachment(connected=True), "editor connected"),
    (Attachment(connected=False), "editor disconnected"),
]


@pytest.mark.parametrize(("event", "summary"), TOLD, ids=lambda value: type(value).__name__)
def test_event_is_told_in_short(event: FeedEvent, summary: str) -> None:
    assert event_summary(event) == summary


def test_no_kind_of_event_is_left_out() -> None:
    assert {type(event) for event, _ in TOLD} == set(get_args(FeedEvent))
