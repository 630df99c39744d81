"""What a hub makes of what it stored, by itself and when another hub has to go on with it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from streamctx.core.session.stored import JournalBatch, SessionRecord, StoredSession
from streamctx.engine.base import Damaged, Done, Loaded, StoreError
from streamctx.engine.memory import MemoryEngine
from streamctx.errors import CloseCode
from streamctx.limits import DEFAULT_LIMITS
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Ack,
    Close,
    Cursor,
    DesignOpen,
    DesignTool,
    DocumentAction,
    Edit,
    Ended,
    ErrorMessage,
    Heartbeat,
    Open,
    Part,
    Save,
    Skip,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    Sync,
    Update,
    Welcome,
    Workspace,
)
from tests.hub.peers import ALL, OTHER, Raw, Stage, opened

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

HEARTBEAT = Heartbeat(next=1, received=1, applied=1, durable=1, limit=1025)


class Disk(MemoryEngine):
    """Outlives hubs. While it `is_slow` nothing completes until `finish`; `error` is how writes fail."""

    def __init__(self) -> None:
        super().__init__(durability="full")
        self.is_slow = False
        self.error: StoreError | None = None
        self.damaged: Damaged | None = None
        self.waiting: list[Callable[[], None]] = []

    def finish(self, count: int | None = None) -> None:
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.pop(0)()

    def _later(self, action: Callable[[], None]) -> None:
        if self.is_slow:
            self.waiting.append(action)
        else:
            action()

    @override
    def fence(self, record: SessionRecord, done: Done) -> None:
        error = self.error
        fence = super().fence
        self._later(lambda: fence(record, done) if error is None else done(error))

    @override
    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        error = self.error
        append = super().append
        self._later(lambda: append(session_id, epoch, batch, done) if error is None else done(error))

    @override
    def load(self, session_id: str, done: Callable[[Loaded], None]) -> None:
        load = super().load
        self._later(lambda: load(session_id, done) if self.damaged is None else done(self.damaged))


def edit(base: int, text: str, *, document: int = 1) -> Edit:
    return Edit(document=document, base=base, version=base + 1, changes=(Change(0, 0, 0, 0, text),))


def text_of(stage: Stage, session_id: str, document: str = "1") -> object:
    view = stage.hub.document(ALL, session_id, document)
    return None if view is None else view["text"]


def resumed(disk: Disk, raw: Raw, *, attempt: int = 2, **changes: object) -> Raw:
    """Come back to another hub with the same disk."""
    after = Stage(engine=disk).raw()
    after.hello(attempt=attempt, resume=raw.resume(**changes))
    return after


def welcome_of(raw: Raw) -> Welcome:
    return raw.of(Welcome)[-1]


def test_another_hub_goes_on_in_the_same_epoch_with_the_same_documents() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.give(raw.frame(opened(), 1), raw.frame(edit(1, "x"), 2), raw.frame(Save(document=1, version=2), 3))
    assert (welcome_of(raw).durability, raw.of(Ack)[-1].durable) == ("full", 4)
    after = resumed(disk, raw, next=4)
    welcome = welcome_of(after)
    assert (welcome.verdict, welcome.epoch, welcome.session) == (
        "resumed",
        welcome_of(raw).epoch,
        welcome_of(raw).session,
    )
    assert (welcome.expects, welcome.lease, welcome.restored) == (4, 2, True)
    assert welcome.documents == (DocumentAction(document=1, action="keep", version=2),)
    assert text_of(after.stage, welcome.session) == "xabc"
    after.send(edit(2, "y"), 4)
    assert text_of(after.stage, welcome.session) == "yxabc"
    assert after.of(Ack)[-1].durable == 5


def test_a_text_in_parts_goes_on_with_the_next_part() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(msgspec.structs.replace(opened("abcdef"), text=None, parts=3), 1)
    raw.send(Part(document=1, version=1, index=0, text="ab"), 2)
    after = resumed(disk, raw, next=3)
    after.send(Part(document=1, version=1, index=1, text="cd"), 3)
    again = resumed(disk, after, attempt=3, next=4)
    again.send(Part(document=1, version=1, index=2, text="ef"), 4)
    assert text_of(again.stage, welcome_of(again).session) == "abcdef"


def test_what_is_stale_stays_stale_and_its_text_is_asked_for() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    raw.send(edit(7, "x"), 2)
    assert raw.errors() == ["bad_version"]
    after = resumed(disk, raw, next=3)
    assert [action.action for action in welcome_of(after).documents] == ["snapshot"]


def test_what_was_given_up_is_told_after_a_restart_too_and_its_documents_stay_stale() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.send(edit(1, "x"), 3)
    stage.pass_time(raw, 11.0)
    assert raw.of(Ack)[-1].lost == ((2, 3),)
    after = resumed(disk, raw, next=4)
    assert [action.action for action in welcome_of(after).documents] == ["snapshot"]
    after.send(HEARTBEAT)
    assert after.of(Ack)[-1].lost == ((2, 3),)


def test_a_refused_document_stays_refused_which_is_told_again_and_nothing_of_it_is_stored() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened("password", uri="file:///.env"), 1)
    raw.send(opened(document=2), 2)
    after = resumed(disk, raw, next=3)
    after.send(edit(1, "word"), 3)
    assert [(error.code, error.document) for error in after.of(ErrorMessage)] == [("excluded", 1)]
    assert text_of(after.stage, welcome_of(after).session) is None
    stored: list[Loaded] = []
    disk.load(welcome_of(raw).session, stored.append)
    assert "word" not in repr(stored)
    assert "password" not in repr(stored)
    assert ".env" not in repr(stored)


def test_a_secret_that_has_ended_has_ended_for_another_hub_too() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    old = raw.resume()
    again = raw.stage.raw()
    again.hello(attempt=2, resume=old)
    again.send(HEARTBEAT)
    thief = Stage(engine=disk).raw()
    thief.hello(attempt=3, resume=old)
    assert welcome_of(thief).verdict == "rejected"
    after = thief.stage.raw()
    after.hello(attempt=4, resume=again.resume())
    assert (welcome_of(after).verdict, welcome_of(after).lease) == ("resumed", 3)


def test_a_claim_that_comes_to_nothing_leaves_the_secret_of_the_owner_valid() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    owner = stage.joined()
    disk.is_slow = True
    claimant = stage.raw()
    claimant.hello(attempt=2, resume=owner.resume())
    claimant.handler.closed(stage.now, None)
    disk.is_slow = False
    disk.finish()
    owner.send(opened(), 1)
    again = stage.raw()
    again.hello(attempt=3, resume=owner.resume(next=2))
    assert welcome_of(again).verdict == "resumed"


def test_a_session_whose_claim_cannot_be_stored_is_loaded_when_it_can() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(HEARTBEAT)
    disk.error = StoreError("full", is_fatal=False)
    refused = raw.stage.raw()
    refused.hello(attempt=2, resume=raw.resume())
    assert refused.errors() == ["unavailable"]
    disk.error = None
    again = raw.stage.raw()
    again.hello(attempt=3, resume=raw.resume())
    assert (welcome_of(again).verdict, welcome_of(again).restored) == ("resumed", True)


def test_a_session_comes_back_from_a_snapshot_and_the_batches_after_it() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(""), 1)
    for index in range(600):
        raw.send(edit(1 + index, str(index % 10)), 2 + index)
    text = text_of(raw.stage, welcome_of(raw).session)
    stored: list[Loaded] = []
    disk.load(welcome_of(raw).session, stored.append)
    assert getattr(stored[0], "state", None) is not None
    after = resumed(disk, raw, next=602)
    assert welcome_of(after).expects == 602
    assert text_of(after.stage, welcome_of(after).session) == text


def test_restored_is_told_until_a_frame_confirms_it_and_not_longer() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    after = resumed(disk, raw, next=2)
    stage = after.stage
    second = stage.raw()
    second.hello(attempt=3, resume=raw.resume(next=2))
    assert welcome_of(second).restored
    second.send(HEARTBEAT)
    third = stage.raw()
    third.hello(attempt=4, resume=second.resume(next=2))
    assert (welcome_of(third).verdict, welcome_of(third).restored) == ("resumed", False)


def test_the_numbers_of_the_server_go_on_where_the_client_says_and_it_knows_of_no_subscription() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    stage.joined().send(opened(), 1)
    raw.send(Subscribe(subscription=1, session="*"), 1)
    assert raw.of(Sync)
    last = max(sequence for sequence, _, _ in raw.got)
    after = resumed(disk, raw, next=2, expects=last - 1)
    assert welcome_of(after).next == last - 1
    after.send(Subscribe(subscription=1, session="*"), 2)
    assert [sequence for sequence, _, message in after.got if isinstance(message, Subscribed)] == [last - 1]


def test_presence_is_not_stored_and_its_numbers_may_be_skipped_again() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    for sequence in range(2, 12):
        raw.send(Cursor(document=1, version=1, position=(0, 1)), sequence)
    assert raw.of(Ack)[-1].durable == 12
    after = resumed(disk, raw, next=12)
    assert welcome_of(after).expects == 2
    after.send(Skip(ranges=((2, 12),), reason="superseded"))
    assert after.of(Ack)[-1].durable == 12


def test_a_long_row_of_presence_is_known_of_but_for_the_last_thousand_numbers() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    for sequence in range(2, 9001):
        raw.send(Cursor(document=1, version=1, position=(0, 1)), sequence)
    assert 9000 - welcome_of(resumed(disk, raw, next=9001)).expects <= 1024


def test_attempts_outlive_the_server() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    first = stage.joined()
    second = stage.raw()
    second.hello(attempt=5, resume=first.resume())
    for attempt, resume in ((5, first.resume()), (4, second.resume())):
        late = Stage(engine=disk).raw()
        late.hello(attempt=attempt, resume=resume)
        assert late.errors() == ["superseded"]


@pytest.mark.parametrize("which", [0, 1])
def test_the_secret_of_a_welcome_that_may_not_have_arrived_is_good_as_is_the_one_before(which: int) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    first = stage.joined()
    second = stage.raw()
    second.hello(attempt=2, resume=first.resume())
    assert welcome_of(resumed(disk, (first, second)[which], attempt=3)).verdict == "resumed"


@pytest.mark.parametrize("change", ["secret", "epoch", "next", "principal"])
def test_a_stored_session_is_given_to_nobody_else(change: str) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.give(raw.frame(opened(), 1), raw.frame(Save(document=1, version=1), 2))
    after = Stage(engine=disk).raw()
    wrong: dict[str, object] = {"secret": "s", "epoch": "e", "next": 2}
    changes = {"next": 3, change: wrong[change]} if change in wrong else {"next": 3}
    after.hello("other" if change == "principal" else "all", attempt=2, resume=raw.resume(**changes))
    welcome = welcome_of(after)
    assert welcome.verdict == "rejected"
    assert welcome.session != welcome_of(raw).session


def test_a_session_that_was_closed_is_forgotten() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.handler.closed(stage.now, 1000)
    assert disk.summaries() == []


def test_a_session_that_was_never_confirmed_is_forgotten() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.raw()
    raw.hello()
    raw.handler.closed(stage.now, None)
    assert disk.summaries() == []


def test_a_session_that_was_detached_for_long_leaves_memory_and_comes_back() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.handler.closed(stage.now, None)
    stage.hub.sweep(DEFAULT_LIMITS.detached_session_s)
    assert stage.hub.counters()["sessions"] == 0
    again = stage.raw()
    again.hello(attempt=2, resume=raw.resume(next=2))
    assert (welcome_of(again).verdict, welcome_of(again).restored) == ("resumed", True)


def test_nothing_is_stored_of_an_observer() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined(role="observe")
    raw.send(Subscribe(subscription=1, session="*"), 1)
    assert welcome_of(raw).durability == "none"
    assert disk.summaries() == []


# What takes its time.


def test_welcome_waits_until_the_session_is_stored() -> None:
    disk = Disk()
    disk.is_slow = True
    stage = Stage(engine=disk)
    raw = stage.raw()
    assert raw.hello() is None
    assert raw.hello() is None
    assert len(disk.waiting) == 1
    disk.finish()
    assert raw.timer is not None
    stage.pass_time(raw, raw.timer)
    assert welcome_of(raw).verdict == "new"
    assert len(raw.of(Welcome)) == 1


def test_a_store_that_does_not_answer_is_told_as_one() -> None:
    disk = Disk()
    disk.is_slow = True
    stage = Stage(engine=disk)
    raw = stage.raw()
    raw.hello()
    stage.now = 5.0
    raw.handler.handle_timeout(5.0)
    assert (raw.errors(), raw.closed_with) == (["unavailable"], CloseCode.UNAVAILABLE)
    disk.is_slow = False
    disk.finish()
    assert disk.summaries() == []
    assert stage.hub.counters()["sessions"] == 0


def test_the_owner_goes_on_until_the_claim_of_another_is_stored() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    owner = stage.joined()
    owner.send(opened(), 1)
    disk.is_slow = True
    claimant = stage.raw()
    claimant.hello(attempt=2, resume=owner.resume(next=3))
    owner.send(edit(1, "x"), 2)
    assert owner.closed_with is None
    disk.finish()
    stage.pass_time(claimant, stage.now)
    assert owner.errors() == ["superseded"]
    assert (welcome_of(claimant).verdict, welcome_of(claimant).expects) == ("resumed", 3)


@pytest.mark.parametrize("is_over", [False, True])
def test_the_highest_attempt_has_the_session_whichever_claim_is_stored_first(is_over: bool) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    owner = stage.joined()
    disk.is_slow = True
    claimants = [stage.raw(), stage.raw()]
    for attempt, claimant in enumerate(claimants, 2):
        claimant.hello(attempt=attempt, resume=owner.resume())
    if is_over:
        claimants[0].handler.closed(stage.now, None)
    disk.finish()
    for claimant in claimants:
        stage.pass_time(claimant, stage.now)
    assert claimants[0].errors() == ([] if is_over else ["superseded"])
    assert welcome_of(claimants[1]).verdict == "resumed"


def test_the_old_secret_is_good_while_the_claim_is_being_stored() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    owner = stage.joined()
    disk.is_slow = True
    claimant = stage.raw()
    claimant.hello(attempt=2, resume=owner.resume(next=2))
    # A frame of the present owner does not say that the claimant has its WELCOME.
    owner.send(opened(), 1)
    claimant.handler.closed(stage.now, None)
    disk.is_slow = False
    disk.finish()
    third = stage.raw()
    assert third.hello(attempt=3, resume=owner.resume(next=2)) is not None
    assert welcome_of(third).verdict == "resumed"


def test_two_that_ask_for_a_stored_session_at_once_get_it_one_after_the_other() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    stage = Stage(engine=disk)
    disk.is_slow = True
    both = [stage.raw(), stage.raw()]
    for attempt, each in enumerate(both, 2):
        each.hello(attempt=attempt, resume=raw.resume(next=2))
    assert len(disk.waiting) == 1
    disk.is_slow = False
    disk.finish()
    for each in both:
        stage.pass_time(each, stage.now)
    assert both[0].errors() == ["superseded"]
    assert welcome_of(both[1]).verdict == "resumed"
    assert stage.hub.counters()["sessions"] == 1


# What fails.


def test_a_full_store_is_told_and_what_was_stored_is_what_counts() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    disk.error = StoreError("the disk is full", is_fatal=False, retry_after_s=3.0)
    raw.send(edit(1, "x"), 2)
    assert raw.of(ErrorMessage)[-1].retry_after_ms == 3000
    assert (raw.errors(), raw.closed_with) == (["unavailable"], CloseCode.UNAVAILABLE)
    assert all(ack.durable <= 2 for ack in raw.of(Ack))
    again = stage.raw()
    again.hello(attempt=2, resume=raw.resume(next=3))
    assert again.errors() == ["unavailable"]
    disk.error = None
    third = stage.raw()
    third.hello(attempt=3, resume=raw.resume(next=3))
    assert (welcome_of(third).verdict, welcome_of(third).expects) == ("resumed", 2)
    third.send(edit(1, "x"), 2)
    assert text_of(stage, welcome_of(third).session) == "xabc"


def test_a_store_that_has_failed_for_good_is_told_to_the_process_and_nothing_is_acknowledged() -> None:
    disk = Disk()
    failures: list[StoreError] = []
    stage = Stage(engine=disk, on_failure=failures.append)
    raw = stage.joined()
    disk.error = StoreError("input/output error", is_fatal=True)
    raw.send(opened(), 1)
    assert [failure.is_fatal for failure in failures] == [True]
    assert all(ack.durable == 1 for ack in raw.of(Ack))


def test_a_store_that_fails_at_a_handshake_is_told_to_the_process() -> None:
    disk = Disk()
    failures: list[StoreError] = []
    stage = Stage(engine=disk, on_failure=failures.append)
    disk.error = StoreError("input/output error", is_fatal=True)
    stage.raw().hello()
    assert [failure.is_fatal for failure in failures] == [True]


def test_a_full_store_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raws = [stage.joined() for _ in range(3)]
    disk.error = StoreError("the disk is full", is_fatal=False)
    for raw in raws:
        raw.send(opened(), 1)
        assert raw.closed_with == CloseCode.UNAVAILABLE
    for _ in range(3):
        assert stage.raw().hello() is None
    disk.error = None
    for _ in range(3):
        assert stage.raw().hello() is not None
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2
    assert "the disk is full" in told[0]
    assert "again" in told[1]


def test_a_store_that_stays_full_is_logged_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    disk.error = StoreError("the disk is full", is_fatal=False)
    for stage.now in (0.0, 1.0, 59.9, 60.0, 61.0, 120.0):
        assert stage.raw().hello() is None
    assert sum(record.levelno >= logging.WARNING for record in caplog.records) == 3


@pytest.mark.parametrize("is_owner", [True, False])
def test_a_damaged_session_goes_on_in_a_new_epoch_for_its_owner_alone(is_owner: bool) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    before = welcome_of(raw)
    damaged(disk, raw)
    after = resumed(disk, raw, next=2, secret=before.secret if is_owner else "s")
    welcome = welcome_of(after)
    assert (welcome.expects, welcome.epoch == before.epoch) == (1, False)
    if is_owner:
        assert (welcome.verdict, welcome.session) == ("resynced", before.session)
        assert welcome.lease > before.lease
    else:
        assert (welcome.verdict, welcome.session == before.session) == ("rejected", False)


def damaged(disk: Disk, raw: Raw) -> None:
    loaded: list[Loaded] = []
    disk.load(welcome_of(raw).session, loaded.append)
    disk.damaged = Damaged("a bit is flipped", getattr(loaded[0], "record", None))


def test_a_damaged_session_begins_anew_for_no_lower_attempt() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    damaged(disk, raw)
    after = resumed(disk, raw, next=2, attempt=1)
    assert after.errors() == ["superseded"]


def test_of_two_that_find_a_session_damaged_one_has_it() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    damaged(disk, raw)
    stage = Stage(engine=disk)
    disk.is_slow = True
    both = [stage.raw(), stage.raw()]
    for attempt, each in enumerate(both, start=2):
        each.hello(attempt=attempt, resume=raw.resume(next=2))
    while disk.waiting:
        disk.finish()
        for each in both:
            stage.pass_time(each, 0.0)
    assert [welcome_of(each).verdict for each in both] == ["resynced", "rejected"]
    assert welcome_of(both[0]).session != welcome_of(both[1]).session


def test_the_events_of_a_closed_alias_and_of_another_document_under_it_do_not_mix() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    raw.send(Close(document=1), 2)
    raw.send(opened("other", uri="file:///b.py"), 3)
    after = resumed(disk, raw, next=4)
    assert text_of(after.stage, welcome_of(after).session) == "other"
    assert not after.of(SnapshotRequest)


def test_what_is_excluded_by_now_is_not_shown_any_more(tmp_path: Path) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined(workspace=Workspace(folders=(tmp_path.as_uri(),)))
    raw.send(opened(uri=(tmp_path / "plan.md").as_uri()), 1)
    (tmp_path / ".streamctxignore").write_text("plan.md\n")
    after = resumed(disk, raw, next=2)
    assert text_of(after.stage, welcome_of(after).session) is None
    after.send(edit(1, "x"), 2)
    assert [(error.code, error.document) for error in after.of(ErrorMessage)] == [("excluded", 1)]


def test_observers_of_every_session_are_shown_one_that_comes_back() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    stage = Stage(engine=disk)
    observer = stage.joined(role="observe")
    observer.send(Subscribe(subscription=1, session="*"), 1)
    assert observer.of(Sync) == []
    stage.raw().hello(attempt=2, resume=raw.resume(next=2))
    assert [sync.session for sync in observer.of(Sync)] == [welcome_of(raw).session]


def test_a_session_that_is_being_claimed_does_not_leave_memory() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.handler.closed(stage.now, None)
    disk.is_slow = True
    claimant = stage.raw()
    stage.now = DEFAULT_LIMITS.detached_session_s
    claimant.hello(attempt=2, resume=raw.resume())
    stage.hub.sweep(stage.now)
    disk.finish()
    stage.pass_time(claimant, stage.now)
    assert welcome_of(claimant).verdict == "resumed"


def test_what_cannot_be_stored_when_a_connection_breaks_leaves_memory_too() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.handler.receive(raw.frame(edit(1, "x"), 2), stage.now)
    disk.error = StoreError("the disk is full", is_fatal=False)
    raw.handler.closed(stage.now, None)
    assert stage.hub.counters()["sessions"] == 0
    disk.error = None
    again = stage.raw()
    again.hello(attempt=2, resume=raw.resume(next=3))
    assert (welcome_of(again).verdict, welcome_of(again).expects) == ("resumed", 2)


def test_what_another_asks_for_is_not_loaded_and_what_its_owner_asks_for_is() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    session_id = welcome_of(raw).session
    after = Stage(engine=disk)
    found: list[object] = []
    after.hub.recall(OTHER, session_id, 0.0, found.append)
    assert (found, len(after.hub.registry)) == ([None], 0)
    assert after.hub.session(OTHER, session_id) is None
    # Both at once, the other first.
    disk.is_slow = True
    after.hub.recall(OTHER, session_id, 0.0, found.append)
    assert not after.hub.is_in_use(session_id)
    after.hub.recall(ALL, session_id, 0.0, found.append)
    disk.finish()
    assert found == [None, None, None]
    assert after.hub.session(OTHER, session_id) is None
    assert text_of(after, session_id) == "abc"
    assert not after.hub.is_in_use(session_id)


def test_what_is_wrong_with_a_session_is_told_to_its_owner_alone() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    session_id = welcome_of(raw).session
    loaded: list[Loaded] = []
    disk.load(session_id, loaded.append)
    assert isinstance(loaded[0], StoredSession)
    torn = Damaged("torn", loaded[0].record)
    for damaged in (torn, Damaged("torn", None)):
        disk.damaged = damaged
        after = Stage(engine=disk)
        found: list[object] = []
        for principal in (OTHER, ALL):
            after.hub.recall(principal, session_id, 0.0, found.append)
        assert found == [None, damaged]


def test_a_session_that_nobody_has_is_deleted_also_from_memory() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    session_id = welcome_of(raw).session
    hub = raw.stage.hub
    assert hub.is_in_use(session_id)
    raw.handler.closed(raw.stage.now, None)
    observer = raw.stage.joined(role="observe")
    observer.send(Subscribe(subscription=1, session=session_id), 1)
    assert not hub.is_in_use(session_id)
    found: list[object] = []
    hub.forget(session_id, found.append)
    assert found == [None]
    assert hub.session(ALL, session_id) is None
    assert [summary.session_id for summary in hub.stored(ALL)] == []
    assert [ended.reason for ended in observer.of(Ended)] == ["closed"]
    assert resumed(disk, raw, next=2).of(Welcome)[-1].verdict == "rejected"


@pytest.mark.parametrize("is_fatal", [True, False])
def test_a_store_that_fails_while_it_is_looked_into_ends_the_server_only_for_good(
    monkeypatch: pytest.MonkeyPatch, is_fatal: bool
) -> None:
    disk, failures, told = Disk(), list[StoreError](), list[object]()
    raw = Stage(engine=disk, on_failure=failures.append).joined()
    raw.send(opened(), 1)
    session_id = welcome_of(raw).session
    hub = raw.stage.hub
    error = StoreError("the disk is gone", is_fatal=is_fatal)
    monkeypatch.setattr(disk, "tail", lambda _, since, done: done(error))
    monkeypatch.setattr(disk, "forget", lambda _, done: done(error))
    hub.past(ALL, session_id, told.append)
    raw.handler.closed(raw.stage.now, None)
    hub.forget(session_id, told.append)
    assert told == [error, error]
    assert failures == [error, error] * is_fatal


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_session_that_is_only_stored_is_shown_to_who_asks_for_it_by_its_id(is_slow: bool) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    session_id = welcome_of(raw).session
    stage = Stage(engine=disk)
    observer = stage.joined(role="observe")
    disk.is_slow = is_slow
    observer.send(Subscribe(subscription=1, session=session_id), 1)
    disk.finish()
    stage.pass_time(observer, stage.now)
    assert [subscribed.sessions for subscribed in observer.of(Subscribed)] == [(session_id,)]
    assert [sync.session for sync in observer.of(Sync)] == [session_id]
    assert [text for update in observer.of(Update) for text in texts_of(update)] == ["abc"]


def texts_of(update: Update) -> list[str | None]:
    return [event.text for event in update.events if isinstance(event, Open)]


def test_a_session_that_leaves_memory_and_comes_back_is_shown_again_to_who_asked_for_it_by_its_id() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    observer = stage.joined(role="observe")
    observer.send(Subscribe(subscription=1, session=welcome_of(raw).session), 1)
    raw.handler.closed(stage.now, None)
    stage.hub.sweep(DEFAULT_LIMITS.detached_session_s)
    assert len(observer.of(Ended)) == 1
    stage.raw().hello(attempt=2, resume=raw.resume(next=2))
    assert len(observer.of(Sync)) == 2


@pytest.mark.parametrize("token", ["all", "other"])
def test_a_stored_session_that_is_not_the_observers_or_is_damaged_is_not_found(token: str) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    disk.damaged = Damaged("a bit is flipped", None)
    stage = Stage(engine=disk)
    observer = stage.joined(token, role="observe")
    observer.send(Subscribe(subscription=1, session=welcome_of(raw).session), 1)
    assert [(error.code, error.subscription) for error in observer.of(ErrorMessage)] == [("not_found", 1)]
    assert len(observer.of(Subscribed)) == (token == "all")


def test_nothing_is_read_for_somebody_else() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    disk.is_slow = True
    stage = Stage(engine=disk)
    stage.raw().hello("other", attempt=2, resume=raw.resume(next=2))
    # It waits for the record of its own new session, and for nothing else.
    disk.finish(1)
    assert not disk.waiting
    assert len(disk.summaries()) == 2


def test_what_is_behind_numbers_that_are_being_noted_is_not_durable_before_it_is_stored() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    disk.is_slow = True
    for sequence in range(2, 1030):
        raw.send(Cursor(document=1, version=1, position=(0, 1)), sequence)
    assert len(disk.waiting) == 1
    raw.send(edit(1, "x"), 1030)
    stage.pass_time(raw, stage.now + DEFAULT_LIMITS.ack_delay_s)
    assert (raw.of(Ack)[-1].received, raw.of(Ack)[-1].durable <= 1030) == (1031, True)
    durables = [ack.durable for ack in raw.of(Ack)]
    assert durables == sorted(durables)
    disk.finish()
    stage.pass_time(raw, stage.now)
    assert raw.of(Ack)[-1].durable == 1031


def test_a_session_in_which_we_fail_says_nothing_more_and_goes_back_to_what_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened(), 1)
    held = stage.hub.registry.get(welcome_of(raw).session)
    assert held is not None
    with monkeypatch.context() as patched:
        patched.setattr(type(held.session.context), "apply", lambda *_, **__: 1 / 0)
        raw.send(edit(1, "x"), 2)
    assert (raw.errors(), raw.closed_with) == (["internal"], CloseCode.INTERNAL)
    assert all(ack.received <= 2 for ack in raw.of(Ack))
    again = stage.raw()
    again.hello(attempt=2, resume=raw.resume(next=3))
    assert (welcome_of(again).verdict, welcome_of(again).expects) == ("resumed", 2)
    with monkeypatch.context() as patched:
        patched.setattr(type(held.session.context), "apply", lambda *_, **__: 1 / 0)
        again.send(edit(1, "x"), 2)
    # It would fail for ever.
    third = stage.raw()
    third.hello(attempt=3, resume=again.resume(next=3))
    assert welcome_of(third).verdict == "rejected"
    assert len(disk.summaries()) == 1


def test_what_another_workspace_excludes_is_refused_be_it_open_or_not(tmp_path: Path) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    secret = (tmp_path / "plan.md").as_uri()
    raw.send(opened(uri=secret), 1)
    (tmp_path / ".streamctxignore").write_text("plan.md\n")
    after = stage.raw()
    workspace = Workspace(folders=(tmp_path.as_uri(),))
    after.hello(attempt=2, resume=raw.resume(next=2), workspace=workspace)
    after.send(HEARTBEAT)
    assert [(error.code, error.document) for error in after.of(ErrorMessage)] == [("excluded", 1)]
    assert text_of(stage, welcome_of(after).session) is None
    after.send(opened(document=2, uri=secret), 2)
    assert after.errors() == ["excluded"] * 2
    # Nor does a third workspace show it.
    third = stage.raw()
    third.hello(attempt=3, resume=after.resume(next=3), workspace=Workspace(folders=()))
    third.send(opened(document=3, uri=secret), 3)
    assert third.of(ErrorMessage)[-1].document == 3
    assert third.errors()[-1] == "excluded"


def test_limits_that_were_lowered_leave_stored_sessions_as_they_were() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    lower = replace(
        DEFAULT_LIMITS,
        window_events_max=512,
        reorder_events_max=512,
        reorder_span_max=512,
        digest_history=512,
        window_bytes_max=1024,
        reorder_bytes_max=1024,
        ring_bytes_max=1024,
        frame_bytes_max=100_000,
        websocket_message_bytes_max=100_000,
    )
    after = Stage(engine=disk, limits=lower).raw()
    after.hello(attempt=2, resume=raw.resume(next=2))
    assert (welcome_of(after).verdict, welcome_of(after).limits) == ("resumed", welcome_of(raw).limits)


def test_a_claim_of_a_session_that_has_gone_back_to_the_store_is_to_come_again() -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    owner = stage.joined()
    owner.send(opened(), 1)
    disk.is_slow = True
    claimant = stage.raw()
    claimant.hello(attempt=2, resume=owner.resume(next=3))
    disk.error = StoreError("the disk is full", is_fatal=False)
    owner.send(edit(1, "x"), 2)
    disk.finish()
    disk.error = None
    stage.pass_time(claimant, stage.now)
    assert claimant.errors() == ["unavailable"]


def test_a_stored_session_that_nobody_has_makes_room_for_another() -> None:
    disk = Disk()
    stage = Stage(engine=disk, limits=replace(DEFAULT_LIMITS, sessions_max=2))
    first, second = stage.joined(), stage.joined()
    assert stage.raw().hello() is None
    first.send(opened(), 1)
    first.handler.closed(stage.now, None)
    third = stage.joined()
    assert welcome_of(third).verdict == "new"
    second.handler.closed(stage.now, None)
    again = stage.raw()
    again.hello(attempt=2, resume=first.resume(next=2))
    assert (welcome_of(again).verdict, welcome_of(again).restored) == ("resumed", True)


def test_texts_that_nobody_works_on_leave_memory_when_it_is_nearly_full() -> None:
    disk = Disk()
    stage = Stage(engine=disk, limits=replace(DEFAULT_LIMITS, documents_bytes_max=1000))
    raw = stage.joined()
    raw.send(opened("x" * 900), 1)
    stage.hub.sweep(stage.now)
    assert stage.hub.counters()["sessions"] == 1
    raw.handler.closed(stage.now, None)
    stage.hub.sweep(stage.now)
    assert stage.hub.counters()["sessions"] == 0
    again = stage.raw()
    again.hello(attempt=2, resume=raw.resume(next=2))
    assert welcome_of(again).verdict == "resumed"


def test_a_damaged_session_that_is_looked_at_while_it_begins_anew_is_one() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    loaded: list[Loaded] = []
    disk.load(welcome_of(raw).session, loaded.append)
    disk.damaged = Damaged("a bit is flipped", getattr(loaded[0], "record", None))
    stage = Stage(engine=disk)
    again = stage.raw()
    disk.is_slow = True
    again.hello(attempt=2, resume=raw.resume(next=2))
    disk.finish()
    disk.damaged = None
    while again.timer is not None and not disk.waiting:
        stage.pass_time(again, stage.now)
    disk.finish()
    stage.hub.recall(ALL, welcome_of(raw).session, stage.now, lambda wrong: None)
    disk.finish()
    stage.pass_time(again, stage.now)
    assert welcome_of(again).verdict == "resynced"
    again.send(opened("anew"), 1)
    assert text_of(stage, welcome_of(again).session) == "anew"


def test_what_is_excluded_by_now_is_not_stored_any_more(tmp_path: Path) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined(workspace=Workspace(folders=(tmp_path.as_uri(),)))
    raw.send(opened("the plan", uri=(tmp_path / "plan.md").as_uri()), 1)
    raw.send(opened("kept", document=2), 2)
    (tmp_path / ".streamctxignore").write_text("plan.md\n")
    after = resumed(disk, raw, next=3)
    assert_gone(disk, welcome_of(after).session)
    again = resumed(disk, after, attempt=3, next=3)
    assert text_of(again.stage, welcome_of(again).session, "2") == "kept"
    again.send(edit(1, "x"), 3)
    assert again.of(SnapshotRequest) == []


def test_a_design_whose_name_is_excluded_by_now_is_not_stored_any_more(tmp_path: Path) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined(workspace=Workspace(folders=(tmp_path.as_uri(),)))
    design = DesignOpen(
        document=1,
        uri="figma:///x",
        tool=DesignTool(name="figma"),
        file_name=str(tmp_path / "plan.fig"),
        pages=(),
    )
    raw.send(design, 1)
    (tmp_path / ".streamctxignore").write_text("plan.fig\n")
    assert_gone(disk, welcome_of(resumed(disk, raw, next=2)).session)


def test_what_another_workspace_excludes_is_not_stored_any_more(tmp_path: Path) -> None:
    disk = Disk()
    stage = Stage(engine=disk)
    raw = stage.joined()
    raw.send(opened("the plan", uri=(tmp_path / "plan.md").as_uri()), 1)
    (tmp_path / ".streamctxignore").write_text("plan.md\n")
    after = stage.raw()
    after.hello(attempt=2, resume=raw.resume(next=2), workspace=Workspace(folders=(tmp_path.as_uri(),)))
    assert_gone(disk, welcome_of(after).session)


def assert_gone(disk: Disk, session_id: str) -> None:
    found: list[object] = []
    disk.load(session_id, found.append)
    disk.tail(session_id, 0.0, found.append)
    assert "plan" not in repr([getattr(kept, name) for kept in found for name in ("state", "batches")])


def test_what_could_not_be_deleted_is_deleted_with_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined(workspace=Workspace(folders=(tmp_path.as_uri(),)))
    raw.send(opened("the plan", uri=(tmp_path / "plan.md").as_uri()), 1)
    (tmp_path / ".streamctxignore").write_text("plan.md\n")
    full = StoreError("the disk is full", is_fatal=False)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "snapshot", lambda *arguments, **_: arguments[3](full))
        after = resumed(disk, raw, next=2)
    after.send(opened("kept", document=2), 2)
    assert_gone(disk, welcome_of(after).session)


def test_nothing_is_acknowledged_in_the_midst_of_a_read_that_asks_for_a_stored_session() -> None:
    disk = Disk()
    raw = Stage(engine=disk).joined()
    raw.send(opened(), 1)
    stage = Stage(engine=disk)
    both = stage.joined()
    both.send(opened(document=1), 2)
    both.send(edit(1, "x"), 3)
    # What closes the gap lets all of it through; the acknowledgement follows what is stored of it.
    disk.is_slow = True
    both.send(Subscribe(subscription=1, session=welcome_of(raw).session), 1)
    assert all(ack.durable == 1 for ack in both.of(Ack))
    disk.is_slow = False
    disk.finish()
    stage.pass_time(both, stage.now)
    assert both.of(Ack)[-1].durable == 4
    assert [sync.session for sync in both.of(Sync)] == [welcome_of(raw).session]
