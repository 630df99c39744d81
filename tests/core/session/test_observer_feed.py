from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.core.session.feed_log import FeedLog
from streamctx.core.session.observed import ObservedSession
from streamctx.core.session.observer_feed import Feed, FeedFilter
from streamctx.errors import RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.codec import server_decoder
from streamctx.wire.messages import (
    Cursor,
    Diagnostic,
    Diagnostics,
    Edit,
    Event,
    FeedEvent,
    Focus,
    Open,
    Part,
    Save,
    Snapshot,
    Sync,
    Synced,
    Update,
    Version,
)
from tests.core.session.feed_source import Source, opening

__all__: list[str] = []

LIMITS = replace(DEFAULT_LIMITS, feed_log_events_max=8, part_text_bytes_max=200_000)
EVERYTHING = FeedFilter()


def _source(unit: Unit = Unit.UTF_16, *, limits: Limits = LIMITS) -> Source:
    return Source(unit, limits)


class Reader:
    """A feed, and the copy that its observer makes."""

    def __init__(
        self,
        source: Source,
        *,
        unit: Unit = Unit.UTF_16,
        encoding: Encoding = Encoding.MSGPACK,
        filter_: FeedFilter = EVERYTHING,
        min_interval_s: float = 0.0,
        limits: Limits = LIMITS,
    ) -> None:
        source.log.units = tuple(sorted({*source.log.units, unit} - {source.source_unit}))
        self.encoding = encoding
        self.limits = limits
        self.feed = Feed(
            source,
            subscription=1,
            unit=unit,
            encoding=encoding,
            filter_=filter_,
            min_interval_s=min_interval_s,
            limits=limits,
        )
        self.observed = ObservedSession("s", unit=unit, limits=limits)

    def read(self, now: float = 0.0) -> list[Sync | Update | Synced]:
        found: list[Sync | Update | Synced] = []
        while (body := self.feed.next_body(now)) is not None:
            assert len(body) < self.limits.frame_bytes_max
            message = server_decoder(self.encoding).decode(body)
            assert isinstance(message, Sync | Update | Synced)
            self.observed.receive(message)
            found.append(message)
        return found

    def events(self, now: float = 0.0) -> list[FeedEvent]:
        return [
            event for message in self.read(now) if isinstance(message, Update) for event in message.events
        ]


def edit(base: int, text: str, *, line: int = 0, character: int = 0) -> Edit:
    change = Change(line, character, line, character, text)
    return Edit(document=1, base=base, version=base + 1, changes=(change,))


def cursor(character: int, *, version: int = 1, document: int = 1) -> Cursor:
    return Cursor(document=document, version=version, position=(0, character))


def test_the_state_comes_first_and_everything_after_joins_it() -> None:
    source = _source()
    source.open("abc")
    source.apply(cursor(1))
    reader = Reader(source)
    messages = reader.read()
    assert isinstance(messages[0], Sync)
    assert isinstance(messages[-1], Synced)
    assert {(m.from_, m.to) for m in messages if isinstance(m, Update)} == {(2, 2)}
    source.apply(edit(1, "x"))
    (update,) = reader.read()
    assert isinstance(update, Update)
    assert (update.from_, update.to) == (2, 3)
    assert reader.observed.text(1) == "xabc"


def test_the_state_is_that_of_one_moment_however_slowly_it_is_read() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source)
    first = reader.feed.next_body(0.0)
    assert first is not None
    source.apply(edit(1, "x"), cursor(0, version=2))
    sync = server_decoder(Encoding.MSGPACK).decode(first)
    assert isinstance(sync, Sync)
    reader.observed.receive(sync)
    reader.read()
    assert reader.observed.text(1) == "xabc"
    assert sync.offset == 1


def test_of_a_key_only_the_newest_value_of_a_batch_is_sent_and_durable_events_all_are() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source)
    reader.read()
    source.apply(cursor(1), edit(1, "x"), cursor(2, version=2), edit(2, "y"))
    events = reader.events()
    assert [type(event) for event in events] == [Edit, Cursor, Edit]
    assert reader.observed.offset == source.log.offset


def test_an_interval_delays_the_next_batch_and_never_the_state() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source, min_interval_s=0.1)
    assert reader.read(0.0) != []
    source.apply(cursor(1))
    assert len(reader.events(0.0)) == 1
    source.apply(cursor(2), cursor(3))
    assert reader.events(0.05) == []
    assert reader.feed.has_more
    assert reader.feed.due_at == pytest.approx(0.1)
    assert [event.position for event in reader.events(0.1) if isinstance(event, Cursor)] == [(0, 3)]
    assert not reader.feed.has_more


@pytest.mark.parametrize(
    ("events", "updates"),
    [
        ([opening(text, Unit.UTF_16) for text in "abc"], 3),
        ([opening("é" * 20_000, Unit.UTF_16), edit(1, "x")], 1 + 2 + 1),
        ([edit(base, "x") for base in range(1, 258)], 2),
        ([edit(1, "x" * 40_000), edit(2, "x" * 40_000), edit(3, "x")], 2),
        # Too much for one frame of JSON.
        ([edit(1, "\x01" * 30_000), edit(2, "\x01" * 30_000)], 2),
    ],
    ids=["whole texts", "a text in parts", "many events", "heavy events", "events that are longer in JSON"],
)
def test_an_interval_holds_up_no_rest_of_a_batch(events: list[Event], updates: int) -> None:
    source = _source(limits=DEFAULT_LIMITS)
    source.open("abc")
    reader = Reader(source, encoding=Encoding.JSON, min_interval_s=0.1, limits=DEFAULT_LIMITS)
    reader.read(0.0)
    source.apply(*events)
    assert len(reader.read(0.0)) == updates
    assert reader.observed.offset == source.log.offset
    source.apply(Save(document=1, version=1))
    assert reader.read(0.05) == []
    assert reader.feed.due_at == pytest.approx(0.1)
    assert len(reader.read(0.1)) == 1


def test_an_interval_begins_with_the_end_of_a_batch_that_had_to_wait_for_room() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source, min_interval_s=0.1)
    reader.read(0.0)
    source.open("x")
    source.open("y")
    assert reader.feed.next_body(0.0) is not None
    assert reader.feed.due_at <= 0.0
    assert reader.feed.next_body(0.04) is not None
    source.apply(Save(document=1, version=1))
    assert reader.feed.next_body(0.13) is None
    assert reader.feed.due_at == pytest.approx(0.14)
    assert reader.feed.next_body(0.14) is not None


def test_an_interval_is_kept_where_the_end_of_a_batch_was_left_out() -> None:
    source = _source()
    source.open("a", document=1, uri="file:///a.py")
    source.open("b", document=2, uri="file:///b.py")
    reader = Reader(source, min_interval_s=0.1, filter_=FeedFilter(documents=("file:///a.py",)))
    reader.read(0.0)
    source.open("c", document=1, uri="file:///a.py")
    source.apply(Save(document=2, version=1))
    assert len(reader.read(0.0)) == 1
    source.apply(Save(document=1, version=1))
    assert reader.read(0.05) == []
    assert len(reader.read(0.1)) == 1


def test_a_filter_lets_nothing_else_through_and_offsets_still_join() -> None:
    source = _source()
    source.open("a", document=1, uri="file:///a[1].py")
    source.open("b", document=2, uri="file:///a1.py")
    only = Reader(source, filter_=FeedFilter(documents=("file:///a[1].*",), presence=False))
    assert [event.document for event in only.events() if isinstance(event, Open)] == [1]
    source.apply(cursor(0), Save(document=2, version=1), cursor(0, document=2), Save(document=1, version=1))
    assert only.events() == [Save(document=1, version=1)]
    assert only.observed.offset == source.log.offset
    source.apply(Save(document=2, version=1))
    assert only.read() == []
    assert not only.feed.has_more


@pytest.mark.parametrize("length", [16_383, 16_384, 16_385, 50_000])
@pytest.mark.parametrize("is_live", [False, True])
def test_a_long_text_comes_in_parts_and_events_after_it(length: int, is_live: bool) -> None:
    source = _source()
    reader = Reader(source)
    if is_live:
        reader.read()
    else:
        source.open("é" * length)
    if is_live:
        source.open("é" * length)
    source.apply(edit(1, "x"))
    events = reader.events()
    told = length if is_live else length + 1
    parts = 0 if told <= 16_384 else -(-told // 16_384)
    assert sum(isinstance(event, Part) for event in events) == parts
    assert reader.observed.text(1) == "x" + "é" * length


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("character", ["\x01", "x", "😀"])
@pytest.mark.parametrize(
    "limits",
    [
        replace(DEFAULT_LIMITS, part_text_bytes_max=400),
        replace(DEFAULT_LIMITS, part_text_bytes_max=4_000, frame_bytes_max=4_096),
    ],
)
def test_a_text_keeps_to_the_limits_that_the_server_told(
    limits: Limits, character: str, encoding: Encoding
) -> None:
    source = _source()
    source.open(character * 2_000)
    reader = Reader(source, encoding=encoding, limits=limits)
    reader.read()
    source.open(character * 2_001)
    reader.read()
    assert reader.observed.text(1) == character * 2_001
    assert reader.feed.unencodable == 0


def test_who_falls_behind_the_log_is_given_the_state_anew_with_the_reason() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source)
    reader.read()
    for base in range(1, 10):
        source.apply(edit(base, "x"))
    messages = reader.read()
    assert isinstance(messages[0], Sync)
    assert messages[0].reason == "slow"
    assert reader.observed.text(1) == "x" * 9 + "abc"
    assert reader.feed.resyncs == 1


def test_who_is_behind_as_far_as_the_log_reaches_is_not() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source)
    reader.read()
    for base in range(1, 9):
        source.apply(edit(base, "x"))
    assert [type(event) for event in reader.events()] == [Edit] * 8
    assert reader.feed.resyncs == 0


def test_the_log_weighs_texts_and_keeps_the_newest_event_however_large() -> None:
    log = FeedLog(replace(DEFAULT_LIMITS, feed_log_bytes_max=1000))
    items = (Diagnostic(range=(0, 0, 0, 0), severity=1, message="m" * 900),)
    for _ in range(3):
        log.append(Diagnostics(document=1, version=1, items=items))
    assert log.offset - log.first_offset == 1


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("source_unit", Unit)
def test_observers_count_in_their_own_unit(source_unit: Unit, unit: Unit) -> None:
    source = _source(source_unit)
    reader = Reader(source, unit=unit)
    reader.read()
    source.open("é😀b\n")
    end = length_in("é😀", source_unit)
    source.apply(cursor(end), edit(1, "😀x", character=end), cursor(end, version=2))
    source.apply(
        Version(
            document=1,
            version=2,
            length=length_in("é😀😀xb\n", source_unit),
            hash=text_hash("é😀😀xb\n", HashAlgorithm.XXH3_64),
        )
    )
    events = reader.events()
    assert reader.observed.text(1) == "é😀😀xb\n"
    assert [event.position[1] for event in events if isinstance(event, Cursor)] == [length_in("é😀", unit)]
    assert reader.observed.counters.verified == 2


def test_a_frame_of_json_never_exceeds_the_limit_though_msgpack_was_shorter() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source, encoding=Encoding.JSON)
    reader.read()
    source.apply(edit(1, "\x01" * 20_000), edit(2, "\x01" * 30_000))
    assert [type(event) for event in reader.events()] == [Edit, Edit]
    source.apply(edit(3, "\x01" * 60_000))
    messages = reader.read()
    assert isinstance(messages[0], Sync)
    assert reader.observed.text(1) == "\x01" * 110_000 + "abc"


def test_presence_that_no_frame_of_json_takes_is_left_out_and_costs_no_new_state() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source, encoding=Encoding.JSON)
    reader.read()
    items = tuple(Diagnostic(range=(0, 0, 0, 0), severity=1, message="\x01" * 2000) for _ in range(40))
    source.apply(Diagnostics(document=1, version=1, items=items), edit(1, "x"))
    assert [type(event) for event in reader.events()] == [Edit]
    assert (reader.feed.resyncs, reader.feed.unencodable) == (0, 1)
    assert reader.observed.offset == source.log.offset


def test_observers_at_one_offset_share_what_was_encoded() -> None:
    source = _source()
    source.open("abc")
    readers = [Reader(source) for _ in range(2)]
    for reader in readers:
        reader.read()
    source.apply(edit(1, "x"))
    first, second = (reader.feed.next_body(0.0) for reader in readers)
    assert first is second


def test_a_copy_takes_nothing_that_does_not_join_or_fit() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source)
    reader.read()
    offset = reader.observed.offset
    wrong_hash = Snapshot(document=1, version=2, length=1, hash="xxh3-64:0", text="x")
    for start, events in ((offset + 1, ()), (offset, (edit(7, "x"),)), (offset, (wrong_hash,))):
        update = Update(session="s", from_=start, to=offset + 1, events=events)
        with pytest.raises(RemoteProtocolError):
            reader.observed.receive(msgspec.structs.replace(update))
    assert reader.observed.offset == offset


def test_the_log_shares_only_what_was_encoded_since_the_last_event() -> None:
    source = _source()
    source.open("abc")
    reader = Reader(source)
    reader.read()
    for base in range(1, 5):
        source.apply(edit(base, "x"))
        reader.read()
        assert len(source.log.bodies) == 1


def test_a_focus_that_leaves_what_is_seen_is_taken_back_without_saying_where_it_went() -> None:
    source = _source()
    source.open("a", document=1, uri="file:///a.py")
    source.open("b", document=2, uri="file:///b.py")
    reader = Reader(source, filter_=FeedFilter(documents=("file:///a.py",)))
    source.apply(Focus(document=1))
    reader.read()
    assert list(reader.observed.presence.values()) == [Focus(document=1)]
    source.apply(Focus(document=2))
    assert reader.events() == [Focus()]
    assert list(reader.observed.presence.values()) == [Focus()]
    blind = Reader(source, filter_=FeedFilter(documents=("file:///a.py",), presence=False))
    blind.read()
    source.apply(Focus(document=1))
    assert blind.events() == []
