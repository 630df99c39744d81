"""What a tail prints of a feed: each event once, with the name of its document."""

from __future__ import annotations

from datetime import UTC, datetime

from streamctx.cli.following import TailPrinter
from streamctx.client.observation import ObservationChange
from streamctx.wire.messages import Attachment, Close, Cursor, FeedEvent, Open, Part

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
OPEN = Open(document=1, uri="file:///work/a\x1b.py", version=0, length=0, hash="", text="")
CURSOR = Cursor(document=1, version=0, position=(0, 0))


def change(
    *events: FeedEvent,
    session: str = "0123456789",
    is_synced: bool = True,
    is_ended: bool = False,
    missed: int = 0,
) -> ObservationChange:
    return ObservationChange(
        session_id=session, events=events, is_synced=is_synced, is_ended=is_ended, missed=missed
    )


def texts(printer: TailPrinter, *changes: ObservationChange) -> list[str]:
    """The lines without their time."""
    return [str(line).partition(" ")[2] for item in changes for line in printer.lines_of(item, NOW)]


def test_documents_are_named_by_the_end_of_their_uri_until_they_close() -> None:
    printer = TailPrinter(as_json=False)
    assert texts(printer, change(OPEN), change(CURSOR), change(Close(document=1))) == [
        "01234567 a␛.py open at version 0, 0 characters",
        "01234567 a␛.py cursor at 1:1",
        "01234567 a␛.py closed",
    ]


def test_documents_of_sessions_are_told_apart() -> None:
    printer = TailPrinter(as_json=False)
    assert texts(printer, change(OPEN, session="a"), change(CURSOR, session="b"))[1] == (
        "b document 1 cursor at 1:1"
    )


def test_state_is_announced_when_it_comes_again() -> None:
    printer = TailPrinter(as_json=False)
    beginning = [change(is_synced=False), change(Attachment(connected=True), is_synced=False), change()]
    assert texts(printer, *beginning) == ["01234567 - editor connected"]
    assert texts(printer, *beginning) == [
        "01234567 - in sync again; its state follows",
        "01234567 - editor connected",
    ]


def test_missed_changes_and_the_end_are_told() -> None:
    printer = TailPrinter(as_json=False)
    assert texts(printer, change(missed=3), change(is_synced=False, is_ended=True)) == [
        "01234567 - 3 changes came too fast to be shown",
        "01234567 - session ended",
    ]


def test_parts_of_a_text_are_shown_to_programs_alone() -> None:
    part = Part(document=1, version=0, index=0, text="x")
    assert texts(TailPrinter(as_json=False), change(part)) == []
    assert list(TailPrinter(as_json=True).lines_of(change(OPEN, part), NOW))[1] == {
        "time": "2026-01-02T03:04:05.678Z",
        "session": "0123456789",
        "uri": "file:///work/a\x1b.py",
        "event": {"type": "part", "document": 1, "version": 0, "index": 0, "text": "x"},
    }


def test_notes_are_told_to_programs_too() -> None:
    assert list(TailPrinter(as_json=True).lines_of(change(missed=1), NOW)) == [
        {
            "time": "2026-01-02T03:04:05.678Z",
            "session": "0123456789",
            "note": "missed",
            "message": "1 changes came too fast to be shown",
        }
    ]


def test_a_session_that_is_stored_has_not_ended() -> None:
    printer = TailPrinter(as_json=False)
    [line] = printer.lines_of(change(is_synced=False, is_ended=True), NOW, is_stored=True)
    assert str(line).endswith("session is away; it is stored")
    [line] = printer.lines_of(change(is_synced=False, is_ended=True), NOW)
    assert str(line).endswith("session ended")
