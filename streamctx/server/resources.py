"""The endpoints that give resources: a list of them, and the bytes of each, whole or in ranges."""

from __future__ import annotations

import os
import secrets
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
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
from streamctx.resources.base import ResourceChanged, ResourceError, ResourceFresh, ResourceInfo, Source
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

# For a file that is being written to be quiet for a moment.
_WAIT_S_MAX = 5.0
_ABORT_S = 1.0

_BEING_WRITTEN = Refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.UNAVAILABLE,
    "the resource is being written; try again when it is not",
    (("retry-after", "1"),),
)
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
    is_secret, own = Redaction(paths).is_excluded, _OwnFiles(config)

    def is_excluded(uri: str) -> bool:
        return is_secret(uri) or own.has_path(uri)

    return Catalogue({"file": Roots(paths, is_excluded=is_excluded, is_hidden=own.has_file)})


class _OwnFiles:
    """Where this server keeps its secrets, and what it stores."""

    def __init__(self, config: ServerConfig) -> None:
        files = (token_file_of(config), config.tls_key, config.ready_file, *config.private_files)
        self._files = [path for path in files if path is not None]
        places = {state_directory(), run_directory(), data_directory(config), *self._files}
        self._places = frozenset(each for path in places for each in (path.absolute(), path.resolve()))

    def has_path(self, uri: str) -> bool:
        """Whether that is the path of one, or of a file in one of the directories."""
        path = Path(unquote(urlsplit(uri).path))
        return not self._places.isdisjoint((path, *path.parents))

    def has_file(self, status: os.stat_result) -> bool:
        """Whether that is one by another name, as a hard link is."""
        return status.st_nlink > 1 and any(_is_same(path, status) for path in self._files)


def _is_same(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:
        return False


class ResourceEndpoints:
    """What a principal with the scope `resource` may read."""

    def __init__(self, shell: Shell, resources: Catalogue | None) -> None:
        self._shell = shell
        self._resources = Catalogue({}) if resources is None else resources
        self._threads = anyio.CapacityLimiter(_THREADS_MAX)
        # To look through large directories takes long, and nobody who reads is to wait for it.
        self._listing = anyio.CapacityLimiter(1)
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
        has_gone = threading.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, request.receive, has_gone.set)
            body = await anyio.to_thread.run_sync(self._list, has_gone.is_set, limiter=self._listing)
            tasks.cancel_scope.cancel()
        return Response(body, media_type="application/json")

    async def resource(self, request: Request) -> Response:
        """The bytes of one, as the headers of RFC 9110 ask for them."""
        principal = authenticate(self._shell, request, scope="resource")
        if isinstance(principal, Refusal):
            return answer(principal)
        # Starlette takes a line end behind the path for none of it.
        uri = request.scope["path"].removeprefix(f"{RESOURCES_PATH}/")
        waited_s = 0.0
        while True:
            if self._stream_count >= _STREAMS_MAX:
                self._shell.counters.resources_refused += 1
                return answer(_TOO_MANY)
            try:
                source = await self._open(uri)
            except ResourceError as error:
                return answer(_refusal_of(error))
            except ResourceFresh as error:
                waited_s += error.retry_after_s
                if waited_s > _WAIT_S_MAX or await request.is_disconnected():
                    return answer(_BEING_WRITTEN)
                await anyio.sleep(error.retry_after_s)
            else:
                self._shell.counters.resources_opened += 1
                return _Stream(request, source, self._in_thread, on_end=self._count_end)

    async def _open(self, uri: str) -> Source:
        """Open a resource, which counts from now on until `_count_end`."""
        self._stream_count += 1
        try:
            source: Source = await self._in_thread(self._resources.open, uri)
        except BaseException:
            self._stream_count -= 1
            raise
        return source

    def _count_end(self, is_cut: bool) -> None:
        self._stream_count -= 1
        self._shell.counters.resources_cut += is_cut

    def _list(self, has_gone: Callable[[], bool]) -> bytes:
        """The list as JSON; of no use to a client that has gone meanwhile, for which the search ends."""
        listing = self._resources.list()
        found: list[ResourceInfo] = []
        for info in listing:
            found.append(info)
            if len(found) > _LISTED_MAX or has_gone():
                break
        is_truncated = len(found) > _LISTED_MAX or listing.is_truncated
        return msgspec.json.encode({"resources": found[:_LISTED_MAX], "truncated": is_truncated})

    async def _in_thread(self, function: Callable[..., Any], *arguments: object) -> Any:
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)


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
                # Nothing more is read for a client that has gone.
                tasks.start_soon(_watch, receive, tasks.cancel_scope.cancel)
                await self._send_all(send)
                tasks.cancel_scope.cancel()
        finally:
            self._source.close()
            self._on_end(self._is_cut)

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
            # The loss is told in a moment; to return before it would look like a mistake of ours.
            await anyio.sleep(_ABORT_S)
            return
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


async def _watch(receive: Receive, on_end: Callable[[], object]) -> None:
    """Wait until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    on_end()


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
