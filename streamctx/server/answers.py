"""What the HTTP endpoints share: who asks, and how an error is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from streamctx.engine.base import Damaged, StoreError
from streamctx.errors import ErrorCode
from streamctx.hub.ports import Principal
from streamctx.server.handshake import unauthorized
from streamctx.server.security import BearerError, Refusal, bearer_token
from streamctx.server.shell import Shell

__all__ = [
    "NOT_FOUND",
    "answer",
    "answer_found",
    "authenticate",
    "bad_request",
    "damaged",
    "nothing_stored",
    "unavailable",
]

NOT_FOUND = Refusal(HTTPStatus.NOT_FOUND, ErrorCode.NOT_FOUND, "there is nothing here, or it is not yours")
"""The same for what is not there and what is somebody else's (SEC-4)."""


def authenticate(shell: Shell, request: Request, *, scope: str | None = None) -> Principal | Refusal:
    """Who asks.

    Args:
        shell: Of the server.
        request: What is asked.
        scope: What the token has to allow, if more is needed than being known.
    """
    try:
        token = bearer_token(request.scope["headers"])
    except BearerError:
        token = None
    if token is None:
        return unauthorized("a token is needed: Authorization: Bearer <token>")
    principal = shell.hub.authenticate(token)
    if principal is None:
        shell.counters.requests_refused += 1
        return unauthorized("the token is wrong")
    if scope is not None and scope not in principal.scopes:
        return Refusal(
            HTTPStatus.FORBIDDEN, ErrorCode.FORBIDDEN, f"the token does not have the scope {scope}"
        )
    return principal


def answer(refusal: Refusal) -> Response:
    """The response of a refusal."""
    return Response(
        refusal.body,
        status_code=refusal.status,
        media_type="application/json",
        headers=dict(refusal.headers),
    )


def answer_found(found: Mapping[str, object] | None) -> Response:
    """The response of what was looked for."""
    return answer(NOT_FOUND) if found is None else JSONResponse(found)


def bad_request(message: str) -> Refusal:
    """What was asked is not well formed."""
    return Refusal(HTTPStatus.BAD_REQUEST, ErrorCode.MALFORMED, message)


def nothing_stored() -> Refusal:
    """The server has no store, whatever is asked of it."""
    return Refusal(
        HTTPStatus.NOT_IMPLEMENTED,
        ErrorCode.UNSUPPORTED,
        "this server stores nothing: its sessions are in memory only, without a history",
    )


def unavailable(error: StoreError) -> Refusal:
    """The store cannot do it now. Its own words are for the operator: they may name paths."""
    retry_after_s = max(1, math.ceil(error.retry_after_s))
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        ErrorCode.UNAVAILABLE,
        f"the store cannot do that now; try again in {retry_after_s} s",
        (("retry-after", str(retry_after_s)),),
    )


def damaged(found: Damaged) -> Refusal:
    """What was stored cannot be trusted, and has been set aside."""
    return Refusal(
        HTTPStatus.GONE,
        ErrorCode.DAMAGED,
        f"what was stored of this session is damaged and has been set aside: {found.reason}",
    )
