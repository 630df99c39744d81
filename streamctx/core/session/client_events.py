"""What a client's session is told at its start, and what it tells its application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamctx.core.session.observed import ObservedSession
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.messages import ClientInfo, ErrorMessage, Subscribed, Update, Workspace

__all__ = [
    "ClientEvent",
    "ClientSettings",
    "DocumentRefusal",
    "Draining",
    "FeedChanged",
    "Refusal",
    "SessionEnd",
    "Welcomed",
]


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
    reason: str | None


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
