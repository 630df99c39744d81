"""What one end of a session asks to be sent again: at once, again in time, and long enough."""

from __future__ import annotations

import math

from streamctx.limits import Limits
from streamctx.wire.messages import Nack
from tests.sim.sender import Fail

__all__ = ["Asking"]

_JITTER = 0.2
_SLACK_S = 0.01


class Asking:
    """The NACKs of one end, in one epoch: for each number when it was first asked for, when last, how often.

    Another connection begins anew.
    """

    __slots__ = ("_asked", "_fail", "_limits", "_link")

    def __init__(self, fail: Fail, limits: Limits) -> None:
        self._fail = fail
        self._limits = limits
        self._link = 0
        self._asked: dict[int, tuple[float, float, int]] = {}

    def fork(self) -> Asking:
        """That of a copied process."""
        other = Asking(self._fail, self._limits)
        other._link, other._asked = self._link, dict(self._asked)
        return other

    def asks(self, link: int, nack: Nack, now: float) -> None:
        """A NACK leaves."""
        self._connected(link)
        if nack.reason != "gap":
            return  # Of what is corrupt nobody knows which number it had (NAK-5).
        pause_s = self._limits.nack_interval_min_s * (1 - _JITTER) - 1e-6
        for start, stop in nack.ranges:
            for number in range(start, stop):
                first, last, count = self._asked.get(number, (now, -math.inf, 0))
                if now - last < pause_s:
                    self._fail("Asked", f"number {number} again after {now - last:.6f} s")
                self._asked[number] = first, now, count + 1

    def looked(self, link: int, expected: int, now: float) -> None:
        """A turn is over, and a number is known to be missing."""
        self._connected(link)
        asked = self._asked.get(expected)
        if asked is None:
            self._fail("Asked", f"number {expected} is missing, and not asked for")
        elif now - asked[1] > self._limits.nack_interval_max_s + _SLACK_S:
            self._fail("Asked", f"number {expected} was asked for {now - asked[1]:.3f} s ago")

    def gives_up(self, number: int, now: float) -> None:
        """A number counts as lost from now on."""
        limits = self._limits
        first, _, count = self._asked.get(number, (now, now, 0))
        if count < limits.nack_attempts_max and now - first < limits.gap_timeout_s - 1e-9:
            self._fail("Asked", f"number {number} is given up after {count} NACKs, {now - first:.3f} s")

    def _connected(self, link: int) -> None:
        if link != self._link:
            self._link = link
            self._asked.clear()
