from __future__ import annotations

import sys
from dataclasses import replace

import msgspec
import pytest

from streamctx.core.session.stored import JournalBatch, JournalItem, Refused
from streamctx.engine.base import Done
from streamctx.engine.memory import MemoryEngine
from streamctx.errors import CloseCode
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import Encoding
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Ack,
    Attachment,
    Close,
    Cursor,
    Edit,
    Ended,
    ErrorMessage,
    GoAway,
    Heartbeat,
    Save,
    Skip,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    Sync,
    Synced,
    Unsubscribe,
    Update,
    Welcome,
    Workspace,
)
from tests.hub.peers import ALL, OTHER, Stage, opened

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

HEARTBEAT = Heartbeat(next=1, received=1, applied=1, durable=1, limit=1025)


def welcome_of(welcome: Welcome | None) -> Welcome:
    assert welcome is not None
    return welcome


def test_a_repeated_hello_is_answered_by_the_same_bytes_and_changes_nothing() -> None:
    raw = Stage().raw()
    raw.hello()
    raw.hello()
    assert raw.frames[0] == raw.frames[1]
    raw.send(opened(), 1)
    raw.hello()
    assert raw.frames[-1] == raw.frames[0]
    assert raw.stage.hub.counters()["sessions"] == 1


def test_frames_before_hello_are_dropped_and_a_bad_body_with_a_number_is_one_of_them() -> None:
    raw = Stage().raw()
    raw.send(opened(), 1)
    raw.give(raw.frame(opened(), 1)[:-3])
    assert raw.closed_with is None
    welcome = welcome_of(raw.hello())
    assert (welcome.verdict, welcome.expects, welcome.next) == ("new", 1, 1)


@pytest.mark.parametrize(
    ("token", "role", "code", "close"),
    [
        (None, "both", "unauthorized", CloseCode.UNAUTHORIZED),
        ("wrong", "both", "unauthorized", CloseCode.UNAUTHORIZED),
        ("reader", "produce", "forbidden", CloseCode.ROLE),
        ("reader", "both", "forbidden", CloseCode.ROLE),
        ("reader", "observe", None, None),
        ("all", "both", None, None),
    ],
)
def test_token_and_role_decide_who_may_come_in(
    token: str | None, role: str, code: str | None, close: CloseCode | None
) -> None:
    raw = Stage().raw()
    raw.hello(token, role=role)
    assert (raw.errors(), raw.closed_with) == ([code] if code else [], close)


def test_a_hello_that_does_not_come_in_time_is_told_so() -> None:
    raw = Stage().raw()
    assert raw.timer == 5.0
    raw.stage.now = 5.0
    raw.handler.handle_timeout(5.0)
    assert raw.errors() == ["hello_timeout"]
    assert raw.closed_with == CloseCode.HELLO_TIMEOUT


def test_sixty_four_kibibytes_before_welcome_are_taken_and_one_byte_more_is_not() -> None:
    raw = Stage().raw()
    raw.give(b"x" * 64 * 1024)
    assert raw.errors() == []
    raw.give(b"x")
    assert (raw.errors(), raw.closed_with) == (["too_large"], CloseCode.BAD_HELLO)


def test_an_observer_sends_no_events_and_a_producer_does_not_subscribe() -> None:
    stage = Stage()
    observer, producer = stage.joined(role="observe"), stage.joined(role="produce")
    observer.send(opened(), 1)
    producer.send(Subscribe(subscription=1, session="*"), 1)
    assert observer.errors() == producer.errors() == ["forbidden"]
    assert observer.closed_with is producer.closed_with is None


def test_a_resume_with_a_higher_attempt_takes_over_and_the_loser_has_no_effect() -> None:
    stage = Stage()
    loser = stage.joined()
    loser.send(opened(), 1)
    winner = stage.raw()
    welcome = welcome_of(winner.hello(attempt=2, resume=loser.resume(next=2)))
    assert (welcome.verdict, welcome.lease, welcome.expects) == ("resumed", 2, 2)
    assert (loser.errors(), loser.closed_with) == (["superseded"], CloseCode.SUPERSEDED)
    loser.send(Close(document=1), 2)
    loser.handler.handle_timeout(100.0)
    loser.handler.closed(stage.now, 1000)
    assert stage.hub.document(ALL, welcome.session, "1") is not None
    winner.send(Save(document=1, version=1), 2)
    assert winner.of(Ack)[-1].applied == 3


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_late_hello_of_an_older_attempt_is_told_that_it_is_superseded(attempt: int) -> None:
    stage = Stage()
    first = stage.joined()
    second = stage.raw()
    second.hello(attempt=2, resume=first.resume())
    second.send(HEARTBEAT)
    late = stage.raw()
    late.hello(attempt=attempt, resume=first.resume())
    assert (late.errors(), late.closed_with) == (["superseded"], CloseCode.SUPERSEDED)
    assert second.closed_with is None


def test_a_secret_that_was_replaced_is_not_accepted_again() -> None:
    stage = Stage()
    first = stage.joined()
    second = stage.raw()
    second.hello(attempt=2, resume=first.resume())
    second.send(HEARTBEAT)
    thief = stage.raw()
    assert welcome_of(thief.hello(attempt=3, resume=first.resume())).verdict == "rejected"
    assert second.closed_with is None
    owner = stage.raw()
    assert welcome_of(owner.hello(attempt=4, resume=second.resume())).verdict == "resumed"


def test_welcomes_that_get_lost_do_not_lock_the_client_out() -> None:
    stage = Stage()
    first = stage.joined()
    for attempt in range(2, 6):
        lost = stage.raw()
        assert welcome_of(lost.hello(attempt=attempt, resume=first.resume())).verdict == "resumed"
        lost.handler.closed(stage.now, None)


def test_each_welcome_has_another_secret() -> None:
    stage = Stage()
    first = stage.joined()
    second = stage.raw()
    second.hello(attempt=2, resume=first.resume())
    assert first.resume().secret != second.resume().secret


@pytest.mark.parametrize(
    "changes",
    [
        {"session": "unknown"},
        {"secret": "wrong"},
        {"epoch": "other"},
        {"expects": 9},
        {"next": 1},
        {"next": 3},
        {"lost": ((3, 9),)},
    ],
)
def test_a_resume_that_does_not_fit_is_answered_by_a_new_session_and_harms_none(
    changes: dict[str, object],
) -> None:
    stage = Stage()
    first = stage.joined()
    first.send(opened(), 1)
    first.send(Cursor(document=1, version=1, position=(0, 0)), 3)
    second = stage.raw()
    welcome = welcome_of(second.hello(attempt=2, resume=first.resume(**{"next": 4, **changes})))
    assert (welcome.verdict, welcome.expects, welcome.next, welcome.documents) == ("rejected", 1, 1, ())
    assert welcome.session != first.of(Welcome)[0].session
    assert first.closed_with is None


def test_another_principal_and_another_encoding_get_the_answer_of_an_unknown_session() -> None:
    stage = Stage()
    first = stage.joined()
    stranger, other = stage.raw(), stage.raw(encoding=Encoding.JSON)
    answers = [
        welcome_of(stranger.hello("other", attempt=2, resume=first.resume())),
        welcome_of(other.hello(attempt=2, resume=first.resume())),
        welcome_of(stage.raw().hello(attempt=2, resume=first.resume(session="unknown"))),
    ]
    assert {(answer.verdict, answer.reason) for answer in answers} == {("rejected", answers[0].reason)}
    assert first.closed_with is None


def test_a_session_without_events_is_resumed_and_again() -> None:
    stage = Stage()
    last = stage.joined()
    for attempt in range(2, 5):
        last.handler.closed(stage.now, None)
        following = stage.raw()
        welcome = welcome_of(following.hello(attempt=attempt, resume=last.resume()))
        assert (welcome.verdict, welcome.lost, welcome.documents) == ("resumed", (), ())
        following.send(HEARTBEAT)
        last = following


def test_a_session_whose_welcome_was_never_confirmed_is_forgotten() -> None:
    stage = Stage()
    raw = stage.raw()
    raw.hello()
    raw.hello()
    raw.handler.closed(stage.now, None)
    assert stage.hub.counters()["sessions"] == 0


@pytest.mark.parametrize(
    ("code", "sessions"),
    [(None, 1), (1001, 1), (1006, 1), (3000, 1), (4102, 1), (1000, 0), (4009, 0), (4010, 1)],
)
def test_how_a_connection_ends_decides_whether_the_session_stays(code: int | None, sessions: int) -> None:
    stage = Stage()
    stage.joined().handler.closed(stage.now, code)
    assert stage.hub.counters()["sessions"] == sessions


def test_a_conflict_ends_the_session() -> None:
    stage = Stage()
    raw = stage.joined()
    raw.send(opened("a"), 1)
    raw.send(opened("b"), 1)
    assert (raw.errors(), raw.closed_with) == (["conflict"], CloseCode.CONFLICT)
    assert stage.hub.counters()["sessions"] == 0


def test_a_detached_session_expires_after_fifteen_minutes_and_not_before() -> None:
    stage = Stage()
    stage.joined().handler.closed(10.0, None)
    stage.hub.sweep(909.9)
    assert stage.hub.counters()["sessions"] == 1
    stage.hub.sweep(910.0)
    assert stage.hub.counters()["sessions"] == 0


def test_one_session_more_than_allowed_is_refused() -> None:
    stage = Stage(limits=replace(DEFAULT_LIMITS, sessions_max=1))
    stage.joined()
    raw = stage.raw()
    raw.hello()
    assert (raw.errors(), raw.closed_with) == (["limit"], CloseCode.LIMIT)


def test_one_subscription_more_than_allowed_is_refused_and_a_replaced_one_counts_once() -> None:
    stage = Stage(limits=replace(DEFAULT_LIMITS, subscriptions_per_session_max=2))
    raw = stage.joined()
    for sequence, subscription in enumerate([1, 2, 2, 3], 1):
        raw.send(Subscribe(subscription=subscription, session="*"), sequence)
    (error,) = raw.of(ErrorMessage)
    assert (error.code, error.subscription, error.reference) == ("limit", 3, 4)


def test_a_session_of_another_principal_looks_like_none() -> None:
    stage = Stage()
    mine = stage.joined()
    session = mine.of(Welcome)[0].session
    observer = stage.joined("other")
    observer.send(Subscribe(subscription=1, session=session), 1)
    observer.send(Subscribe(subscription=1, session="nothing"), 2)
    mine_, unknown = observer.of(ErrorMessage)
    assert mine_.code == "not_found"
    assert mine_.message == unknown.message
    assert stage.hub.session(OTHER, session) is None
    assert stage.hub.sessions(OTHER)[0]["session"] != session
    assert stage.hub.document(OTHER, session, "1") is None


def test_an_observer_is_shown_the_state_then_every_event_then_the_end() -> None:
    stage = Stage()
    producer, observer = stage.joined(role="produce"), stage.joined(role="observe")
    producer.send(opened(), 1)
    observer.send(Subscribe(subscription=5, session="*"), 1)
    assert [type(m) for m in observer.of(Subscribed) + observer.of(Sync) + observer.of(Synced)] == [
        Subscribed,
        Sync,
        Synced,
    ]
    producer.send(Save(document=1, version=1), 2)
    producer.handler.closed(stage.now, 1000)
    events = [event for update in observer.of(Update) for event in update.events]
    assert events[0] == Attachment(connected=True)
    assert [type(event) for event in events[1:]] == [type(opened()), Save]
    assert observer.of(Ended) == [Ended(session=producer.of(Welcome)[0].session, reason="closed")]
    assert {stream for _, stream, message in observer.got if isinstance(message, Update | Sync | Ended)} == {
        5
    }


def test_a_session_that_comes_later_is_shown_and_the_own_one_is_not() -> None:
    stage = Stage()
    observer = stage.joined()
    observer.send(Subscribe(subscription=1, session="*"), 1)
    assert observer.of(Sync) == []
    stage.joined()
    assert len(observer.of(Sync)) == 1


def test_nothing_is_shown_after_unsubscribe() -> None:
    stage = Stage()
    producer, observer = stage.joined(), stage.joined(role="observe")
    observer.send(Subscribe(subscription=1, session="*"), 1)
    observer.send(Unsubscribe(subscription=1), 2)
    before = len(observer.of(Update))
    producer.send(opened(), 1)
    assert len(observer.of(Update)) == before


def test_an_interval_holds_updates_back_and_sends_the_last_value_when_it_ends() -> None:
    stage = Stage()
    producer, observer = stage.joined(), stage.joined(role="observe")
    producer.send(opened("abcdef"), 1)
    observer.send(Subscribe(subscription=1, session="*", min_interval_ms=100), 1)
    for character in range(5):
        producer.send(Cursor(document=1, version=1, position=(0, character)), 2 + character)

    def cursors() -> list[int]:
        return [e.position[1] for u in observer.of(Update) for e in u.events if isinstance(e, Cursor)]

    assert cursors() == [0]
    assert observer.timer is not None
    assert observer.timer <= 0.1 + 1e-9
    stage.now = 0.1
    observer.handler.handle_timeout(0.1)
    assert cursors() == [0, 4]


def test_an_evicted_skip_without_documents_leaves_none_to_be_trusted() -> None:
    stage = Stage()
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.send(Skip(ranges=((2, 3),), reason="evicted"))
    assert [request.document for request in raw.of(SnapshotRequest)] == [1]


class SlowEngine(MemoryEngine):
    """Makes no batch safe until it is told to."""

    def __init__(self) -> None:
        super().__init__(durability="full")
        self.batches: list[JournalBatch] = []
        self.waiting: list[Done] = []

    @override
    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        self.batches.append(batch)
        self.waiting.append(done)

    def items(self) -> list[JournalItem]:
        return [item for batch in self.batches for _, item in batch.entries]


def test_durable_waits_for_the_journal_and_is_told_when_it_is_done() -> None:
    engine = SlowEngine()
    stage = Stage(engine=engine)
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.send(Save(document=1, version=1), 2)
    assert raw.of(Ack)[-1].applied == 1
    stage.pass_time(raw, stage.now + DEFAULT_LIMITS.ack_delay_s)
    assert (raw.of(Ack)[-1].applied, raw.of(Ack)[-1].durable) == (3, 1)
    for durable in (2, 3):
        engine.waiting.pop(0)(None)
        assert raw.timer is not None
        assert raw.timer <= stage.now
        raw.handler.handle_timeout(stage.now)
        assert raw.of(Ack)[-1].durable == durable


def test_what_a_failing_connection_has_applied_is_journalled() -> None:
    engine = SlowEngine()
    raw = Stage(engine=engine).joined()
    raw.give(raw.frame(opened(), 1), raw.frame(Save(document=1, version=1)))
    assert raw.closed_with == CloseCode.BAD_FRAME
    assert [batch.stop for batch in engine.batches] == [2]
    assert all(ack.durable == 1 for ack in raw.of(Ack))


def test_nothing_of_an_excluded_document_reaches_the_journal() -> None:
    engine = SlowEngine()
    raw = Stage(engine=engine).joined()
    raw.send(opened("password", uri="file:///.env"), 1)
    raw.send(Edit(document=1, base=1, version=2, changes=(Change(0, 0, 0, 0, "x"),)), 2)
    assert raw.errors() == ["excluded"]
    assert engine.items() == [Refused(1, "excluded"), None]
    # A client forgets what is durable; a server that has forgotten the number would ask for it.
    assert [batch.stop for batch in engine.batches] == [2, 3]
    assert raw.of(Ack)[-1].durable == 1


def test_nothing_of_a_document_whose_open_was_lost_reaches_the_journal() -> None:
    engine = SlowEngine()
    raw = Stage(engine=engine).joined()
    raw.send(Edit(document=1, base=1, version=2, changes=(Change(0, 0, 0, 0, "x"),)), 1)
    assert raw.errors() == ["unknown_document"]
    assert engine.items() == [None]
    assert raw.of(Ack)[-1].durable == 1


def test_too_many_unread_answers_end_the_connection_and_lose_no_event() -> None:
    stage = Stage(limits=replace(DEFAULT_LIMITS, window_events_max=1024))
    raw = stage.joined()
    raw.is_writable = False
    for sequence in range(1, 1026):
        raw.give(raw.frame(Close(document=9), sequence))
    assert raw.closed_with == CloseCode.SLOW
    welcome = welcome_of(stage.raw().hello(attempt=2, resume=raw.resume(next=1026)))
    assert (welcome.verdict, welcome.expects) == ("resumed", 1025)


def test_views_name_sessions_and_documents_by_alias_and_uri() -> None:
    stage = Stage()
    raw = stage.joined(workspace=Workspace(folders=("file:///work",)))
    raw.send(opened("abc"), 1)
    session = raw.of(Welcome)[0].session
    (view,) = stage.hub.sessions(ALL)
    assert (view["session"], view["connected"]) == (session, True)
    for name in ("1", "file:///a.py"):
        document = stage.hub.document(ALL, session, name)
        assert document is not None
        assert (document["text"], document["version"], document["stale"]) == ("abc", 1, False)
    assert stage.hub.document(ALL, session, "2") is None
    assert stage.hub.document(ALL, "unknown", "1") is None
    assert "text" not in view["documents"][0]  # type: ignore[index]


def test_metrics_and_views_say_what_became_of_events_and_how_many_wait() -> None:
    stage = Stage()
    raw = stage.joined()
    raw.send(opened("abc"), 1)
    raw.send(Cursor(document=1, version=7, position=(0, 0)), 2)
    (view,) = stage.hub.sessions(ALL)
    expected = {"events_applied": 1, "events_waiting": 1, "events_superseded": 0, "events_refused": 0}
    assert expected.items() <= stage.hub.counters().items()
    assert expected.items() <= view["counters"].items()  # type: ignore[attr-defined]


def gap_numbers(count: int) -> list[int]:
    """Every other number after 1 that is not sent."""
    return list(range(2, 2 * count + 2, 2))


@pytest.mark.parametrize("count", [1, 33, 100])
def test_every_gap_that_is_given_up_is_told_however_many_there_are(count: int) -> None:
    stage = Stage()
    raw = stage.joined()
    raw.send(opened(), 1)
    for number in gap_numbers(count):
        raw.send(Save(document=1, version=1), number + 1)
    stage.pass_time(raw, 12.0)
    told_in: list[Ack | Heartbeat] = [*raw.of(Ack), *raw.of(Heartbeat)]
    acknowledgements = [message for message in told_in if message.lost]
    assert len(acknowledgements[-1].lost) == count
    told = {
        number
        for message in acknowledgements
        for start, stop in message.lost
        for number in range(start, stop)
    }
    assert told == set(gap_numbers(count))
    assert len(raw.of(SnapshotRequest)) == 1
    assert (raw.closed_with, raw.of(Ack)[-1].received) == (None, 2 * count + 2)


def test_a_document_that_was_opened_between_two_gaps_is_asked_for() -> None:
    stage = Stage()
    raw = stage.joined()
    raw.send(opened(), 1)
    raw.send(msgspec.structs.replace(opened(document=2, uri="file:///b.py"), text=None, parts=1), 3)
    raw.send(Cursor(document=1, version=1, position=(0, 0)), 5)
    stage.pass_time(raw, 12.0)
    assert [request.document for request in raw.of(SnapshotRequest)] == [1, 2]


def test_a_producer_that_tells_of_losses_changes_nothing() -> None:
    stage = Stage()
    raw = stage.joined()
    raw.send(Subscribe(subscription=1, session="unknown"), 1)
    raw.send(Ack(received=1, applied=1, durable=1, limit=1025, lost=((1, 2),)))
    assert (raw.errors(), raw.closed_with) == (["not_found"], None)


@pytest.mark.parametrize(("count", "retry_ms"), [(1, 2), (100, 200)])
def test_clients_of_a_server_that_drains_spread_by_as_much_as_there_are(count: int, retry_ms: int) -> None:
    stage = Stage()
    first, *_ = [stage.joined() for _ in range(count)]
    first.handler.drain(stage.now)
    assert [goaway.retry_ms for goaway in first.of(GoAway)] == [retry_ms]


def test_clients_of_a_server_that_drains_spread_by_no_more_than_the_longest_delay() -> None:
    stage = Stage(limits=replace(DEFAULT_LIMITS, reconnect_delay_max_s=0.5, reconnect_delay_min_s=0.1))
    first, *_ = [stage.joined() for _ in range(300)]
    first.handler.drain(stage.now)
    assert [goaway.retry_ms for goaway in first.of(GoAway)] == [500]
