"""A server's sessions and documents as its HTTP side tells them, for commands that show them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from streamctx.cli.rest import RequestFailed, get_json
from streamctx.cli.target import Target
from streamctx.errors import StreamctxError
from streamctx.vocabulary import Unit
from streamctx.wire.messages import ClientInfo, DesignOpen, SupersedableEvent, Workspace

__all__ = [
    "DocumentHead",
    "DocumentView",
    "NotFound",
    "SessionView",
    "fetch_document",
    "fetch_sessions",
    "find_by_prefix",
    "find_document",
    "name_of",
    "parse_sessions",
]


class NotFound(StreamctxError):
    """There is no such session or document, or more than one fits."""


class DocumentHead(msgspec.Struct, frozen=True, kw_only=True):
    """A document without its text."""

    document: int
    uri: str
    version: int
    stale: bool
    complete: bool
    unit: Unit
    language: str | None = None
    verified_version: int | None = None
    saved_version: int | None = None
    edits: int = 0
    length: int | None = None
    bytes: int | None = None
    lines: int | None = None


class DocumentView(DocumentHead, frozen=True, kw_only=True):
    """A document with its text."""

    session: str
    hash: str
    text: str
    presence: tuple[SupersedableEvent, ...] = ()


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session, its documents and presence."""

    session: str
    client: ClientInfo
    role: str
    connected: bool
    idle_ms: int
    unit: Unit
    offset: int
    observers: int
    documents: tuple[DocumentHead, ...]
    workspace: Workspace | None = None
    designs: tuple[DesignOpen, ...] = ()
    presence: tuple[SupersedableEvent, ...] = ()


def fetch_sessions(target: Target) -> list[object]:
    """All sessions that the token may see, as the server tells them.

    Raises:
        RequestFailed: See `get_json`; also if the answer is not one of ours.
    """
    match get_json(target, "/v1/sessions"):
        case {"sessions": list(sessions)}:
            return sessions
        case _:
            raise RequestFailed(f"{target.http_url} does not answer as a streamctx server does")


def parse_sessions(sessions: Sequence[object]) -> list[SessionView]:
    """The same with types.

    Raises:
        RequestFailed: If they are not as this version knows them.
    """
    try:
        return msgspec.convert(sessions, list[SessionView])
    except msgspec.ValidationError as error:
        raise RequestFailed(f"the server tells its sessions in another way: {error}") from error


def fetch_document(target: Target, session_id: str, document: DocumentHead) -> DocumentView | None:
    """A document with its text; `None` if it has none yet or was closed meanwhile.

    Raises:
        RequestFailed: See `get_json`.
    """
    path = f"/v1/sessions/{quote(session_id, safe='')}/documents/{document.document}"
    try:
        return msgspec.convert(get_json(target, path), DocumentView)
    except msgspec.ValidationError as error:
        raise RequestFailed(f"the server tells its documents in another way: {error}") from error
    except RequestFailed as error:
        if error.status == 404:
            return None
        raise


def find_by_prefix(sessions: Sequence[SessionView], prefix: str) -> SessionView:
    """The one session whose id begins so.

    Raises:
        NotFound: If there is none, or more than one.
    """
    found = [session for session in sessions if session.session.startswith(prefix)]
    exact = [session for session in found if session.session == prefix]
    if len(exact or found) != 1:
        many = f"{len(found)} sessions begin" if found else "no session begins"
        raise NotFound(f"{many} with {prefix!r}; `streamctx sessions` lists them")
    return (exact or found)[0]


def find_document(session: SessionView, name: str) -> DocumentHead:
    """The one document of that alias, URI, or end of a URI such as a file name.

    Raises:
        NotFound: If there is none, or more than one.
    """
    documents = session.documents
    for found in (
        [document for document in documents if str(document.document) == name],
        [document for document in documents if document.uri == name],
        [document for document in documents if document.uri.endswith("/" + name.lstrip("/"))],
    ):
        if len(found) == 1:
            return found[0]
        if found:
            raise NotFound(f"{len(found)} open documents end with {name!r}; give the number or more of it")
    raise NotFound(f"no document {name!r} is open in that session; `streamctx show` lists them")


def name_of(uri: str) -> str:
    """The last part of a document's URI, for people."""
    return uri.rstrip("/").rsplit("/", 1)[-1] or uri
