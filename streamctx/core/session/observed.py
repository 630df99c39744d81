"""What an observer's client makes of a feed: documents and presence, proved by offsets and hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from streamctx.core.documents.document import Document
from streamctx.core.documents.presence import Key, key_of
from streamctx.errors import CloseCode, ErrorCode, EventRefused, RemoteProtocolError
from streamctx.limits import Limits
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.messages import (
    SUPERSEDABLE_TYPES,
    Attachment,
    ClientInfo,
    Close,
    DesignClose,
    DesignOpen,
    Edit,
    FeedEvent,
    Open,
    Part,
    Save,
    Snapshot,
    Stale,
    SupersedableEvent,
    Sync,
    Synced,
    Update,
    Version,
    Workspace,
)

__all__ = ["ObservedCounters", "ObservedSession"]

_SUPERSEDABLE = frozenset(SUPERSEDABLE_TYPES)


@dataclass(slots=True)
class ObservedCounters:
    """What the feed brought."""

    events: int = 0
    edits: int = 0
    syncs: int = 0
    verified: int = 0
    """How often a whole text was equal to the producer's hash of it."""


class ObservedSession:
    """An observer's copy of one producer's session.

    `is_synced` is false from a `sync` to its `synced`: what is there then is not yet whole.
    """

    __slots__ = (
        "_limits",
        "_presence",
        "_unit",
        "client",
        "counters",
        "designs",
        "documents",
        "epoch",
        "is_connected",
        "is_synced",
        "offset",
        "session_id",
        "workspace",
    )

    def __init__(self, session_id: str, *, unit: Unit, limits: Limits) -> None:
        self.session_id = session_id
        self.client: ClientInfo | None = None
        self.workspace: Workspace | None = None
        self.epoch: str | None = None
        self.offset = 0
        self.is_synced = False
        self.is_connected = False
        self.documents: dict[int, Document] = {}
        self.designs: dict[int, DesignOpen] = {}
        self.counters = ObservedCounters()
        self._presence: dict[Key, SupersedableEvent] = {}
        self._unit = unit
        self._limits = limits

    @property
    def presence(self) -> Mapping[Key, SupersedableEvent]:
        """The present value of every key."""
        return self._presence

    def document(self, uri: str) -> Document | None:
        """The open document of that URI."""
        return next((document for document in self.documents.values() if document.uri == uri), None)

    def text(self, alias: int) -> str | None:
        """The text of a document; `None` if it is not there, or not whole yet."""
        document = self.documents.get(alias)
        return None if document is None or document.buffer is None else document.buffer.text()

    def receive(self, message: Sync | Update | Synced) -> None:
        """Take one message of the feed.

        Raises:
            RemoteProtocolError: If it does not join the one before (OBS-4), or an event does not
                fit the copy: the observer has to subscribe anew.
        """
        if isinstance(message, Update):
            self._receive_update(message)
        elif isinstance(message, Sync):
            self._receive_sync(message)
        else:
            offset = message.offset
            self._require(offset == self.offset, f"synced at {offset}, expected {self.offset}")
            self.is_synced = True

    def _receive_sync(self, sync: Sync) -> None:
        self.client = sync.client
        self.workspace = sync.workspace
        self.epoch = sync.epoch
        self.offset = sync.offset
        self.is_synced = False
        self.documents.clear()
        self.designs.clear()
        self._presence.clear()
        self.counters.syncs += 1

    def _receive_update(self, update: Update) -> None:
        self._require(
            update.from_ == self.offset and update.to >= self.offset,
            f"update from {update.from_} to {update.to}, expected one from {self.offset}",
        )
        try:
            for event in update.events:
                self._apply(event)
        except (EventRefused, ValueError) as refusal:
            raise _broken(f"an event does not fit: {refusal}") from refusal
        self.offset = update.to

    def _apply(self, event: FeedEvent) -> None:
        self.counters.events += 1
        if type(event) in _SUPERSEDABLE:
            supersedable: SupersedableEvent = event  # type: ignore[assignment]
            self._presence[key_of(supersedable)] = supersedable
        elif isinstance(event, Edit):
            self._document(event.document).edit(msgspec.structs.replace(event, length=None))
            self.counters.edits += 1
        elif isinstance(event, Open | Snapshot | Part):
            self._take_text(event)
        elif isinstance(event, Version):
            self._document(event.document).verify(event)
            self.counters.verified += 1
        elif isinstance(event, Save):
            self._document(event.document).saved_version = event.version
        elif isinstance(event, Stale):
            document = self.documents.get(event.document)
            if document is not None:
                document.is_stale = True
        elif isinstance(event, Attachment):
            self.is_connected = event.connected
        elif isinstance(event, Close):
            self._forget(event.document)
        elif isinstance(event, DesignOpen):
            self.designs[event.document] = event
        elif isinstance(event, DesignClose):
            self._forget(event.document)

    def _take_text(self, event: Open | Snapshot | Part) -> None:
        if isinstance(event, Open):
            algorithm = HashAlgorithm(event.hash.split(":", 1)[0])
            document = self.documents.get(event.document)
            if document is None or document.uri != event.uri:
                document = Document(event, unit=self._unit, hash_algorithm=algorithm, limits=self._limits)
                self.documents[event.document] = document
        else:
            document = self._document(event.document)
        complete = document.add_part(event) if isinstance(event, Part) else document.begin_text(event)
        self.counters.verified += complete

    def _document(self, alias: int) -> Document:
        document = self.documents.get(alias)
        if document is None:
            raise _broken(f"an event of the document {alias}, which is not open")
        return document

    def _forget(self, alias: int) -> None:
        self.documents.pop(alias, None)
        self.designs.pop(alias, None)
        for key in [key for key in self._presence if key[1] == alias]:
            del self._presence[key]

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise _broken(message)


def _broken(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME, message)
