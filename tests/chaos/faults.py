"""What can go wrong with bytes on their way, and where it does: plans drawn from a seed."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["SECONDS_MAX", "Fault", "Plan", "Planned", "Way", "no_faults", "random_plan"]


class Way(enum.StrEnum):
    """Which way bytes go."""

    UP = "up"
    """To the server."""
    DOWN = "down"


class Fault(enum.StrEnum):
    """What can happen at a byte; its `amount` in [0, 1) scales it."""

    LATENCY = "latency"
    """What follows comes up to 100 ms late, in its order."""
    SLICES = "slices"
    """Up to 120 bytes arrive in pieces of 3."""
    FLIP = "flip"
    """One bit of it is wrong."""
    STALL = "stall"
    """Both ways carry nothing for up to a second."""
    BLOCK = "block"
    """This way carries nothing for up to 4 s, while the other one goes on."""
    HALF_CLOSE = "half_close"
    """This way ends before it, and the other one goes on."""
    CUT = "cut"
    """Both ways end after it."""
    RESET = "reset"
    """Both ways are reset after it, and what was under way is lost."""


SECONDS_MAX: Final = {Fault.LATENCY: 0.1, Fault.STALL: 1.0, Fault.BLOCK: 4.0}
"""What the largest amount of a fault is."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault at the byte with that number, from 0."""

    offset: int
    fault: Fault
    amount: float


Plan = Callable[[int, Way], Iterator[Planned]]
"""Gives the faults of a connection, numbered from 0, in the order of their offsets."""


def random_plan(seed: int, mean_bytes: Mapping[Fault, float]) -> Plan:
    """Faults at random places; `mean_bytes` says how many bytes pass between two of a kind on average."""

    def draw(connection: int, way: Way) -> Iterator[Planned]:
        chance = random.Random(f"{seed}/{connection}/{way}")
        rates = [1 / mean for mean in mean_bytes.values()]
        position = 0.0
        while True:
            position += chance.expovariate(sum(rates))
            (fault,) = chance.choices(list(mean_bytes), rates)
            yield Planned(int(position), fault, chance.random())

    return draw


def no_faults(_: int, __: Way) -> Iterator[Planned]:
    """Nothing goes wrong."""
    return iter(())
