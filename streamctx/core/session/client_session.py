"""A client's session: what a plugin pushes, and what an observer is shown, across connections and epochs.

The shell calls `connected`, `receive`, `disconnected` and `handle_timeout`; the application
opens and edits documents, puts presence, subscribes. After every such call the shell
sends what `data_to_send` returns and hands `next_event` to the application.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec

from streamctx.core.documents.parts import PART_CHARACTERS, part_count
from streamctx.core.documents.presence import key_of
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import well_formed
from streamctx.core.session.delivery import Addressed, Delivery, DeliveryCounters, Item
from streamctx.core.session.observed import ObservedSession
from streamctx.core.session.outbox import Outbox, Queued
from streamctx.core.session.state import ClientInput, ClientState, client_transition
from streamctx.errors import CloseCode, ErrorCode, EventRefused, LocalProtocolError, RemoteProtocolError
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.codec import encode_body, server_decoder
from streamctx.wire.digests import crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import (
    ClientInfo,
    Close,
    DesignClose,
    DesignOpen,
    Edit,
    Ended,
    ErrorMessage,
    Event,
    GoAway,
    Hello,
    Mention,
    Message,
    Open,
    Resume,
    Save,
    Skip,
    Snapshot,
    SnapshotRequest,
    Subscribe,
    Subscribed,
    SupersedableEvent,
    Sync,
    Synced,
    Unsubscribe,
    Update,
    Version,
    Welcome,
    Workspace,
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

_VERSION_EDITS = 64
_VERSION_BUSY_S = 2.0
_VERSION_IDLE_S = 0.5
_HASHED_WHILE_BUSY_BYTES_MAX = 8_000_000
"""A larger text is hashed only when its editor is idle or saves."""
_WELCOME_TIMEOUT_S = 10.0
_EVENT_WEIGHT = 150
_URI_CHARACTERS_MAX = 4096
_FRAME_OVERHEAD_BYTES = 64
_DOCUMENT_ENDS = frozenset({ErrorCode.TOO_LARGE, ErrorCode.LIMIT, ErrorCode.EXCLUDED, ErrorCode.UNVERIFIABLE})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What a client is and wants; fixed for the life of the session."""

    client: ClientInfo
    encoding: Encoding = Encoding.MSGPACK
    digest: DigestAlgorithm = DigestAlgorithm.XXH3_64
    unit: Unit = Unit.UTF_16
    hash: HashAlgorithm = HashAlgorithm.XXH3_64
    role: Literal["produce", "observe", "both"] = "both"
    token: str | None = None
    """Sent in HELLO; not needed where the request already carries it."""
    workspace: Workspace | None = None
    limits: Limits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The session is established; `lost` are numbers of ours that are lost for good."""

    verdict: str
    session_id: str
    lost: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DocumentRefusal:
    """A document is not taken; events of it are no longer sent."""

    alias: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server refused something; a document heals by itself, the application need not act."""

    error: ErrorMessage


@dataclass(frozen=True, slots=True)
class FeedChanged:
    """An observed session has changed, is in sync, or has ended (`observed` is `None`)."""

    subscription: int
    session_id: str
    observed: ObservedSession | None
    is_synced: bool
    update: Update | None


@dataclass(frozen=True, slots=True)
class Draining:
    """The server is shutting down; the shell reconnects after a random part of `retry_ms`."""

    retry_ms: int


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """The session has ended for good."""

    code: str | None
    message: str


ClientEvent: TypeAlias = (
    Welcomed | DocumentRefusal | Refusal | Subscribed | FeedChanged | Draining | SessionEnd
)


class ClientDocument:
    """A document as the client has it: the authority for the server's copy.

    `is_announced` says whether its `open` was sent in this epoch. `edits_unverified`
    counts edits since the last `version`.
    """

    __slots__ = (
        "alias",
        "buffer",
        "edits_unverified",
        "first_unverified_at",
        "is_announced",
        "last_edit_at",
        "metadata",
        "refused",
        "version",
    )

    def __init__(self, metadata: Open, buffer: TextBuffer) -> None:
        self.alias = metadata.document
        self.metadata = metadata
        self.buffer = buffer
        self.version = metadata.version
        self.is_announced = False
        self.refused: str | None = None
        self.edits_unverified = 0
        self.first_unverified_at = 0.0
        self.last_edit_at = 0.0

    def version_due_at(self) -> float:
        """When its hash is to be sent (VER-1)."""
        idle_at = self.last_edit_at + _VERSION_IDLE_S
        if self.buffer.byte_length > _HASHED_WHILE_BUSY_BYTES_MAX:
            return idle_at
        return min(idle_at, self.first_unverified_at + _VERSION_BUSY_S)


class ClientSession:
    """One client's session with one server.

    Documents, subscriptions and the outbox outlive connections; `_delivery` lives as long
    as an epoch. Before the first WELCOME there is none.
    """

    def __init__(self, settings: ClientSettings, *, jitter: Callable[[], float]) -> None:
        """Start detached.

        Args:
            jitter: Returns a number in [0, 1).
        """
        self.settings = settings
        self.state = ClientState.DETACHED
        self.session_id: str | None = None
        self.documents: dict[int, ClientDocument] = {}
        self.designs: dict[int, DesignOpen] = {}
        self.subscriptions: dict[int, Subscribe] = {}
        self.observed: dict[tuple[int, str], ObservedSession] = {}
        self.resumes = 0
        self.resets = 0
        """How often everything was opened anew because the server had lost the session."""
        self.collapsed = 0
        """Waiting events that a snapshot replaced because the outbox was full."""
        self.resubscribed = 0
        """How often a feed did not fit our copy and was asked for anew."""
        self._jitter = jitter
        self._limits = settings.limits
        self._delivery: Delivery | None = None
        self._past = DeliveryCounters()
        self._outbox = Outbox(settings.limits.supersedable_keys_max)
        self._unverified: dict[int, ClientDocument] = {}
        self._events: deque[ClientEvent] = deque()
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

    # What it looks like.

    @property
    def pending(self) -> int:
        """Events that wait, and frames that are not acknowledged for good."""
        kept = 0 if self._delivery is None else self._delivery.next_sequence - self._delivery.released
        return self._outbox.waiting + kept

    @property
    def is_settled(self) -> bool:
        """Whether the server has applied everything, and as durably as it promises."""
        return self._outbox.is_empty and (self._delivery is None or self._delivery.is_settled)

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
        if len(self.documents) + len(self.designs) >= self._limits.documents_per_session_max:
            raise LocalProtocolError(
                f"{self._limits.documents_per_session_max} documents are open, which is the limit"
            )
        text = well_formed(text)
        buffer = TextBuffer(text, unit=self.settings.unit)
        metadata = Open(
            document=self._new_alias(),
            uri=uri,
            version=version,
            length=buffer.length,
            hash=text_hash(text, self.settings.hash),
            language=language,
            eol=eol,
        )
        document = ClientDocument(metadata, buffer)
        self.documents[document.alias] = document
        self._put_text(document, metadata, text, now)
        return document

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
        if not changes:
            raise LocalProtocolError("an edit has at least one change")
        if len(changes) > self._limits.changes_per_edit_max:
            raise LocalProtocolError(
                f"{len(changes)} changes, limit {self._limits.changes_per_edit_max}: send a snapshot"
            )
        changes = tuple(_sane(change) for change in changes)
        document.buffer.apply(changes, simultaneous=mode == "sim")
        document.version = version
        if document.refused is not None:
            return version
        if alias not in self._outbox.snapshots_due:
            edit = Edit(document=alias, base=base, version=version, changes=changes, mode=mode)
            self._enqueue(edit, alias, now, weight=sum(len(change.text) for change in changes))
        self._note_edit(document, now)
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
        document.buffer = TextBuffer(well_formed(text), unit=self.settings.unit)
        document.version = version
        self.snapshot(alias)
        return version

    def snapshot(self, alias: int) -> None:
        """Send the whole present text; waiting edits of the document, which it includes, are not sent."""
        document = self._document(alias)
        if document.refused is None:
            self._collapse(document)

    def put(self, event: SupersedableEvent, now: float) -> None:
        """Send presence or another supersedable event; of one key only the newest is sent.

        Raises:
            LocalProtocolError: If the session has ended, may not produce, or the document is not open.
        """
        self._require_producer()
        alias = event.document
        if alias is not None and alias not in self.designs:
            if self._document(alias).refused is not None:
                return
        self._outbox.states.put(key_of(event), (event, now, self.state is not ClientState.ESTABLISHED))

    def save(self, alias: int, now: float) -> None:
        """Say that the present text is on disk; its hash goes with it.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        document = self._document(alias)
        if document.refused is None:
            self._put_version(document, now, cause="save")
            self._enqueue(Save(document=alias, version=document.version), alias, now)

    def mention(self, mention: Mention, now: float) -> None:
        """Point agents at a passage.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        if self._document(mention.document).refused is None:
            self._enqueue(mention, mention.document, now, weight=len(mention.text or ""))

    def close_document(self, alias: int, now: float) -> None:
        """Close a document; the hash of edits that were not verified yet goes before.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        document = self._document(alias)
        if document.refused is None and not document.is_announced and alias in self._outbox.snapshots_due:
            self._outbox.forget(alias)  # The server has never heard of it.
        else:
            if document.edits_unverified and document.refused is None:
                self._put_version(document, now, cause="count")
            if alias in self._outbox.snapshots_due:
                self._outbox.forget(alias)
            self._enqueue(Close(document=alias), alias, now)
        self._outbox.states.forget_where(lambda key: key[1] == alias)
        self._unverified.pop(alias, None)
        del self.documents[alias]

    def open_design(self, design: DesignOpen, now: float) -> DesignOpen:
        """Open a design document; the alias is chosen here.

        Raises:
            LocalProtocolError: As `open`.
        """
        self._require_producer()
        design = msgspec.structs.replace(design, document=self._new_alias())
        self.designs[design.document] = design
        self._enqueue(design, design.document, now, weight=len(design.pages) * 100)
        return design

    def close_design(self, close: DesignClose, now: float) -> None:
        """Close a design document.

        Raises:
            LocalProtocolError: If no such document is open.
        """
        if self.designs.pop(close.document, None) is None:
            raise LocalProtocolError(f"no design document is open under alias {close.document}")
        self._enqueue(close, close.document, now)
        self._outbox.states.forget_where(lambda key: key[1] == close.document)

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
        self._enqueue(subscribe, 0, now)
        return subscribe.subscription

    def unsubscribe(self, subscription: int, now: float) -> None:
        """Stop observing."""
        if self.subscriptions.pop(subscription, None) is not None:
            self._enqueue(Unsubscribe(subscription=subscription), 0, now)
        for key in [key for key in self.observed if key[0] == subscription]:
            del self.observed[key]

    def close(self) -> None:
        """End the session from our side."""
        if self.state is not ClientState.CLOSED:
            self.state = client_transition(self.state, ClientInput.TERMINATED)

    # What happened outside.

    def connected(self, now: float) -> None:
        """A WebSocket is open: say HELLO."""
        self.state = client_transition(self.state, ClientInput.CONNECTED)
        self._attempt += 1
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
            for _, item, _ in self._delivery.receive(data, now):
                self._take(item, now)

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
        elif code is not None and (4000 <= code < 4100 or code == 1008):
            self.state = client_transition(self.state, ClientInput.TERMINATED)
            self._events.append(
                SessionEnd(
                    code=None if error is None else error.code,
                    message=f"the server closed with {code}" if error is None else error.message,
                )
            )
            return
        self.state = client_transition(self.state, ClientInput.DISCONNECTED)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is due; `None` if never."""
        if self.state is ClientState.GREETING:
            assert self._hello_at is not None
            return min(self._hello_at, self._greeting_deadline)
        due: float | None = None
        if self.state is ClientState.ESTABLISHED:
            assert self._delivery is not None
            due = self._delivery.next_timeout()
        for document in self._unverified.values():
            version_due = document.version_due_at()
            if due is None or version_due < due:
                due = version_due
        return due

    def handle_timeout(self, now: float) -> None:
        """Do what is due.

        Raises:
            RemoteProtocolError: The connection must end; then call `disconnected`.
        """
        if self.state is ClientState.GREETING:
            self._repeat_hello(now)
        elif self.state is ClientState.ESTABLISHED:
            assert self._delivery is not None
            self._delivery.handle_timeout(now)
        for document in [d for d in self._unverified.values() if d.version_due_at() <= now]:
            self._put_version(document, now, cause="idle")

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
            self._pump(delivery, now)
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
        if welcome.unit != self.settings.unit or welcome.hash != self.settings.hash:
            self._last_error = ErrorMessage(
                code=ErrorCode.UNSUPPORTED,
                message=f"the server wants unit {welcome.unit} and hash {welcome.hash}, "
                f"we have {self.settings.unit} and {self.settings.hash}",
            )
            raise RemoteProtocolError(ErrorCode.UNSUPPORTED, CloseCode.BAD_HELLO, self._last_error.message)
        self._hello_at = None
        is_continued = (
            self._delivery is not None and welcome.session == self.session_id and welcome.epoch == self._epoch
        )
        self.session_id, self._epoch, self._secret = welcome.session, welcome.epoch, welcome.secret
        self.state = client_transition(self.state, ClientInput.WELCOMED)
        if is_continued:
            self._continue(welcome, now)
        else:
            self._begin_epoch(welcome, now)
        self._events.append(Welcomed(verdict=welcome.verdict, session_id=welcome.session, lost=welcome.lost))

    def _continue(self, welcome: Welcome, now: float) -> None:
        delivery = self._delivery
        assert delivery is not None
        if not delivery.can_resume_sending(welcome.expects):
            self._forget_session()
            raise RemoteProtocolError(
                ErrorCode.BAD_SEQUENCE,
                CloseCode.BAD_FRAME,
                f"the server expects {welcome.expects}, which is forgotten or was never sent",
            )
        self.resumes += 1
        delivery.attach(now)
        delivery.request_heartbeat()
        delivery.announce_next(welcome.next)
        delivery.resume_sending(welcome.expects, welcome.ranges, now)
        self._outbox.states.mark_all_dirty()
        for action in welcome.documents:
            document = self.documents.get(action.document)
            if action.action == "snapshot" and document is not None and document.refused is None:
                self._collapse(document)

    def _begin_epoch(self, welcome: Welcome, now: float) -> None:
        """Number anew; open every document with its present text, and subscribe again (RSM-7)."""
        is_first = not self._had_epoch
        self._had_epoch = True
        self._retire_delivery()
        limits = welcome.limits
        self._limits = replace(
            self._limits,
            window_events_max=min(limits.window_events, self._limits.window_events_max),
            window_bytes_max=min(limits.window_bytes, self._limits.window_bytes_max),
            heartbeat_s=limits.heartbeat_ms / 1000,
            dead_s=limits.dead_ms / 1000,
        )
        self._delivery = Delivery(
            encoding=self.settings.encoding,
            digest=DigestAlgorithm(welcome.digest),
            decoder=server_decoder(self.settings.encoding),
            limits=self._limits,
            jitter=self._jitter,
            now=now,
            ring_events_max=self._limits.ring_events_max,
            ring_bytes_max=self._limits.ring_bytes_max,
            releases_at_durable=welcome.durability == "full",
        )
        self._delivery.request_heartbeat()
        if not is_first:
            self.resets += 1
            self._open_anew(now)

    def _open_anew(self, now: float) -> None:
        waiting = self._outbox.clear()
        for document in self.documents.values():
            document.is_announced = False
            document.edits_unverified = 0
            self._outbox.collapse(document.alias, keep=_outlives_snapshot)
        self._unverified.clear()
        for design in self.designs.values():
            self._enqueue(design, design.document, now)
        for queued in waiting:
            if isinstance(queued.message, Mention) and queued.alias in self.documents:
                self._outbox.put(queued)
        self.observed.clear()
        for subscribe in self.subscriptions.values():
            self._enqueue(subscribe, 0, now)
        self._outbox.states.mark_all_dirty()

    def _forget_session(self) -> None:
        """What follows is a new session, from the texts that we have."""
        self._retire_delivery()
        self.session_id = self._epoch = self._secret = None

    def _retire_delivery(self) -> None:
        if self._delivery is not None:
            self._past = self.counters
            self._delivery = None

    # What the server says.

    def _take(self, item: Item, now: float) -> None:
        if isinstance(item, Addressed):
            self._take_feed(item.stream, item.message, now)
        elif isinstance(item, SnapshotRequest):
            document = self.documents.get(item.document)
            if document is not None and document.refused is None:
                self._collapse(document)
        elif isinstance(item, ErrorMessage):
            self._take_error(item)
        elif isinstance(item, Subscribed):
            self._events.append(item)
        elif isinstance(item, GoAway):
            self._events.append(Draining(item.retry_ms))
        elif isinstance(item, Skip):
            raise RemoteProtocolError(
                ErrorCode.INTERNAL, CloseCode.INTERNAL, "the server gave up messages of its own"
            )

    def _take_error(self, error: ErrorMessage) -> None:
        self._last_error = error if error.reference is None and error.document is None else self._last_error
        document = self.documents.get(error.document or 0)
        if document is not None and error.code in _DOCUMENT_ENDS:
            document.refused = error.code
            self._outbox.forget(document.alias)
            self._unverified.pop(document.alias, None)
            self._events.append(DocumentRefusal(document.alias, error.code, error.message))
            return
        if error.subscription is not None:
            self.subscriptions.pop(error.subscription, None)
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
            self._enqueue(self.subscriptions[subscription], 0, now)
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

    # What goes out.

    def _pump(self, delivery: Delivery, now: float) -> None:
        """Number and send what waits, as far as credit and window allow."""
        outbox = self._outbox
        room = self._limits.frame_bytes_max
        while delivery.can_send(room):
            queued = outbox.next_queued()
            if queued is not None:
                self._send_queued(delivery, queued, now)
                continue
            state = outbox.next_state()
            if state is not None:
                event, made_at, is_offline = state
                delivery.send(_aged(event, made_at, now, is_offline), now, key=key_of(event), durable=False)
            elif outbox.snapshots_due:
                self._send_snapshot(delivery, next(iter(outbox.snapshots_due)), now)
            else:
                part = outbox.next_part()
                if part is None:
                    return
                delivery.send(part, now, key=part.document)

    def _send_queued(self, delivery: Delivery, queued: Queued, now: float) -> None:
        message = queued.message
        if isinstance(message, Event):
            message = _aged(message, queued.made_at, now, queued.is_offline)
        body = encode_body(message, self.settings.encoding)
        document = self.documents.get(queued.alias)
        if len(body) + _FRAME_OVERHEAD_BYTES > self._limits.frame_bytes_max and document is not None:
            self._collapse(document)  # Too large for a frame: the text goes whole, in parts (DOC-9).
            return
        if document is not None and isinstance(message, Open):
            document.is_announced = True
        delivery.send_body(body, now, key=queued.alias or None)

    def _send_snapshot(self, delivery: Delivery, alias: int, now: float) -> None:
        document = self.documents[alias]
        text = document.buffer.text()
        length = document.buffer.length
        hash_ = text_hash(text, self.settings.hash)
        message: Open | Snapshot
        if document.is_announced:
            message = Snapshot(document=alias, version=document.version, length=length, hash=hash_)
        else:
            message = msgspec.structs.replace(
                document.metadata, version=document.version, length=length, hash=hash_
            )
        document.is_announced = True
        document.edits_unverified = 0
        self._unverified.pop(alias, None)
        queued = self._text_message(message, text, now)
        self._outbox.begin_snapshot(queued)
        delivery.send(queued.message, now, key=alias)
        # After it, the present values of the document's keys (DIV-4).
        for key, value in self._outbox.states.current():
            if key[1] == alias:
                self._outbox.states.put(key, value)

    def _put_text(self, document: ClientDocument, message: Open, text: str, now: float) -> None:
        queued = self._text_message(message, text, now)
        document.metadata = message
        self._outbox.put(queued)
        self._bound()

    def _text_message(self, message: Open | Snapshot, text: str, now: float) -> Queued:
        """A text as it goes out: whole if it is short, else announced in parts."""
        is_short = len(text) <= PART_CHARACTERS
        message = msgspec.structs.replace(
            message, text=text if is_short else None, parts=None if is_short else part_count(text)
        )
        return Queued(
            message=message,
            alias=message.document,
            made_at=now,
            is_offline=self.state is not ClientState.ESTABLISHED,
            weight=_EVENT_WEIGHT + (len(text) if is_short else 0),
            text=None if is_short else text,
        )

    def _enqueue(self, message: Message, alias: int, now: float, *, weight: int = 0) -> None:
        self._require_open()
        self._outbox.put(
            Queued(message, alias, now, self.state is not ClientState.ESTABLISHED, _EVENT_WEIGHT + weight)
        )
        self._bound()

    def _bound(self) -> None:
        """Hold the one bound of ring and outbox: supersedable frames give way, then whole documents collapse."""
        if not self._is_over_bound():
            return
        delivery = self._delivery
        while self._is_over_bound():
            alias = self._outbox.heaviest()
            document = self.documents.get(alias)
            if document is None or alias in self._outbox.snapshots_due:
                return
            self._collapse(document)
            if delivery is not None and self._is_over_bound():
                delivery.evict(lambda key, alias=alias: alias if key == alias else None)  # type: ignore[misc]

    def _is_over_bound(self) -> bool:
        kept_events = 0 if self._delivery is None else self._delivery.kept_events
        kept_bytes = 0 if self._delivery is None else self._delivery.kept_bytes
        return (
            self._outbox.events + kept_events > self._limits.ring_events_max
            or self._outbox.bytes + kept_bytes > self._limits.ring_bytes_max
        )

    def _collapse(self, document: ClientDocument) -> None:
        self.collapsed += self._outbox.collapse(document.alias, keep=_outlives_snapshot)
        document.edits_unverified = 0
        self._unverified.pop(document.alias, None)

    def _note_edit(self, document: ClientDocument, now: float) -> None:
        if document.alias in self._outbox.snapshots_due:
            return  # The snapshot proves itself.
        if not document.edits_unverified:
            document.first_unverified_at = now
            self._unverified[document.alias] = document
        document.edits_unverified += 1
        document.last_edit_at = now
        if (
            document.edits_unverified >= _VERSION_EDITS
            and document.buffer.byte_length <= _HASHED_WHILE_BUSY_BYTES_MAX
        ):
            self._put_version(document, now, cause="count")

    def _put_version(self, document: ClientDocument, now: float, *, cause: str) -> None:
        document.edits_unverified = 0
        self._unverified.pop(document.alias, None)
        if document.alias in self._outbox.snapshots_due:
            return
        self._enqueue(
            Version(
                document=document.alias,
                version=document.version,
                length=document.buffer.length,
                hash=document.buffer.hash(self.settings.hash),
                cause=cause,
            ),
            document.alias,
            now,
        )

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

    def _require_producer(self) -> None:
        self._require_open()
        if self.settings.role == "observe":
            raise LocalProtocolError("the role 'observe' sends no events")


def _outlives_snapshot(message: Message) -> bool:
    return isinstance(message, Mention)


def _sane(change: Change) -> Change:
    # What a decoder refuses on the wire comes here from the application itself.
    if min(change.start_line, change.start_character, change.end_line, change.end_character) < 0:
        raise EventRefused(ErrorCode.BAD_POSITION, "a line or character is below 0")
    text = well_formed(change.text)
    return change if text is change.text else msgspec.structs.replace(change, text=text)


def _aged(event: Event, made_at: float, now: float, is_offline: bool) -> Event:
    """Say how the event fared before it was first encoded (EVT-1)."""
    queued_ms = round((now - made_at) * 1000)
    if not is_offline and queued_ms <= 0:
        return event
    return msgspec.structs.replace(event, is_offline=is_offline, queued_ms=max(0, queued_ms))
