"""A client's session that dies at any moment, and goes on in another from what was on disk."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streamctx.core.session.client_session import ClientSession, DocumentRefusal, Refusal
from streamctx.core.session.live_context import LiveContext
from streamctx.core.session.outbox_records import DocumentNoted, OutboxRecord, ProcessStarted
from streamctx.core.session.outbox_state import OutboxState, outbox_state
from streamctx.core.session.state import ClientState
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import Encoding, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    DesignOpen,
    DesignPage,
    DesignTool,
    Event,
    Mention,
)
from tests.sim.pair import PRINCIPAL, Faults, World
from tests.sim.scenario import BAD, Typist, converge, editor_texts, server_texts
from tests.sim.scenario import settings as client_settings

__all__: list[str] = []

_DECODER = msgspec.msgpack.Decoder(list[OutboxRecord])
_DESIGN = DesignOpen(
    document=1,
    uri="figma://f",
    tool=DesignTool(name="figma"),
    file_name="f",
    pages=(DesignPage(id="1", name="p", order=0),),
)


class Disk:
    """Batches of records, as bytes; and what the client had when the last one was written."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.texts: dict[str, object] = {}
        self.session: ClientSession | None = None

    def append(self, session: ClientSession, records: list[OutboxRecord]) -> None:
        if records:
            self.batches.append(msgspec.msgpack.encode(records))
        self.texts = _texts(session)

    def rewrite(self, session: ClientSession, started: ProcessStarted) -> None:
        self.batches = [msgspec.msgpack.encode(session.outbox_snapshot(started))]
        self.texts = _texts(session)


def _texts(session: ClientSession) -> dict[str, object]:
    return {
        document.metadata.uri: (document.buffer.text(), document.version)
        for document in session.documents.values()
        if document.refused is None
    }


class Journaled(ClientSession):
    """A session that has its records on disk before its frames leave."""

    disk: Disk

    @override
    def data_to_send(self, now: float) -> list[bytes]:
        frames = super().data_to_send(now)
        self.disk.append(self, self.take_outbox_records())
        return frames


class Editor:
    """An editor that crashes and comes back; each time it goes on from the disk."""

    def __init__(self, world: World, *, encoding: Encoding = Encoding.MSGPACK, seed: int = 0) -> None:
        self.world = world
        self.settings = replace(client_settings("both", encoding=encoding), limits=world.limits)
        self.disk = Disk()
        self.mentions: list[str] = []
        self.dropped: set[str] = set()
        """Of documents that were closed: what waits behind a snapshot is not sent then."""
        self.excluded: set[int] = set()
        self.told: set[int] = set()
        """Of which the client has been told."""
        session = Journaled(self.settings, jitter=world.random.random, keeps_outbox=True)
        session.disk = self.disk
        self.disk.rewrite(session, self.started())
        self.client = world.client(self.settings, session)
        self.typist = Typist(self.client, seed)
        self.other = Typist(world.client(client_settings()), seed + 1)
        """Somebody else, who can be observed."""

    @property
    def session(self) -> ClientSession:
        return self.client.session

    def is_in(self, state: ClientState) -> bool:
        return self.session.state is state  # A call, so that the type checker forgets what it was.

    def started(self) -> ProcessStarted:
        return ProcessStarted(self.world.now, 1e9 + self.world.now, "boot", self.settings.unit)

    def restored(self, started: ProcessStarted | None = None) -> Journaled:
        state = outbox_state(map(_DECODER.decode, self.disk.batches))
        session = Journaled.restored(
            self.settings, state, started or self.started(), jitter=self.world.random.random
        )
        assert isinstance(session, Journaled)
        session.disk = self.disk
        return session

    def crash(self, started: ProcessStarted | None = None) -> None:
        """Die without a word, and come back."""
        self.note_told()
        self.client.die()
        before = self.disk.texts
        session = self.restored(started)
        assert _texts(session) == before
        self.disk.rewrite(session, started or self.started())
        self.client = self.world.client(self.settings, session)
        self.typist.client = self.client
        self.typist.documents = list(session.documents.values())
        self.typist.present.clear()

    def note_told(self) -> None:
        for event in self.client.events:
            if isinstance(event, DocumentRefusal):
                self.told.add(event.alias)
            elif isinstance(event, Refusal) and event.error.code == "excluded":
                self.told.add(event.error.document or 0)

    # What it does.

    def type(self) -> None:
        self.typist.step()

    def open_long(self) -> None:
        self.typist.open(f"file:///long/{self.typist.random.random()}", "a long text\n" * 4000)
        self.client.pump()

    def mention(self) -> None:
        for document in [
            document for document in self.typist.documents if document.alias not in self.excluded
        ][:1]:
            self.mentions.append(f"note {len(self.mentions)}")
            mention = Mention(
                document=document.alias, version=document.version, range=(0, 0, 0, 0), note=self.mentions[-1]
            )
            self.session.mention(mention, self.world.now)
        self.client.pump()

    def save(self) -> None:
        for document in self.typist.documents[-1:]:
            self.session.save(document.alias, self.world.now)
        self.client.pump()

    def replace(self) -> None:
        for document in self.typist.documents[-1:]:
            self.session.replace_text(document.alias, "anew\n" * 3, self.world.now)
            self.typist.note(document)
        self.client.pump()

    def design(self) -> None:
        opened = self.session.open_design(_DESIGN, self.world.now)
        self.client.pump()
        if self.typist.random.random() < 0.3:
            self.session.designs[opened.document]

    def claim(self) -> None:
        """Open again what the process that died had, changed or not."""
        for document in [document for document in self.session.unclaimed if document.refused is None][:1]:
            text, version = document.buffer.text(), document.version
            if self.typist.random.random() < 0.6:
                text, version = text + "changed meanwhile", self.typist.random.choice([0, version + 9])
            before = document
            document = self.session.open(
                document.metadata.uri, text, self.world.now, version=version, language="python"
            )
            assert document is before
            assert document.buffer.text() == text
            self.typist.texts[document.metadata.uri, version] = text
        self.client.pump()

    def close(self) -> None:
        for document in self.typist.documents[:1]:
            self.session.close_document(document.alias, self.world.now)
            self.dropped.update(self.mentions)
            self.typist.documents.remove(document)
        self.client.pump()

    def open_excluded(self) -> None:
        """The server refuses it, and until then it is a document like others."""
        self.typist.open(f"file:///work/{self.typist.random.random()}/.env", "CANARY")
        self.excluded.add(self.typist.documents[-1].alias)
        self.client.pump()

    def observe(self) -> None:
        """Then the server's numbers count too."""
        self.session.subscribe("*", self.world.now)
        self.client.pump()

    def cut(self) -> None:
        if self.client.link is not None:
            self.client.link.cut()

    def wait(self) -> None:
        self.other.step()
        self.world.run(0.05)

    def wait_long(self) -> None:
        self.world.run(0.7)

    def crash_before_sending(self) -> None:
        self.session.data_to_send(self.world.now)
        self.crash()

    def type_and_crash_before_writing(self) -> None:
        """The last edit was never written: it is lost, and nothing else."""
        for document in self.typist.documents[-1:]:
            self.session.edit(document.alias, [Change(0, 0, 0, 0, "lost")], self.world.now)
        self.crash()

    def compact(self) -> None:
        self.disk.rewrite(self.session, self.started())

    def lose_server(self) -> None:
        self.world.restart()


_STEPS: list[Callable[[Editor], None]] = [
    Editor.type,
    Editor.type,
    Editor.type,
    Editor.wait,
    Editor.wait_long,
    Editor.open_long,
    Editor.mention,
    Editor.save,
    Editor.replace,
    Editor.design,
    Editor.claim,
    Editor.close,
    Editor.open_excluded,
    Editor.observe,
    Editor.cut,
    Editor.crash,
    Editor.crash_before_sending,
    Editor.type_and_crash_before_writing,
    Editor.compact,
]
_STEP = st.sampled_from(_STEPS)
_RUN = settings(max_examples=100, suppress_health_check=list(HealthCheck))
_SMALL = replace(DEFAULT_LIMITS, ring_events_max=40, ring_bytes_max=2 * 1024 * 1024)


def _run(steps: list[Callable[[Editor], None]], world: World, editor: Editor) -> Counter[str | None]:
    """Take the steps; count which mentions a server has applied."""
    applied: Counter[str | None] = Counter()
    apply = LiveContext.apply

    def counted(self: LiveContext, sequence: int, event: Event, *, in_order: bool) -> object:
        if isinstance(event, Mention):
            applied[event.note] += 1
        return apply(self, sequence, event, in_order=in_order)

    with patch.object(LiveContext, "apply", counted):
        # A session that the server has not seen confirmed may be forgotten (HSK-8).
        faults, world.faults = world.faults, Faults()
        world.run(0.05)
        world.faults = faults
        for step in steps:
            step(editor)
            world.run(0.001)
        editor.wait_long()
        world.faults = Faults()
        assert world.run_until(lambda: _is_converged(editor), 60)
    if editor.session.take_purge():
        editor.compact()
    editor.note_told()
    # One that is closed before the server has it is never known to be excluded.
    if editor.told >= editor.excluded:
        assert not any(b"CANARY" in batch for batch in editor.disk.batches)
    return applied


def _is_converged(editor: Editor) -> bool:
    ours, theirs = editor_texts(editor.client), server_texts(editor.world, editor.client)
    refused = {document.metadata.uri for document in editor.session.documents.values() if document.refused}
    assert all(theirs[uri] is None for uri in refused)
    is_here = editor.session.state is ClientState.ESTABLISHED and editor.session.is_settled
    return is_here and all(theirs[uri] == ours[uri] for uri in ours.keys() - refused)


@_RUN
@given(st.lists(_STEP, min_size=5, max_size=60), st.sampled_from([Faults(), BAD]), st.sampled_from(Encoding))
@example([Editor.open_long, Editor.crash, Editor.claim, Editor.type], Faults(), Encoding.MSGPACK)
@example([Editor.type, Editor.replace, Editor.crash_before_sending, Editor.claim], BAD, Encoding.JSON)
def test_session_goes_on_wherever_its_process_dies(
    steps: list[Callable[[Editor], None]], faults: Faults, encoding: Encoding
) -> None:
    world = World(7, faults)
    editor = Editor(world, encoding=encoding, seed=len(steps))
    applied = _run(steps, world, editor)
    # One session all the time, and of what it was told nothing came twice or was lost.
    assert editor.session.resets == 0
    assert len(world.hub.sessions(PRINCIPAL)) == 2
    assert max(applied.values(), default=1) == 1
    assert set(editor.mentions) - editor.dropped <= applied.keys() <= set(editor.mentions)
    view = world.hub.session(PRINCIPAL, editor.session.session_id or "")
    assert view is not None
    taken = [document for document in editor.session.documents.values() if document.refused is None]
    assert len(view["documents"]) == len(taken)  # type: ignore[arg-type]


@_RUN
@given(
    st.lists(_STEP | st.just(Editor.lose_server), min_size=5, max_size=60),
    st.sampled_from([DEFAULT_LIMITS, _SMALL]),
)
def test_texts_are_equal_in_the_end_whatever_is_lost(
    steps: list[Callable[[Editor], None]], limits: Limits
) -> None:
    world = World(8, BAD, limits)
    editor = Editor(world, seed=len(steps))
    _run(steps, world, editor)


@_RUN
@given(st.lists(_STEP, min_size=5, max_size=40))
def test_snapshot_says_what_the_records_say(steps: list[Callable[[Editor], None]]) -> None:
    world = World(9)
    editor = Editor(world, seed=len(steps))
    for step in steps:
        step(editor)
        world.run(0.001)
    editor.client.pump()
    records = outbox_state(map(_DECODER.decode, editor.disk.batches))
    editor.compact()
    snapshot = outbox_state(map(_DECODER.decode, editor.disk.batches))
    # What the server has released may be behind where nothing else was to be written.
    kept = {
        sequence: frame for sequence, frame in records.frames.items() if sequence >= snapshot.marks.released
    }
    assert kept == snapshot.frames
    assert records.facts == snapshot.facts
    assert records.attempt == snapshot.attempt
    assert (records.marks.next, records.marks.expected) == (snapshot.marks.next, snapshot.marks.expected)
    assert records.waiting == snapshot.waiting
    assert records.due == snapshot.due
    assert records.designs == snapshot.designs
    assert _documents(records) == _documents(snapshot)


def _documents(state: OutboxState) -> dict[int, tuple[str, int, DocumentNoted]]:
    return {
        alias: (kept.buffer.text(), kept.version, msgspec.structs.replace(kept.noted, alias=alias))
        for alias, kept in state.documents.items()
    }


def _typed(world: World) -> Editor:
    editor = Editor(world)
    world.run(0.1)
    for _ in range(20):
        editor.type()
    editor.mention()
    return editor


def test_what_waited_is_sent_as_it_was_made() -> None:
    world = World(1)
    editor = Editor(world)
    world.run(0.1)
    document = editor.session.open("file:///a", "", world.now)
    editor.client.pump()
    world.run(0.1)
    editor.cut()
    world.run(0.002)
    for version in range(1, 4):
        editor.session.edit(document.alias, [Change(0, 0, 0, 0, f"{version}")], world.now)
        editor.session.data_to_send(world.now)
    seen: list[Event] = []
    apply = LiveContext.apply

    def watched(self: LiveContext, sequence: int, event: Event, *, in_order: bool) -> object:
        seen.append(event)
        return apply(self, sequence, event, in_order=in_order)

    editor.client.die()
    world.run(5)
    session = editor.restored()
    with patch.object(LiveContext, "apply", watched):
        world.client(editor.settings, session)
        world.run(0.2)
    edits = [(type(event).__name__, getattr(event, "version", None)) for event in seen]
    assert edits == [("Edit", 1), ("Edit", 2), ("Edit", 3)]
    assert all(event.is_offline and 4900 < event.queued_ms < 5200 for event in seen)


@pytest.mark.parametrize("change", ["boot", "unit", "encoding", "role", "hash"])
def test_what_proves_nothing_begins_a_new_session_with_the_same_texts(change: str) -> None:
    world = World(2)
    editor = _typed(world)
    world.run(0.1)
    before = editor.session.session_id
    if change == "unit":
        editor.settings = replace(editor.settings, unit=Unit.UTF_8)
    elif change == "encoding":
        editor.settings = replace(editor.settings, encoding=Encoding.JSON)
    elif change == "role":
        editor.settings = replace(editor.settings, role="produce")
    elif change == "hash":
        editor.settings = replace(editor.settings, hash=type(editor.settings.hash)("sha-256"))
    started = editor.started()
    editor.crash(msgspec.structs.replace(started, boot="another") if change == "boot" else started)
    world.run(1)
    converge(world, editor.client)
    assert editor.session.session_id != before
    assert editor.session.resets == 1


def test_session_is_for_no_other_server() -> None:
    world = World(3)
    editor = _typed(world)
    world.run(0.1)
    editor.client.die()
    session = editor.restored()
    session.connected(world.now, server="wss://elsewhere")
    assert session.session_id is None
    assert session.documents


def test_copy_that_is_superseded_begins_a_new_session_next_time() -> None:
    world = World(11)
    editor = _typed(world)
    world.run(0.1)
    copy = list(editor.disk.batches)
    editor.crash()
    world.run(1)
    ours = editor.session.session_id
    stale = Editor(world)
    stale.client.die()
    stale.disk.batches = copy
    stale.client = world.client(stale.settings, stale.restored())
    world.run(1)
    assert stale.is_in(ClientState.CLOSED)
    stale.disk.append(stale.session, stale.session.take_outbox_records())
    stale.crash()
    world.run(1)
    assert stale.is_in(ClientState.ESTABLISHED)
    assert stale.session.session_id != ours
    assert server_texts(world, stale.client) == editor_texts(stale.client)
    converge(world, editor.client)
    assert editor.session.session_id == ours


def test_attempt_is_higher_than_any_before() -> None:
    world = World(4)
    editor = _typed(world)
    world.run(0.1)
    for _ in range(5):
        # It dies before its HELLO leaves, and that number is used all the same.
        session = editor.restored()
        session.connected(world.now)
        session.data_to_send(world.now)
    assert outbox_state(map(_DECODER.decode, editor.disk.batches)).attempt == 6


def test_nothing_of_an_excluded_document_is_kept() -> None:
    world = World(5)
    editor = Editor(world)
    world.run(0.1)
    document = editor.session.open("file:///work/.env", "PASSWORD=x", world.now)
    editor.client.pump()
    assert any(b"PASSWORD" in batch for batch in editor.disk.batches)
    world.run(1)
    assert document.refused == "excluded"
    assert editor.session.take_purge()
    assert not editor.session.take_purge()
    editor.session.edit(document.alias, [Change(0, 0, 0, 0, "SECRET")], world.now)
    editor.session.replace_text(document.alias, "SECRET", world.now)
    editor.session.save(document.alias, world.now)
    editor.client.pump()
    editor.compact()
    assert not any(b"PASSWORD" in batch or b"SECRET" in batch for batch in editor.disk.batches)
    assert not any(b".env" in batch for batch in editor.disk.batches)


def test_document_is_claimed_once_and_the_rest_can_be_closed() -> None:
    world = World(6)
    editor = Editor(world)
    world.run(0.1)
    for uri in ("file:///a", "file:///b"):
        editor.session.open(uri, uri, world.now)
    editor.client.pump()
    world.run(0.1)
    editor.crash()
    session = editor.session
    first = session.open("file:///a", "file:///a", world.now)
    again = session.open("file:///a", "other", world.now)
    assert again.alias != first.alias
    (left,) = session.unclaimed
    assert left.metadata.uri == "file:///b"
    session.close_document(left.alias, world.now)
    assert session.unclaimed == []
    editor.client.pump()
    world.run(0.5)
    converge(world, editor.client)
    assert session.resumes == 1


def test_document_that_is_opened_again_and_reloaded_before_welcome_is_opened_with_what_it_has() -> None:
    world = World(11)
    editor = Editor(world)
    world.run(0.1)
    document = editor.session.open("file:///a", "abc", world.now)
    for _ in range(5):
        editor.session.edit(document.alias, [Change(0, 0, 0, 0, "x")], world.now)
    editor.client.pump()
    world.run(1)
    editor.client.die()
    session = editor.restored()
    again = session.open("file:///a", "on disk", world.now)
    # A snapshot of it would have a lower version than the text that the server has.
    session.replace_text(again.alias, "reloaded", world.now)
    editor.client = world.client(editor.settings, session)
    converge(world, editor.client)
    assert (again.alias, again.version, again.refused) == (document.alias, 1, None)


def test_without_an_outbox_there_are_no_records() -> None:
    session = ClientSession(client_settings(), jitter=lambda: 0.5)
    session.open("file:///a", "text", 0.0)
    session.connected(0.0)
    session.data_to_send(0.0)
    assert session.take_outbox_records() == []


def test_subscriptions_and_designs_of_a_dead_process_are_ended() -> None:
    world = World(10)
    editor = Editor(world)
    session = editor.session
    world.run(0.1)
    session.subscribe("*", world.now)
    session.open_design(_DESIGN, world.now)
    editor.client.pump()
    world.run(0.5)
    held = world.hub.registry.get(session.session_id or "")
    assert held is not None
    assert held.session.context.designs
    observed = next(each.session for each in world.hub.registry if each.session is not held.session)
    assert observed.observers
    editor.crash()
    world.run(0.5)
    assert editor.session.resumes == 1
    assert not held.session.context.designs
    assert not observed.observers
