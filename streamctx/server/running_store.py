"""What a server needs of the store that runs beside it; `streamctx.server.store` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import IO, Protocol

from streamctx.engine.base import SetAside

__all__ = ["RunningStore"]


class RunningStore(Protocol):
    """What a hub stores in, as a thing that runs beside the event loop.

    The coroutines raise `StoreError` where the store fails.
    """

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; completions are called in that loop."""

    async def close(self) -> object:
        """Finish what was begun, and end. Safe to call again."""

    def measurements(self) -> dict[str, float]:
        """Counters and present values by name, for `/metrics`."""

    def facts(self) -> dict[str, object]:
        """Where it is, what a completion means, and why nothing can be stored now, for its operator."""

    async def export(self, session_id: str) -> bytes | None:
        """A session as bytes, without what resumes it; `None` if it is not stored."""

    async def import_session(self, data: bytes, *, principal: str) -> str:
        """Store an exported session, as one of that principal; gives its id.

        Raises:
            ImportRefused: If the bytes are no good, or another session has that id.
        """

    async def set_aside(self, *, principal: str) -> list[SetAside]:
        """What was set aside as damaged of a principal's sessions."""

    async def forget_set_aside(self, keys: Sequence[int]) -> None:
        """Delete some of it, by its keys."""

    async def backup(self) -> IO[bytes]:
        """Copy the store into a file that has no name, and is gone once it is closed."""
