"""What both ends of a transfer say: a chunk, and how a transfer ends."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Chunk", "End", "EndStatus", "Hasher"]


class Hasher(Protocol):
    """A hash of what has gone by, in order."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take more."""

    def hexdigest(self) -> str:
        """The hash of all so far."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a resource; `offset` counts from its start, whatever range was asked for."""

    offset: int
    data: memoryview


class EndStatus(enum.StrEnum):
    """Why no more chunks come."""

    COMPLETE = "complete"
    """All that was asked for has been sent."""
    CHANGED = "changed"
    """The source is no longer what it was: what was sent is of no use."""
    CANCELLED = "cancelled"
    """The consumer wanted no more."""
    FAILED = "failed"
    """The source could not be read."""


@dataclass(frozen=True, slots=True)
class End:
    """The last word of a transfer, said once.

    `stop` is one past the last byte that was sent, and `hash` that of all bytes of this transfer; a resume is
    a transfer of its own.
    """

    status: EndStatus
    stop: int
    hash: str
