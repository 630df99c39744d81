"""Faults on whole messages between a session and its socket, for tests and the replay command.

A network that carries WebSocket loses nothing within a connection; everything above it has to stand
losses all the same. Here they are made: messages are dropped, doubled, delayed behind later ones,
damaged, and connections are cut, in both directions, handshake included. What happens to a message
depends on the seed, its direction and its count alone, so that a run can be had again.
"""

from __future__ import annotations

import enum
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamctx.errors import ConfigurationError

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["Direction", "FaultKind", "FaultRates", "Faulted", "MessageFaults"]

_HELD_MESSAGES_MAX = 8
_HELD_MIN_S = 0.05
_HELD_MAX_S = 0.2


class Direction(enum.StrEnum):
    """Which way a message goes, seen from the client."""

    OUTGOING = "outgoing"
    INCOMING = "incoming"


class FaultKind(enum.StrEnum):
    """What can happen to a message."""

    DROP = "drop"
    """It never arrives."""
    DUP = "dup"
    """It arrives twice."""
    REORDER = "reorder"
    """It arrives behind up to eight later ones, at most 200 ms late."""
    CORRUPT = "corrupt"
    """One bit of it is wrong."""
    CUT = "cut"
    """The connection ends without a close, and the message with it."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How likely each fault is for a message, 0 to 1; those not named are 0."""

    rates: Mapping[FaultKind, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> FaultRates:
        """Read `drop=0.02,corrupt=0.01`.

        Raises:
            ConfigurationError: If a name is unknown or comes twice, or a rate is not a number from 0 to 1.
        """
        rates: dict[FaultKind, float] = {}
        for item in filter(None, (item.strip() for item in text.split(","))):
            name, equals, value = (part.strip() for part in item.partition("="))
            if name not in set(FaultKind):
                raise ConfigurationError(f"faults: {name!r} is not one of {', '.join(FaultKind)}")
            kind = FaultKind(name)
            if not equals:
                raise ConfigurationError(f"faults: {name} has no rate; write {name}=0.01")
            if kind in rates:
                raise ConfigurationError(f"faults: {name} is given twice")
            rates[kind] = _rate(name, value)
        return cls(rates)

    @override
    def __str__(self) -> str:
        return ",".join(f"{kind}={rate:g}" for kind, rate in self.rates.items())


class Faulted(NamedTuple):
    """What to pass on instead of a message, in order; then the connection is cut if `is_cut`."""

    messages: list[bytes]
    is_cut: bool = False


@dataclass(slots=True)
class _Held:
    message: bytes
    behind: int
    """So many later messages go before it."""
    deadline: float


class _Line:
    """One direction: its random numbers, and the messages that are held back."""

    __slots__ = ("counts", "held", "random", "rates")

    def __init__(self, rates: FaultRates, seed: int, direction: Direction) -> None:
        self.random = random.Random(f"{seed}/{direction}")
        self.rates = {kind: rates.rates.get(kind, 0.0) for kind in FaultKind}
        self.held: list[_Held] = []
        self.counts: dict[FaultKind, int] = dict.fromkeys(FaultKind, 0)

    def pass_on(self, message: bytes, now: float, *, is_text: bool) -> Faulted:
        # The same number of draws for every message, whatever happens: the fate of a message
        # depends on its count alone.
        draw = self.random.random
        chances = {kind: draw() for kind in FaultKind}
        place, bit, behind, delay = draw(), draw(), draw(), draw()
        happens = {kind for kind, chance in chances.items() if chance < self.rates[kind]}
        if FaultKind.CUT in happens:
            self.counts[FaultKind.CUT] += 1
            return Faulted([], is_cut=True)
        if FaultKind.DROP in happens:
            self.counts[FaultKind.DROP] += 1
            return Faulted(self._released(now))
        for kind in happens:
            self.counts[kind] += 1
        if FaultKind.CORRUPT in happens:
            message = _damaged_text(message, place) if is_text else _damaged(message, place, bit)
        messages = [message, message] if FaultKind.DUP in happens else [message]
        if FaultKind.REORDER in happens:
            # A doubled message is held once: its copies then arrive apart.
            late = _Held(
                messages.pop(),
                1 + int(behind * _HELD_MESSAGES_MAX),
                now + _HELD_MIN_S + delay * (_HELD_MAX_S - _HELD_MIN_S),
            )
            messages += self._released(now)
            self.held.append(late)
            return Faulted(messages)
        return Faulted(messages + self._released(now))

    def _released(self, now: float) -> list[bytes]:
        for held in self.held:
            held.behind -= 1
        return self.take_due(now)

    def take_due(self, now: float) -> list[bytes]:
        if not self.held:
            return []
        due = [held.message for held in self.held if held.behind <= 0 or held.deadline <= now]
        self.held = [held for held in self.held if held.behind > 0 and held.deadline > now]
        return due


class MessageFaults:
    """Makes faults in both directions of one client, over all of its connections.

    The client calls `outgoing` for each message on its way to the socket and `incoming` for each that has
    come from there, the `due_*` methods at `next_timeout`, and `disconnected` when a connection has ended.
    """

    __slots__ = ("_incoming", "_outgoing", "is_paused")

    def __init__(self, rates: FaultRates, *, seed: int) -> None:
        """Prepare; `is_paused` lets everything through, uncounted."""
        self._outgoing = _Line(rates, seed, Direction.OUTGOING)
        self._incoming = _Line(rates, seed, Direction.INCOMING)
        self.is_paused = False

    @property
    def counts(self) -> dict[Direction, dict[FaultKind, int]]:
        """Faults made so far."""
        return {
            Direction.OUTGOING: dict(self._outgoing.counts),
            Direction.INCOMING: dict(self._incoming.counts),
        }

    @property
    def total(self) -> int:
        """Faults made so far, of all kinds and in both directions."""
        return sum(self._outgoing.counts.values()) + sum(self._incoming.counts.values())

    def outgoing(self, message: bytes, now: float, *, is_text: bool) -> Faulted:
        """Say what reaches the socket; `is_text` keeps a damaged message valid UTF-8."""
        if self.is_paused:
            return Faulted([*self._outgoing.take_due(now), message])
        return self._outgoing.pass_on(message, now, is_text=is_text)

    def incoming(self, message: bytes, now: float, *, is_text: bool) -> Faulted:
        """Say what reaches the session."""
        if self.is_paused:
            return Faulted([*self._incoming.take_due(now), message])
        return self._incoming.pass_on(message, now, is_text=is_text)

    def due_outgoing(self, now: float) -> list[bytes]:
        """Take the messages that were held back long enough."""
        return self._outgoing.take_due(now)

    def due_incoming(self, now: float) -> list[bytes]:
        """Take the messages that were held back long enough."""
        return self._incoming.take_due(now)

    def next_timeout(self) -> float | None:
        """When a message that is held back is due; `None` if there is none."""
        held = self._outgoing.held + self._incoming.held
        return min((one.deadline for one in held), default=None)

    def disconnected(self) -> None:
        """Lose what is held back: it was under way on the connection that has ended."""
        self._outgoing.held.clear()
        self._incoming.held.clear()


def _rate(name: str, value: str) -> float:
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise ConfigurationError(f"faults: {name}={value} is not a number from 0 to 1")
    return rate


def _damaged(message: bytes, place: float, bit: float) -> bytes:
    damaged = bytearray(message)
    damaged[int(place * len(damaged))] ^= 1 << int(bit * 8)
    return bytes(damaged)


def _damaged_text(message: bytes, place: float) -> bytes:
    """Flip the lowest bit of an ASCII or continuation byte: the result is always valid UTF-8."""
    damaged = bytearray(message)
    index = int(place * len(damaged))
    if damaged[index] >= 0xC0:
        index += 1  # The first byte of a character decides what may follow it; what follows is free.
    damaged[index] ^= 1
    return bytes(damaged)
