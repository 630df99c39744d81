"""The ASGI application: health, version, metrics, and what leads to the endpoints of sessions."""

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
from streamctx.resources.catalogue import Catalogue
from streamctx.server.answers import NOT_FOUND, answer, authenticate
from streamctx.server.handshake import STREAM_PATH, SUBPROTOCOLS
from streamctx.server.resources import ResourceEndpoints
from streamctx.server.security import UNIX, Refusal, check_request, identify_client
from streamctx.server.sessions import SessionEndpoints
from streamctx.server.shell import Shell
from streamctx.server.stored import StoredEndpoints

__all__ = ["FEATURES", "create_app"]

FEATURES = ("stream", "sessions", "metrics")
"""What `/version` says can be used."""

STORE_FEATURES = ("history", "store")
"""The same where there is a store."""


RESOURCE_FEATURES = ("resources",)
"""The same where resources are given."""


def create_app(
    shell: Shell, routes: Sequence[BaseRoute] = (), *, resources: Catalogue | None = None
) -> ASGIApp:
    """Build the application.

    Args:
        shell: The server's hub and policy.
        routes: More of them, such as another protocol's endpoint. They stand behind the same checks of Host,
            Origin and URL, and authenticate by themselves.
        resources: What `/v1/resources` gives; `None` for nothing.
    """
    application = Starlette(
        routes=[
            *_Endpoints(shell, gives_resources=resources is not None).routes(),
            # Before those of one session, whose ids could look like these.
            *StoredEndpoints(shell).routes(),
            *SessionEndpoints(shell).routes(),
            *ResourceEndpoints(shell, resources).routes(),
            *routes,
        ],
        exception_handlers={HTTPException: _answer_http_exception, Exception: _answer_failure},
    )
    return _SecurityMiddleware(application, shell)


class _Endpoints:
    def __init__(self, shell: Shell, *, gives_resources: bool) -> None:
        self._shell = shell
        self._features = (
            *FEATURES,
            *(() if shell.store is None else STORE_FEATURES),
            *(RESOURCE_FEATURES if gives_resources else ()),
        )

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self.health),
            Route("/readyz", self.ready),
            Route("/version", self.version),
            Route("/metrics", self.metrics),
            Route(STREAM_PATH.decode(), self.stream),
        ]

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        if self._shell.is_draining:
            return answer(
                Refusal(HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.DRAINING, "the server is shutting down")
            )
        return JSONResponse({"status": "ready"})

    async def version(self, _: Request) -> Response:
        return JSONResponse(
            {
                "version": __version__,
                "protocols": [PROTOCOL_VERSION],
                "subprotocols": list(SUBPROTOCOLS),
                "features": list(self._features),
            }
        )

    async def metrics(self, request: Request) -> Response:
        principal = authenticate(self._shell, request)
        if isinstance(principal, Refusal):
            return answer(principal)
        shell = self._shell
        values: dict[str, float] = {**shell.measurements(), **shell.hub.counters()}
        if shell.store is not None:
            measured = shell.store.measurements()
            values.update((f"store_{name}", value) for name, value in measured.items())
        lines = "".join(f"streamctx_{name} {value}\n" for name, value in sorted(values.items()))
        return PlainTextResponse(lines, media_type="text/plain; version=0.0.4")

    async def stream(self, _: Request) -> Response:
        return answer(
            Refusal(
                HTTPStatus.UPGRADE_REQUIRED,
                ErrorCode.UNSUPPORTED,
                f"this is a WebSocket; offer the subprotocol {' or '.join(SUBPROTOCOLS)}",
                (("upgrade", "websocket"),),
            )
        )


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
            await answer(refusal)(scope, receive, _with_headers(send))
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


async def _answer_http_exception(_: Request, exception: Exception) -> Response:
    assert isinstance(exception, HTTPException)
    if exception.status_code == HTTPStatus.NOT_FOUND:
        return answer(NOT_FOUND)
    status = HTTPStatus(exception.status_code)
    code = ErrorCode.UNSUPPORTED if status is HTTPStatus.METHOD_NOT_ALLOWED else ErrorCode.MALFORMED
    headers = tuple((exception.headers or {}).items())
    return answer(Refusal(status, code, exception.detail, headers))


async def _answer_failure(_: Request, __: Exception) -> Response:
    return answer(
        Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, ErrorCode.INTERNAL, "the server failed; its log says why")
    )
