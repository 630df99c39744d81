"""The engine that stores nothing: state lives as long as the process, and every batch is done at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from streamctx.core.session.server_session import JournalBatch

__all__ = ["MemoryEngine"]


class MemoryEngine:
    """Completes at once; `durable` then means no more than `applied`."""

    durability: Literal["none", "full"] = "none"

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Callable[[], None]) -> None:
        """Call `done`."""
        done()
