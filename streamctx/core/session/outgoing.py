"""What a producer's documents and events become on their way out: frames, in an order the server can follow.

The session says what happened in the editor and which delivery the present epoch has;
this says what is sent next, what a full outbox gives up, and how a document heals.
"""

from __future__ import annotations

from collections import deque

import msgspec

from streamctx.core.documents.parts import part_characters, part_count
from streamctx.core.documents.presence import key_of
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.session.client_document import HASHED_WHILE_BUSY_BYTES_MAX, VERSION_IDLE_S, ClientDocument
from streamctx.core.session.client_events import ClientEvent, ClientSettings, DocumentRefusal, Refusal
from streamctx.core.session.delivery import Delivery
from streamctx.core.session.outbox import Outbox, Queued
from streamctx.core.session.outbox_journal import OutboxJournal
from streamctx.core.session.outbox_state import KeptEvent, OutboxState
from streamctx.core.session.well_formed_body import encode_well_formed
from streamctx.errors import ErrorCode
from streamctx.limits import Limits
from streamctx.wire.messages import (
    Close,
    DesignClose,
    DesignOpen,
    Edit,
    ErrorMessage,
    Event,
    Mention,
    Message,
    Open,
    Save,
    Snapshot,
    SnapshotRequest,
    Subscribe,
    SupersedableEvent,
    Unsubscribe,
    Version,
)

__all__ = ["Outgoing"]

_VERSION_EDITS = 64
_EVENT_WEIGHT = 150
_FRAME_OVERHEAD_BYTES = 64
_REOPENS_MAX = 3
_DOCUMENT_ENDS = frozenset({ErrorCode.TOO_LARGE, ErrorCode.LIMIT, ErrorCode.EXCLUDED, ErrorCode.UNVERIFIABLE})


class Outgoing:
    """The documents of a session and everything of theirs that waits.

    `delivery` is that of the present epoch, `None` before the first. `limits` are those
    that the server has told. What changes is noted in the journal.
    """

    def __init__(self, settings: ClientSettings, events: deque[ClientEvent], journal: OutboxJournal) -> None:
        """Start without documents.

        Args:
            settings: Those of the session.
            events: Takes what the application is told.
            journal: Takes what another process needs to go on.
        """
        self.documents: dict[int, ClientDocument] = {}
        self.designs: dict[int, DesignOpen] = {}
        self.outbox = Outbox(settings.limits.supersedable_keys_max, journal)
        self.delivery: Delivery | None = None
        self.is_offline = True
        self.collapsed = 0
        """Waiting events that a snapshot replaced."""
        self._settings = settings
        self._events = events
        self._journal = journal
        self._unverified: dict[int, ClientDocument] = {}
        self._designs_reopened: set[int] = set()
        self.limits = settings.limits

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self._part_characters = part_characters(limits)

    @property
    def is_full(self) -> bool:
        """Whether the one bound of ring and outbox is reached."""
        kept_events = 0 if self.delivery is None else self.delivery.kept_events
        kept_bytes = 0 if self.delivery is None else self.delivery.kept_bytes
        return (
            self.outbox.events + kept_events > self._limits.ring_events_max
            or self.outbox.bytes + kept_bytes > self._limits.ring_bytes_max
        )

    # What the editor did.

    def put_text(self, document: ClientDocument, message: Open, text: str, now: float) -> None:
        """Let a new document's text wait."""
        self.documents[document.alias] = document
        self._put_opened(message, text, now)
        self._bound()

    def open_again(self, document: ClientDocument, text: str, now: float) -> None:
        """Let a document's text and metadata, which it has already, take the place of those that it had."""
        document.edits_unverified = 0
        self._unverified.pop(document.alias, None)
        # What takes the place of its `open` is an `open` too, and no snapshot: its version may be lower.
        document.is_announced = False
        if document.alias in self.outbox.snapshots_due:
            # The text that is due is this one, and may be below what was saved.
            self.outbox.drop_saves(document.alias)
            self._journal.has_text(document, now)
        else:
            self.put_text(document, document.metadata, text, now)
        self._journal.knows(document)

    def enqueue(self, message: Message, alias: int, now: float, *, weight: int = 0) -> None:
        """Let a durable event or a request wait; `alias` is 0 for a request."""
        ticket = 0
        if not isinstance(message, Subscribe):  # It ends with this process.
            ticket = self._journal.next_ticket()
            self._journal.waits(message, alias, now, ticket, edits=isinstance(message, Edit))
        self.outbox.put(Queued(message, alias, now, self.is_offline, _EVENT_WEIGHT + weight, ticket=ticket))
        self._bound()

    def edited(self, document: ClientDocument, edit: Edit, now: float) -> None:
        """Let an edit that was made wait, and its hash be sent in time (VER-1)."""
        if document.alias in self.outbox.snapshots_due:
            self._journal.edited(edit, now)
            return  # The snapshot has it, and proves itself.
        self.enqueue(edit, document.alias, now, weight=sum(len(change.text) for change in edit.changes))
        if document.alias in self.outbox.snapshots_due:
            return  # The outbox was full.
        if not document.edits_unverified:
            document.first_unverified_at = now
            self._unverified[document.alias] = document
        document.edits_unverified += 1
        document.last_edit_at = now
        if (
            document.edits_unverified >= _VERSION_EDITS
            and document.buffer.byte_length <= HASHED_WHILE_BUSY_BYTES_MAX
        ):
            self.put_version(document, now, cause="count")

    def put_version(self, document: ClientDocument, now: float, *, cause: str) -> None:
        """Let the hash of a document's present text wait, unless a snapshot will tell it."""
        document.edits_unverified = 0
        self._unverified.pop(document.alias, None)
        if document.alias in self.outbox.snapshots_due:
            return
        self.enqueue(
            Version(
                document=document.alias,
                version=document.version,
                length=document.buffer.length,
                hash=document.buffer.hash(self._settings.hash),
                cause=cause,
            ),
            document.alias,
            now,
        )

    def next_version_at(self) -> float | None:
        """When `put_due_versions` has something to do."""
        return min((document.version_due_at() for document in self._unverified.values()), default=None)

    def put_due_versions(self, now: float) -> None:
        """Let the hashes wait whose time has come."""
        for document in [d for d in self._unverified.values() if d.version_due_at() <= now]:
            is_idle = now >= document.last_edit_at + VERSION_IDLE_S
            self.put_version(document, now, cause="idle" if is_idle else "count")

    def close(self, document: ClientDocument, now: float) -> None:
        """Let a document's close wait, behind the hash of what was not verified yet."""
        alias = document.alias
        if document.edits_unverified and document.refused is None:
            self.put_version(document, now, cause="count")
        # Only now: that may have filled the outbox. An open that was given up may have arrived all the same.
        if document.refused is None and not document.open_sequence and alias in self.outbox.snapshots_due:
            self.outbox.forget(alias)  # The server has never heard of it.
        else:
            if alias in self.outbox.snapshots_due:
                self.outbox.forget(alias)
            # Before the close waits: a full outbox must not take it for a document that can collapse.
            del self.documents[alias]
            self.enqueue(Close(document=alias), alias, now)
        self.documents.pop(alias, None)
        self._journal.document_gone(alias)
        self.forget_states(alias)
        self._unverified.pop(alias, None)

    def forget_states(self, alias: int) -> None:
        """Send nothing more of the supersedable events of a document."""
        states = self.outbox.states
        for key, (event, _, _) in states.current():
            if key[1] == alias or event.document == alias:
                states.forget(key)

    def collapse(self, document: ClientDocument) -> None:
        """Let one snapshot take the place of all that waits of a document."""
        self.collapsed += self.outbox.collapse(document.alias, keep=_outlives_snapshot)
        document.edits_unverified = 0
        self._unverified.pop(document.alias, None)

    # What the server says.

    def open_anew(self, now: float) -> None:
        """Begin another epoch: open every document with its present text (RSM-7)."""
        waiting = self.outbox.clear()
        self._unverified.clear()
        self._designs_reopened.clear()
        for document in self.documents.values():
            document.forget_numbers()
            document.edits_unverified = 0
            if document.refused == ErrorCode.EXCLUDED:
                continue  # It stays untold.
            if document.refused is not None:
                document.refused = None
                self._journal.has_text(document, now)
            self._journal.knows(document)
            self.outbox.collapse(document.alias, keep=_outlives_snapshot)
        for design in self.designs.values():
            self.enqueue(design, design.document, now)
        for queued in waiting:
            if _outlives_snapshot(queued.message) and queued.alias in self.outbox.snapshots_due:
                self._note_waiting(queued, edits=False)
                self.outbox.put(queued)
        self.outbox.states.mark_all_dirty()

    def take_snapshot_request(self, request: SnapshotRequest, now: float, *, applied: int = 1) -> None:
        """Send what the server asks for (DIV-4).

        Args:
            applied: All our numbers below are known to have been applied when it asked.
        """
        document = self.documents.get(request.document)
        design = self.designs.get(request.document)
        if document is not None:
            if document.refused is None and not self._is_healing(document, request, applied):
                self.collapse(document)
        elif design is not None:
            self.enqueue(design, design.document, now)
        elif request.reason == "lost":
            # It is closed here; its close may be what was lost.
            self.enqueue(Close(document=request.document), request.document, now)

    def _is_healing(self, document: ClientDocument, request: SnapshotRequest, applied: int) -> bool:
        """Whether a snapshot is on its way that the server had not seen when it asked.

        Nothing since that snapshot was refused, or the ERROR would have come before the request; and nothing
        since was given up, the snapshot included, which makes the document stale again.
        """
        return (
            request.reason != "lost"
            and self.delivery is not None
            and document.text_sequence >= max(applied, self.delivery.released)
            and document.refused_sequence < document.text_sequence
            and not self.delivery.has_evicted(document.alias, document.text_sequence)
        )

    def send_again(self, sequence: int, message: Message, now: float) -> None:
        """The server has given a message up: let what matters of it wait anew (ACK-6).

        Of each document that it knows it asks for the text itself, and is told then if it is closed.
        """
        if isinstance(message, SupersedableEvent):
            self.outbox.states.mark_dirty(key_of(message))
        elif isinstance(message, DesignOpen):
            self._open_design_again(message.document, now)
        elif isinstance(message, DesignClose):
            if message.document not in self.designs:
                self.enqueue(message, message.document, now)
        elif isinstance(message, Open | Save | Mention):
            document = self.documents.get(message.document)
            if document is not None and document.refused is None:
                self._send_of_document_again(document, sequence, message, now)

    def _send_of_document_again(
        self, document: ClientDocument, sequence: int, message: Open | Save | Mention, now: float
    ) -> None:
        if isinstance(message, Open):
            if document.open_sequence == sequence:
                document.is_announced = False
                document.open_sequence = 0
                self._journal.knows(document)
                self.collapse(document)
            return
        if isinstance(message, Save):
            if message.version != document.saved_version:
                return  # A newer one is behind it.
            if document.text_sequence < sequence:
                # A server drops what is said of a text that it does not trust, so a text goes first.
                self.collapse(document)
        self.enqueue(message, document.alias, now)

    def take_refusal(self, error: ErrorMessage, now: float) -> None:
        """Act on an ERROR about a document, and tell the application."""
        alias = error.document or 0
        document = self.documents.get(alias)
        if document is None:
            if error.code == ErrorCode.UNKNOWN_DOCUMENT:
                self._reopen_design(alias, now)
                return
        elif error.code in _DOCUMENT_ENDS:
            self._refused(document, error)
            return
        else:
            document.refused_sequence = max(document.refused_sequence, error.reference or 0)
            self._journal.knows(document)
            if error.code == ErrorCode.UNKNOWN_DOCUMENT and document.refused is None:
                self._reopen(document, error)
        self._events.append(Refusal(error))

    def _refused(self, document: ClientDocument, error: ErrorMessage) -> None:
        document.refused = error.code
        self.outbox.forget(document.alias)
        self._journal.document_gone(document.alias)
        self._unverified.pop(document.alias, None)
        self._events.append(DocumentRefusal(document.alias, error.code, error.message))

    def _reopen(self, document: ClientDocument, error: ErrorMessage) -> None:
        """Open a document of which the server knows nothing: its `open` was lost for good (NAK-4)."""
        if not document.is_announced or (error.reference or 0) < document.text_sequence:
            return
        document.reopens += 1
        if document.reopens > _REOPENS_MAX:
            self._refused(document, error)
            return
        document.is_announced = False
        self._journal.knows(document)
        self.collapse(document)

    def _reopen_design(self, alias: int, now: float) -> None:
        if alias not in self._designs_reopened:
            self._designs_reopened.add(alias)
            self._open_design_again(alias, now)

    def _open_design_again(self, alias: int, now: float) -> None:
        """Open a design document that the server does not know; after it what it has refused meanwhile."""
        design = self.designs.get(alias)
        if design is not None:
            self.enqueue(design, alias, now)
            self._repeat_states(alias)

    def _repeat_states(self, alias: int) -> None:
        """Let the present values of a document's keys go out again, behind what waits (DIV-4)."""
        for key, (event, _, _) in self.outbox.states.current():
            if event.document == alias:  # Also a focus on it, which has no document in its key.
                self.outbox.states.mark_dirty(key)

    # What another process needs to go on.

    def note_all(self, now: float) -> None:
        """Note the whole state."""
        journal = self._journal
        waiting = sorted(
            (queued for queued in self.outbox.every() if queued.ticket), key=lambda queued: queued.ticket
        )
        opening = {queued.alias for queued in waiting if isinstance(queued.message, Open)}
        for document in self.documents.values():
            if document.refused is None and document.alias not in opening:
                journal.has_text(document, now)
        told: set[int] = set()
        for queued in waiting:
            message, text = queued.message, queued.text
            if isinstance(message, Open):
                told.add(queued.alias)
                journal.opened(message, text or message.text or "", queued.made_at, ticket=queued.ticket)
            else:
                edits = isinstance(message, Edit) and queued.alias in told
                self._note_waiting(queued, edits=edits)
        for alias in opening - self.documents.keys():
            self._journal.document_gone(alias)
        for document in self.documents.values():
            self._journal.knows(document)
        for alias in (*self.outbox.snapshots_due, *self.outbox.long_texts):
            journal.due(alias)
        for alias in self.designs:
            journal.bound("design", alias, is_open=True)

    def _note_waiting(self, queued: Queued, *, edits: bool) -> None:
        self._journal.waits(queued.message, queued.alias, queued.made_at, queued.ticket, edits=edits)

    def restore(self, state: OutboxState, now: float, *, shift_s: float) -> None:
        """Take over what another process has left, in an outbox that is empty.

        What waited goes on waiting. Of a text that was going out in parts the present one is due, and what it
        holds does not wait. Design documents are closed, and what was subscribed to is left.

        Args:
            state: What is on disk; its texts are used from here on.
            now: Of this process.
            shift_s: What to add to a time of the other process to get one of this one.
        """
        for _, kept in sorted(state.documents.items()):
            document = self.documents[kept.metadata.document] = kept.to_document()
            if document.alias in state.due:
                self.collapse(document)
            else:
                # It proves itself soon, whatever was proved before.
                document.edits_unverified = 1
                document.first_unverified_at = document.last_edit_at = now
                self._unverified[document.alias] = document
            self._journal.knows(document)
        for ticket, event in sorted(state.waiting.items()):
            if event.alias in state.due:
                # Of a document that was closed nobody needs the text, and of another it is sent whole.
                outlives = (Mention, Save) if event.alias in self.documents else (Close,)
                if not isinstance(event.message, outlives):
                    continue
            self._put_restored(ticket, event, event.made_at + shift_s)
        for alias in sorted(state.designs):
            self.enqueue(DesignClose(document=alias, reason="file_closed"), alias, now)
        for subscription in sorted(state.subscriptions):
            self.enqueue(Unsubscribe(subscription=subscription), 0, now)

    def _put_restored(self, ticket: int, event: KeptEvent, made_at: float) -> None:
        if isinstance(event.message, Open):
            self.outbox.put(self._text_message(event.message, event.text or "", made_at, ticket=ticket))
        else:
            weight = _EVENT_WEIGHT + event.body_bytes
            self.outbox.put(Queued(event.message, event.alias, made_at, True, weight, ticket=ticket))

    # What goes out.

    def pump(self, now: float) -> None:
        """Number and send what waits, as far as credit and window allow."""
        delivery, outbox = self.delivery, self.outbox
        assert delivery is not None
        room = self._limits.frame_bytes_max
        while delivery.can_send(room):
            queued = outbox.next_queued()
            if queued is not None:
                self._send_queued(delivery, queued, now)
                continue
            state = outbox.next_state()
            if state is not None:
                event, made_at, is_offline = state
                body = self._encode(_aged(event, made_at, now, is_offline))
                if self._fits(body, event):
                    delivery.send_body(body, now, key=key_of(event), durable=False)
            elif outbox.snapshots_due:
                self._send_snapshot(delivery, self.documents[next(iter(outbox.snapshots_due))], now)
            else:
                part = outbox.next_part()
                if part is None:
                    return
                delivery.send(part, now, key=part.document)

    def _send_queued(self, delivery: Delivery, queued: Queued, now: float) -> None:
        message = queued.message
        if isinstance(message, Event):
            message = _aged(message, queued.made_at, now, queued.is_offline)
        body = self._encode(message)
        document = self.documents.get(queued.alias)
        if len(body) + _FRAME_OVERHEAD_BYTES > self._limits.frame_bytes_max:
            if isinstance(message, Edit) and document is not None:
                self.collapse(document)  # The text goes whole, in parts (DOC-9).
                return
            if isinstance(message, Edit):
                self.outbox.abandon(queued.alias)  # It is closed already: nobody needs the text.
                return
            if not self._fits(body, message):
                return
        sequence = delivery.send_body(body, now, key=queued.alias or None)
        if document is not None and isinstance(message, Open):
            document.is_announced = True
            document.open_sequence = document.text_sequence = sequence
            self._journal.knows(document)

    def _fits(self, body: bytes, message: Message) -> bool:
        """Whether a frame takes it. What does not fit fails alone here, as it would there (FRM-3)."""
        limit = self._limits.frame_bytes_max
        if len(body) + _FRAME_OVERHEAD_BYTES <= limit:
            return True
        self._events.append(
            Refusal(
                ErrorMessage(
                    code=ErrorCode.TOO_LARGE,
                    message=f"{type(message).__name__.lower()} of {len(body)} bytes was not sent",
                    document=getattr(message, "document", None),
                    subscription=getattr(message, "subscription", None),
                    expected=limit,
                )
            )
        )
        return False

    def _encode(self, message: Message) -> bytes:
        return encode_well_formed(message, self._settings.encoding)

    def _send_snapshot(self, delivery: Delivery, document: ClientDocument, now: float) -> None:
        text = document.buffer.text()
        message: Open | Snapshot
        if document.is_announced:
            message = Snapshot(document=document.alias, version=document.version, length=0, hash="")
        else:
            message = msgspec.structs.replace(document.metadata, version=document.version)
        message = msgspec.structs.replace(
            message, length=document.buffer.length, hash=text_hash(text, self._settings.hash)
        )
        document.is_announced = True
        document.edits_unverified = 0
        self._unverified.pop(document.alias, None)
        queued = self._text_message(message, text, now)
        self.outbox.begin_snapshot(queued)
        document.text_sequence = delivery.send(queued.message, now, key=document.alias)
        if isinstance(message, Open):
            document.open_sequence = document.text_sequence
        self._journal.knows(document)
        self._repeat_states(document.alias)

    def _put_opened(self, message: Open, text: str, now: float) -> None:
        ticket = self._journal.next_ticket()
        self._journal.opened(message, text, now, ticket=ticket)
        self.outbox.put(self._text_message(message, text, now, ticket=ticket))

    def _text_message(self, message: Open | Snapshot, text: str, now: float, *, ticket: int = 0) -> Queued:
        """A text as it goes out: whole if it is short, else announced in parts."""
        characters = self._part_characters
        is_short = len(text) <= characters
        message = msgspec.structs.replace(
            message, text=text if is_short else None, parts=None if is_short else part_count(text, characters)
        )
        return Queued(
            message=message,
            alias=message.document,
            made_at=now,
            is_offline=self.is_offline,
            weight=_EVENT_WEIGHT + (len(text) if is_short else 0),
            text=None if is_short else text,
            part_characters=characters,
            ticket=ticket,
        )

    def _bound(self) -> None:
        """Hold the one bound of ring and outbox: whole documents collapse, the heaviest first."""
        while self.is_full:
            # Of a design document nothing but its `open` waits, and nothing can take its place.
            alias = self.outbox.heaviest(keep=self.designs)
            document = self.documents.get(alias)
            if alias == 0:
                return
            if document is None:
                self.collapsed += self.outbox.abandon(alias)
                continue
            self.collapse(document)
            if self.delivery is not None and self.is_full:
                self.delivery.evict(lambda key, alias=alias: alias if key == alias else None)  # type: ignore[misc]
                # Also of an open that has arrived: until it is safe, a server that dies can lose it.
                if self.delivery.is_evicted(document.open_sequence):
                    document.is_announced = False
                    self._journal.knows(document)


def _outlives_snapshot(message: Message) -> bool:
    return isinstance(message, Mention | Save)


def _aged(event: Event, made_at: float, now: float, is_offline: bool) -> Event:
    """Say how the event fared before it was first encoded (EVT-1)."""
    queued_ms = round((now - made_at) * 1000)
    if not is_offline and queued_ms <= 0:
        return event
    return msgspec.structs.replace(event, is_offline=is_offline, queued_ms=max(0, queued_ms))
