from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.session.client_session import (
    ClientSession,
    ClientSettings,
    DocumentRefusal,
    Refusal,
    SessionEnd,
    Welcomed,
)
from streamctx.core.session.outbox_records import OutboxRecord, ProcessStarted
from streamctx.core.session.outbox_state import outbox_state
from streamctx.core.session.state import ClientState
from streamctx.errors import CloseCode, ErrorCode, LocalProtocolError, RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.capabilities import negotiated_limits
from streamctx.wire.changes import Change
from streamctx.wire.codec import client_decoder, encode_body
from streamctx.wire.digests import DIGESTS, crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import (
    Ack,
    ClientInfo,
    Close,
    Cursor,
    DesignClose,
    DesignOpen,
    DesignPage,
    DesignSelection,
    DesignTool,
    Diagnostic,
    Diagnostics,
    DocumentAction,
    Edit,
    ErrorMessage,
    Focus,
    Heartbeat,
    Hello,
    Mention,
    Message,
    Open,
    Part,
    Save,
    ServerInfo,
    Skip,
    Snapshot,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    Sync,
    Unsubscribe,
    Update,
    Version,
    Welcome,
)

__all__: list[str] = []

XXH3 = DIGESTS[DigestAlgorithm.XXH3_64]
UNNUMBERED = (Hello, Ack, Heartbeat)


class Client:
    """A client's session, and the server that the test plays."""

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        told: Limits | None = None,
        keeps_outbox: bool = False,
    ) -> None:
        self.now = 0.0
        self.told = told or limits
        self.session = ClientSession(
            ClientSettings(client=ClientInfo(name="c"), limits=limits),
            jitter=lambda: 0.5,
            keeps_outbox=keeps_outbox,
        )
        self.attempt = 0
        self.sent: list[tuple[int, Message]] = []
        self.server_next = 1

    def connect(self, **welcome: object) -> Client:
        self.session.connected(self.now)
        self.attempt += 1
        fields: dict[str, object] = {
            "attempt": self.attempt,
            "session": "s",
            "secret": f"secret-{self.attempt}",
            "epoch": "e",
            "lease": 1,
            "verdict": "new",
            "expects": 1,
            "next": self.server_next,
            "digest": "xxh3-64",
            "unit": "utf-16",
            "hash": "xxh3-64",
            "durability": "none",
            "limits": negotiated_limits(self.told),
            "server": ServerInfo(name="s", version="1"),
        }
        message = Welcome(**{**fields, **welcome})  # type: ignore[arg-type]
        self.pump()
        body = encode_body(message, Encoding.MSGPACK)
        self.session.receive(pack_frame(body, encoding=Encoding.MSGPACK, digest=crc32_digest), self.now)
        return self

    def pump(self) -> list[Message]:
        """What goes out now, without acknowledgements."""
        out = []
        for data in self.session.data_to_send(self.now):
            frame = parse_frame(data, encoding=Encoding.MSGPACK, digest=XXH3) or parse_frame(
                data, encoding=Encoding.MSGPACK, digest=crc32_digest
            )
            assert frame is not None
            message = client_decoder(Encoding.MSGPACK).decode(frame.body)
            assert isinstance(message, Message), message
            self.sent.append((frame.sequence, message))
            out.append(message)
        return [message for message in out if not isinstance(message, UNNUMBERED)]

    def hear(self, message: Message, *, is_numbered: bool = True, stream: int = 0) -> None:
        sequence = self.server_next if is_numbered else 0
        self.server_next += is_numbered
        body = encode_body(message, Encoding.MSGPACK)
        data = pack_frame(body, encoding=Encoding.MSGPACK, digest=XXH3, sequence=sequence, stream=stream)
        self.session.receive(data, self.now)

    def acknowledge(self) -> None:
        next_ = self.session.next_sequence
        self.hear(Ack(received=next_, applied=next_, durable=next_, limit=next_ + 1024), is_numbered=False)

    def give_up(self, *numbers: int) -> None:
        """The server acknowledges everything, but has given those numbers up (ACK-6)."""
        self.lose(*numbers, durable=self.session.next_sequence)

    def lose(self, *numbers: int, durable: int) -> None:
        """As `give_up`, of a server that has stored less."""
        next_ = self.session.next_sequence
        lost = tuple((number, number + 1) for number in numbers)
        self.hear(
            Ack(received=next_, applied=next_, durable=durable, limit=next_ + 1024, lost=lost),
            is_numbered=False,
        )

    def cut(self, code: int | None = None) -> None:
        self.session.disconnected(self.now, code)

    def events(self) -> list[object]:
        found: list[object] = []
        while (event := self.session.next_event()) is not None:
            found.append(event)
        return found

    def last_hello(self) -> Hello:
        return [message for _, message in self.sent if isinstance(message, Hello)][-1]


def types(messages: Sequence[Message]) -> list[type[Message]]:
    return [type(message) for message in messages]


INSERT = [Change(0, 0, 0, 0, "x")]


def test_the_first_frame_after_welcome_is_a_heartbeat_and_events_follow_in_their_order() -> None:
    client = Client()
    document = client.session.open("file:///a.py", "abc", 0.0)
    client.session.edit(document.alias, INSERT, 0.0)
    client.session.put(Cursor(document=1, version=1, position=(0, 1)), 0.0)
    client.session.save(document.alias, 0.0)
    client.connect()
    client.pump()
    assert types([message for _, message in client.sent]) == [
        Hello,
        Heartbeat,
        Open,
        Edit,
        Version,
        Save,
        Cursor,
    ]
    assert [sequence for sequence, _ in client.sent] == [0, 0, 1, 2, 3, 4, 5]


def test_hello_is_repeated_every_quarter_second_until_welcome_and_given_up_after_ten_seconds() -> None:
    client = Client()
    client.session.connected(0.0)
    client.pump()
    while client.now < 9.7:
        client.now = client.session.next_timeout() or 0.0
        client.session.handle_timeout(client.now)
        client.pump()
    assert len(client.sent) == 40
    client.now = 10.0
    with pytest.raises(RemoteProtocolError):
        client.session.handle_timeout(client.now)


def test_events_say_how_they_fared_before_they_were_encoded_and_are_sent_again_unchanged() -> None:
    client = Client()
    client.session.open("file:///a.py", "abc", 0.0)
    client.now = 2.5
    client.connect()
    (first,) = client.pump()
    assert isinstance(first, Open)
    assert (first.is_offline, first.queued_ms) == (True, 2500)
    client.session.edit(1, INSERT, client.now)
    (edit,) = client.pump()
    assert isinstance(edit, Edit)
    assert (edit.is_offline, edit.queued_ms) == (False, 0)
    client.cut()
    client.now = 60.0
    client.connect(verdict="resumed")
    assert client.pump()[:2] == [first, edit]


def test_a_resume_sends_the_present_value_of_every_key_again() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    cursor = Cursor(document=1, version=0, position=(0, 1))
    client.session.put(cursor, 0.0)
    client.pump()
    client.acknowledge()
    client.cut()
    client.connect(verdict="resumed", expects=3)
    assert client.pump() == [cursor]


def test_a_resume_tells_the_secret_of_the_last_welcome_and_both_numbers() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.pump()
    client.hear(SnapshotRequest(document=9, reason="refused", version=0))
    client.cut()
    client.connect(verdict="resumed")
    resume = client.last_hello().resume
    assert resume is not None
    assert (resume.secret, resume.expects, resume.next) == ("secret-1", 2, 2)
    assert client.last_hello().attempt == 2


def test_a_restored_session_is_given_what_was_not_durable_and_its_subscriptions_again() -> None:
    client = Client().connect(durability="full")
    client.session.open("file:///a.py", "abc", 0.0)
    subscription = client.session.subscribe("*", 0.0)
    client.pump()
    client.hear(Ack(received=3, applied=3, durable=2, limit=1026), is_numbered=False)
    client.session.edit(1, INSERT, 0.0)
    client.pump()
    # Ahead of a gap: another server may use the number for something else.
    client.server_next = 2
    client.hear(SnapshotRequest(document=9, reason="refused", version=0))
    client.cut()
    client.server_next = 1
    client.connect(verdict="resumed", durability="full", expects=2, restored=True)
    sent = client.pump()
    assert types(sent) == [Subscribe, Edit, Subscribe]
    assert [message.subscription for message in sent if isinstance(message, Subscribe)] == [subscription] * 2
    client.hear(SnapshotRequest(document=1, reason="refused", version=1))
    client.hear(SnapshotRequest(document=8, reason="refused", version=0))
    assert types(client.pump()) == [Snapshot]


def test_a_server_that_has_lost_what_was_durable_is_given_a_new_session() -> None:
    client = Client().connect(durability="full")
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.put(Cursor(document=1, version=0, position=(0, 1)), 0.0)
    client.pump()
    client.acknowledge()
    client.cut()
    # The cursor may be gone, the open may not.
    client.connect(verdict="resumed", durability="full", expects=2, restored=True)
    client.cut()
    with pytest.raises(RemoteProtocolError, match="expects 1"):
        client.connect(verdict="resumed", durability="full", expects=1, restored=True)
    client.cut()
    client.server_next = 1
    client.connect(session="t")
    assert client.last_hello().resume is None
    assert types(client.pump()) == [Open, Cursor]


@pytest.mark.parametrize("welcome", [{"epoch": "other"}, {"session": "other", "verdict": "rejected"}])
def test_another_epoch_or_session_is_given_every_text_anew_under_new_numbers(
    welcome: dict[str, object],
) -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.put(Focus(document=1), 0.0)
    subscription = client.session.subscribe("*", 0.0)
    client.pump()
    client.cut()
    client.session.edit(1, INSERT, 1.0)
    client.session.mention(Mention(document=1, version=1, range=(0, 0, 0, 1)), 1.0)
    client.server_next = 1
    client.connect(**welcome)
    sent = client.pump()
    assert types(sent) == [Subscribe, Open, Mention, Focus]
    assert isinstance(sent[0], Subscribe)
    assert sent[0].subscription == subscription
    assert isinstance(sent[1], Open)
    assert (sent[1].text, sent[1].version) == ("xabc", 1)
    assert [sequence for sequence, message in client.sent if isinstance(message, Open)] == [1, 2]


def test_a_subscription_that_is_never_answered_is_asked_for_again() -> None:
    client = Client().connect()
    subscription = client.session.subscribe("*", 0.0)
    answered = client.session.subscribe("s2", 0.0)
    client.pump()
    client.hear(Subscribed(subscription=answered, sessions=("s2",)))
    # Not while anything of ours is under way: what was asked may still be repaired.
    client.now = 6.0
    client.session.handle_timeout(client.now)
    assert client.pump() == []
    client.acknowledge()
    client.now = 10.0
    client.session.handle_timeout(client.now)
    assert client.pump() == []
    client.now = 11.5
    due = client.session.next_timeout()
    assert due is not None and due <= client.now
    client.session.handle_timeout(client.now)
    assert [(type(message), getattr(message, "subscription", 0)) for message in client.pump()] == [
        (Subscribe, subscription)
    ]


def break_feeds(client: Client, *subscriptions: int) -> None:
    """Answer a `subscribe` of each, and show what does not join."""
    for subscription in subscriptions:
        client.hear(Subscribed(subscription=subscription, sessions=("s",)))
        sync = Sync(session="s", epoch="e", offset=0, reason="subscribed", client=ClientInfo(name="p"))
        client.hear(sync, stream=subscription)
        client.hear(Update(session="s", from_=7, to=8, events=()), stream=subscription)


def test_a_feed_that_breaks_is_asked_for_at_once_and_one_that_keeps_breaking_every_five_seconds() -> None:
    client = Client().connect()
    assert client.session.subscribe("s", 0.0) == 1
    assert types(client.pump()) == [Subscribe]
    client.acknowledge()
    asked: list[float] = []
    break_feeds(client, 1)
    while client.now < 17.0 and len(asked) < 9:
        if types(client.pump()) == [Subscribe]:
            asked.append(client.now)
            client.acknowledge()
            break_feeds(client, 1)
        else:
            client.now = max(client.now, client.session.next_timeout() or 0.0)
            client.session.handle_timeout(client.now)
    assert asked == [0.0, 5.0, 10.0, 15.0]


def test_a_feed_that_keeps_breaking_does_not_delay_another() -> None:
    client = Client().connect()
    for subscription in (1, 2):
        assert client.session.subscribe("s", 0.0) == subscription
    client.pump()
    break_feeds(client, 1)
    client.now = 1.0
    break_feeds(client, 1, 2)
    assert [message.subscription for message in client.pump() if isinstance(message, Subscribe)] == [1, 2]


def test_a_broken_feed_is_asked_for_however_busy_the_client_is_and_not_once_it_is_unwanted() -> None:
    client = Client().connect()
    for _ in range(2):
        client.session.subscribe("s", 0.0)
    break_feeds(client, 1, 2)
    client.pump()
    break_feeds(client, 1, 2)
    client.session.unsubscribe(2, 0.0)
    client.session.open("file:///a.py", "abc", 0.0)
    client.pump()
    client.now = 5.0
    client.session.handle_timeout(client.now)
    assert [message.subscription for message in client.pump() if isinstance(message, Subscribe)] == [1]


def test_an_excluded_document_is_never_sent_again_and_one_over_a_limit_is_tried_in_a_new_epoch() -> None:
    client = Client().connect()
    for name in "ab":
        client.session.open(f"file:///{name}", name, 0.0)
    client.pump()
    client.hear(ErrorMessage(code="excluded", message="", document=1, reference=1))
    client.hear(ErrorMessage(code="limit", message="", document=2, reference=2))
    client.session.edit(1, INSERT, 0.0)
    client.session.put(Cursor(document=1, version=1, position=(0, 0)), 0.0)
    client.session.put(Focus(document=1), 0.0)
    assert client.pump() == [Focus()]
    assert [type(event) for event in client.events()] == [Welcomed, DocumentRefusal, DocumentRefusal]
    client.cut()
    client.server_next = 1
    client.connect(epoch="other")
    assert [message.uri for message in client.pump() if isinstance(message, Open)] == ["file:///b"]
    client.session.edit(2, INSERT, 0.0)
    assert types(client.pump()) == [Edit]


def test_a_long_text_goes_in_parts_with_edits_behind_and_other_documents_between() -> None:
    client = Client().connect()
    client.session.open("file:///long", "é" * 40_000, 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.open("file:///b", "b", 0.0)
    client.session.close_document(1, 0.0)
    sent = client.pump()
    assert [type(m) for m in sent if getattr(m, "document", 0) == 1] == [
        Open,
        Part,
        Part,
        Part,
        Edit,
        Version,
        Close,
    ]
    assert types(sent)[1] is Open
    parts = [message for message in sent if isinstance(message, Part)]
    assert [part.index for part in parts] == [0, 1, 2]
    assert "".join(part.text for part in parts) == "é" * 40_000
    assert all(len(part.text.encode()) <= DEFAULT_LIMITS.part_text_bytes_max for part in parts)


def test_a_request_is_answered_by_one_snapshot_and_the_presence_after_it() -> None:
    client = Client().connect()
    client.session.open("file:///a", "abc", 0.0)
    client.session.put(Cursor(document=1, version=0, position=(0, 1)), 0.0)
    client.pump()
    client.session.edit(1, INSERT, 0.0)
    client.hear(ErrorMessage(code="bad_version", message="", document=1, reference=2))
    for _ in range(2):
        client.hear(SnapshotRequest(document=1, reason="refused", version=0))
    snapshot, cursor = client.pump()
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.text, snapshot.version) == ("xabc", 1)
    assert snapshot.hash == text_hash("xabc", HashAlgorithm.XXH3_64)
    assert isinstance(cursor, Cursor)


def test_a_snapshot_on_its_way_answers_a_request_unless_it_was_refused_or_lost() -> None:
    client = Client().connect()
    client.session.open("file:///a", "abc", 0.0)
    client.session.snapshot(1)
    client.pump()
    client.hear(ErrorMessage(code="bad_version", message="", document=1, reference=0))
    client.hear(SnapshotRequest(document=1, reason="refused", version=0))
    assert client.pump() == []
    client.hear(ErrorMessage(code="hash_mismatch", message="", document=1, reference=1))
    client.hear(SnapshotRequest(document=1, reason="refused", version=0))
    assert types(client.pump()) == [Snapshot]
    client.hear(SnapshotRequest(document=1, reason="lost", version=0))
    assert types(client.pump()) == [Snapshot]


def test_a_document_whose_open_was_lost_is_opened_anew_and_not_for_ever() -> None:
    client = Client().connect()
    client.session.open("file:///a", "abc", 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.pump()
    opens = 0
    for sequence in (2, 3, 4, 5, 6, 7):
        client.hear(ErrorMessage(code="unknown_document", message="", document=1, reference=sequence))
        opens += types(client.pump()).count(Open)
    assert opens == 3
    assert client.session.documents[1].refused == ErrorCode.UNKNOWN_DOCUMENT


def test_the_close_of_a_document_that_the_server_asks_for_after_a_loss_is_sent_again() -> None:
    client = Client().connect()
    client.session.open("file:///a", "abc", 0.0)
    client.session.close_document(1, 0.0)
    client.pump()
    client.hear(SnapshotRequest(document=1, reason="lost", version=0))
    assert types(client.pump()) == [Close]


def test_what_welcome_marks_for_a_snapshot_is_sent_once() -> None:
    client = Client().connect()
    client.session.open("file:///a", "abc", 0.0)
    client.pump()
    client.acknowledge()
    client.cut()
    client.connect(
        verdict="resumed", expects=2, documents=(DocumentAction(document=1, action="snapshot", version=0),)
    )
    client.hear(SnapshotRequest(document=1, reason="mismatch", version=0))
    assert types(client.pump()) == [Snapshot]
    client.hear(SnapshotRequest(document=1, reason="mismatch", version=0))
    assert client.pump() == []


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_full_outbox_gives_way_to_a_snapshot_and_editing_goes_on(is_connected: bool) -> None:
    limits = replace(DEFAULT_LIMITS, ring_events_max=20, window_events_max=4)
    client = Client(limits=limits)
    if is_connected:
        client.connect()
    client.session.open("file:///a", "", 0.0)
    for _ in range(100):
        client.session.edit(1, INSERT, 0.0)
        if is_connected:
            client.pump()
    assert client.session.pending < 30
    assert client.session.collapsed > 0
    if not is_connected:
        client.connect()
        (message,) = client.pump()
        assert isinstance(message, Open)
        assert message.text == "x" * 100


def test_events_of_closed_documents_give_way_but_for_their_close() -> None:
    client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=20, window_events_max=4)).connect()
    client.session.open("file:///a", "", 0.0)
    client.pump()
    for _ in range(15):
        client.session.edit(1, INSERT, 0.0)
    client.session.close_document(1, 0.0)
    client.session.open("file:///b", "", 0.0)
    for _ in range(40):
        client.session.save(2, 0.0)
    assert client.session.pending < 30
    client.acknowledge()
    client.pump()
    client.acknowledge()
    assert Close(document=1) in [message for _, message in client.sent] + client.pump()


def test_a_mention_is_refused_when_too_much_waits() -> None:
    client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=5))
    client.session.open("file:///a", "", 0.0)
    mention = Mention(document=1, version=0, range=(0, 0, 0, 0))
    with pytest.raises(LocalProtocolError, match="too many"):
        for _ in range(20):
            client.session.mention(mention, 0.0)


def test_an_edit_that_no_frame_takes_goes_as_a_snapshot_and_not_at_all_if_the_document_was_closed() -> None:
    big = [Change(0, 0, 0, 0, "y" * 300_000)]
    client = Client().connect()
    client.session.open("file:///a", "", 0.0)
    client.session.edit(1, big, 0.0)
    sent = client.pump()
    assert types(sent)[:2] == [Open, Snapshot]
    assert sum(len(part.text) for part in sent if isinstance(part, Part)) == 300_000
    client.acknowledge()
    client.session.open("file:///b", "", 0.0)
    client.session.edit(2, big, 0.0)
    client.session.close_document(2, 0.0)
    assert types([message for message in client.pump() if getattr(message, "document", 0) == 2]) == [
        Open,
        Close,
    ]


def test_presence_that_no_frame_takes_fails_alone() -> None:
    client = Client().connect()
    client.session.open("file:///a", "", 0.0)
    items = tuple(Diagnostic(range=(0, 0, 0, 0), severity=1, message="m" * 2000) for _ in range(200))
    client.session.put(Diagnostics(document=1, version=0, items=items), 0.0)
    client.session.save(1, 0.0)
    assert types(client.pump()) == [Open, Version, Save]
    refusals = [event for event in client.events() if isinstance(event, Refusal)]
    assert [refusal.error.code for refusal in refusals] == ["too_large"]


def test_lone_surrogates_never_travel() -> None:
    client = Client().connect()
    client.session.open("file:///\ud800", "a\ud800", 0.0)
    client.session.edit(1, [Change(0, 0, 0, 0, "\udc00")], 0.0)
    client.session.mention(Mention(document=1, version=0, range=(0, 0, 0, 0), text="\ud800"), 0.0)
    opened, edit, mention = client.pump()
    assert isinstance(opened, Open)
    assert isinstance(edit, Edit)
    assert isinstance(mention, Mention)
    assert (opened.uri, opened.text) == ("file:///\ufffd", "a\ufffd")
    assert (edit.changes[0].text, mention.text) == ("\ufffd", "\ufffd")


def test_the_hash_is_sent_after_sixty_four_edits() -> None:
    client = Client().connect()
    client.session.open("file:///a", "", 0.0)
    for _ in range(64):
        client.session.edit(1, INSERT, 0.0)
    assert types(client.pump()) == [Open, *[Edit] * 64, Version]


@pytest.mark.parametrize(("interval", "due", "cause"), [(10.0, 0.5, "idle"), (0.3, 2.0, "count")])
def test_the_hash_is_sent_when_the_editor_pauses_and_every_two_seconds(
    interval: float, due: float, cause: str
) -> None:
    client = Client().connect()
    client.session.open("file:///a", "", 0.0)
    next_edit = 0.0
    while True:
        timeout = client.session.next_timeout()
        assert timeout is not None
        client.now = min(timeout, next_edit)
        if client.now == next_edit:
            client.session.edit(1, INSERT, client.now)
            next_edit += interval
        client.session.handle_timeout(client.now)
        versions = [message for message in client.pump() if isinstance(message, Version)]
        client.acknowledge()
        if versions:
            break
    assert client.now == pytest.approx(due)
    assert versions[0].cause == cause


def test_a_document_closed_before_it_was_announced_is_never_told_of_if_its_text_gave_way() -> None:
    client = Client()
    client.session.open("file:///a", "abc", 0.0)
    client.session.snapshot(1)
    client.session.close_document(1, 0.0)
    client.connect()
    assert client.pump() == []


def test_a_focus_waits_for_the_open_of_its_document() -> None:
    client = Client()
    client.session.open("file:///a", "abc", 0.0)
    client.session.snapshot(1)
    client.session.put(Focus(document=1), 0.0)
    client.connect()
    assert types(client.pump()) == [Open, Focus]


def test_a_conflict_makes_the_next_session_new_and_other_terminal_ends_are_final() -> None:
    for code in (CloseCode.CONFLICT, CloseCode.SUPERSEDED, CloseCode.UNAUTHORIZED, 1008):
        client = Client().connect()
        client.pump()
        client.events()
        client.cut(code)
        if code == CloseCode.CONFLICT:
            client.connect(session="t")
            assert client.last_hello().resume is None
        else:
            assert client.session.state is ClientState.CLOSED
            assert [type(event) for event in client.events()] == [SessionEnd]
            assert client.session.next_timeout() is None


def test_only_an_error_without_a_number_says_why_a_connection_ends() -> None:
    client = Client().connect()
    client.hear(ErrorMessage(code="malformed", message=""))
    client.cut(1006)
    client.connect(verdict="resumed")
    client.hear(ErrorMessage(code="superseded", message=""), is_numbered=False)
    client.cut(1006)
    assert client.session.state is ClientState.CLOSED


def test_a_closed_session_has_no_timers_and_sends_nothing() -> None:
    client = Client().connect()
    client.session.open("file:///a", "", 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.close()
    assert client.session.next_timeout() is None
    client.session.handle_timeout(100.0)
    assert client.pump() == []


def test_the_limits_of_the_server_are_obeyed() -> None:
    told = replace(
        DEFAULT_LIMITS,
        frame_bytes_max=8_000,
        part_text_bytes_max=4_000,
        window_bytes_max=20_000,
        documents_per_session_max=1,
        changes_per_edit_max=1,
    )
    client = Client(told=told).connect()
    client.session.open("file:///a", "\x01" * 3_000, 0.0)
    sent = client.pump()
    assert types(sent)[:2] == [Open, Part]
    assert all(len(part.text.encode()) <= 1_000 for part in sent if isinstance(part, Part))
    with pytest.raises(LocalProtocolError):
        client.session.open("file:///b", "", 0.0)
    with pytest.raises(LocalProtocolError):
        client.session.edit(1, INSERT * 2, 0.0)


def test_a_window_smaller_than_a_frame_does_not_stop_the_client() -> None:
    told = replace(DEFAULT_LIMITS, window_bytes_max=100_000)
    client = Client(told=told).connect()
    client.session.open("file:///a", "abc", 0.0)
    assert types(client.pump()) == [Open]


def test_a_server_that_gives_up_its_own_messages_is_left_for_a_new_session() -> None:
    client = Client().connect()
    with pytest.raises(RemoteProtocolError):
        client.hear(Skip(ranges=((1, 2),), reason="evicted"), is_numbered=False)
    client.cut()
    client.connect(session="t")
    assert client.last_hello().resume is None


@pytest.mark.parametrize("fields", [{"expects": 9}, {"next": 1}])
def test_a_welcome_that_contradicts_what_is_known_is_not_believed(fields: dict[str, object]) -> None:
    client = Client().connect()
    client.hear(SnapshotRequest(document=9, reason="refused", version=0))
    client.cut()
    with pytest.raises(RemoteProtocolError):
        client.connect(verdict="resumed", **fields)
    client.cut()
    client.server_next = 1
    client.connect(session="t")
    assert client.last_hello().resume is None


@pytest.mark.parametrize("fields", [{"unit": "utf-8"}, {"hash": "md5"}, {"digest": "md5"}])
def test_a_welcome_with_what_was_not_offered_ends_the_session(fields: dict[str, object]) -> None:
    client = Client()

    with pytest.raises(RemoteProtocolError, match="we have utf-16"):
        client.connect(**fields)
    client.cut(CloseCode.BAD_HELLO)

    assert client.session.state is ClientState.CLOSED
    assert [type(event) for event in client.events()] == [SessionEnd]


def test_wrong_calls_change_nothing() -> None:
    client = Client()
    client.session.open("file:///a", "", 0.0)
    calls: list[Callable[[], object]] = [
        lambda: client.session.edit(1, [], 0.0),
        lambda: client.session.edit(1, INSERT, 0.0, version=0),
        lambda: client.session.edit(1, INSERT, 0.0, version=2**53),
        lambda: client.session.edit(2, INSERT, 0.0),
        lambda: client.session.open("", "", 0.0),
        lambda: client.session.open("file:///b", "", 0.0, language="x" * 201),
        lambda: client.session.replace_text(1, "", 0.0, version=0),
    ]
    for call in calls:
        with pytest.raises(LocalProtocolError):
            call()
    assert [document.version for document in client.session.documents.values()] == [0]


def test_a_document_whose_unreceived_open_was_evicted_is_opened_again() -> None:
    client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=3, window_events_max=4)).connect()
    client.session.open("file:///a", "", 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.pump()
    client.session.mention(Mention(document=1, version=2, range=(0, 0, 0, 0)), 0.0)
    client.session.edit(1, INSERT, 0.0)
    assert [(skip.reason, skip.documents) for skip in client.pump() if isinstance(skip, Skip)] == [
        ("evicted", (1,))
    ]
    client.acknowledge()
    opened, mention = client.pump()
    assert isinstance(opened, Open)
    assert opened.text == "xxx"
    assert isinstance(mention, Mention)


def test_a_welcome_of_an_older_attempt_is_not_taken() -> None:
    client = Client()
    client.session.connected(0.0)
    client.attempt += 1
    client.cut()
    client.attempt -= 1
    client.connect()
    assert client.session.session_id is None


def test_a_close_that_fills_the_outbox_does_not_bring_its_document_back() -> None:
    for edits in range(1, 12):
        client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=10, window_events_max=4)).connect()
        client.session.open("file:///a", "", 0.0)
        client.pump()
        for _ in range(edits):
            client.session.edit(1, INSERT, 0.0)
        client.session.close_document(1, 0.0)
        client.acknowledge()
        for _ in range(5):
            client.pump()
            client.acknowledge()
        assert client.sent[-1][1] == Close(document=1)


def test_a_close_before_which_the_open_was_given_up_is_sent_since_the_open_may_have_arrived() -> None:
    client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=3, window_events_max=4)).connect()
    client.session.open("file:///a", "", 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.pump()
    client.session.mention(Mention(document=1, version=2, range=(0, 0, 0, 0)), 0.0)
    client.session.close_document(1, 0.0)  # Its last hash does not fit, so everything gives way.
    assert types(client.pump()) == [Skip]
    client.acknowledge()
    assert types(client.pump()) == [Close]


def test_a_document_that_was_never_sent_is_closed_without_a_word() -> None:
    client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=3, window_events_max=4)).connect()
    client.session.open("file:///a", "", 0.0)
    for _ in range(5):
        client.session.edit(
            1, INSERT, 0.0
        )  # More than may wait: one open with the present text takes their place.
    client.session.close_document(1, 0.0)
    assert client.pump() == []


MENTION = Mention(document=1, version=0, range=(0, 0, 0, 1))
STARTED = ProcessStarted(0.0, 1e9, "boot", Unit.UTF_16)
DESIGN = DesignOpen(document=1, uri="design:///1", tool=DesignTool(name="t"), file_name="f", pages=())


def test_the_present_value_of_a_key_is_sent_again_and_once_if_the_server_has_given_it_up() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.put(Cursor(document=1, version=0, position=(0, 1)), 0.0)
    client.pump()
    client.session.put(cursor := Cursor(document=1, version=0, position=(0, 2)), 0.0)
    client.pump()
    client.give_up(2, 3)
    client.give_up(2, 3)
    assert client.pump() == [cursor]
    assert client.sent[-1][0] == 4
    client.give_up(2, 3)
    assert client.pump() == []


def test_a_value_of_a_key_that_was_replaced_meanwhile_is_sent_once_with_the_present_one() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.put(Cursor(document=1, version=0, position=(0, 1)), 0.0)
    client.pump()
    client.session.put(cursor := Cursor(document=1, version=0, position=(0, 2)), 0.0)
    client.give_up(2)
    assert client.pump() == [cursor]


def test_a_mention_that_the_server_has_given_up_is_sent_again_and_once() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.mention(MENTION, 0.0)
    client.pump()
    client.give_up(2)
    client.give_up(2)
    assert client.pump() == [MENTION]
    client.give_up(3)
    assert client.pump() == [MENTION]


def _told_of_a_lost_mention(*, keeps_outbox: bool = False) -> tuple[Client, list[list[OutboxRecord]]]:
    """A client whose server has given up a mention, and has stored nothing from there on; and its outbox."""
    client = Client(keeps_outbox=keeps_outbox)
    log = [client.session.outbox_snapshot(STARTED)]
    client.connect(durability="full")
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.mention(MENTION, 0.0)
    client.pump()
    log.append(client.session.take_outbox_records())
    client.lose(2, durable=2)
    client.pump()
    log.append(client.session.take_outbox_records())
    return client, log


def test_a_mention_that_the_server_has_given_up_is_sent_once_if_it_dies_before_it_has_stored_that() -> None:
    client, _ = _told_of_a_lost_mention()
    client.cut()
    client.connect(durability="full", verdict="resynced", expects=2, restored=True)
    resume = client.last_hello().resume
    assert resume is not None
    assert (resume.lost, resume.documents) == (((2, 3),), (1,))
    assert client.pump() == [Skip(ranges=((2, 3),), reason="evicted", documents=(1,)), MENTION]


@pytest.mark.parametrize("expects", [2, 3])
def test_a_mention_that_the_server_has_given_up_is_sent_once_by_the_next_process_too(expects: int) -> None:
    before, log = _told_of_a_lost_mention(keeps_outbox=True)
    client = Client()
    client.attempt = before.attempt
    client.session = ClientSession.restored(
        before.session.settings, outbox_state(log), STARTED, jitter=lambda: 0.5
    )
    client.connect(durability="full", verdict="resumed", expects=expects)
    skips = [Skip(ranges=((2, 3),), reason="evicted", documents=(1,))][: 3 - expects]
    assert client.pump() == [*skips, MENTION]
    client.lose(2, durable=2)
    assert client.pump() == []


def test_a_snapshot_that_the_server_has_given_up_is_no_answer_to_one_that_does_not_know_it() -> None:
    client = Client().connect(durability="full")
    client.session.open("file:///a.py", "abc", 0.0)
    client.pump()
    client.session.snapshot(1)
    client.pump()
    client.lose(2, durable=2)
    client.cut()
    stale = (DocumentAction(document=1, action="snapshot", version=0),)
    client.connect(durability="full", verdict="resynced", expects=2, restored=True, documents=stale)
    assert types(client.pump()) == [Skip, Snapshot]


def test_a_mention_that_waited_says_so_still_when_it_is_sent_again() -> None:
    client = Client()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.mention(MENTION, 0.0)
    client.now = 2.0
    client.connect()
    first = client.pump()[-1]
    client.give_up(2)
    assert client.pump() == [first]
    assert isinstance(first, Mention)
    assert (first.is_offline, first.queued_ms) == (True, 2000)


def test_a_save_that_the_server_has_given_up_follows_a_text_for_it_is_dropped_otherwise() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.save(1, 0.0)
    client.pump()
    client.give_up(3)
    sent = client.pump()
    assert types(sent) == [Snapshot, Save]
    # Where the text has gone already, it is enough.
    client.give_up(5)
    assert types(client.pump()) == [Snapshot, Save]
    client.session.save(1, 0.0)
    client.pump()
    client.hear(SnapshotRequest(document=1, reason="lost", version=0))
    assert types(client.pump()) == [Snapshot]
    client.give_up(9)
    assert types(client.pump()) == [Save]


@pytest.mark.parametrize(("numbers", "versions"), [((3,), []), ((6,), [1]), ((3, 6), [1])])
def test_of_saves_that_the_server_has_given_up_only_the_newest_is_sent_again(
    numbers: tuple[int, ...], versions: list[int]
) -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.save(1, 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.save(1, 0.0)
    client.pump()
    client.give_up(*numbers)
    assert [message.version for message in client.pump() if isinstance(message, Save)] == versions


def test_a_document_whose_open_the_server_has_given_up_is_opened_with_the_present_text() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.put(Focus(document=1), 0.0)
    client.session.put(Cursor(document=1, version=0, position=(0, 1)), 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.mention(MENTION, 0.0)
    client.pump()
    client.give_up(1, 3)
    (again, *after) = client.pump()
    assert isinstance(again, Open)
    assert (again.text, again.version) == ("xabc", 1)
    # What was refused because the document was not known: its present values, and a focus on it.
    assert types(after) == [Mention, Focus, Cursor]
    client.hear(ErrorMessage(code=ErrorCode.UNKNOWN_DOCUMENT, message="", document=1, reference=2))
    client.give_up(1)
    assert client.pump() == []


def test_a_long_text_whose_open_was_given_up_while_it_went_out_begins_anew() -> None:
    limits = replace(DEFAULT_LIMITS, window_events_max=4, reorder_events_max=4)
    client = Client(limits=limits).connect()
    client.session.open("file:///a.py", "x" * 100_000, 0.0)
    assert types(client.pump()) == [Open, Part, Part, Part]
    client.give_up(1)
    assert types(client.pump()) == [Open, Part, Part, Part]
    client.acknowledge()
    assert types(client.pump()) == [Part] * 4


@pytest.mark.parametrize("is_refused", [False, True])
def test_nothing_is_sent_again_of_a_document_that_is_closed_or_refused(is_refused: bool) -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.put(Cursor(document=1, version=0, position=(0, 1)), 0.0)
    client.session.mention(MENTION, 0.0)
    client.session.save(1, 0.0)
    client.pump()
    if is_refused:
        client.hear(ErrorMessage(code=ErrorCode.EXCLUDED, message="", document=1, reference=1))
    else:
        client.session.close_document(1, 0.0)
        assert types(client.pump()) == [Close]
    client.give_up(1, 2, 3, 4, 5)
    assert client.pump() == []


def test_texts_and_closes_wait_until_the_server_asks_for_them() -> None:
    client = Client().connect()
    for text in ("abc", "x" * 20_000):
        client.session.open("file:///a.py", text, 0.0)
    client.session.edit(1, INSERT, 0.0)
    client.session.snapshot(2)
    client.pump()
    client.session.close_document(2, 0.0)
    client.pump()
    numbers = [
        sequence for sequence, message in client.sent if isinstance(message, Part | Edit | Snapshot | Close)
    ]
    client.give_up(*numbers)
    assert client.pump() == []
    for document in (1, 2):
        client.hear(SnapshotRequest(document=document, reason="lost", version=0))
    assert types(client.pump()) == [Close, Snapshot]


def test_a_design_document_is_opened_again_with_its_selection_if_the_server_has_given_its_open_up() -> None:
    client = Client().connect()
    design = client.session.open_design(DESIGN, 0.0)
    selection = DesignSelection(document=1, page="p", nodes=(), total=0)
    client.session.put(selection, 0.0)
    client.session.put(Focus(document=1), 0.0)
    client.pump()
    client.give_up(1)
    client.give_up(1)
    assert client.pump() == [design, selection, Focus(document=1)]


def test_the_close_of_a_design_document_that_the_server_has_given_up_is_sent_again() -> None:
    client = Client().connect()
    client.session.open_design(DESIGN, 0.0)
    close = DesignClose(document=1, reason="plugin_closed")
    client.session.close_design(close, 0.0)
    client.pump()
    client.give_up(1, 2)
    assert client.pump() == [close]


def test_requests_that_the_server_has_given_up_are_sent_again_while_they_are_wanted() -> None:
    client = Client().connect()
    for _ in range(2):
        client.session.subscribe("s", 0.0)
    client.session.unsubscribe(2, 0.0)
    client.pump()
    client.give_up(1, 2, 3)
    sent = client.pump()
    assert types(sent) == [Subscribe, Unsubscribe]
    assert [message.subscription for message in sent] == [1, 2]  # type: ignore[attr-defined]
    client.give_up(1, 2, 3)
    assert client.pump() == []


def test_a_message_that_breaks_its_schema_is_not_sent_again() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    mention = Mention(document=1, version=0, range=(0, 0, 0, 1), text="x" * 20_000)
    client.session.mention(mention, 0.0)
    assert len(client.session.data_to_send(0.0)) == 3
    client.give_up(2)
    assert client.pump() == []


def test_what_the_server_gave_up_just_before_the_connection_broke_is_sent_again_after_the_resume() -> None:
    client = Client().connect()
    client.session.open("file:///a.py", "abc", 0.0)
    client.session.mention(MENTION, 0.0)
    client.pump()
    client.cut()
    client.connect(verdict="resumed", expects=3)
    assert client.pump() == []
    client.give_up(2)
    assert client.pump() == [MENTION]


def test_a_full_outbox_never_gives_up_a_design_document_that_is_open() -> None:
    client = Client(limits=replace(DEFAULT_LIMITS, ring_events_max=10))
    pages = tuple(DesignPage(id=str(order), name="p", order=order) for order in range(100))
    design = client.session.open_design(msgspec.structs.replace(DESIGN, pages=pages), 0.0)
    client.session.open_design(msgspec.structs.replace(DESIGN, pages=pages), 0.0)
    client.session.close_design(DesignClose(document=2, reason="file_closed"), 0.0)
    client.session.open("file:///a.py", "", 0.0)
    for _ in range(40):
        client.session.edit(3, INSERT, 0.0)
    client.connect()
    sent = client.pump()
    designs = [message for message in sent if isinstance(message, DesignOpen)]
    assert [message.document for message in designs] == [design.document]
    assert isinstance(sent[-1], Open)
