"""The ASGI application: health, version, metrics and the read side of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from streamctx import __version__
from streamctx.discovery import PROTOCOL_VERSION
from streamctx.errors import ErrorCode
from streamctx.hub.ports import Principal
from streamctx.server.handshake import STREAM_PATH, SUBPROTOCOLS, unauthorized
from streamctx.server.security import (
    UNIX,
    BearerError,
    Refusal,
    bearer_token,
    check_request,
    identify_client,
)
from streamctx.server.shell import Shell

__all__ = ["FEATURES", "create_app"]

FEATURES = ("stream", "sessions", "metrics")
"""What `/version` says can be used."""

_NOT_FOUND = Refusal(HTTPStatus.NOT_FOUND, ErrorCode.NOT_FOUND, "there is nothing here, or it is not yours")


def create_app(shell: Shell, routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """Build the application.

    Args:
        shell: The server's hub and policy.
        routes: More of them, such as another protocol's endpoint. They stand behind the same checks of Host,
            Origin and URL, and authenticate by themselves.
    """
    application = Starlette(
        routes=[*_Endpoints(shell).routes(), *routes],
        exception_handlers={HTTPException: _answer_http_exception, Exception: _answer_failure},
    )
    return _SecurityMiddleware(application, shell)


class _Endpoints:
    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._hub = shell.hub

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self.health),
            Route("/readyz", self.ready),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route("/v1/sessions", self.sessions),
            Route("/v1/sessions/{session}", self.session),
            Route("/v1/sessions/{session}/documents/{document:path}", self.document),
            Route(STREAM_PATH.decode(), self.stream),
        ]

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        if self._shell.is_draining:
            return _answer(
                Refusal(HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.DRAINING, "the server is shutting down")
            )
        return JSONResponse({"status": "ready"})

    async def version(self, _: Request) -> Response:
        return JSONResponse(
            {
                "version": __version__,
                "protocols": [PROTOCOL_VERSION],
                "subprotocols": list(SUBPROTOCOLS),
                "features": list(FEATURES),
            }
        )

    async def metrics(self, request: Request) -> Response:
        principal = self._authenticate(request)
        if isinstance(principal, Refusal):
            return _answer(principal)
        values = self._shell.measurements() | self._hub.counters()
        lines = "".join(f"streamctx_{name} {value}\n" for name, value in sorted(values.items()))
        return PlainTextResponse(lines, media_type="text/plain; version=0.0.4")

    async def sessions(self, request: Request) -> Response:
        principal = self._authenticate(request)
        if isinstance(principal, Refusal):
            return _answer(principal)
        return JSONResponse({"sessions": self._hub.sessions(principal)})

    async def session(self, request: Request) -> Response:
        principal = self._authenticate(request)
        if isinstance(principal, Refusal):
            return _answer(principal)
        return _answer_found(self._hub.session(principal, request.path_params["session"]))

    async def document(self, request: Request) -> Response:
        principal = self._authenticate(request)
        if isinstance(principal, Refusal):
            return _answer(principal)
        parameters = request.path_params
        return _answer_found(self._hub.document(principal, parameters["session"], parameters["document"]))

    async def stream(self, _: Request) -> Response:
        return _answer(
            Refusal(
                HTTPStatus.UPGRADE_REQUIRED,
                ErrorCode.UNSUPPORTED,
                f"this is a WebSocket; offer the subprotocol {' or '.join(SUBPROTOCOLS)}",
                (("upgrade", "websocket"),),
            )
        )

    def _authenticate(self, request: Request) -> Principal | Refusal:
        try:
            token = bearer_token(request.scope["headers"])
        except BearerError:
            token = None
        if token is None:
            return unauthorized("a token is needed: Authorization: Bearer <token>")
        principal = self._hub.authenticate(token)
        if principal is None:
            self._shell.counters.requests_refused += 1
            return unauthorized("the token is wrong")
        return principal


class _SecurityMiddleware:
    """Checks Host, Origin and URL of every request, and adds the headers that every response has."""

    def __init__(self, application: ASGIApp, shell: Shell) -> None:
        self._application = application
        self._shell = shell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = scope["headers"]
        policy = self._shell.policy
        client = scope["client"]
        identity = identify_client(
            policy, headers, peer_address=client[0] if client else UNIX, scheme=scope["scheme"]
        )
        scope["scheme"] = identity.scheme
        refusal = check_request(
            policy,
            headers,
            scheme=identity.scheme,
            query=scope["query_string"],
            target=scope.get("state", {}).get("target", b""),
        )
        if refusal is not None:
            self._shell.counters.requests_refused += 1
            await _answer(refusal)(scope, receive, _with_headers(send))
            return
        await self._application(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            names = {name for name, _ in headers}
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            headers.append((b"x-content-type-options", b"nosniff"))
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


def _answer(refusal: Refusal) -> Response:
    return Response(
        refusal.body,
        status_code=refusal.status,
        media_type="application/json",
        headers=dict(refusal.headers),
    )


def _answer_found(found: dict[str, object] | None) -> Response:
    return _answer(_NOT_FOUND) if found is None else JSONResponse(found)


async def _answer_http_exception(_: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    if exception.status_code == HTTPStatus.NOT_FOUND:
        return _answer(_NOT_FOUND)
    status = HTTPStatus(exception.status_code)
    code = ErrorCode.UNSUPPORTED if status is HTTPStatus.METHOD_NOT_ALLOWED else ErrorCode.MALFORMED
    headers = tuple((exception.headers or {}).items())
    return _answer(Refusal(status, code, exception.detail, headers))


async def _answer_failure(_: Request, __: Exception) -> Response:
    return _answer(
        Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorCode.INTERNAL, "the server failed; its log says why")
    )
