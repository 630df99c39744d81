"""Randomness that is the same everywhere: a small generator of our own, and odds that hang on an identity.

`random.Random` costs more to seed than a simulated message costs to send, and how it draws from a range is no
promise between Python versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Dice", "mixed"]

T = TypeVar("T")

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15


def mixed(value: int) -> int:
    """Scatter a number over 64 bits (the finalizer of SplitMix64)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


class Dice:
    """A stream of draws that is a function of its seed."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = mixed(seed & _MASK)

    def draw(self) -> int:
        """64 bits."""
        self._state = (self._state + _STEP) & _MASK
        return mixed(self._state)

    def odds(self) -> float:
        """A number in [0, 1)."""
        return (self.draw() >> 11) * 2.0**-53

    def below(self, stop: int) -> int:
        """A number from 0, below `stop`."""
        return self.draw() % stop

    def between(self, first: int, last: int) -> int:
        """A number from `first` to `last`, both of them included."""
        return first + self.draw() % (last - first + 1)

    def pick(self, choices: Sequence[T]) -> T:
        """One of them, all as likely."""
        return choices[self.draw() % len(choices)]

    def happens(self, odds: float) -> bool:
        """Whether something of those odds happens."""
        return self.odds() < odds
