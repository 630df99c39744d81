from __future__ import annotations

import pytest

from streamctx.core.documents.presence import key_of
from streamctx.core.session.outbox import Outbox, Queued
from streamctx.wire.messages import Close, Cursor, Edit, Focus, Mention, Message, Open, Save, Snapshot

__all__: list[str] = []


def queued(message: Message, *, alias: int = 1, text: str | None = None, weight: int = 10) -> Queued:
    return Queued(message, alias, 0.0, False, weight, text=text, part_characters=2)


def open_(alias: int = 1, *, parts: int | None = None) -> Open:
    return Open(document=alias, uri="u", version=1, length=0, hash="", parts=parts)


def edit(base: int, alias: int = 1) -> Edit:
    return Edit(document=alias, base=base, version=base + 1, changes=())


MENTION = Mention(document=1, version=1, range=(0, 0, 0, 0))


def drained(outbox: Outbox) -> list[Message]:
    found: list[Message] = []
    while True:
        taken = outbox.next_queued()
        if taken is not None:
            found.append(taken.message)
            continue
        part = outbox.next_part()
        if part is None:
            return found
        found.append(part)


def is_mention(message: Message) -> bool:
    return isinstance(message, Mention)


def test_events_leave_in_the_order_in_which_they_came() -> None:
    outbox = Outbox(9)
    for message in (open_(), edit(1), edit(2)):
        outbox.put(queued(message))
    assert drained(outbox) == [open_(), edit(1), edit(2)]
    assert (outbox.is_empty, outbox.events, outbox.bytes) == (True, 0, 0)


def test_events_that_waited_behind_a_long_text_follow_its_last_part() -> None:
    outbox = Outbox(9)
    outbox.put(queued(open_(parts=2), text="abc"))
    outbox.put(queued(edit(1)))
    outbox.put(queued(open_(2), alias=2))
    first = outbox.next_queued()
    assert first is not None
    outbox.put(queued(edit(2)))
    kinds = [type(message).__name__ for message in drained(outbox)]
    assert kinds == ["Open", "Part", "Part", "Edit", "Edit"]


def test_a_busy_queue_does_not_starve_a_long_text() -> None:
    outbox = Outbox(9)
    outbox.put(queued(open_(parts=2), text="abc"))
    for base in range(40):
        outbox.put(queued(edit(base, 2), alias=2))
    kinds = [type(message).__name__ for message in drained(outbox)]
    assert kinds.index("Part") < 20


def test_a_snapshot_takes_the_place_of_edits_and_what_outlives_it_follows_in_order() -> None:
    outbox = Outbox(9)
    for message in (edit(1), MENTION, edit(2)):
        outbox.put(queued(message))
    assert outbox.collapse(1, keep=is_mention) == 2
    outbox.put(queued(Save(document=1, version=3)))
    assert outbox.next_queued() is None
    outbox.begin_snapshot(queued(Snapshot(document=1, version=3, length=0, hash="", text="")))
    assert drained(outbox) == [MENTION, Save(document=1, version=3)]
    assert (outbox.events, outbox.bytes) == (0, 0)


def test_of_saves_that_follow_a_snapshot_only_the_last_is_kept() -> None:
    outbox = Outbox(9)
    outbox.collapse(1, keep=is_mention)
    for version in (1, 2):
        outbox.put(queued(Save(document=1, version=version)))
    assert outbox.events == 1


def test_the_last_save_outlives_that_a_snapshot_takes_the_place_of_all_else() -> None:
    outbox = Outbox(9)
    for message in (edit(0), Save(document=1, version=1), edit(1), Save(document=1, version=2), edit(2)):
        outbox.put(queued(message))
    outbox.collapse(1, keep=lambda message: isinstance(message, Save))
    outbox.begin_snapshot(queued(Snapshot(document=1, version=3, length=0, hash="", text="")))
    assert drained(outbox) == [Save(document=1, version=2)]
    assert (outbox.events, outbox.bytes) == (0, 0)


@pytest.mark.parametrize("is_announced", [False, True])
def test_of_a_closed_document_at_most_the_close_is_left(is_announced: bool) -> None:
    outbox = Outbox(9)
    messages = [edit(1), Close(document=1)] if is_announced else [open_(), edit(1), Close(document=1)]
    for message in messages:
        outbox.put(queued(message))
    outbox.put(queued(edit(1, 2), alias=2))
    outbox.abandon(1)
    assert drained(outbox) == [edit(1, 2), *([Close(document=1)] if is_announced else [])]
    assert (outbox.events, outbox.bytes) == (0, 0)


def test_the_heaviest_document_is_the_one_that_has_most_to_give_up() -> None:
    outbox = Outbox(9)
    assert outbox.heaviest() == 0
    outbox.put(queued(MENTION, alias=1, weight=1000))
    outbox.put(queued(edit(1, 2), alias=2, weight=20))
    outbox.put(queued(edit(1, 3), alias=3, weight=30))
    assert outbox.heaviest() == 3


@pytest.mark.parametrize("event", [Cursor(document=1, version=1, position=(0, 0)), Focus(document=1)])
def test_a_supersedable_event_waits_for_what_is_older_of_its_document(event: Cursor | Focus) -> None:
    outbox = Outbox(9)
    other = Cursor(document=2, version=1, position=(0, 0))
    for value in (event, other):
        outbox.states.put(key_of(value), (value, 0.0, False))
    outbox.collapse(1, keep=is_mention)
    taken = outbox.next_state()
    assert taken is not None
    assert taken[0] == other
    assert outbox.next_state() is None
    outbox.begin_snapshot(queued(Snapshot(document=1, version=3, length=0, hash="", text="")))
    taken = outbox.next_state()
    assert taken is not None
    assert taken[0] == event
