"""A server's sessions and documents as its HTTP side tells them, for commands that show them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar
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
    "HistoryView",
    "NotFound",
    "PastMoment",
    "PastView",
    "SessionView",
    "demand_sound",
    "fetch_document",
    "fetch_history",
    "fetch_session",
    "fetch_sessions",
    "fetch_text_at",
    "find_by_prefix",
    "find_document",
    "name_of",
    "parse_sessions",
]


T = TypeVar("T")


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
    connected: bool
    live: bool = True
    """False for one that is in the store alone, of which the fields below are not known."""
    role: str = ""
    idle_ms: int = 0
    unit: Unit = Unit.UTF_16
    offset: int = 0
    observers: int = 0
    documents: tuple[DocumentHead, ...] = ()
    workspace: Workspace | None = None
    designs: tuple[DesignOpen, ...] = ()
    presence: tuple[SupersedableEvent, ...] = ()
    stored: bool = False
    opened: float | None = None
    changed: float | None = None
    """When anything of it was last stored, in seconds since 1970."""
    stored_bytes: int = 0
    state: str = ""
    """`damaged`: it was set aside, and can only be deleted."""
    reason: str = ""
    set_aside: float | None = None
    """When that was, in seconds since 1970."""

    @property
    def is_damaged(self) -> bool:
        """Whether this is what is left of a session that was damaged."""
        return self.state == "damaged"

    @property
    def idle_s(self) -> float:
        """How long nothing was heard of it; for one that is stored alone, nothing was stored."""
        since = self.set_aside if self.is_damaged else self.changed
        if self.live or since is None:
            return self.idle_ms / 1000
        return max(0.0, time.time() - since)

    @property
    def standing(self) -> str:
        """Whether its client is there, in a word."""
        if self.is_damaged:
            return "damaged"
        if self.connected:
            return "connected"
        return "detached" if self.live else "stored"


class PastMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a document."""

    version: int
    at: float | None
    opened: int
    document: int
    uri: str
    length: int
    bytes: int
    verified: bool
    stale: bool


class PastView(PastMoment, frozen=True, kw_only=True):
    """A version of a document with its text."""

    session: str
    openings: tuple[int, ...]
    unit: Unit
    lines: int
    hash: str
    text: str
    language: str | None = None


class HistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a document, the newest first; of `count` perhaps not all."""

    session: str
    complete: bool
    since: float | None
    count: int
    versions: tuple[PastMoment, ...]


def fetch_sessions(target: Target) -> list[object]:
    """All sessions that the token may see, live, stored or damaged, as the server tells them.

    Raises:
        RequestFailed: See `get_json`; also if the answer is not one of ours.
    """
    told = get_json(target, "/v1/sessions?stored=true")
    damaged = told.get("damaged") if isinstance(told, dict) else None
    match told:
        case {"sessions": list(sessions)}:
            return sessions + (damaged if isinstance(damaged, list) else [])
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


def fetch_session(target: Target, session: SessionView) -> object:
    """One session whole, as the server tells it; one that was only stored is recalled for that.

    Raises:
        RequestFailed: See `get_json`.
    """
    told = get_json(target, f"/v1/sessions/{quote(session.session, safe='')}", is_long=True)
    if not isinstance(told, dict):
        raise RequestFailed(f"{target.http_url} does not answer as a streamctx server does")
    facts = {name: getattr(session, name) for name in ("live", "stored", "opened", "changed", "stored_bytes")}
    return told | facts


def fetch_text_at(
    target: Target, session_id: str, document: str, *, version: int, opened: int | None
) -> PastView:
    """The text of a document at a version.

    Args:
        target: The server.
        session_id: The session.
        document: An alias or a URI.
        version: Which version.
        opened: In which opening, counted from the newest, 1; `None` for the newest that reached it.

    Raises:
        NotFound: If there is none; the message says what can be read back instead.
        RequestFailed: See `get_json`.
    """
    query = f"?at={version}" if opened is None else f"?at={version}&opened={opened}"
    return _converted(_past(target, _document_path(session_id, document) + query), PastView)


def fetch_history(target: Target, session_id: str, document: str) -> HistoryView:
    """The versions of a document that can be read back.

    Raises:
        NotFound: If nothing of it is kept.
        RequestFailed: See `get_json`.
    """
    return _converted(_past(target, _document_path(session_id, document) + "/history"), HistoryView)


def _past(target: Target, path: str) -> object:
    try:
        return get_json(target, path, is_long=True)
    except RequestFailed as error:
        # Whether nothing is stored at all, or not that.
        if error.status in (404, 501) and error.told is not None:
            raise NotFound(error.told) from error
        raise


def _document_path(session_id: str, document: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}/documents/{quote(document, safe='')}"


def _converted(told: object, kind: type[T]) -> T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise RequestFailed(f"the server tells its documents in another way: {error}") from error


def fetch_document(target: Target, session_id: str, document: DocumentHead) -> DocumentView | None:
    """A document with its text; `None` if it has none yet or was closed meanwhile.

    Raises:
        RequestFailed: See `get_json`.
    """
    try:
        told = get_json(target, _document_path(session_id, str(document.document)))
        return _converted(told, DocumentView)
    except RequestFailed as error:
        if error.status == 404:
            return None
        raise


def find_by_prefix(sessions: Sequence[SessionView], prefix: str) -> SessionView:
    """The one session whose id begins so; one that is damaged only if no sound one has its id.

    Raises:
        NotFound: If there is none, or more than one; and if nothing is given, which every id begins with.
    """
    if not prefix:
        raise NotFound("the beginning of an id is empty; `streamctx sessions` lists them")
    sound = {session.session: session for session in sorted(sessions, key=lambda each: not each.is_damaged)}
    found = [session for session in sound.values() if session.session.startswith(prefix)]
    exact = [session for session in found if session.session == prefix]
    if len(exact or found) != 1:
        many = f"{len(found)} sessions begin" if found else "no session begins"
        raise NotFound(f"{many} with {prefix!r}; `streamctx sessions` lists them")
    return (exact or found)[0]


def demand_sound(session: SessionView) -> None:
    """Refuse what can only be deleted.

    Raises:
        NotFound: If the session was set aside as damaged.
    """
    if session.is_damaged:
        raise NotFound(
            f"session {session.session} is damaged and was set aside ({session.reason}): "
            "`streamctx sessions prune` deletes it"
        )


def find_document(session: SessionView, name: str) -> DocumentHead:
    """The one document of that alias, URI, or end of a URI such as a file name.

    Raises:
        NotFound: If there is none, or more than one; and if nothing is given.
    """
    if not name:
        raise NotFound("the name of a document is empty; `streamctx show` lists them")
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
