"""When a client connects again, and whether it does at all (SPEC RSM-9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from streamctx.errors import CloseCode
from streamctx.limits import DEFAULT_LIMITS, Limits

__all__ = ["ReconnectPolicy"]

_POLICY_VIOLATION = 1008
_IMMEDIATE_MAX = 20
_IMMEDIATE_PER_S = 10.0
"""More immediate reconnects than that in so long have jitter too: a server may welcome and drop for ever."""


class ReconnectPolicy:
    """Gives the delay before each connection.

    The first one is immediate, and so is the first after a loss. Then full jitter: between 0 and a bound that
    doubles from `reconnect_delay_min_s` to `reconnect_delay_max_s`, until a WELCOME resets it. Nobody waits
    longer than it has been without a WELCOME already, so that short outages stay short: the doubled bounds
    are ahead of the time where the jitter was small several times over.
    """

    __slots__ = ("_bound_s", "_immediate", "_is_immediate_next", "_jitter", "_limits", "_lost_at")

    def __init__(self, jitter: Callable[[], float], limits: Limits = DEFAULT_LIMITS) -> None:
        """Start as after a WELCOME.

        Args:
            jitter: Returns a number in [0, 1).
            limits: Gives the smallest and the largest bound.
        """
        self._jitter = jitter
        self._limits = limits
        self._immediate: deque[float] = deque(maxlen=_IMMEDIATE_MAX)
        self._lost_at: float | None = None
        self.welcomed()

    def welcomed(self) -> None:
        """A WELCOME has come: begin anew."""
        self._bound_s = self._limits.reconnect_delay_min_s
        self._is_immediate_next = True
        self._lost_at = None

    def failed(self, now: float) -> float:
        """No connection came about, at `now` in monotonic seconds.

        Returns:
            The delay in seconds before the next attempt.
        """
        self._is_immediate_next = False
        bound_s, without_s = self._bound_s, now - self._note_loss(now)
        self._bound_s = min(2 * bound_s, self._limits.reconnect_delay_max_s)
        return self._jitter() * min(bound_s, max(without_s, self._limits.reconnect_delay_min_s))

    def lost(
        self, close_code: int | None, now: float, *, retry_ms: int | None = None, wait_ms: int = 0
    ) -> float | None:
        """A connection ended.

        Args:
            close_code: That of the close frame; `None` if none came.
            now: Monotonic seconds.
            retry_ms: Over how long the clients of a server that drains are to spread (GOAWAY).
            wait_ms: For how long the server has said that it is of no use (`retry_after_ms`).

        Returns:
            The delay in seconds before the next attempt; `None` to make none.
        """
        self._note_loss(now)
        code = close_code or 0
        is_terminal = 4000 <= code < 4100 or code == _POLICY_VIOLATION
        if is_terminal and code != CloseCode.CONFLICT:
            return None
        if wait_ms:
            return wait_ms / 1000 + self.failed(now)
        if retry_ms is not None:
            self._is_immediate_next = False
            return self._jitter() * retry_ms / 1000
        if self._is_immediate_next and not 4000 <= code < 4200:
            self._is_immediate_next = False
            seen = self._immediate
            if len(seen) < _IMMEDIATE_MAX or now - seen[0] >= _IMMEDIATE_PER_S:
                seen.append(now)
                return 0.0
        return self.failed(now)

    def _note_loss(self, now: float) -> float:
        """Since when there has been no WELCOME."""
        if self._lost_at is None:
            self._lost_at = now
        return self._lost_at
