"""The fixture of all attacks: a fresh server, a neighbour, and a look into the log afterwards."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from streamctx.server.embedding import serve
from tests.hostile.arena import LIMITS, Arena, log_faults, neighbour

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []


class _Lines(logging.Handler):
    """Keeps every line of the whole program, whatever phase of the test it is from."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        traceback = " Traceback" if record.exc_info else ""
        self.lines.append(f"{record.name} {record.levelname} {record.getMessage()}{traceback}")


@pytest.fixture
def log() -> Iterator[list[str]]:
    """All that is logged at DEBUG and above."""
    root = logging.getLogger()
    handler = _Lines()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)


@pytest_asyncio.fixture
async def arena(log: list[str]) -> AsyncIterator[Arena]:
    """A server with a neighbour on it; after the test the neighbour is well and the log is clean."""
    async with serve(limits=LIMITS) as server:
        arena = Arena(server.port, server.token, LIMITS)
        async with neighbour(arena):
            yield arena
    assert len(log) > 3
    assert log_faults(log) == []
    assert not [line for line in log if arena.token in line]
