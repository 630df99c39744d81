"""The endpoints that give resources: a list of them, and the bytes of each, whole or in ranges."""

from __future__ import annotations

import functools
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from streamctx.discovery import run_directory, state_directory
from streamctx.errors import ErrorCode
from streamctx.hub.redaction import Redaction
from streamctx.limits import KIB
from streamctx.resources.base import ResourceChanged, ResourceError, ResourceInfo, Source
from streamctx.resources.catalogue import Catalogue
from streamctx.resources.http_ranges import Decision, Part, decide
from streamctx.resources.roots import Roots
from streamctx.server.answers import NOT_FOUND, answer, authenticate
from streamctx.server.config import ServerConfig
from streamctx.server.logs import logger
from streamctx.server.security import Refusal
from streamctx.server.shell import Shell
from streamctx.server.store import data_directory
from streamctx.server.tokens import token_file_of

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["RESOURCES_PATH", "ResourceEndpoints", "resources_of"]

RESOURCES_PATH = "/v1/resources"

_READ_BYTES = 256 * KIB
_LISTED_MAX = 1000

# Each holds a descriptor, a piece of its resource, and a thread while that is read.
_STREAMS_MAX = 128
_THREADS_MAX = 8

_HEADERS = {
    # It may be stored by who asked, and be asked for with its etag; the token decides each time.
    "cache-control": "private, no-cache",
    # What somebody's file says is no page of ours.
    "content-security-policy": "sandbox; default-src 'none'",
}

_TOO_MANY = Refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.LIMIT,
    f"{_STREAMS_MAX} resources are being read, which is the limit",
    (("retry-after", "1"),),
)


def resources_of(config: ServerConfig) -> Catalogue | None:
    """What a server with that configuration gives; `None` if nothing.

    Raises:
        ConfigurationError: If a root is no directory, or may not be read.
    """
    if not config.roots:
        return None
    paths = [str(path.absolute()) for path in config.roots]
    is_secret, own = Redaction(paths).is_excluded, _own_places(config)

    def is_excluded(uri: str) -> bool:
        return is_secret(uri) or _is_below(uri, own)

    return Catalogue({"file": Roots(paths, is_excluded=is_excluded)})


def _own_places(config: ServerConfig) -> frozenset[Path]:
    """Where this server keeps its token and what it stores."""
    places = {state_directory(), run_directory(), data_directory(config)}
    places |= {path for path in (token_file_of(config), config.ready_file) if path is not None}
    return frozenset(each for path in places for each in (path.absolute(), path.resolve()))


def _is_below(uri: str, places: frozenset[Path]) -> bool:
    path = Path(unquote(urlsplit(uri).path))
    return not places.isdisjoint((path, *path.parents))


class ResourceEndpoints:
    """What a principal with the scope `resource` may read."""

    def __init__(self, shell: Shell, resources: Catalogue | None) -> None:
        self._shell = shell
        self._resources = Catalogue({}) if resources is None else resources
        self._threads = anyio.CapacityLimiter(_THREADS_MAX)
        self._stream_count = 0

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route(RESOURCES_PATH, self.resources),
            Route(f"{RESOURCES_PATH}/{{uri:path}}", self.resource, methods=["GET"]),
        ]

    async def resources(self, request: Request) -> Response:
        """The first of them, and whether there are more."""
        principal = authenticate(self._shell, request, scope="resource")
        if isinstance(principal, Refusal):
            return answer(principal)
        found = await self._in_thread(self._list)
        is_truncated = len(found) > _LISTED_MAX
        value = {"resources": found[:_LISTED_MAX], "truncated": is_truncated}
        return Response(msgspec.json.encode(value), media_type="application/json")

    async def resource(self, request: Request) -> Response:
        """The bytes of one, as the headers of RFC 9110 ask for them."""
        principal = authenticate(self._shell, request, scope="resource")
        if isinstance(principal, Refusal):
            return answer(principal)
        if self._stream_count >= _STREAMS_MAX:
            self._shell.counters.resources_refused += 1
            return answer(_TOO_MANY)
        self._stream_count += 1
        try:
            source = await self._in_thread(self._resources.open, request.path_params["uri"])
        except ResourceError as error:
            self._stream_count -= 1
            return answer(_refusal_of(error))
        except BaseException:
            self._stream_count -= 1
            raise
        self._shell.counters.resources_opened += 1
        return _Stream(request, source, self._in_thread, on_end=self._count_end)

    def _count_end(self, is_cut: bool) -> None:
        self._stream_count -= 1
        self._shell.counters.resources_cut += is_cut

    def _list(self) -> list[ResourceInfo]:
        return list(islice(self._resources.list(), _LISTED_MAX + 1))

    async def _in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:
        return await anyio.to_thread.run_sync(functools.partial(function, *arguments), limiter=self._threads)


class _Stream(Response):
    """The answer to one GET or HEAD; it closes its source, whatever happens."""

    def __init__(
        self,
        request: Request,
        source: Source,
        in_thread: Callable[..., Awaitable[Any]],
        *,
        on_end: Callable[[bool], None],
    ) -> None:
        self._source = source
        self._in_thread = in_thread
        self._on_end = on_end
        self._is_cut = False
        self._abort: Callable[[], None] = request.scope["state"]["abort"]
        self._decision = decide(
            request.method, request.scope["headers"], source.info, boundary=secrets.token_hex(16)
        )
        super().__init__(status_code=self._decision.status, headers=_headers_of(self._decision))

    @override
    def init_headers(self, headers: Any = None) -> None:
        # The base class would add a length of its own.
        self.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_at_end_of, receive, tasks.cancel_scope)
                await self._send_all(send)
                tasks.cancel_scope.cancel()
        finally:
            self._source.close()
            self._on_end(self._is_cut)

    async def _stop_at_end_of(self, receive: Receive, stop: anyio.CancelScope) -> None:
        """Read nothing more for a client that has gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        stop.cancel()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            for part in self._decision.parts:
                await self._send_part(part, send)
        except (ResourceChanged, ResourceError) as error:
            # Nothing else tells a client that what it has is not what was promised.
            logger.warning("a resource could not be sent to its end: %s", error)
            self._is_cut = True
            self._abort()
            await anyio.sleep_forever()
        await send({"type": "http.response.body", "body": self._decision.tail})

    async def _send_part(self, part: Part, send: Send) -> None:
        if part.head:
            await send({"type": "http.response.body", "body": part.head, "more_body": True})
        for offset, count in _pieces_of(part):
            data = await self._in_thread(self._source.read, offset, count)
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if len(data) < count:
                if part.stop is not None:
                    raise ResourceChanged("it has become shorter")
                return


def _pieces_of(part: Part) -> Iterator[tuple[int, int]]:
    """What to read for a part, as offsets and counts; without an end where that is unknown."""
    offset = part.start
    while part.stop is None or offset < part.stop:
        count = _READ_BYTES if part.stop is None else min(_READ_BYTES, part.stop - offset)
        yield offset, count
        offset += count


def _headers_of(decision: Decision) -> dict[str, str]:
    headers = {name.lower(): value for name, value in decision.headers}
    if decision.status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        headers["content-length"] = "0"
    return {**headers, **_HEADERS}


def _refusal_of(error: ResourceError) -> Refusal:
    if error.code is ErrorCode.NOT_FOUND:
        return NOT_FOUND
    retry = (("retry-after", "1"),) if error.is_temporary else ()
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.code, str(error), retry)
