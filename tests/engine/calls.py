"""An engine's calls, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState, StoredSession
from streamctx.engine.base import Damaged, Engine, History, StoreError

__all__ = ["Calls"]

_T = TypeVar("_T")


class Calls:
    """Each waits for its completion and raises the error that it brings."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def fence(self, record: SessionRecord) -> None:
        await self._write(lambda done: self.engine.fence(record, done))

    async def append(self, session_id: str, epoch: str, *batches: JournalBatch) -> None:
        await asyncio.gather(*[self._append(session_id, epoch, batch) for batch in batches])

    async def _append(self, session_id: str, epoch: str, batch: JournalBatch) -> None:
        await self._write(lambda done: self.engine.append(session_id, epoch, batch, done))

    async def snapshot(
        self, session_id: str, epoch: str, state: SessionState, *, purge: bool = False
    ) -> None:
        await self._write(lambda done: self.engine.snapshot(session_id, epoch, state, done, purge=purge))

    async def forget(self, session_id: str) -> None:
        await self._write(lambda done: self.engine.forget(session_id, done))

    async def load(self, session_id: str) -> StoredSession | Damaged | None:
        return await self._read(lambda done: self.engine.load(session_id, done))

    async def tail(self, session_id: str, since: float) -> History | None:
        return await self._read(lambda done: self.engine.tail(session_id, since, done))

    async def _write(self, call: Callable[[Callable[[StoreError | None], None]], None]) -> None:
        await self._read(call)

    async def _read(self, call: Callable[[Callable[[_T | StoreError], None]], None]) -> _T:
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def done(result: _T | StoreError) -> None:
            # A second completion fails here, and so the test.
            if isinstance(result, StoreError):
                future.set_exception(result)
            else:
                future.set_result(result)

        call(done)
        return await future
