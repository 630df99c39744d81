"""The endpoints that change what is stored, or give it away whole: for tokens with the scope `admin`.

They concern the sessions of the token's principal; but a backup is of the whole store.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from typing import IO, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from streamctx.engine.base import SetAside, StoreError, Summary
from streamctx.engine.sqlite.archive import ImportRefused
from streamctx.errors import ErrorCode
from streamctx.hub.ports import Principal
from streamctx.hub.views import set_aside_view, stored_facts, stored_view
from streamctx.limits import MIB
from streamctx.server.answers import (
    NOT_FOUND,
    answer,
    authenticate,
    bad_request,
    nothing_stored,
    unavailable,
)
from streamctx.server.logs import logger
from streamctx.server.running_store import RunningStore
from streamctx.server.security import Refusal
from streamctx.server.shell import Shell

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["IMPORT_BYTES_MAX", "IMPORT_PATH", "StoredEndpoints"]

IMPORT_PATH = "/v1/sessions/import"
IMPORT_BYTES_MAX = 256 * MIB
"""It is held in memory while it is stored. A larger one is imported while no server runs."""

_CHUNK_BYTES = 256 * 1024
_BUSY_RETRY_S = 5
_TEXT = "application/octet-stream"

Forgetting: TypeAlias = "asyncio.Future[StoreError | None]"


class PruneRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which stored sessions to delete: those that meet both conditions, and are not in use.

    `older_than_s` is how long nothing of a session was written, or how long ago it was set aside as damaged;
    what is past retention, if neither is there.
    """

    older_than_s: float | None = None
    sessions: tuple[str, ...] | None = None
    dry_run: bool = False


class StoredEndpoints:
    """What an operator does with stored sessions while the server runs."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._hub = shell.hub
        # Each needs as much room as all that it copies.
        self._copying = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Where they are."""
        return [
            Route("/v1/sessions/prune", self.prune, methods=["POST"]),
            Route(IMPORT_PATH, self.import_session, methods=["POST"]),
            Route("/v1/sessions/{session}", self.delete, methods=["DELETE"]),
            Route("/v1/sessions/{session}/export", self.export),
            Route("/v1/backup", self.backup),
            Route("/v1/store", self.store),
        ]

    async def delete(self, request: Request) -> Response:
        """Delete one session that is stored and not in use."""
        found = self._find(request)
        if isinstance(found, Refusal):
            return answer(found)
        session_id, _ = found
        forgetting = self._forget(session_id)
        if forgetting is None:
            return answer(
                Refusal(
                    HTTPStatus.CONFLICT, ErrorCode.CONFLICT, "the session is in use: its client is connected"
                )
            )
        error = await forgetting
        return answer(unavailable(error)) if error else JSONResponse({"session": session_id})

    async def prune(self, request: Request) -> Response:
        """Delete many, or tell which ones would be."""
        admitted = self._admit(request)
        if isinstance(admitted, Refusal):
            return answer(admitted)
        principal, store = admitted
        try:
            asked = msgspec.json.decode(await request.body() or b"{}", type=PruneRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return answer(bad_request(f"the body is not what is expected: {error}"))
        try:
            set_aside = await store.set_aside(principal=principal.name)
            is_meant = self._meant(asked)
            damaged = [each for each in set_aside if is_meant(each.session_id, each.at)]
            stored = self._hub.stored(principal)
            found = [each for each in stored if is_meant(each.session_id, each.changed)]
            going = await self._prune(store, found, damaged, dry_run=asked.dry_run)
        except StoreError as error:
            return answer(unavailable(error))
        known = {summary.session_id for summary in found} | {each.session_id for each in damaged}
        gone = {summary.session_id for summary in going}
        return JSONResponse(
            {
                "dry_run": asked.dry_run,
                "retention_s": self._shell.limits.retention_s,
                "sessions": [stored_view(summary) | stored_facts(summary) for summary in going],
                "damaged": [set_aside_view(each) for each in damaged],
                "in_use": [summary.session_id for summary in found if summary.session_id not in gone],
                "left_out": [each for each in asked.sessions or () if each not in known],
            }
        )

    async def store(self, request: Request) -> Response:
        """Where the store is, and whether it can store."""
        admitted = self._admit(request)
        return answer(admitted) if isinstance(admitted, Refusal) else JSONResponse(admitted[1].facts())

    async def export(self, request: Request) -> Response:
        """One session as a file."""
        found = self._find(request)
        if isinstance(found, Refusal):
            return answer(found)
        session_id, store = found
        try:
            data = await store.export(session_id)
        except StoreError as error:
            return answer(unavailable(error))
        if data is None:
            return answer(NOT_FOUND)
        return StreamingResponse(_chunks(data), media_type=_TEXT, headers={"content-length": str(len(data))})

    async def import_session(self, request: Request) -> Response:
        """Store a session from a file."""
        admitted = self._admit(request)
        if isinstance(admitted, Refusal):
            return answer(admitted)
        principal, store = admitted
        if self._copying.locked():
            return answer(_busy())
        async with self._copying:
            data = await _body(request)
            if data is None:
                return answer(
                    Refusal(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        ErrorCode.TOO_LARGE,
                        f"an exported session of more than {IMPORT_BYTES_MAX} bytes is not taken by a server "
                        "that runs",
                    )
                )
            try:
                session_id = await store.import_session(data, principal=principal.name)
            except ImportRefused as error:
                return answer(bad_request(str(error)))
            except StoreError as error:
                # Only the operator learns whether a quota or the session of somebody else is in the way.
                logger.warning("an import of %s was not stored: %s", principal.name, error)
                return answer(unavailable(error))
        return JSONResponse({"session": session_id})

    async def backup(self, request: Request) -> Response:
        """The whole store as a file."""
        admitted = self._admit(request)
        if isinstance(admitted, Refusal):
            return answer(admitted)
        _, store = admitted
        if self._copying.locked():
            return answer(_busy())
        await self._copying.acquire()
        try:
            file = await store.backup()
        except BaseException as error:
            self._copying.release()
            if isinstance(error, StoreError):
                return answer(unavailable(error))
            raise
        return _BackupResponse(file, self._copying)

    def _admit(self, request: Request) -> tuple[Principal, RunningStore] | Refusal:
        principal = authenticate(self._shell, request, scope="admin")
        if isinstance(principal, Refusal):
            return principal
        store = self._shell.store
        return nothing_stored() if store is None else (principal, store)

    def _find(self, request: Request) -> tuple[str, RunningStore] | Refusal:
        """The stored session that a path names, and where it is stored."""
        admitted = self._admit(request)
        if isinstance(admitted, Refusal):
            return admitted
        principal, store = admitted
        session_id: str = request.path_params["session"]
        is_stored = any(summary.session_id == session_id for summary in self._hub.stored(principal))
        return (session_id, store) if is_stored else NOT_FOUND

    def _meant(self, asked: PruneRequest) -> Callable[[str, float], bool]:
        """Whether a request means something: given the session's id, and when it was last written."""
        older_than_s = asked.older_than_s
        if older_than_s is None:
            older_than_s = self._shell.limits.retention_s if asked.sessions is None else 0.0
        before = time.time() - older_than_s
        wanted = None if asked.sessions is None else set(asked.sessions)
        return lambda session_id, at: at <= before and (wanted is None or session_id in wanted)

    def _forget(self, session_id: str) -> Forgetting | None:
        """Begin to delete a session; `None` if it is in use.

        That is asked in the same step: a client can come back wherever something is awaited.
        """
        if self._hub.is_in_use(session_id):
            return None
        done: Forgetting = asyncio.get_running_loop().create_future()
        self._hub.forget(session_id, lambda error: None if done.done() else done.set_result(error))
        return done

    async def _prune(
        self,
        store: RunningStore,
        found: Iterable[Summary],
        damaged: Iterable[SetAside],
        *,
        dry_run: bool,
    ) -> list[Summary]:
        """Delete sessions that are not in use, and what was set aside as damaged.

        Returns:
            The sessions that are deleted; in a dry run, that would be.

        Raises:
            StoreError: If the store fails; what was deleted by then is gone.
        """
        if dry_run:
            return [summary for summary in found if not self._hub.is_in_use(summary.session_id)]
        begun = [(summary, self._forget(summary.session_id)) for summary in found]
        going = [(summary, forgetting) for summary, forgetting in begun if forgetting is not None]
        for error in await asyncio.gather(*[forgetting for _, forgetting in going]):
            if error is not None:
                raise error
        await store.forget_set_aside([found.key for found in damaged])
        return [summary for summary, _ in going]


class _BackupResponse(StreamingResponse):
    """Sends a file and lets go of it, and of the lock, however that ends: it takes room until then."""

    def __init__(self, file: IO[bytes], lock: asyncio.Lock) -> None:
        self._file = file
        self._lock = lock
        length = file.seek(0, 2)
        file.seek(0)
        super().__init__(_file_chunks(file), media_type=_TEXT, headers={"content-length": str(length)})

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
            self._lock.release()


def _busy() -> Refusal:
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        ErrorCode.LIMIT,
        "another import or backup is under way; try again when it is done",
        (("retry-after", str(_BUSY_RETRY_S)),),
    )


async def _body(request: Request) -> bytes | None:
    """All of it; `None` if it is too long."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > IMPORT_BYTES_MAX:
            return None
    return bytes(data)


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


async def _file_chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk
