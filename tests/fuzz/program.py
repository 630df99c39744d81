"""Bytes as a program: whoever interprets them takes one decision after the other.

Every decision costs few bytes and its bytes stand in order, so that what a fuzzer cuts, copies or changes is
a step of the program. At the end of the bytes every decision is the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from streamctx.vocabulary import INTEGER_MAX

__all__ = ["Program", "Violation"]

T = TypeVar("T")

_EDGES = (
    *(
        0,
        1,
        2,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        65,
        127,
        128,
        255,
        256,
        1023,
        1024,
        1025,
        4095,
        4096,
        8191,
        8192,
    ),
    *(8193, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, INTEGER_MAX - 1, INTEGER_MAX),
)
"""Numbers at which something ends: of a test's small limits, of the default ones, of a type."""

_PIECES = (
    *(
        "a",
        "b",
        "xyz",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\n\r",
        "\0",
        "\t",
        "\v",
        "\f",
        "\x1c",
        "\x85",
        "é",
        "e\u0301",
    ),
    *(
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ufffd",
        "中",
        "😀",
        "👩\u200d👧",
        "🇩🇪",
        "\U0010ffff",
        "\x7f",
        '"',
        "\\",
    ),
    *("/", "*", "?", "a long word ", "x" * 40, "line\n" * 8),
)
"""What texts are made of: everything that somebody has taken for something else."""


class Violation(AssertionError):
    """Something that must always hold does not."""


class Program:
    """Decisions, read from bytes."""

    __slots__ = ("_data", "_index")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._index = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to decide."""
        return self._index >= len(self._data)

    def byte(self) -> int:
        """One byte; 0 at the end."""
        index = self._index
        if index >= len(self._data):
            return 0
        self._index = index + 1
        return self._data[index]

    def below(self, stop: int) -> int:
        """A number from 0 up to `stop`."""
        if stop <= 256:
            return self.byte() % stop
        return (self.byte() << 8 | self.byte()) % stop

    def flag(self) -> bool:
        """Yes or no; no at the end."""
        return bool(self.byte() & 1)

    def rarely(self, odds: int = 16) -> bool:
        """Yes once in so many times; no at the end."""
        return self.byte() % odds == odds - 1

    def choose(self, choices: Sequence[T]) -> T:
        """One of them; the first at the end."""
        return choices[self.below(len(choices))]

    def number(self) -> int:
        """A number that may be anything from 0 to the largest on the wire, mostly small or at an edge."""
        kind = self.byte()
        if kind < 128:
            return kind & 15
        if kind < 192:
            return self.byte()
        if kind < 248:
            return _EDGES[kind % len(_EDGES)]
        return int.from_bytes(self.take(7), "big") & INTEGER_MAX

    def near(self, number: int) -> int:
        """That number mostly, or one beside it, or any."""
        kind = self.byte()
        if kind < 176:
            return number
        if kind < 240:
            return number + (kind & 15) - 8
        return self.number()

    def text(self, pieces_max: int = 8) -> str:
        """A text without surrogates."""
        count = self.byte()
        text = "".join(self.choose(_PIECES) for _ in range(count % (pieces_max + 1)))
        return text * (1 + (count >> 4)) if count >= 240 else text

    def take(self, count: int) -> bytes:
        """So many bytes, or what is left."""
        taken = self._data[self._index : self._index + count]
        self._index += len(taken)
        return taken

    def blob(self, length_max: int = 64) -> bytes:
        """A few bytes as they are."""
        return self.take(self.byte() % (length_max + 1))

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))
