"""Sessions and documents as JSON-ready dictionaries, for REST and for people."""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from streamctx.core.documents.document import Document
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.state import ServerState
from streamctx.engine.base import SetAside, Summary
from streamctx.hub.history import DocumentPast, Moment, PastText, SessionPast

__all__ = [
    "document_view",
    "history_view",
    "past_view",
    "session_view",
    "set_aside_view",
    "stored_facts",
    "stored_view",
]


def session_view(session: ServerSession, now: float) -> dict[str, object]:
    """One session: who, where it stands, its documents without text, its presence, its counts."""
    context = session.context
    return {
        "session": session.session_id,
        "live": True,
        "epoch": session.epoch,
        "client": msgspec.to_builtins(session.client),
        "role": session.role,
        "workspace": msgspec.to_builtins(session.workspace),
        "connected": session.state is ServerState.ATTACHED,
        "idle_ms": max(0, round((now - session.delivery.last_received) * 1000)),
        "unit": session.source_unit,
        "encoding": session.encoding,
        "offset": context.feed.offset,
        "observers": len(session.observers),
        "documents": [_document_head(document) for document in context.documents.values()],
        "designs": [msgspec.to_builtins(design) for design in context.designs.values()],
        "presence": [msgspec.to_builtins(event) for event in context.presence()],
        "counters": {
            **{f"frames_{name}": value for name, value in asdict(session.delivery.counters).items()},
            **{f"events_{name}": value for name, value in context.counts().items()},
            "duplicates": session.delivery.duplicates,
        },
    }


def stored_view(summary: Summary) -> dict[str, object]:
    """One session that is in the store alone, as much as is known of it without reading it."""
    return {
        "session": summary.session_id,
        "live": False,
        "epoch": summary.epoch,
        "client": {"name": summary.client},
        "connected": False,
    }


def stored_facts(summary: Summary) -> dict[str, object]:
    """What is to be said of any session that is stored. Times are seconds since 1970."""
    return {
        "stored": True,
        "opened": summary.opened,
        "changed": summary.changed,
        "stored_bytes": summary.stored_bytes,
    }


def set_aside_view(found: SetAside) -> dict[str, object]:
    """What is left of a session that was damaged: it is in no list of sessions, and can only be deleted."""
    return {
        "session": found.session_id,
        "state": "damaged",
        "live": False,
        "client": {"name": ""},
        "connected": False,
        "reason": found.reason,
        "set_aside": found.at,
        "stored_bytes": found.stored_bytes,
    }


def document_view(session: ServerSession, name: str) -> dict[str, object] | None:
    """One document by alias or URI, with its text and hash; `None` if it is not open or has no text yet."""
    document = _find(session, name)
    if document is None or document.buffer is None:
        return None
    return {
        **_document_head(document),
        "session": session.session_id,
        "hash": document.buffer.hash(document.hash_algorithm),
        "text": document.buffer.text(),
        "presence": [
            msgspec.to_builtins(event)
            for event in session.context.presence()
            if event.document == document.alias
        ],
    }


def history_view(past: SessionPast, document: DocumentPast, *, limit: int) -> dict[str, object]:
    """The versions of a document, the newest first.

    Args:
        past: The session's.
        document: The document's.
        limit: How many of them.
    """
    newest = document.moments[: -limit - 1 : -1]
    return {
        "complete": document.is_complete,
        "since": past.since,
        "count": len(document.moments),
        "versions": [_moment_view(moment) for moment in newest],
    }


def past_view(past: PastText) -> dict[str, object]:
    """One text of the past."""
    return {
        **_moment_view(past.moment),
        "openings": [moment.opened for moment in past.openings],
        "language": past.language,
        "complete": True,
        "unit": past.unit,
        "lines": past.line_count,
        "hash": past.hash,
        "text": past.text,
    }


def _moment_view(moment: Moment) -> dict[str, object]:
    return {
        "version": moment.version,
        "at": moment.at,
        "opened": moment.opened,
        "document": moment.document,
        "uri": moment.uri,
        "length": moment.length,
        "bytes": moment.byte_length,
        "verified": moment.is_verified,
        "stale": moment.is_stale,
    }


def _find(session: ServerSession, name: str) -> Document | None:
    documents = session.context.documents
    if name.isascii() and name.isdigit() and len(name) < 12 and int(name) in documents:
        return documents[int(name)]
    return next((document for document in documents.values() if document.uri == name), None)


def _document_head(document: Document) -> dict[str, object]:
    buffer = document.buffer
    return {
        "document": document.alias,
        "uri": document.uri,
        "language": document.metadata.language,
        "version": document.version,
        "stale": document.is_stale,
        "complete": buffer is not None and not document.is_receiving,
        "verified_version": document.verified_version,
        "saved_version": document.saved_version,
        "edits": document.edit_count,
        "unit": document.unit,
        "length": None if buffer is None else buffer.length,
        "bytes": None if buffer is None else buffer.byte_length,
        "lines": None if buffer is None else buffer.line_count,
    }
