"""Whose chunk is next: among the transfers of one connection, and between them and everything else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["URGENCIES", "ChunkScheduler", "Lanes"]

URGENCIES = 8
"""From 0, the most urgent, to 7 (RFC 9218 section 4.1)."""

# A chunk goes after so many other frames at most, or after so long: a transfer never stands still.
_OTHERS_MAX = 16
_WAIT_S_MAX = 0.05

Key = TypeVar("Key", bound=Hashable)


class ChunkScheduler(Generic[Key]):
    """Transfers that have something to send, in the order in which their chunks go.

    A more urgent transfer goes first. Of equally urgent ones an incremental transfer, which is of use in
    parts, takes turns, and one that is not goes to its end before the next (RFC 9218 section 10). Turns are
    by bytes: each gives a transfer `quantum_bytes` more to spend, so that small chunks are no disadvantage.

    A transfer is in `_turns` of its urgency exactly while it is ready, and has a deficit only then.
    """

    __slots__ = ("_deficits", "_is_incremental", "_quantum_bytes", "_turns", "_urgency")

    def __init__(self, quantum_bytes: int) -> None:
        """Start without transfers.

        Args:
            quantum_bytes: What each may send in its turn; best the size of the largest chunk.

        Raises:
            ValueError: If that is nothing.
        """
        if quantum_bytes < 1:
            raise ValueError(f"quantum_bytes is {quantum_bytes}, expected at least 1")
        self._quantum_bytes = quantum_bytes
        self._urgency: dict[Key, int] = {}
        self._is_incremental: dict[Key, bool] = {}
        self._deficits: dict[Key, int] = {}
        self._turns: tuple[deque[Key], ...] = tuple(deque() for _ in range(URGENCIES))

    def __len__(self) -> int:
        """Return how many transfers there are, ready or not."""
        return len(self._urgency)

    @property
    def has_ready(self) -> bool:
        """Whether any transfer can send."""
        return bool(self._deficits)

    def add(self, key: Key, *, urgency: int = 3, is_incremental: bool = False) -> None:
        """Take a transfer, which is not ready yet; or give one another priority, which keeps its turn.

        Raises:
            ValueError: If there is no such urgency.
        """
        if not 0 <= urgency < URGENCIES:
            raise ValueError(f"urgency is {urgency}, expected 0 to {URGENCIES - 1}")
        before = self._urgency.get(key)
        self._is_incremental[key] = is_incremental
        self._urgency[key] = urgency
        if key in self._deficits and before is not None and before != urgency:
            self._turns[before].remove(key)
            self._turns[urgency].append(key)

    def remove(self, key: Key) -> None:
        """Forget a transfer."""
        self.set_ready(key, False)
        del self._urgency[key], self._is_incremental[key]

    def set_ready(self, key: Key, is_ready: bool) -> None:
        """Say whether a transfer has something to send and credit for it."""
        if is_ready is (key in self._deficits):
            return
        turns = self._turns[self._urgency[key]]
        if is_ready:
            self._deficits[key] = 0
            turns.append(key)
        else:
            del self._deficits[key]
            turns.remove(key)

    def next(self, size_of: Callable[[Key], int]) -> Key | None:
        """Choose the transfer whose chunk is to be sent now, and count the chunk against it.

        Args:
            size_of: How many bytes the next chunk of a transfer that is ready has.
        """
        for turns in self._turns:
            if turns:
                return self._next_of(turns, size_of)
        return None

    def _next_of(self, turns: deque[Key], size_of: Callable[[Key], int]) -> Key:
        first = turns[0]
        if not self._is_incremental[first]:
            return first
        while True:
            key = turns[0]
            if not self._is_incremental[key]:
                # It has its turn when those before it have had theirs, and then goes to its end.
                return key
            size_bytes = size_of(key)
            if self._deficits[key] >= size_bytes:
                self._deficits[key] -= size_bytes
                return key
            self._deficits[key] += self._quantum_bytes
            turns.rotate(-1)


class Lanes:
    """When a chunk may go before other frames that wait.

    They go first, all of them; but not more than 16 of them, or for longer than 50 ms, while a chunk waits.
    """

    __slots__ = ("_others", "_waits_since")

    def __init__(self) -> None:
        """Start with no chunk waiting."""
        self._others = 0
        self._waits_since: float | None = None

    def is_turn_of_chunk(self, now: float, *, others_wait: bool) -> bool:
        """Whether the next frame is to be a chunk; ask only while one waits."""
        if self._waits_since is None:
            self._waits_since = now
        is_due = self._others >= _OTHERS_MAX or now - self._waits_since >= _WAIT_S_MAX
        return is_due or not others_wait

    def sent_other(self) -> None:
        """Another frame has gone."""
        if self._waits_since is not None:
            self._others += 1

    def sent_chunk(self) -> None:
        """A chunk has gone."""
        self._others = 0
        self._waits_since = None
