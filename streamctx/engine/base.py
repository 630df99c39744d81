"""What a session's state needs of storage: to make batches of durable events safe.

The core emits batches and waits for their completion; an engine decides what safe means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from streamctx.core.session.server_session import JournalBatch

__all__ = ["Engine"]


class Engine(Protocol):
    """Storage of sessions. Methods are called on the event loop's thread and do not block."""

    @property
    def durability(self) -> Literal["none", "full"]:
        """What WELCOME says: whether a completed batch survives the server's death."""

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Callable[[], None]) -> None:
        """Make a batch safe, then call `done`, at once or later; batches of a session in order."""
