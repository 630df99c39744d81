"""Feeds of one session, and the copies that observers make of them, beside a list of all that was shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.session.observed import ObservedSession
from streamctx.core.session.observer_feed import Feed, FeedFilter
from streamctx.errors import RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.codec import server_decoder
from streamctx.wire.messages import (
    Attachment,
    Close,
    Cursor,
    Diagnostic,
    Diagnostics,
    Edit,
    FeedEvent,
    Focus,
    Mention,
    Open,
    Part,
    Save,
    Snapshot,
    Stale,
    State,
    Sync,
    Synced,
    Update,
    Version,
)
from tests.core.machines import machine_settings
from tests.core.session.feed_source import Source

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

# A log so short that observers fall behind it, by number and, with long texts, by weight; and frames so small
# that a part holds a thousand characters.
LIMITS = replace(
    DEFAULT_LIMITS,
    feed_log_events_max=10,
    feed_log_bytes_max=6_000,
    frame_bytes_max=8_192,
    part_text_bytes_max=4_000,
)
TEXTS = {
    "empty": "",
    "ascii": "x\ny",
    "mixed": "é😀b\n",
    "carriage return": "a\r\n",
    "emoji": "😀😀😀",
    "in two parts": "é" * 1_500,
}
INSERTED = {
    "nothing": "",
    "x": "x",
    "é": "é",
    "lines": "😀\n\n",
    # What JSON says in six bytes each: two such edits do not fit a frame, nor does one of the second kind.
    "long": "\x01" * 700,
    "too long": "\x01" * 1_500,
}
URIS = ("file:///src/a.py", "file:///src/b.py", "file:///doc/c.md")
FILTERS = (None, ("file:///src/*",), ("file:///doc/*",), ("*.md", "*/a.p?"), ("*",), ())
TEXT_KINDS = st.sampled_from(sorted(TEXTS))
READERS_MAX = 5
NUMBERS = st.integers(0, READERS_MAX - 1)
ALIASES = st.sampled_from([1, 1, 2, 2, 3])
PLACES = st.integers(0, 50)
UNITS = st.sampled_from(list(Unit))

PresenceKey: TypeAlias = tuple[str, int, str]
StateValues: TypeAlias = dict[PresenceKey, tuple[FeedEvent, bool]]


def length(text: str, unit: Unit) -> int:
    if unit is Unit.UTF_16:
        return len(text.encode("utf-16-le")) // 2
    return len(text) if unit is Unit.UTF_32 else len(text.encode())


def position(text: str, index: int, unit: Unit) -> tuple[int, int]:
    """Line and character. No line ends within the texts here but with a line feed, or both."""
    line_start = text.rfind("\n", 0, index) + 1
    return text.count("\n", 0, index), length(text[line_start:index], unit)


@dataclass(frozen=True)
class Text:
    """One open document at a moment."""

    uri: str
    version: int
    text: str
    is_stale: bool = False


@dataclass(frozen=True)
class Shown:
    """One event of the log, in each unit, and the documents after it."""

    say: dict[Unit, FeedEvent]
    uri: str | None
    key: PresenceKey | None
    documents: dict[int, Text]
    closes: int = 0
    is_too_long: bool = False


@dataclass(eq=False)
class Reader:
    """A feed, the copy that its observer makes, and what the copy has to be."""

    feed: Feed
    observed: ObservedSession
    filter_: FeedFilter
    unit: Unit
    encoding: Encoding
    min_interval_s: float
    told: int = 0
    due_at: float = 0.0
    batch_stop: int = 0
    """What was shown before this offset comes without a pause."""
    syncs: int = 0
    syncing: list[FeedEvent] | None = None
    """The events of the state that is coming, if one is."""
    state: tuple[bool, StateValues] = (False, {})
    """What that state has to be, besides documents."""
    parts_to_come: int = 0
    presence: dict[PresenceKey, FeedEvent] = field(default_factory=dict)
    is_connected: bool = False

    def see(self, shown: Shown) -> Shown | None:
        """What it is shown of an event: of a focus elsewhere, only that."""
        if shown.key is not None and not self.filter_.presence:
            return None
        if self.takes_uri(shown.uri):
            return shown
        if any(isinstance(event, Focus) for event in shown.say.values()):
            return replace(shown, say=dict.fromkeys(Unit, Focus()))
        return None

    def takes_uri(self, uri: str | None) -> bool:
        patterns = self.filter_.documents
        return patterns is None or uri is None or any(fnmatchcase(uri, pattern) for pattern in patterns)


class ObserverFeedMachine(RuleBasedStateMachine):
    """A producer that works, and observers that read when they like."""

    @initialize(
        unit=UNITS,
        kinds=st.tuples(TEXT_KINDS, TEXT_KINDS),
        has_begun=st.booleans(),
        presence=st.booleans(),
        beside=st.sampled_from(FILTERS),
    )
    def start(
        self,
        unit: Unit,
        kinds: tuple[str, str],
        has_begun: bool,
        presence: bool,
        beside: tuple[str, ...] | None,
    ) -> None:
        self.unit = unit
        self.source = Source(unit, LIMITS)
        self.now = 100.0
        self.documents: dict[int, Text] = {}
        self.presence: dict[PresenceKey, Shown] = {}
        self.is_connected = False
        self.history: list[Shown] = []
        self.readers: list[Reader] = []
        self.kept_from = 0
        self._observers_changed()
        for alias, kind in enumerate(kinds, 1):
            self.open(alias, URIS[alias], kind)
        if has_begun:
            self.subscribe(None, True, unit, Encoding.MSGPACK, 0.0)
            self.subscribe(None, presence, unit, Encoding.MSGPACK, 0.0)
            self.subscribe(("file:///src/*",), False, unit, Encoding.JSON, 0.0)
            self.subscribe_beside(2, beside, presence=False, is_twin=False)
            self.everybody_reads()

    # What the producer does.

    def show(
        self,
        say: dict[Unit, FeedEvent] | FeedEvent,
        *,
        uri: str | None = None,
        key: PresenceKey | None = None,
        closes: int = 0,
        is_too_long: bool = False,
    ) -> None:
        """Note what the log has to hold now."""
        in_units = say if isinstance(say, dict) else dict.fromkeys(Unit, say)
        shown = Shown(in_units, uri, key, dict(self.documents), closes, is_too_long)
        self.history.append(shown)
        if key is not None:
            self.presence[key] = shown
        if closes:
            self.presence = {key: value for key, value in self.presence.items() if key[1] != closes}
        self._note_what_is_kept()
        assert self.source.log.offset == len(self.history)

    def settled(self, alias: int) -> Text | None:
        document = self.documents.get(alias)
        return None if document is None or document.is_stale else document

    @rule(alias=ALIASES, uri=st.sampled_from(URIS), kind=TEXT_KINDS)
    def open(self, alias: int, uri: str, kind: str) -> None:
        text = TEXTS[kind]
        known = self.documents.get(alias)
        uri = uri if known is None else known.uri
        version = 1 if known is None else known.version + 1
        opened = {
            unit: Open(
                document=alias,
                uri=uri,
                version=version,
                length=length(text, unit),
                hash=text_hash(text, HashAlgorithm.XXH3_64),
                text=text,
            )
            for unit in Unit
        }
        self.source.apply(opened[self.unit])
        self.documents[alias] = Text(uri, version, text)
        self.show(dict(opened), uri=uri)

    @rule(alias=ALIASES, kind=TEXT_KINDS)
    def snapshot(self, alias: int, kind: str) -> None:
        text = TEXTS[kind]
        document = self.documents.get(alias)
        if document is None:
            return
        said = {
            unit: Snapshot(
                document=alias,
                version=document.version + 1,
                length=length(text, unit),
                hash=text_hash(text, HashAlgorithm.XXH3_64),
                text=text,
            )
            for unit in Unit
        }
        self.source.apply(said[self.unit])
        self.documents[alias] = Text(document.uri, document.version + 1, text)
        self.show(dict(said), uri=document.uri)

    @rule(
        alias=ALIASES,
        changes=st.lists(
            st.tuples(PLACES, st.integers(0, 2), st.sampled_from(sorted(INSERTED))), min_size=1, max_size=4
        ),
    )
    def edit(self, alias: int, changes: list[tuple[int, int, str]]) -> None:
        for start, deleted, kind in changes:
            inserted = INSERTED[kind]
            document = self.settled(alias)
            if document is None:
                return
            text = document.text
            start = _between_characters(text, start % (len(text) + 1))
            stop = _between_characters(text, min(len(text), start + deleted))
            edits = {
                unit: Edit(
                    document=alias,
                    base=document.version,
                    version=document.version + 1,
                    changes=(Change(*position(text, start, unit), *position(text, stop, unit), inserted),),
                )
                for unit in Unit
            }
            self.source.apply(edits[self.unit])
            after = text[:start] + inserted + text[stop:]
            self.documents[alias] = Text(document.uri, document.version + 1, after)
            self.show(dict(edits), uri=document.uri, is_too_long=kind == "too long")

    @rule(alias=ALIASES, is_saved=st.booleans())
    def verify_or_save(self, alias: int, is_saved: bool) -> None:
        document = self.settled(alias)
        if document is None:
            return
        if is_saved:
            save = Save(document=alias, version=document.version)
            self.source.apply(save)
            self.show(save, uri=document.uri)
            return
        hash_ = text_hash(document.text, HashAlgorithm.XXH3_64)
        said = {
            unit: Version(
                document=alias, version=document.version, length=length(document.text, unit), hash=hash_
            )
            for unit in Unit
        }
        self.source.apply(said[self.unit])
        self.show(dict(said), uri=document.uri)

    @rule(alias=ALIASES)
    def lose(self, alias: int) -> None:
        document = self.settled(alias)
        if document is None:
            return
        self.source.context.lose([alias], ask=False)
        self.documents[alias] = replace(document, is_stale=True)
        self.show(Stale(document=alias, reason="lost"), uri=document.uri)

    @rule(alias=ALIASES)
    def close(self, alias: int) -> None:
        document = self.documents.pop(alias, None)
        if document is None:
            return
        closed = Close(document=alias)
        self.source.apply(closed)
        self.show(closed, uri=document.uri, closes=alias)

    @rule(
        alias=ALIASES,
        place=PLACES,
        kinds=st.lists(
            st.sampled_from(["cursor", "diagnostics", "mention", "state"]), min_size=1, max_size=4
        ),
        view=st.sampled_from(["", "left"]),
    )
    def point_at(self, alias: int, place: int, kinds: list[str], view: str) -> None:
        for number, kind in enumerate(kinds):
            document = self.settled(alias)
            if document is None:
                return
            index = _between_characters(document.text, (place + number) % (len(document.text) + 1))
            said = {
                unit: _said(kind, alias, document.version, position(document.text, index, unit), view)
                for unit in Unit
            }
            self.source.apply(said[self.unit])  # type: ignore[arg-type]
            key = None if kind == "mention" else (kind, alias, view if kind == "cursor" else "")
            self.show(said, uri=document.uri, key=key)

    @rule(alias=ALIASES | st.none())
    def focus(self, alias: int | None) -> None:
        if alias is not None and alias not in self.documents:
            return
        focused = Focus(document=alias)
        self.source.apply(focused)
        self.show(focused, uri=None if alias is None else self.documents[alias].uri, key=("focus", 0, ""))

    @rule()
    def connect_or_disconnect(self) -> None:
        self.is_connected = not self.is_connected
        self.source.context.set_connected(self.is_connected)
        self.show(Attachment(connected=self.is_connected))

    @rule(alias=ALIASES, closes=st.booleans(), is_heavy=st.booleans())
    def be_busy(self, alias: int, closes: bool, is_heavy: bool) -> None:
        """So much, by number or by weight, that all who do not read meanwhile fall behind the log."""
        if closes:
            self.close(alias)
        for _ in range(5 if is_heavy else LIMITS.feed_log_events_max):
            if is_heavy:
                self.open(alias, URIS[alias - 1], "in two parts")
            else:
                self.connect_or_disconnect()

    # What the observers do.

    @precondition(lambda self: len(self.readers) < READERS_MAX)
    @rule(
        documents=st.sampled_from(FILTERS),
        presence=st.booleans(),
        unit=UNITS,
        encoding=st.sampled_from(list(Encoding)),
        min_interval_s=st.sampled_from([0.0, 0.0, 0.1]),
    )
    def subscribe(
        self,
        documents: tuple[str, ...] | None,
        presence: bool,
        unit: Unit,
        encoding: Encoding,
        min_interval_s: float,
    ) -> None:
        filter_ = FeedFilter(documents=documents, presence=presence)
        feed = Feed(
            self.source,
            subscription=1,
            unit=unit,
            encoding=encoding,
            filter_=filter_,
            min_interval_s=min_interval_s,
            limits=LIMITS,
        )
        observed = ObservedSession("s", unit=unit, limits=LIMITS)
        self.readers.append(Reader(feed, observed, filter_, unit, encoding, min_interval_s))
        self._observers_changed()

    @precondition(lambda self: 0 < len(self.readers) < READERS_MAX)
    @rule(number=NUMBERS, documents=st.sampled_from(FILTERS), presence=st.booleans(), is_twin=st.booleans())
    def subscribe_beside(
        self, number: int, documents: tuple[str, ...] | None, presence: bool, is_twin: bool
    ) -> None:
        """Two that want the same share what is encoded; two that differ only in the filter must not."""
        other = self.readers[number % len(self.readers)]
        if is_twin:
            documents, presence = other.filter_.documents, other.filter_.presence
        self.subscribe(documents, presence, other.unit, other.encoding, other.min_interval_s)

    @precondition(lambda self: self.readers)
    @rule(number=NUMBERS)
    def unsubscribe(self, number: int) -> None:
        """As a server does; the others have to go on as if nothing had been."""
        self.readers.pop(number % len(self.readers)).feed.end()
        self._observers_changed()

    def _observers_changed(self) -> None:
        self.source.log.units = tuple(sorted({reader.unit for reader in self.readers} - {self.unit}))
        self.source.log.set_observed(bool(self.readers))
        self._note_what_is_kept()

    def _note_what_is_kept(self) -> None:
        """Nothing that was shown when there was no observer."""
        if not self.readers:
            self.kept_from = len(self.history)

    @precondition(lambda self: self.readers)
    @rule(number=NUMBERS, count=st.integers(1, 4))
    def read_some(self, number: int, count: int) -> None:
        reader = self.readers[number % len(self.readers)]
        for _ in range(count):
            if not self._read(reader):
                return

    @precondition(lambda self: self.readers)
    @rule(number=NUMBERS)
    def read_all(self, number: int) -> None:
        reader = self.readers[number % len(self.readers)]
        while self._read(reader):
            pass

    @precondition(lambda self: self.readers)
    @rule()
    def everybody_reads(self) -> None:
        for number in range(len(self.readers)):
            self.read_all(number)

    @precondition(lambda self: self.readers)
    @rule(alias=ALIASES)
    def everybody_reads_a_long_text(self, alias: int) -> None:
        """Side by side, so that what is encoded for one may be what others get, but for the parts."""
        self.now += 0.1
        self.everybody_reads()
        self.open(alias, URIS[alias - 1], "in two parts")
        self.now += 0.1
        self.everybody_reads()

    @precondition(lambda self: self.readers)
    @rule(number=NUMBERS, missed=st.integers(1, 3))
    def miss_an_update(self, number: int, missed: int) -> None:
        """What does not join is refused by a copy, which stays as it was."""
        reader = self.readers[number % len(self.readers)]
        gap = Update(session="s", from_=reader.told + missed, to=reader.told + missed + 1, events=())
        with pytest.raises(RemoteProtocolError):
            reader.observed.receive(gap)
        assert reader.observed.offset == reader.told

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _read(self, reader: Reader) -> bool:
        """Take the next message, if there is one, and hold it against what was shown."""
        body = reader.feed.next_body(self.now)
        if body is None:
            assert reader.syncing is None
            assert reader.parts_to_come == 0
            assert self._expected(reader, reader.told, reader.batch_stop) == []
            if self.now < reader.due_at:
                return False
            # Whatever was shown is told, the last of it too.
            assert not reader.feed.has_more
            assert self._expected(reader, reader.told, len(self.history)) == []
            self._assert_equal(reader, len(self.history))
            return False
        assert len(body) < LIMITS.frame_bytes_max
        message = server_decoder(reader.encoding).decode(body)
        assert isinstance(message, Sync | Update | Synced)
        reader.observed.receive(message)
        if isinstance(message, Sync):
            self._take_sync(reader, message)
        elif isinstance(message, Synced):
            assert reader.syncing is not None
            assert message.offset == reader.told
            self._take_state(reader, reader.syncing)
            reader.syncing = None
        elif reader.syncing is not None:
            assert (message.from_, message.to) == (reader.told, reader.told)
            reader.syncing += message.events
        elif reader.parts_to_come:
            assert (message.from_, message.to) == (reader.told, reader.told)
            self._take_part(reader, message.events)
        else:
            self._take_update(reader, message)
        if reader.syncing is None and reader.parts_to_come == 0:
            self._assert_equal(reader, reader.told)
        return True

    def _take_sync(self, reader: Reader, sync: Sync) -> None:
        assert (sync.session, sync.epoch, sync.client) == ("s", "e", self.source.client)
        assert sync.offset == len(self.history)
        if reader.syncs == 0:
            assert sync.reason == "subscribed"
        else:
            # Only who is behind the log, or could not be sent what it holds, is given the state anew.
            assert sync.reason == "slow"
            assert reader.syncing is None
            unsendable = reader.encoding is Encoding.JSON and any(
                shown.is_too_long for shown in self.history[reader.told :]
            )
            assert reader.told < self.source.log.first_offset or unsendable
        assert reader.feed.resyncs == reader.syncs
        reader.syncs += 1
        reader.told = sync.offset
        reader.syncing = []
        reader.state = self._state_for(reader)

    def _state_for(self, reader: Reader) -> tuple[bool, StateValues]:
        """Whether the producer is there; each presence value in the reader's unit, and if it must come."""
        present: StateValues = {}
        if not reader.filter_.presence:
            return self.is_connected, present
        for key, shown in self.presence.items():
            event = shown.say[reader.unit]
            document = self.documents.get(getattr(event, "document", None) or 0)
            uri = None if getattr(event, "document", None) is None else document.uri if document else ""
            if reader.takes_uri(uri):
                # In another unit, a place in an earlier text may be one that nobody can say any more (OBS-5).
                version = None if document is None else document.version
                is_present = getattr(event, "version", version) == version
                present[key] = event, reader.unit is self.unit or is_present
        return self.is_connected, present

    def _take_state(self, reader: Reader, events: Iterable[FeedEvent]) -> None:
        reader.is_connected, present = reader.state
        for key, (_, must_come) in present.items():
            assert key in reader.observed.presence or not must_come
        reader.presence = {
            key: event for key, (event, _) in present.items() if key in reader.observed.presence
        }
        for event in events:
            uri = event.uri if isinstance(event, Open) else None
            assert reader.takes_uri(uri)

    def _take_part(self, reader: Reader, events: tuple[FeedEvent, ...]) -> None:
        assert all(isinstance(event, Part) for event in events)
        reader.parts_to_come -= len(events)
        assert reader.parts_to_come >= 0

    def _take_update(self, reader: Reader, update: Update) -> None:
        if not self._expected(reader, reader.told, reader.batch_stop):
            assert self.now >= reader.due_at
            reader.batch_stop = len(self.history)
        assert reader.told == update.from_ < update.to <= len(self.history)
        expected = self._expected(reader, update.from_, update.to)
        assert len(update.events) == len(expected) > 0
        for event, shown in zip(update.events, expected, strict=True):
            wanted = shown.say[reader.unit]
            if isinstance(event, Open | Snapshot) and event.parts is not None:
                assert event is update.events[-1]
                reader.parts_to_come = event.parts
                assert isinstance(wanted, Open | Snapshot)
                wanted = msgspec.structs.replace(wanted, text=None, parts=event.parts)
            assert event == wanted
            if shown.key is not None:
                reader.presence[shown.key] = wanted
            elif shown.closes:
                reader.presence = {k: v for k, v in reader.presence.items() if k[1] != shown.closes}
            elif isinstance(event, Attachment):
                reader.is_connected = event.connected
        reader.told = update.to
        reader.due_at = self.now + reader.min_interval_s

    def _expected(self, reader: Reader, start: int, stop: int) -> list[Shown]:
        """What was shown in between and is wanted, of each key only the newest."""
        taken = [seen for shown in self.history[start:stop] if (seen := reader.see(shown)) is not None]
        newest = {shown.key: number for number, shown in enumerate(taken)}
        return [
            shown for number, shown in enumerate(taken) if shown.key is None or newest[shown.key] == number
        ]

    # What holds whenever a copy is whole.

    def _assert_equal(self, reader: Reader, offset: int) -> None:
        """The copy is the source as it was at an offset, as far as the filter lets through."""
        if reader.syncs == 0:
            return
        observed = reader.observed
        documents = self.history[offset - 1].documents if offset else {}
        assert {
            alias: Text(copy.uri, copy.version, observed.text(alias) or "", copy.is_stale)
            for alias, copy in observed.documents.items()
        } == {alias: document for alias, document in documents.items() if reader.takes_uri(document.uri)}
        assert observed.is_synced
        assert observed.is_connected == reader.is_connected
        assert dict(observed.presence) == reader.presence

    @invariant()
    def nothing_is_held_beyond_the_bounds(self) -> None:
        log = self.source.log
        held = log.offset - log.first_offset
        texts = [_text_of(shown.say[self.unit]) for shown in self.history]
        assert min(1, log.offset - self.kept_from) <= held <= LIMITS.feed_log_events_max
        assert sum(texts[log.first_offset :]) <= LIMITS.feed_log_bytes_max or held == 1
        assert log.first_offset >= self.kept_from
        if log.first_offset > self.kept_from:
            # One more would have been too many, or, with what an event weighs besides its text, too heavy.
            weights = [200 + text for text in texts[log.first_offset - 1 :]]
            assert held == LIMITS.feed_log_events_max or sum(weights) > LIMITS.feed_log_bytes_max
        assert all(stop == log.offset for _, stop, _ in log.bodies)
        assert self.readers or not log.bodies
        assert all(reader.feed.unencodable == 0 for reader in self.readers)

    @override
    def teardown(self) -> None:
        """Everybody who goes on reading ends with the present state."""
        if sys.exc_info()[0] is not None or not hasattr(self, "readers"):
            return  # What failed before is not to be hidden.
        for reader in self.readers:
            # The rest of a batch that has begun, and one with all that was shown since.
            for _ in range(2):
                self.now += 0.1
                while self._read(reader):
                    pass
            assert not reader.feed.has_more
            self._assert_equal(reader, len(self.history))


def _between_characters(text: str, index: int) -> int:
    """An index where a position may be: not within the one line end of two characters."""
    return index - 1 if text[index - 1 : index + 1] == "\r\n" else index


def _said(kind: str, alias: int, version: int, at: tuple[int, int], view: str) -> FeedEvent:
    if kind == "cursor":
        return Cursor(document=alias, version=version, position=at, view=view)
    if kind == "state":
        return State(document=alias, dirty=version % 2 == 0)
    if kind == "mention":
        return Mention(document=alias, version=version, range=(*at, *at))
    items = (Diagnostic(range=(*at, *at), severity=1, message="m"),)
    return Diagnostics(document=alias, version=version, items=items)


def _text_of(event: FeedEvent) -> int:
    if isinstance(event, Edit):
        return sum(len(change.text) for change in event.changes)
    return len(event.text or "") if isinstance(event, Open | Snapshot) else 0


TestObserverFeed = ObserverFeedMachine.TestCase
TestObserverFeed.settings = machine_settings(examples=200, steps=50)
