"""What both sides can do, settled once for a session's life (SPEC 5, HSK-4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.limits import Limits
from streamctx.vocabulary import DigestAlgorithm, HashAlgorithm, Unit
from streamctx.wire.messages import Hello, NegotiatedLimits

__all__ = ["Capabilities", "limits_told", "negotiate", "negotiated_limits"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The algorithms and the unit of a session."""

    digest: DigestAlgorithm
    unit: Unit
    hash: HashAlgorithm


def negotiate(hello: Hello) -> Capabilities:
    """Choose what the client prefers among what is known here.

    Raises:
        RemoteProtocolError: If no digest or not the hash of the client is known.
    """
    digests = [name for name in hello.digests if name in set(DigestAlgorithm)]
    if not digests:
        raise _unsupported(f"no digest in common, known are {', '.join(DigestAlgorithm)}")
    if hello.hash not in set(HashAlgorithm):
        raise _unsupported(f"the hash is not known, known are {', '.join(HashAlgorithm)}")
    units = [name for name in hello.units if name in set(Unit)]
    return Capabilities(
        digest=DigestAlgorithm(digests[0]),
        unit=Unit(units[0]) if units else Unit.UTF_16,
        hash=HashAlgorithm(hello.hash),
    )


def negotiated_limits(limits: Limits, *, is_stored: bool = False) -> NegotiatedLimits:
    """The limits that WELCOME tells a client (SPEC section 15)."""
    retain_s = limits.retention_s if is_stored else limits.detached_session_s
    return NegotiatedLimits(
        frame_bytes=limits.frame_bytes_max,
        window_events=limits.window_events_max,
        window_bytes=limits.window_bytes_max,
        part_text_bytes=limits.part_text_bytes_max,
        document_bytes=limits.document_bytes_max,
        documents=limits.documents_per_session_max,
        changes=limits.changes_per_edit_max,
        heartbeat_ms=round(limits.heartbeat_s * 1000),
        dead_ms=round(limits.dead_s * 1000),
        retain_ms=round(retain_s * 1000),
    )


def limits_told(limits: Limits, told: NegotiatedLimits) -> Limits:
    """The limits of a session that was told these, whatever those of the server are now (HSK-5).

    Those that are not told give way where they contradict them.

    Raises:
        ValueError: If those that were told contradict each other.
    """
    return replace(
        limits,
        frame_bytes_max=told.frame_bytes,
        websocket_message_bytes_max=max(limits.websocket_message_bytes_max, told.frame_bytes),
        window_events_max=told.window_events,
        reorder_events_max=max(limits.reorder_events_max, told.window_events),
        reorder_span_max=max(limits.reorder_span_max, limits.reorder_events_max, told.window_events),
        digest_history=max(limits.digest_history, told.window_events),
        window_bytes_max=told.window_bytes,
        reorder_bytes_max=max(limits.reorder_bytes_max, told.window_bytes),
        ring_bytes_max=max(limits.ring_bytes_max, told.window_bytes),
        part_text_bytes_max=told.part_text_bytes,
        document_bytes_max=told.document_bytes,
        documents_per_session_max=told.documents,
        changes_per_edit_max=told.changes,
        heartbeat_s=told.heartbeat_ms / 1000,
        dead_s=told.dead_ms / 1000,
    )


def _unsupported(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.UNSUPPORTED, CloseCode.BAD_HELLO, message)
