"""A client's session: what a plugin pushes, and what an observer is shown, across connections and epochs.

The shell calls `connected`, `receive`, `disconnected` and `handle_timeout`; the application
opens and edits documents, puts presence, subscribes. After every such call the shell
sends what `data_to_send` returns and hands `next_event` to the application.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from streamctx.core.documents.presence import key_of
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import well_formed
from streamctx.core.session.client_document import ClientDocument
from streamctx.core.session.client_events import (
    ClientEvent,
    ClientSettings,
    DocumentRefusal,
    Draining,
    FeedChanged,
    Refusal,
    SessionEnd,
    Welcomed,
)
from streamctx.core.session.delivery import Addressed, Delivery, DeliveryCounters, GivenUp, Item
from streamctx.core.session.observed import ObservedSession
from streamctx.core.session.outbox_journal import OutboxJournal
from streamctx.core.session.outbox_records import (
    AttemptMade,
    Marks,
    OutboxRecord,
    ProcessStarted,
    SessionFacts,
)
from streamctx.core.session.outbox_state import OutboxState
from streamctx.core.session.outgoing import Outgoing
from streamctx.core.session.state import ClientInput, ClientState, client_transition
from streamctx.errors import CloseCode, ErrorCode, EventRefused, LocalProtocolError, RemoteProtocolError
from streamctx.limits import Limits
from streamctx.vocabulary import INTEGER_MAX, DigestAlgorithm
from streamctx.wire.changes import Change
from streamctx.wire.codec import client_decoder, encode_body, server_decoder
from streamctx.wire.digests import crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import (
    DesignClose,
    DesignOpen,
    Edit,
    Ended,
    ErrorMessage,
    Focus,
    GoAway,
    Hello,
    Mention,
    Message,
    NegotiatedLimits,
    Open,
    Resume,
    Save,
    Skip,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    SupersedableEvent,
    Sync,
    Synced,
    Unsubscribe,
    Update,
    Welcome,
)

__all__ = [
    "ClientDocument",
    "ClientEvent",
    "ClientSession",
    "ClientSettings",
    "DocumentRefusal",
    "Draining",
    "FeedChanged",
    "Refusal",
    "SessionEnd",
    "Welcomed",
]

_WELCOME_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 5.0
"""So long after everything of ours was applied, a subscription that was not answered is asked for again: the
server had given its number up (NAK-4)."""
_URI_CHARACTERS_MAX = 4096
_LANGUAGE_CHARACTERS_MAX = 200
_CLOSE_OF_ERROR = {
    ErrorCode.UNAUTHORIZED: CloseCode.UNAUTHORIZED,
    ErrorCode.FORBIDDEN: CloseCode.ROLE,
    ErrorCode.CONFLICT: CloseCode.CONFLICT,
    ErrorCode.SUPERSEDED: CloseCode.SUPERSEDED,
    ErrorCode.UNSUPPORTED: CloseCode.VERSION,
    ErrorCode.MALFORMED: CloseCode.BAD_HELLO,
    ErrorCode.LIMIT: CloseCode.LIMIT,
}
"""For an ERROR whose close code did not arrive: proxies turn closes into 1006."""


class ClientSession:
    """One client's session with one server.

    Documents, subscriptions and the outbox outlive connections; `_delivery` lives as long
    as an epoch. Before the first WELCOME there is none. `_unclaimed` are open documents of another process;
    `_is_proven` says that the session, if there is one, is known to be of `_server`.
    """

    def __init__(
        self, settings: ClientSettings, *, jitter: Callable[[], float], keeps_outbox: bool = False
    ) -> None:
        """Start detached.

        Args:
            jitter: Returns a number in [0, 1).
            keeps_outbox: Whether `take_outbox_records` has what another process needs to go on.
        """
        self.settings = settings
        self.state = ClientState.DETACHED
        self.session_id: str | None = None
        self.subscriptions: dict[int, Subscribe] = {}
        self._unanswered: dict[int, float] = {}
        self._asked_anew: dict[int, float] = {}
        self._anew_due: dict[int, float] = {}
        self.observed: dict[tuple[int, str], ObservedSession] = {}
        self.resumes = 0
        self.resets = 0
        """How often everything was opened anew because the server had lost the session."""
        self.resubscribed = 0
        """How often a feed did not fit our copy and was asked for anew."""
        self._jitter = jitter
        self._past = DeliveryCounters()
        self._events: deque[ClientEvent] = deque()
        self._journal = OutboxJournal(is_kept=keeps_outbox)
        self._server = ""
        self._is_proven = True
        self._unclaimed: list[int] = []
        self._to_purge: set[int] = set()
        self._outgoing = Outgoing(settings, self._events, self._journal)
        self._attempt = 0
        self._had_epoch = False
        self._epoch: str | None = None
        self._secret: str | None = None
        self._hello = b""
        self._hello_at: float | None = None
        self._greeting_deadline = 0.0
        self._out: list[bytes] = []
        self._last_alias = 0
        self._last_subscription = 0
        self._last_error: ErrorMessage | None = None

    @classmethod
    def restored(
        cls,
        settings: ClientSettings,
        state: OutboxState,
        started: ProcessStarted,
        *,
        jitter: Callable[[], float],
    ) -> ClientSession:
        """Go on with what another process has left; its documents are `unclaimed` here.

        The session goes on where the state proves that the server has been sent nothing that is not in it,
        and what settles it is as it was. Else the next WELCOME begins another one, in which all documents are
        opened.

        Args:
            settings: Of this process.
            state: What was on disk; its texts are used from here on.
            started: Of this process.
            jitter: Returns a number in [0, 1).
        """
        session = cls(settings, jitter=jitter, keeps_outbox=True)
        session._restore(state, started)
        return session

    def _restore(self, state: OutboxState, started: ProcessStarted) -> None:
        self._attempt = state.attempt
        self._last_alias, self._last_subscription = state.marks.last_alias, state.marks.last_subscription
        self._had_epoch = state.had_session
        before = state.started
        facts = state.facts
        if (
            facts is not None
            and before is not None
            and before.boot in ("", started.boot)
            and self._fits(facts)
        ):
            self._resume_with(facts, state, started.now)
        shift_s = 0.0
        if before is not None:
            elapsed_s = max(0.0, started.wall_s - before.wall_s)
            shift_s = started.now - before.now - elapsed_s
        self._journal.last_ticket = state.last_ticket
        if before is not None and before.unit is not self.settings.unit:
            for document in state.documents.values():
                document.buffer = TextBuffer(document.buffer.text(), unit=self.settings.unit)
        if self._delivery is None:
            for document in state.documents.values():
                document.forget_numbers()
        self._outgoing.restore(state, started.now, shift_s=shift_s)
        self._unclaimed = list(self.documents)
        # Of a document that is there no longer: it may have been excluded, and its frames hold its text.
        kept = {frame.document for frame in state.frames.values() if frame.document is not None}
        self._to_purge = kept - self.documents.keys()
        self._journal.take(self._marks())

    def _fits(self, facts: SessionFacts) -> bool:
        """Whether this process may go on with a session: what settled it holds for its life (HSK-5)."""
        settings = self.settings
        ours = (settings.encoding, settings.unit, settings.hash, settings.role)
        return ours == (facts.encoding, facts.unit, facts.hash, facts.role)

    def _resume_with(self, facts: SessionFacts, state: OutboxState, now: float) -> None:
        try:
            self._outgoing.limits = self._limits_of(facts.limits)
        except RemoteProtocolError:
            return  # Ours are others than they were.
        self.session_id, self._epoch, self._secret = facts.session, facts.epoch, facts.secret
        self._journal.facts, self._server = facts, facts.server
        self._is_proven = False
        self._outgoing.delivery = self._new_delivery(facts.digest, facts.durability, now)
        self._outgoing.delivery.restore(state)

    # What it looks like.

    @property
    def unclaimed(self) -> list[ClientDocument]:
        """The documents of another process that were neither opened here nor closed."""
        return [self.documents[alias] for alias in self._unclaimed]

    @property
    def outbox_bytes(self) -> int:
        """About what `outbox_snapshot` takes."""
        delivery = self._delivery
        texts = sum(
            document.buffer.byte_length for document in self.documents.values() if document.refused is None
        )
        return texts + self._outgoing.outbox.bytes + (0 if delivery is None else delivery.kept_bytes)

    @property
    def documents(self) -> dict[int, ClientDocument]:
        """The open text documents by alias."""
        return self._outgoing.documents

    @property
    def designs(self) -> dict[int, DesignOpen]:
        """The open design documents by alias."""
        return self._outgoing.designs

    @property
    def collapsed(self) -> int:
        """Waiting events that a snapshot replaced."""
        return self._outgoing.collapsed

    @property
    def _delivery(self) -> Delivery | None:
        return self._outgoing.delivery

    @property
    def _limits(self) -> Limits:
        return self._outgoing.limits

    @property
    def pending(self) -> int:
        """Events that wait, and frames that are not acknowledged for good."""
        kept = 0 if self._delivery is None else self._delivery.next_sequence - self._delivery.released
        return self._outgoing.outbox.waiting + kept

    @property
    def is_settled(self) -> bool:
        """Whether the server has applied everything, and as durably as it promises."""
        if self._delivery is None and self._had_epoch and self.documents:
            return False  # They are opened anew in the next epoch.
        return self._outgoing.outbox.is_empty and (self._delivery is None or self._delivery.is_settled)

    @property
    def counters(self) -> DeliveryCounters:
        """Delivery counts of all epochs together."""
        total = DeliveryCounters()
        for counters in (self._past, *(() if self._delivery is None else (self._delivery.counters,))):
            for name in DeliveryCounters.__dataclass_fields__:
                setattr(total, name, getattr(total, name) + getattr(counters, name))
        return total

    @property
    def duplicates(self) -> int:
        """Numbered frames from the server that had arrived before, in this epoch."""
        return 0 if self._delivery is None else self._delivery.duplicates

    @property
    def acknowledged(self) -> int:
        """All our numbers below have been acknowledged for good, in this epoch."""
        return 1 if self._delivery is None else self._delivery.released

    @property
    def next_sequence(self) -> int:
        """The number that the next new frame will have, in this epoch."""
        return 1 if self._delivery is None else self._delivery.next_sequence

    @property
    def retry_after_ms(self) -> int:
        """For how long the server, when it ended the last connection, said that it is of no use; or 0."""
        return 0 if self._last_error is None else self._last_error.retry_after_ms

    def next_event(self) -> ClientEvent | None:
        """Take the next event for the application."""
        return self._events.popleft() if self._events else None

    # What the application wants.

    def open(
        self,
        uri: str,
        text: str,
        now: float,
        *,
        version: int = 0,
        language: str | None = None,
        eol: Literal["lf", "crlf", "cr", "mixed"] | None = None,
    ) -> ClientDocument:
        """Open a document; its text is sent as soon as the connection takes it.

        Lone surrogates of the text become U+FFFD.

        Raises:
            LocalProtocolError: If the session has ended, may not produce, or has too many documents.
        """
        self._require_producer()
        if not 1 <= len(uri) <= _URI_CHARACTERS_MAX:
            raise LocalProtocolError(f"a URI of {len(uri)} characters, limit {_URI_CHARACTERS_MAX}")
        _check_version(version)
        if language is not None and len(language) > _LANGUAGE_CHARACTERS_MAX:
            raise LocalProtocolError(
                f"a language of {len(language)} characters, limit {_LANGUAGE_CHARACTERS_MAX}"
            )
        text, uri = well_formed(text), well_formed(uri)
        claimed = self._claim(uri)
        if claimed is None:
            self._require_room()
        buffer = TextBuffer(text, unit=self.settings.unit)
        metadata = Open(
            document=self._new_alias() if claimed is None else claimed.alias,
            uri=uri,
            version=version,
            length=buffer.length,
            hash=text_hash(text, self.settings.hash),
            language=language,
            eol=eol,
        )
        if claimed is not None:
            self._open_again(claimed, metadata, buffer, text, now)
            return claimed
        document = ClientDocument(metadata, buffer)
        self._outgoing.put_text(document, metadata, text, now)
        return document

    def _claim(self, uri: str) -> ClientDocument | None:
        """The document of that URI that another process had, once."""
        for alias in self._unclaimed:
            document = self.documents[alias]
            if document.metadata.uri == uri and document.refused is None:
                self._unclaimed.remove(alias)
                return document
        return None

    def _open_again(
        self, document: ClientDocument, metadata: Open, buffer: TextBuffer, text: str, now: float
    ) -> None:
        """Go on with a document of another process; what the editor has now is the authority."""
        before = document.metadata
        is_same = (document.version, before.language, before.eol) == (
            metadata.version,
            metadata.language,
            metadata.eol,
        ) and document.buffer.text() == text
        if not is_same:
            document.metadata, document.buffer = metadata, buffer
            document.version, document.saved_version = metadata.version, None
            self._outgoing.open_again(document, text, now)

    def edit(
        self,
        alias: int,
        changes: Sequence[Change],
        now: float,
        *,
        version: int | None = None,
        mode: Literal["seq", "sim"] = "seq",
    ) -> int:
        """Make an edit in the document and send it.

        Args:
            version: What the edit leads to; `None` counts on from the present one.

        Returns:
            The new version.

        Raises:
            EventRefused: If the changes do not fit the text; nothing was changed.
            LocalProtocolError: If no such document is open, or the version does not rise.
        """
        document = self._document(alias)
        base = document.version
        version = base + 1 if version is None else version
        if version <= base:
            raise LocalProtocolError(f"version {version} is not above {base}")
        _check_version(version)
        if not changes:
            raise LocalProtocolError("an edit has at least one change")
        if len(changes) > self._limits.changes_per_edit_max:
            raise LocalProtocolError(
                f"{len(changes)} changes, limit {self._limits.changes_per_edit_max}: send a snapshot"
            )
        changes = tuple(_sane(change) for change in changes)
        document.buffer.apply(changes, simultaneous=mode == "sim")
        document.version = version
        if document.refused is None:
            edit = Edit(document=alias, base=base, version=version, changes=changes, mode=mode)
            self._outgoing.edited(document, edit, now)
        return version

    def replace_text(self, alias: int, text: str, now: float, *, version: int | None = None) -> int:
        """Replace the whole text, as after a reload from disk; it is sent as a snapshot.

        Raises:
            LocalProtocolError: As `edit`.
        """
        document = self._document(alias)
        version = document.version + 1 if version is None else version
        if version <= document.version:
            raise LocalProtocolError(f"version {version} is not above {document.version}")
        _check_version(version)
        document.buffer = TextBuffer(well_formed(text), unit=self.settings.unit)
        document.version = version
        self._journal.replaced(document)
        self.snapshot(alias)
        return version

    def snapshot(self, alias: int) -> None:
        """Send the whole present text; waiting edits of the document, which it includes, are not sent."""
        document = self._document(alias)
        if document.refused is None:
            self._outgoing.collapse(document)

    def put(self, event: SupersedableEvent, now: float) -> None:
        """Send presence or another supersedable event; of one key only the newest is sent.

        Raises:
            LocalProtocolError: If the session has ended, may not produce, or the document is not open.
        """
        self._require_producer()
        alias = event.document
        if alias is not None and alias not in self.designs and self._document(alias).refused is not None:
            if not isinstance(event, Focus):
                return
            event = Focus()  # The person has gone to a document that is not shown.
        self._outgoing.outbox.states.put(
            key_of(event), (event, now, self.state is not ClientState.ESTABLISHED)
        )

    def save(self, alias: int, now: float) -> None:
        """Say that the present text is on disk; its hash goes with it.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        document = self._document(alias)
        document.saved_version = document.version
        self._journal.knows(document)
        if document.refused is None:
            self._outgoing.put_version(document, now, cause="save")
            self._outgoing.enqueue(Save(document=alias, version=document.version), alias, now)

    def mention(self, mention: Mention, now: float) -> None:
        """Point agents at a passage.

        Raises:
            LocalProtocolError: If no such document is open, or too much waits already.
        """
        if self._document(mention.document).refused is None:
            if self._outgoing.is_full:
                raise LocalProtocolError("too many events wait to be sent")
            self._outgoing.enqueue(mention, mention.document, now, weight=len(mention.text or ""))

    def close_document(self, alias: int, now: float) -> None:
        """Close a document; the hash of edits that were not verified yet goes before.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        self._outgoing.close(self._document(alias), now)
        if alias in self._unclaimed:
            self._unclaimed.remove(alias)

    def open_design(self, design: DesignOpen, now: float) -> DesignOpen:
        """Open a design document; the alias is chosen here.

        Raises:
            LocalProtocolError: As `open`.
        """
        self._require_producer()
        self._require_room()
        design = msgspec.structs.replace(design, document=self._new_alias())
        self.designs[design.document] = design
        self._journal.bound("design", design.document, is_open=True)
        self._outgoing.enqueue(design, design.document, now, weight=len(design.pages) * 100)
        return design

    def close_design(self, close: DesignClose, now: float) -> None:
        """Close a design document.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        if self.designs.pop(close.document, None) is None:
            raise LocalProtocolError(f"no design document is open under alias {close.document}")
        self._journal.bound("design", close.document, is_open=False)
        self._outgoing.enqueue(close, close.document, now)
        self._outgoing.forget_states(close.document)

    def subscribe(
        self,
        session_id: str,
        now: float,
        *,
        documents: tuple[str, ...] | None = None,
        presence: bool = True,
        min_interval_ms: int = 0,
    ) -> int:
        """Observe a session, or all with `*`; returns the subscription's number.

        Raises:
            LocalProtocolError: If the session has ended or may not observe.
        """
        self._require_open()
        if self.settings.role == "produce":
            raise LocalProtocolError("the role 'produce' does not observe")
        self._last_subscription += 1
        subscribe = Subscribe(
            subscription=self._last_subscription,
            session=session_id,
            documents=documents,
            presence=presence,
            min_interval_ms=min_interval_ms,
        )
        self.subscriptions[subscribe.subscription] = subscribe
        self._journal.bound("subscription", subscribe.subscription, is_open=True)
        self._ask_for(subscribe, now)
        return subscribe.subscription

    def unsubscribe(self, subscription: int, now: float) -> None:
        """Stop observing."""
        if self.subscriptions.pop(subscription, None) is not None:
            self._journal.bound("subscription", subscription, is_open=False)
            self._outgoing.enqueue(Unsubscribe(subscription=subscription), 0, now)
        self._forget_asked(subscription)
        for key in [key for key in self.observed if key[0] == subscription]:
            del self.observed[key]

    def close(self) -> None:
        """End the session from our side."""
        if self.state is not ClientState.CLOSED:
            self._move(ClientInput.TERMINATED)
            self._out.clear()

    # What happened outside.

    def connected(self, now: float, *, server: str = "") -> None:
        """A WebSocket is open: say HELLO.

        Args:
            server: Which server it is. A session of another process is for none but its own.
        """
        self._move(ClientInput.CONNECTED)
        if not self._is_proven and server != self._server:
            self._forget_session()
        self._server, self._is_proven = server, True
        self._attempt += 1
        self._journal.add(AttemptMade(self._attempt))
        self._last_error = None
        settings = self.settings
        hello = Hello(
            attempt=self._attempt,
            client=settings.client,
            digests=(settings.digest, *(d for d in DigestAlgorithm if d is not settings.digest)),
            role=settings.role,
            auth=settings.token,
            units=(settings.unit,),
            hash=settings.hash,
            resume=self._resume(),
            workspace=settings.workspace,
        )
        self._hello = pack_frame(
            encode_body(hello, settings.encoding), encoding=settings.encoding, digest=crc32_digest
        )
        self._out = [self._hello]
        self._hello_at = now + self._limits.hello_repeat_s
        self._greeting_deadline = now + _WELCOME_TIMEOUT_S

    def receive(self, data: bytes, now: float) -> None:
        """Take one frame.

        Raises:
            RemoteProtocolError: The connection must end; then call `disconnected`.
        """
        if self.state is ClientState.GREETING:
            self._receive_greeting(data, now)
        elif self.state is ClientState.ESTABLISHED:
            assert self._delivery is not None
            for sequence, item, _ in self._delivery.receive(data, now):
                self._take(sequence, item, now)

    def disconnected(self, now: float, close_code: int | None) -> None:
        """The WebSocket is gone, with that close code if one came."""
        if self.state in (ClientState.CLOSED, ClientState.DETACHED):
            return
        self._out.clear()
        self._hello_at = None
        code = close_code
        error = self._last_error
        if error is not None and error.code in set(ErrorCode):
            code = _CLOSE_OF_ERROR.get(ErrorCode(error.code), close_code)
        if code == CloseCode.CONFLICT:
            self._forget_session()
        elif code == CloseCode.SUPERSEDED and self._journal.is_kept:
            # What is on disk is the past of a session that somebody else goes on with, such as a copy of it.
            # Another process would be told the same for ever.
            self._forget_session()
            self._end(code, error)
            return
        elif code is not None and (4000 <= code < 4100 or code == 1008):
            self._end(code, error)
            return
        self._move(ClientInput.DISCONNECTED)

    def _end(self, code: int, error: ErrorMessage | None) -> None:
        self._move(ClientInput.TERMINATED)
        self._events.append(
            SessionEnd(
                code=None if error is None else error.code,
                message=f"the server closed with {code}" if error is None else error.message,
            )
        )

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due; `None` if never."""
        if self.state is ClientState.GREETING:
            assert self._hello_at is not None
            return min(self._hello_at, self._greeting_deadline)
        if self.state is ClientState.CLOSED:
            return None
        due = self._outgoing.next_version_at()
        if self.state is ClientState.ESTABLISHED:
            assert self._delivery is not None
            repair_due = self._delivery.next_timeout()
            due = repair_due if due is None else min(due, repair_due)
            if self._unanswered:
                due = min(due, min(self._unanswered.values()) + _ANSWER_TIMEOUT_S)
            if self._anew_due:
                due = min(due, *self._anew_due.values())
        return due

    def handle_timeout(self, now: float) -> None:
        """Do what is due.

        Raises:
            RemoteProtocolError: The connection must end; then call `disconnected`.
        """
        if self.state is ClientState.CLOSED:
            return
        if self.state is ClientState.GREETING:
            self._repeat_hello(now)
        elif self.state is ClientState.ESTABLISHED:
            assert self._delivery is not None
            self._delivery.handle_timeout(now)
            if self._unanswered:
                self._ask_again(now)
            if self._anew_due:
                self._ask_due_anew(now)
        self._outgoing.put_due_versions(now)

    def data_to_send(self, now: float) -> list[bytes]:
        """All frames to be sent now, in order.

        Raises:
            RemoteProtocolError: Numbers of the server are lost for good; the connection must end.
        """
        delivery = self._delivery
        if self.state is ClientState.ESTABLISHED:
            assert delivery is not None
            lost = delivery.expired(now)
            if lost:
                raise RemoteProtocolError(
                    ErrorCode.INTERNAL,
                    CloseCode.INTERNAL,
                    f"{len(lost)} ranges of the server's numbers could not be repaired",
                )
            self._outgoing.pump(now)
            frames = delivery.flush(now)
            if self._out:
                frames = self._out + frames
        else:
            frames = self._out
        self._out = []
        return frames

    # Handshake.

    def _resume(self) -> Resume | None:
        if self._delivery is None:
            return None
        assert self.session_id is not None and self._secret is not None and self._epoch is not None
        lost, documents = self._delivery.evicted()
        return Resume(
            session=self.session_id,
            secret=self._secret,
            epoch=self._epoch,
            expects=self._delivery.expected,
            next=self._delivery.next_sequence,
            lost=lost,
            documents=documents,
        )

    def _repeat_hello(self, now: float) -> None:
        if now >= self._greeting_deadline:
            raise RemoteProtocolError(
                ErrorCode.HELLO_TIMEOUT,
                CloseCode.HELLO_TIMEOUT,
                f"no WELCOME came within {_WELCOME_TIMEOUT_S:g} s",
            )
        assert self._hello_at is not None
        if now >= self._hello_at:
            self._out.append(self._hello)
            self._hello_at = now + self._limits.hello_repeat_s

    def _receive_greeting(self, data: bytes, now: float) -> None:
        frame = parse_frame(data, encoding=self.settings.encoding, digest=crc32_digest)
        if frame is None or frame.sequence:
            return
        message = server_decoder(self.settings.encoding).decode(frame.body)
        if isinstance(message, ErrorMessage):
            self._last_error = message
        elif isinstance(message, Welcome) and message.attempt == self._attempt:
            self._welcome(message, now)

    def _welcome(self, welcome: Welcome, now: float) -> None:
        ours = (self.settings.unit, self.settings.hash)
        if (welcome.unit, welcome.hash) != ours or welcome.digest not in set(DigestAlgorithm):
            self._last_error = ErrorMessage(
                code=ErrorCode.UNSUPPORTED,
                message=f"the server wants {welcome.unit}, {welcome.hash} and the digest {welcome.digest}, "
                f"we have {', '.join(ours)} and one of {', '.join(DigestAlgorithm)}",
            )
            raise RemoteProtocolError(ErrorCode.UNSUPPORTED, CloseCode.BAD_HELLO, self._last_error.message)
        self._hello_at = None
        is_continued = (
            self._delivery is not None and welcome.session == self.session_id and welcome.epoch == self._epoch
        )
        self.session_id, self._epoch, self._secret = welcome.session, welcome.epoch, welcome.secret
        self._journal.welcomed(welcome, self.settings, self._server, is_continued=is_continued)
        self._move(ClientInput.WELCOMED)
        if is_continued:
            self._continue(welcome, now)
        else:
            self._begin_epoch(welcome, now)
        self._events.append(Welcomed(welcome.verdict, welcome.session, welcome.lost, welcome.reason))

    def _continue(self, welcome: Welcome, now: float) -> None:
        delivery = self._delivery
        assert delivery is not None
        if not delivery.can_resume_sending(welcome.expects) or welcome.next < delivery.expected:
            expected = delivery.expected
            self._forget_session()
            raise RemoteProtocolError(
                ErrorCode.BAD_SEQUENCE,
                CloseCode.BAD_FRAME,
                f"the server expects {welcome.expects}, which is forgotten or was never sent, "
                f"or its next number {welcome.next} is below the {expected} that has come",
            )
        self.resumes += 1
        delivery.attach(now)
        if welcome.restored:
            delivery.restart_receiving(delivery.expected)
        delivery.resume_receiving(welcome.next)
        # It goes before what is sent again, and speaks of none of that.
        delivery.send_heartbeat(welcome.expects)
        delivery.resume_sending(welcome.expects, welcome.ranges, now)
        self._outgoing.outbox.states.mark_all_dirty()
        if welcome.restored:
            self._subscribe_anew(now)
        for action in welcome.documents:
            if action.action == "snapshot":
                # Of one that is closed here the close may be what was lost.
                reason: Literal["refused", "lost"] = (
                    "refused" if action.document in self.documents else "lost"
                )
                request = SnapshotRequest(document=action.document, reason=reason, version=action.version)
                self._outgoing.take_snapshot_request(request, now, applied=welcome.expects)

    def _begin_epoch(self, welcome: Welcome, now: float) -> None:
        """Number anew; open every document with its present text, and subscribe again (RSM-7)."""
        is_first = not self._had_epoch
        self._had_epoch = True
        self._retire_delivery()
        self._outgoing.limits = self._limits_of(welcome.limits)
        self._outgoing.delivery = self._new_delivery(DigestAlgorithm(welcome.digest), welcome.durability, now)
        self._outgoing.delivery.send_heartbeat()
        if not is_first:
            self.resets += 1
            self._outgoing.open_anew(now)
            self._subscribe_anew(now)

    def _new_delivery(self, digest: DigestAlgorithm, durability: str, now: float) -> Delivery:
        return Delivery(
            encoding=self.settings.encoding,
            digest=digest,
            decoder=server_decoder(self.settings.encoding),
            limits=self._limits,
            jitter=self._jitter,
            now=now,
            ring_events_max=self._limits.ring_events_max,
            ring_bytes_max=self._limits.ring_bytes_max,
            releases_at_durable=durability != "none",
            journal=self._journal if self._journal.is_kept else None,
        )

    def _limits_of(self, told: NegotiatedLimits) -> Limits:
        """The narrower of the server's limits and ours (LIM-1).

        Raises:
            RemoteProtocolError: If they contradict each other.
        """
        ours = self.settings.limits
        window_bytes = min(told.window_bytes, ours.window_bytes_max)
        try:
            return replace(
                ours,
                # A frame that the window never takes would wait for ever.
                frame_bytes_max=min(told.frame_bytes, ours.frame_bytes_max, window_bytes),
                part_text_bytes_max=min(told.part_text_bytes, ours.part_text_bytes_max),
                document_bytes_max=min(told.document_bytes, ours.document_bytes_max),
                documents_per_session_max=min(told.documents, ours.documents_per_session_max),
                changes_per_edit_max=min(told.changes, ours.changes_per_edit_max),
                window_events_max=min(told.window_events, ours.window_events_max),
                window_bytes_max=window_bytes,
                heartbeat_s=told.heartbeat_ms / 1000,
                dead_s=told.dead_ms / 1000,
            )
        except ValueError as error:
            raise RemoteProtocolError(
                ErrorCode.MALFORMED, CloseCode.BAD_FRAME, f"limits in WELCOME: {error}"
            ) from error

    def _forget_session(self) -> None:
        """What follows is a new session, from the texts that we have."""
        self._retire_delivery()
        self.session_id = self._epoch = self._secret = None
        self._journal.forgotten()

    def _retire_delivery(self) -> None:
        if self._delivery is not None:
            self._past = self.counters
            self._outgoing.delivery = None

    # What another process needs to go on.

    def take_outbox_records(self) -> list[OutboxRecord]:
        """What has changed; nothing where no outbox is kept.

        It has to be on disk, all of it or nothing, before any frame that `data_to_send` has returned is sent.
        """
        return self._journal.take(self._marks())

    def outbox_snapshot(self, started: ProcessStarted) -> list[OutboxRecord]:
        """Everything, in place of all records that were taken before."""
        self._journal.begin_anew(started, attempt=self._attempt, had_session=self._had_epoch)
        if self._delivery is not None:
            self._delivery.note_all(self._journal)
        self._outgoing.note_all(started.now)
        for subscription in self.subscriptions:
            self._journal.bound("subscription", subscription, is_open=True)
        return self._journal.take(self._marks())

    def take_purge(self) -> bool:
        """Whether a snapshot is to replace the records now: they hold what is excluded (SEC-3)."""
        delivery = self._delivery
        if not self._to_purge or (delivery and any(delivery.holds_of(alias) for alias in self._to_purge)):
            return False
        self._to_purge.clear()
        return True

    def _marks(self) -> Marks:
        delivery, last = self._delivery, (self._last_alias, self._last_subscription)
        if delivery is None:
            return Marks(1, 1, 1, 1, *last)
        return Marks(delivery.next_sequence, delivery.expected, delivery.released, delivery.safe_stop, *last)

    # Subscriptions.

    def _subscribe_anew(self, now: float) -> None:
        """The server knows of no subscription any more (RSM-7, RSM-11)."""
        self.observed.clear()
        self._anew_due.clear()
        for subscribe in self.subscriptions.values():
            self._ask_for(subscribe, now)

    def _ask_for(self, subscribe: Subscribe, now: float) -> None:
        self._unanswered[subscribe.subscription] = now
        self._outgoing.enqueue(subscribe, 0, now)

    def _ask_again(self, now: float) -> None:
        """Ask again for what was not answered, unless the question may still be under way."""
        for subscription, asked_at in list(self._unanswered.items()):
            if now >= asked_at + _ANSWER_TIMEOUT_S:
                self._unanswered[subscription] = now
                if self.is_settled:
                    self._ask_for(self.subscriptions[subscription], now)

    def _ask_anew(self, subscription: int, now: float) -> None:
        """Ask at once, but when a feed keeps breaking: that would go on as fast as the link (OBS-4)."""
        due = self._asked_anew.get(subscription, -math.inf) + _ANSWER_TIMEOUT_S
        if now < due:
            self._anew_due[subscription] = due
            return
        self._asked_anew[subscription] = now
        self._ask_for(self.subscriptions[subscription], now)

    def _ask_due_anew(self, now: float) -> None:
        for subscription, due in list(self._anew_due.items()):
            if now >= due:
                del self._anew_due[subscription]
                self._ask_anew(subscription, now)

    def _forget_asked(self, subscription: int) -> None:
        for asked in (self._unanswered, self._asked_anew, self._anew_due):
            asked.pop(subscription, None)

    # What the server says.

    def _take(self, sequence: int, item: Item, now: float) -> None:
        if isinstance(item, Addressed):
            self._take_feed(item.stream, item.message, now)
        elif isinstance(item, SnapshotRequest):
            self._outgoing.take_snapshot_request(item, now)
        elif isinstance(item, GivenUp):
            for number, body in item.messages:
                message = client_decoder(self.settings.encoding).decode(body)
                # What breaks its schema, because the application broke it, would be refused again.
                if isinstance(message, Message):
                    self._send_again(number, message, now)
        elif isinstance(item, ErrorMessage):
            if not sequence:
                self._last_error = item  # The close follows (ERR-1).
            self._take_error(item, now)
        elif isinstance(item, Subscribed):
            self._unanswered.pop(item.subscription, None)
            self._anew_due.pop(item.subscription, None)
            self._events.append(item)
        elif isinstance(item, GoAway):
            self._events.append(Draining(item.retry_ms))
        elif isinstance(item, Skip):
            # What it lets through is not taken either: only a new session is sure to miss nothing.
            self._forget_session()
            raise RemoteProtocolError(
                ErrorCode.INTERNAL, CloseCode.INTERNAL, "the server gave up messages of its own"
            )

    def _send_again(self, sequence: int, message: Message, now: float) -> None:
        """The server has given a message of ours up: what matters of it goes under a new number (ACK-6)."""
        if isinstance(message, Subscribe):
            if self.subscriptions.get(message.subscription) == message:
                self._ask_for(message, now)
        elif isinstance(message, Unsubscribe):
            if message.subscription not in self.subscriptions:
                self._outgoing.enqueue(message, 0, now)
        else:
            self._outgoing.send_again(sequence, message, now)

    def _take_error(self, error: ErrorMessage, now: float) -> None:
        if error.document is not None:
            self._outgoing.take_refusal(error, now)
            if self._journal.is_kept and error.code == ErrorCode.EXCLUDED:
                self._to_purge.add(error.document)
            return
        if error.subscription is not None:
            if self.subscriptions.pop(error.subscription, None) is not None:
                self._journal.bound("subscription", error.subscription, is_open=False)
            self._forget_asked(error.subscription)
        self._events.append(Refusal(error))

    def _take_feed(self, subscription: int, message: Message, now: float) -> None:
        if subscription not in self.subscriptions or not isinstance(message, Sync | Update | Synced | Ended):
            return  # It was on its way when we unsubscribed.
        key = (subscription, message.session)
        observed: ObservedSession | None = self.observed.get(key)
        if isinstance(message, Ended):
            self.observed.pop(key, None)
            self._events.append(FeedChanged(subscription, message.session, None, False, None))
            return
        if isinstance(message, Sync) and observed is None:
            observed = ObservedSession(message.session, unit=self.settings.unit, limits=self._limits)
            self.observed[key] = observed
        if observed is None:
            return  # The rest of a feed that is being subscribed to anew.
        try:
            observed.receive(message)
        except RemoteProtocolError:
            # A copy that does not fit is worth nothing: ask for the state anew.
            self.resubscribed += 1
            del self.observed[key]
            self._ask_anew(subscription, now)
            return
        self._events.append(
            FeedChanged(
                subscription,
                message.session,
                observed,
                observed.is_synced,
                message if isinstance(message, Update) else None,
            )
        )

    def _move(self, input_: ClientInput) -> None:
        self.state = client_transition(self.state, input_)
        self._outgoing.is_offline = self.state is not ClientState.ESTABLISHED

    def _new_alias(self) -> int:
        self._last_alias += 1
        return self._last_alias

    def _document(self, alias: int) -> ClientDocument:
        self._require_producer()
        document = self.documents.get(alias)
        if document is None:
            raise LocalProtocolError(f"no document is open under alias {alias}")
        return document

    def _require_open(self) -> None:
        if self.state is ClientState.CLOSED:
            raise LocalProtocolError("the session has ended")

    def _require_room(self) -> None:
        if len(self.documents) + len(self.designs) >= self._limits.documents_per_session_max:
            raise LocalProtocolError(
                f"{self._limits.documents_per_session_max} documents are open, which is the limit"
            )

    def _require_producer(self) -> None:
        self._require_open()
        if self.settings.role == "observe":
            raise LocalProtocolError("the role 'observe' sends no events")


def _sane(change: Change) -> Change:
    # What a decoder refuses on the wire comes here from the application itself.
    if min(change.start_line, change.start_character, change.end_line, change.end_character) < 0:
        raise EventRefused(ErrorCode.BAD_POSITION, "a line or character is below 0")
    text = well_formed(change.text)
    return change if text is change.text else msgspec.structs.replace(change, text=text)


def _check_version(version: int) -> None:
    if not 0 <= version <= INTEGER_MAX:
        raise LocalProtocolError(f"version {version} is not within 0 to {INTEGER_MAX}")
