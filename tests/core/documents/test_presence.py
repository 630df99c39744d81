from __future__ import annotations

import pytest

from streamctx.core.documents.presence import Presence, check_positions, key_of
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.errors import ErrorCode, EventRefused
from streamctx.wire.messages import (
    Cursor,
    Diagnostic,
    Diagnostics,
    Focus,
    Selection,
    SupersedableEvent,
    Viewport,
)

__all__: list[str] = []


def cursor(version: int, *, document: int = 1, view: str = "") -> Cursor:
    return Cursor(document=document, version=version, position=(0, 0), view=view)


def show(presence: Presence, sequence: int, event: SupersedableEvent) -> None:
    presence.show(key_of(event), sequence, event, {})


def present(presence: Presence) -> list[SupersedableEvent]:
    return [event for _, event, _ in presence.current()]


def test_views_of_one_document_have_values_of_their_own() -> None:
    presence = Presence(9)
    show(presence, 1, cursor(1, view="left"))
    show(presence, 2, cursor(1, view="right"))
    assert len(present(presence)) == 2


def test_the_oldest_key_is_forgotten_beyond_the_limit_and_not_at_it() -> None:
    presence = Presence(2)
    for document in (1, 2):
        show(presence, document, cursor(1, document=document))
    assert presence.forgotten == 0
    presence.park(key_of(cursor(1, document=3)), 3, cursor(1, document=3))
    assert present(presence) == [cursor(1, document=2)]
    show(presence, 4, cursor(1, document=4))
    show(presence, 5, cursor(1, document=5))
    assert not presence.has_parked


def test_what_waits_is_taken_when_its_version_is_there_and_once() -> None:
    presence = Presence(9)
    presence.park(key_of(cursor(5)), 1, cursor(5))
    assert presence.take_parked(1, 4) == []
    assert presence.take_parked(1, 5) == [(key_of(cursor(5)), 1, cursor(5))]
    assert presence.take_parked(1, 5) == []


def test_a_newer_event_takes_the_place_of_one_that_waits_also_for_another_document() -> None:
    presence = Presence(9)
    presence.park(key_of(Focus()), 1, Focus(document=1))
    presence.park(key_of(Focus()), 2, Focus(document=2))
    assert presence.take_parked(1, 9) == []
    assert [event for _, _, event in presence.take_parked(2, 9)] == [Focus(document=2)]


def test_forgetting_a_document_says_whether_the_focus_waited_for_it() -> None:
    presence = Presence(9)
    presence.park(key_of(Focus()), 1, Focus(document=1))
    presence.park(key_of(cursor(1)), 2, cursor(1))
    show(presence, 3, cursor(1, document=2))
    assert presence.forget_document(1)
    assert not presence.forget_document(1)
    assert present(presence) == [cursor(1, document=2)]
    assert not presence.is_newer(key_of(Focus()), 1)


def test_a_viewport_may_end_at_the_last_line_and_not_after_it() -> None:
    buffer = TextBuffer("a\nb")
    check_positions(Viewport(document=1, version=1, first_line=0, last_line=1), buffer)
    for first, last in ((0, 2), (1, 0)):
        with pytest.raises(EventRefused) as raised:
            check_positions(Viewport(document=1, version=1, first_line=first, last_line=last), buffer)
        assert raised.value.code is ErrorCode.BAD_POSITION


@pytest.mark.parametrize(
    "event",
    [
        Selection(document=1, version=1, ranges=((0, 0, 0, 1), (0, 2, 0, 0))),
        Selection(document=1, version=1, ranges=((0, 0, 0, 2),)),
        Diagnostics(document=1, version=1, items=(Diagnostic(range=(0, 1, 0, 0), severity=1, message=""),)),
    ],
)
def test_every_position_of_an_event_is_checked(event: SupersedableEvent) -> None:
    with pytest.raises(EventRefused):
        check_positions(event, TextBuffer("a"))


def test_a_selection_may_be_made_backwards() -> None:
    check_positions(Selection(document=1, version=1, ranges=((0, 1, 0, 0),)), TextBuffer("a"))
