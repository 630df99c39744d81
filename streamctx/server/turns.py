"""Who may have the past of a session in memory, and who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from streamctx.errors import ErrorCode
from streamctx.server.security import Refusal

__all__ = ["PASTS_MAX", "WAITING_MAX", "PastTurns"]

PASTS_MAX = 2
"""A past takes several times what is kept of its session on disk: four texts of 30 MB took 130 MiB, and more
while they are replayed. With two, one can be read while another one is replayed; more would be no faster."""

WAITING_MAX = 4
"""Of one principal, who is one person: a page that asks for some documents at once need not be refused."""

# A long past is read and replayed in seconds.
_RETRY_S = 5


@dataclass(slots=True)
class _Line:
    """Those of one principal: the one that has its turn, and those that wait for it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class PastTurns:
    """Lets `PASTS_MAX` at a time have a past in memory, and of each principal one.

    Nobody takes the turns of others by asking often: of each principal `WAITING_MAX` wait, in a line of their
    own, and its head waits in the common one.
    """

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(PASTS_MAX)
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, principal: str) -> AsyncIterator[Refusal | None]:
        """Wait for a turn and hold it; a refusal, at once, where too many of the principal wait."""
        line = self._lines.setdefault(principal, _Line())
        if line.count > WAITING_MAX:
            yield _too_many()
            return
        line.count += 1
        try:
            async with line.turn, self._room:
                yield None
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[principal]


def _too_many() -> Refusal:
    return Refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        ErrorCode.LIMIT,
        f"{WAITING_MAX} requests of yours wait already to look back; try again in {_RETRY_S} s",
        (("retry-after", str(_RETRY_S)),),
    )
