"""What the records of a client's outbox come to: the state that another process goes on from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.session.client_document import ClientDocument
from streamctx.core.session.outbox_records import (
    AttemptMade,
    Bound,
    DocumentGone,
    DocumentNoted,
    DocumentOpened,
    EventsGone,
    EventWaits,
    FrameSent,
    FramesEvicted,
    Marks,
    OutboxRecord,
    ProcessStarted,
    SessionFacts,
    SessionForgotten,
    SnapshotDone,
    SnapshotDue,
    TextReplaced,
)
from streamctx.errors import EventRefused
from streamctx.vocabulary import Encoding, Unit
from streamctx.wire.codec import client_decoder
from streamctx.wire.messages import Edit, Message, Open

__all__ = ["KeptDocument", "KeptEvent", "KeptFrame", "OutboxDamaged", "OutboxState", "outbox_state"]

_NOTHING_SENT = DocumentNoted(0, False, 0, 0, 0, None)


class OutboxDamaged(Exception):
    """The records do not fit each other, or are none."""


@dataclass(slots=True)
class KeptDocument:
    """A document: `metadata` is its `open` without the text."""

    metadata: Open
    buffer: TextBuffer
    version: int
    noted: DocumentNoted = _NOTHING_SENT

    def forget_numbers(self) -> None:
        """Begin an epoch: nothing of it was sent."""
        self.noted = _NOTHING_SENT

    def to_document(self) -> ClientDocument:
        """The document as a client has it; it takes the buffer over."""
        document = ClientDocument(self.metadata, self.buffer)
        noted = self.noted
        document.version = self.version
        document.is_announced = noted.is_announced
        document.open_sequence = noted.open_sequence
        document.text_sequence = noted.text_sequence
        document.refused_sequence = noted.refused_sequence
        document.saved_version = noted.saved_version
        return document


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """An event that waits; an `open` with its text beside it."""

    message: Message
    alias: int
    made_at: float
    body_bytes: int
    text: str | None = None


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A durable frame that the server may lack."""

    frame: bytes
    document: int | None


@dataclass(slots=True)
class OutboxState:
    """The state at the last record.

    `waiting` is by ticket, and in the order of tickets each document's events follow each other. `due` are
    documents whose text is to be sent as a whole. `frames` are those from `marks.released` on.
    """

    started: ProcessStarted | None = None
    facts: SessionFacts | None = None
    had_session: bool = False
    """Whether there ever was a session: documents may be known somewhere."""
    attempt: int = 0
    marks: Marks = field(default_factory=lambda: Marks(1, 1, 1, 1, 0, 0))
    frames: dict[int, KeptFrame] = field(default_factory=dict)
    evicted: dict[int, int] = field(default_factory=dict)
    documents: dict[int, KeptDocument] = field(default_factory=dict)
    waiting: dict[int, KeptEvent] = field(default_factory=dict)
    due: set[int] = field(default_factory=set)
    designs: set[int] = field(default_factory=set)
    subscriptions: set[int] = field(default_factory=set)
    last_ticket: int = 0

    @property
    def is_worth_keeping(self) -> bool:
        """Whether anybody could go on with it."""
        return bool(self.facts or self.documents or self.waiting)


def outbox_state(batches: Iterable[Iterable[OutboxRecord]]) -> OutboxState:
    """Read the records of whole moments, in their order.

    Raises:
        OutboxDamaged: If they cannot have been written by a session.
    """
    reader = _Reader()
    try:
        for batch in batches:
            for record in batch:
                reader.take(record)
            reader.forget_released()
    except (EventRefused, LookupError) as error:
        raise OutboxDamaged(f"a record does not fit those before it: {error}") from error
    return reader.state


class _Reader:
    """Makes one record after the other part of the state."""

    def __init__(self) -> None:
        self.state = OutboxState()
        self._forgotten_below = 1

    def take(self, record: OutboxRecord) -> None:
        """Take one record.

        Raises:
            EventRefused: If an edit does not fit its text.
            LookupError: If it is of a document that is not there.
            OutboxDamaged: If its body is not what it has to be.
        """
        state = self.state
        if isinstance(record, EventWaits):
            self._take_waiting(record)
        elif isinstance(record, EventsGone):
            for ticket in record.tickets:
                state.waiting.pop(ticket, None)
        elif isinstance(record, FrameSent):
            state.frames[record.sequence] = KeptFrame(record.frame, record.document)
        elif isinstance(record, Marks):
            state.marks = record
        elif isinstance(record, DocumentOpened):
            self._take_opened(record)
        elif isinstance(record, TextReplaced):
            document = state.documents[record.alias]
            document.buffer, document.version = TextBuffer(record.text, unit=self._unit), record.version
        elif isinstance(record, DocumentNoted):
            if record.alias in state.documents:
                state.documents[record.alias].noted = record
        elif isinstance(record, DocumentGone):
            state.documents.pop(record.alias, None)
        elif isinstance(record, SnapshotDue):
            state.due.add(record.alias)
        elif isinstance(record, SnapshotDone):
            state.due.discard(record.alias)
        elif isinstance(record, FramesEvicted):
            for sequence, alias in record.numbers:
                state.frames.pop(sequence, None)
                state.evicted[sequence] = alias
        elif isinstance(record, Bound):
            numbers = state.designs if record.kind == "design" else state.subscriptions
            numbers.add(record.number) if record.is_open else numbers.discard(record.number)
        elif isinstance(record, SessionFacts):
            self._take_facts(record)
        elif isinstance(record, SessionForgotten):
            state.had_session = True
            self._forget_session()
        elif isinstance(record, AttemptMade):
            state.attempt = record.attempt
        else:
            state.started = record

    def forget_released(self) -> None:
        """Drop the frames that nobody needs."""
        state = self.state
        released = state.marks.released
        if released > self._forgotten_below:
            self._forgotten_below = released
            for numbers in (state.frames, state.evicted):
                for sequence in [sequence for sequence in numbers if sequence < released]:
                    del numbers[sequence]

    @property
    def _unit(self) -> Unit:
        if self.state.started is None:
            raise OutboxDamaged("the first record is missing")
        return self.state.started.unit

    def _take_waiting(self, record: EventWaits) -> None:
        state = self.state
        message = _decoded(record.body)
        if record.edits:
            if not isinstance(message, Edit):
                raise OutboxDamaged(f"a text is changed by {type(message).__name__}")
            document = state.documents[record.alias]
            document.buffer.apply(message.changes, simultaneous=message.mode == "sim")
            document.version = message.version
        # What breaks its schema, because the application broke it, would be refused.
        if record.ticket and isinstance(message, Message):
            self._wait(record.ticket, KeptEvent(message, record.alias, record.made_at, len(record.body)))

    def _take_opened(self, record: DocumentOpened) -> None:
        state = self.state
        message = _decoded(record.body)
        if not isinstance(message, Open):
            raise OutboxDamaged(f"a document is opened by {type(message).__name__}")
        message = msgspec.structs.replace(message, text=None)
        before = state.documents.get(record.alias)
        state.documents[record.alias] = KeptDocument(
            message,
            TextBuffer(record.text, unit=self._unit),
            message.version,
            _NOTHING_SENT if before is None else before.noted,
        )
        if record.ticket:
            self._wait(
                record.ticket,
                KeptEvent(message, record.alias, record.made_at, len(record.body), record.text),
            )

    def _wait(self, ticket: int, event: KeptEvent) -> None:
        self.state.waiting[ticket] = event
        self.state.last_ticket = max(self.state.last_ticket, ticket)

    def _take_facts(self, facts: SessionFacts) -> None:
        state = self.state
        before = state.facts
        if before is None or (before.session, before.epoch) != (facts.session, facts.epoch):
            self._forget_session()
        state.facts = facts
        state.had_session = True

    def _forget_session(self) -> None:
        state = self.state
        state.facts = None
        state.marks = msgspec.structs.replace(state.marks, next=1, expected=1, released=1, safe_stop=1)
        state.frames.clear()
        state.evicted.clear()
        # Numbers of a session say nothing in the next one.
        self._forgotten_below = 1
        for document in state.documents.values():
            document.forget_numbers()


def _decoded(body: bytes) -> object:
    return client_decoder(Encoding.MSGPACK).decode(body)
