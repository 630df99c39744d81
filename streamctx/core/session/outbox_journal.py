"""Where a client's session notes what another process needs to go on; records are what is stored of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from streamctx.core.session.client_document import ClientDocument
from streamctx.core.session.client_events import ClientSettings
from streamctx.core.session.outbox_records import (
    AttemptMade,
    Bound,
    DocumentGone,
    DocumentNoted,
    DocumentOpened,
    EventsGone,
    EventWaits,
    Marks,
    OutboxRecord,
    ProcessStarted,
    SessionFacts,
    SessionForgotten,
    SnapshotDone,
    SnapshotDue,
    TextReplaced,
)
from streamctx.core.session.well_formed_body import encode_well_formed
from streamctx.vocabulary import DigestAlgorithm, Encoding
from streamctx.wire.messages import Edit, Message, Open, Welcome

__all__ = ["OutboxJournal"]


class OutboxJournal:
    """Collects the records of one session, and numbers what waits: its tickets, from 1.

    Where no outbox is kept, `is_kept` is false, nothing is collected and every ticket is 0. `facts` are those
    of the present session, `_marks` those that were noted last.
    """

    __slots__ = ("_marks", "_records", "facts", "is_kept", "last_ticket")

    def __init__(self, *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.last_ticket = 0
        self.facts: SessionFacts | None = None
        self._records: list[OutboxRecord] = []
        self._marks: Marks | None = None

    def next_ticket(self) -> int:
        """A ticket for one more event that waits."""
        if not self.is_kept:
            return 0
        self.last_ticket += 1
        return self.last_ticket

    def take(self, marks: Marks) -> list[OutboxRecord]:
        """Take all records, in order; they are to be stored together or not at all.

        Args:
            marks: Those of this moment.
        """
        before = self._marks
        # That the server has released something is no reason to write: at worst frames are sent once more.
        is_news = before is None or (marks.next, marks.expected) != (before.next, before.expected)
        if not self.is_kept or not (self._records or is_news):
            return []
        if marks != before:
            self._records.append(marks)
            self._marks = marks
        records, self._records = self._records, []
        return records

    def begin_anew(self, started: ProcessStarted, *, attempt: int, had_session: bool) -> None:
        """Forget what was noted: all of it is noted anew now."""
        self._records = [started, AttemptMade(attempt)]
        self._marks = None
        if self.facts is not None:
            self._records.append(self.facts)
        elif had_session:
            self._records.append(SessionForgotten())

    def add(self, record: OutboxRecord) -> None:
        """Note what has changed."""
        if self.is_kept:
            self._records.append(record)

    # The session.

    def welcomed(
        self, welcome: Welcome, settings: ClientSettings, server: str, *, is_continued: bool
    ) -> None:
        """Note what settles the session, which for one that goes on was settled before (HSK-5)."""
        if is_continued and self.facts is not None:
            self.facts = msgspec.structs.replace(self.facts, secret=welcome.secret, server=server)
        else:
            self._marks = None
            self.facts = SessionFacts(
                server=server,
                session=welcome.session,
                secret=welcome.secret,
                epoch=welcome.epoch,
                encoding=settings.encoding,
                digest=DigestAlgorithm(welcome.digest),
                unit=settings.unit,
                hash=settings.hash,
                role=settings.role,
                durability=welcome.durability,
                limits=welcome.limits,
            )
        self.add(self.facts)

    def forgotten(self) -> None:
        """Note that the next WELCOME begins a new session."""
        self.facts = self._marks = None
        self.add(SessionForgotten())

    def bound(self, kind: Literal["design", "subscription"], number: int, *, is_open: bool) -> None:
        """Note what ends with this process."""
        self.add(Bound(kind, number, is_open))

    # Documents.

    def opened(self, metadata: Open, text: str, made_at: float, *, ticket: int = 0) -> None:
        """Note that a document has this text and metadata, of which the `open` waits if it has a ticket."""
        if self.is_kept:
            body = encode_well_formed(
                msgspec.structs.replace(metadata, text="", parts=None), Encoding.MSGPACK
            )
            self._records.append(DocumentOpened(metadata.document, body, text, ticket, made_at))

    def has_text(self, document: ClientDocument, made_at: float) -> None:
        """Note a document with its present text."""
        if self.is_kept:
            metadata = msgspec.structs.replace(document.metadata, version=document.version)
            self.opened(metadata, document.buffer.text(), made_at)

    def replaced(self, document: ClientDocument) -> None:
        """Note that a document has another text."""
        if self.is_kept and document.refused is None:
            self._records.append(TextReplaced(document.alias, document.version, document.buffer.text()))

    def knows(self, document: ClientDocument) -> None:
        """Note what is known of what was sent of a document."""
        if self.is_kept and document.refused is None:
            self._records.append(
                DocumentNoted(
                    document.alias,
                    document.is_announced,
                    document.open_sequence,
                    document.text_sequence,
                    document.refused_sequence,
                    document.saved_version,
                )
            )

    def document_gone(self, alias: int) -> None:
        """Note that a document was closed or refused."""
        self.add(DocumentGone(alias))

    # What waits.

    def edited(self, edit: Edit, made_at: float) -> None:
        """Note an edit that does not wait."""
        self.waits(edit, edit.document, made_at, 0, edits=True)

    def waits(self, message: Message, alias: int, made_at: float, ticket: int, *, edits: bool) -> None:
        """Note that an event waits; one that `edits` changes the text."""
        if self.is_kept:
            body = encode_well_formed(message, Encoding.MSGPACK)
            self._records.append(EventWaits(ticket, made_at, alias, body, edits))

    def gone(self, tickets: Iterable[int]) -> None:
        """Note that events wait no longer; 0 is no ticket."""
        if self.is_kept:
            found = tuple(ticket for ticket in tickets if ticket)
            if found:
                self._records.append(EventsGone(found))

    def due(self, alias: int) -> None:
        """Note that a text is to be sent as a whole, or is being sent so."""
        self.add(SnapshotDue(alias))

    def done(self, alias: int) -> None:
        """Note that it was."""
        self.add(SnapshotDone(alias))
