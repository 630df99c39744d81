"""What outlives a server of its sessions: the record of a session, its journal, its state at one moment.

These are values. An engine (`streamctx.engine`) keeps them and knows nothing of what they mean;
`ServerSession` makes them, and is made of them again (SPEC 9.6).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from streamctx.core.documents.document_state import DocumentState
from streamctx.vocabulary import DigestAlgorithm, HashAlgorithm, Unit
from streamctx.wire.capabilities import Capabilities
from streamctx.wire.messages import ClientInfo, DesignOpen, Event, NegotiatedLimits, Workspace

__all__ = [
    "JournalBatch",
    "JournalEntry",
    "JournalItem",
    "Refused",
    "SessionRecord",
    "SessionState",
    "Spoilt",
    "StoredSession",
]


class Spoilt(msgspec.Struct, frozen=True, tag="spoilt"):
    """Durable events are lost for good: documents cannot be trusted from here on.

    `ranges` are the numbers that were given up and are told as `lost`, if any; `documents` are the
    aliases, `None` for all.
    """

    documents: tuple[int, ...] | None
    ranges: tuple[tuple[int, int], ...] = ()


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The server has closed a document, or never opened it; `code` is that of its ERROR."""

    document: int
    code: str


JournalItem: TypeAlias = Event | Spoilt | Refused | None
"""What is kept under a number; `None` where the number was used and nothing of it is kept."""

JournalEntry: TypeAlias = tuple[int, JournalItem]


class JournalBatch(msgspec.Struct, frozen=True, array_like=True):
    """What was applied together, to be made safe together: `entries` in the order in which it was applied.

    Answer it with `ServerSession.journal_done` once it is safe; batches become safe in order. All numbers
    below `stop` have been applied, so that a session which is restored from its batches goes on there;
    `first` is the lowest number that waits for this batch to be called durable.
    """

    first: int
    stop: int
    entries: tuple[JournalEntry, ...]


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled by handshakes: whose a session is, and what resumes it.

    Written before the WELCOME that it belongs to is sent. `confirmed`, `pending` and `retired` are SHA-256
    hashes of resume secrets.
    """

    session_id: str
    epoch: str
    principal: str
    role: Literal["produce", "observe", "both"]
    client: ClientInfo
    workspace: Workspace | None
    encoding: str
    digest: str
    unit: str
    hash: str
    limits: NegotiatedLimits
    attempt: int
    lease: int
    confirmed: bytes | None = None
    pending: bytes | None = None
    retired: tuple[bytes, ...] = ()

    @property
    def capabilities(self) -> Capabilities:
        """The algorithms and the unit."""
        return Capabilities(
            digest=DigestAlgorithm(self.digest), unit=Unit(self.unit), hash=HashAlgorithm(self.hash)
        )


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """A session at one moment: everything below `stop` has been applied."""

    stop: int
    lost: tuple[tuple[int, int], ...] = ()
    documents: tuple[DocumentState, ...] = ()
    designs: tuple[DesignOpen, ...] = ()
    stale_designs: tuple[int, ...] = ()
    refused: tuple[tuple[int, str], ...] = ()
    """Aliases whose events are dropped, and the code of the ERROR that told so."""


class StoredSession(msgspec.Struct, frozen=True):
    """A session as it is stored: the newest state, if any was stored, and every batch after it, in order."""

    record: SessionRecord
    state: SessionState | None
    batches: tuple[JournalBatch, ...]
