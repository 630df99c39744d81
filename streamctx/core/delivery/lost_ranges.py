"""What a receiver has given up, and its sender may not know of (ACK-6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from streamctx.vocabulary import INTEGER_MAX

__all__ = ["LOST_RANGES_MAX", "LostRanges"]

LOST_RANGES_MAX = 512
"""So many are told in an ACK: no more fit in a window of 1,024 events."""


class LostRanges:
    """Ranges of numbers, each told in every ACK until the peer uses a number that only such an ACK allows.

    With each goes the highest limit that the peer may have known when it was given up. These never fall, so
    that those who are known of are the first. Of more than `LOST_RANGES_MAX` the first are forgotten.
    """

    __slots__ = ("_limit", "_ranges")

    def __init__(self) -> None:
        """Start with none."""
        self._limit = 0
        self._ranges: deque[tuple[int, int, int]] = deque(maxlen=LOST_RANGES_MAX)

    def __bool__(self) -> bool:
        """Whether there may be any to tell."""
        return bool(self._ranges)

    def add(self, start: int, stop: int, limit: int) -> None:
        """Give up `[start, stop)`.

        Args:
            limit: The last that an ACK has told, or the first of all.
        """
        self._ranges.append((start, stop, max(limit, self._limit)))

    def restore(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Take over what was given up before; call `expect_welcome` before the peer sends anything."""
        self._ranges.extend((start, stop, INTEGER_MAX) for start, stop in ranges)

    def expect_welcome(self, limit: int) -> None:
        """Take no number below `limit` for a sign that the peer has had an ACK.

        A WELCOME lets it use numbers, and tells nothing of what was given up.

        Args:
            limit: The highest that the peer may know, be it from before our death; never lower than before.
        """
        self._limit = limit
        ranges = [(start, stop, limit) for start, stop, _ in self._ranges]
        self._ranges.clear()
        self._ranges.extend(ranges)

    def to_tell(self, known_stop: int) -> tuple[tuple[int, int], ...]:
        """Forget what the peer has been told of, and return the rest.

        Args:
            known_stop: One past the highest number that the peer is known to have used.
        """
        while self._ranges and self._ranges[0][2] < known_stop:
            self._ranges.popleft()
        return tuple((start, stop) for start, stop, _ in self._ranges)
