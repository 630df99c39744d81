"""The endpoints that read: sessions, documents, and the past of documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamctx.engine.base import Damaged, StoreError
from streamctx.errors import ErrorCode
from streamctx.hub.history import NotInHistory, SessionPast
from streamctx.hub.ports import Principal
from streamctx.hub.views import history_view, past_view, set_aside_view
from streamctx.server.answers import (
    NOT_FOUND,
    answer,
    answer_found,
    authenticate,
    bad_request,
    damaged,
    nothing_stored,
    unavailable,
)
from streamctx.server.logs import logger
from streamctx.server.security import Refusal
from streamctx.server.shell import Shell
from streamctx.server.turns import PastTurns
from streamctx.vocabulary import INTEGER_MAX

__all__ = ["SessionEndpoints"]

T = TypeVar("T")

_TRUE = frozenset({"true", "1"})
_FALSE = frozenset({"false", "0"})

_VERSIONS_DEFAULT = 1000
_VERSIONS_MAX = 10_000

# A document's URI may end in this as well, but with its slash percent-encoded.
_HISTORY = "/history"


class SessionEndpoints:
    """What a principal may read of its own sessions; those that are only stored are recalled for it."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._hub = shell.hub
        self._turns = PastTurns()
        # One at a time waits in the store, so that writes go on between two.
        self._reading = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/sessions", self.sessions),
            Route("/v1/sessions/{session}", self.session),
            Route("/v1/sessions/{session}/documents/{document:path}", self.document),
        ]

    async def sessions(self, request: Request) -> Response:
        """All of them; with `stored=true` also those that are not live, and what was set aside as damaged."""
        principal = authenticate(self._shell, request)
        if isinstance(principal, Refusal):
            return answer(principal)
        stored = request.query_params.get("stored", "false")
        if stored not in _TRUE | _FALSE:
            return answer(bad_request("stored is true or false"))
        aside: dict[str, object] = {}
        if stored in _TRUE and self._shell.store is not None:
            try:
                found = await self._shell.store.set_aside(principal=principal.name)
            except StoreError as error:
                # The sessions are known all the same, and who looks for what is wrong needs them.
                logger.warning("what was set aside as damaged cannot be listed: %s", error)
            else:
                aside["damaged"] = [set_aside_view(each) for each in found]
        return JSONResponse({"sessions": self._hub.sessions(principal, stored=stored in _TRUE), **aside})

    async def session(self, request: Request) -> Response:
        """One of them."""
        principal = authenticate(self._shell, request)
        if isinstance(principal, Refusal):
            return answer(principal)
        session_id = request.path_params["session"]
        refusal = await self._recall(principal, session_id)
        return answer(refusal) if refusal else answer_found(self._hub.session(principal, session_id))

    async def document(self, request: Request) -> Response:
        """One document: as it is, as it was `at` a version, or all its versions."""
        principal = authenticate(self._shell, request)
        if isinstance(principal, Refusal):
            return answer(principal)
        session_id, name = request.path_params["session"], request.path_params["document"]
        refusal = await self._recall(principal, session_id)
        if refusal:
            return answer(refusal)
        if request.scope.get("raw_path", b"").endswith(_HISTORY.encode()):
            return await self._history(request, principal, session_id, name.removesuffix(_HISTORY))
        if "at" in request.query_params:
            return await self._text_at(request, principal, session_id, name)
        return answer_found(self._hub.document(principal, session_id, name))

    async def _history(self, request: Request, principal: Principal, session_id: str, name: str) -> Response:
        limit = _number(request, "limit", 1, _VERSIONS_MAX, default=_VERSIONS_DEFAULT)
        if isinstance(limit, Refusal):
            return answer(limit)

        def look_back(past: SessionPast) -> Response:
            document = past.document(name)
            if not document.moments:
                return answer(NOT_FOUND)
            return JSONResponse({"session": session_id, **history_view(past, document, limit=limit or 1)})

        return await self._look_back(principal, session_id, look_back)

    async def _text_at(self, request: Request, principal: Principal, session_id: str, name: str) -> Response:
        version = _number(request, "at", 0, INTEGER_MAX)
        opened = _number(request, "opened", 1, INTEGER_MAX)
        if isinstance(version, Refusal):
            return answer(version)
        if isinstance(opened, Refusal):
            return answer(opened)
        assert version is not None

        def look_back(past: SessionPast) -> Response:
            try:
                text = past.text(name, version, opened=opened)
            except NotInHistory as error:
                return _answer_not_kept(error)
            return JSONResponse({"session": session_id, **past_view(text)})

        return await self._look_back(principal, session_id, look_back)

    async def _look_back(
        self, principal: Principal, session_id: str, look_back: Callable[[SessionPast], Response]
    ) -> Response:
        """Answer from the past of a session.

        Whoever has its turn holds all of that past, from before it is read until the answer is built.

        Args:
            principal: Whose session it has to be, and whose turn it takes.
            session_id: Which session.
            look_back: Builds the answer, beside the event loop: it takes as long as the past is.
        """
        async with self._turns.turn(principal.name) as refusal:
            if refusal is not None:
                return answer(refusal)
            past = await self._past(principal, session_id)
            if isinstance(past, Refusal):
                return answer(past)
            return await anyio.to_thread.run_sync(look_back, past)

    async def _recall(self, principal: Principal, session_id: str) -> Refusal | None:
        """Let a stored session be live; a refusal if that fails, and not if there is none."""
        loop = asyncio.get_running_loop()
        recalled: asyncio.Future[Damaged | StoreError | None] = loop.create_future()
        self._hub.recall(principal, session_id, loop.time(), _settle(recalled))
        found = await recalled
        if isinstance(found, StoreError):
            return unavailable(found)
        return damaged(found) if isinstance(found, Damaged) else None

    async def _past(self, principal: Principal, session_id: str) -> SessionPast | Refusal:
        async with self._reading:
            if self._hub.session(principal, session_id) is None:
                return NOT_FOUND
            read: asyncio.Future[SessionPast | StoreError | None] = asyncio.get_running_loop().create_future()
            self._hub.past(principal, session_id, _settle(read))
            past = await read
        if isinstance(past, StoreError):
            return unavailable(past)
        if past is None:
            return nothing_stored() if self._shell.store is None else NOT_FOUND
        return past


def _settle(future: asyncio.Future[T]) -> Callable[[T], None]:
    def settle(value: T) -> None:
        # Whoever asked may be gone.
        if not future.done():
            future.set_result(value)

    return settle


def _number(
    request: Request, name: str, lowest: int, highest: int, *, default: int | None = None
) -> int | Refusal | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdigit() and len(text) < 20 and lowest <= int(text) <= highest:
        return int(text)
    return bad_request(f"{name} is an integer from {lowest} to {highest}")


def _answer_not_kept(error: NotInHistory) -> Response:
    detail: dict[str, object] = {
        "code": ErrorCode.NOT_FOUND,
        "message": error.message,
        "reason": error.reason,
        "nearest": list(error.nearest),
    }
    return JSONResponse({"error": detail}, status_code=HTTPStatus.NOT_FOUND)
