"""The deadlines of one connection, by one timer that is armed again only for an earlier one."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from streamctx.limits import Limits

__all__ = ["Deadlines", "Due"]

_NEVER = float("inf")

# A loop with a coarse clock may call early; so much later it is asked again.
_CLOCK_S = 0.001


class Due(enum.Enum):
    """What has come due. All but the last end the connection."""

    CLOSE = enum.auto()
    """The peer has not answered our close frame."""
    DEAD = enum.auto()
    """No byte came for `dead_s`, although we would have read it."""
    STALLED = enum.auto()
    """The transport could not hand over a byte for `send_deadline_s`, although it had some."""
    WISH = enum.auto()
    """The time that was asked for."""


class Deadlines:
    """When a connection has to be looked at next.

    Hearing from the peer and writing to it only note the time; the timer looks at the notes when it fires, so
    a busy connection arms it once in `send_deadline_s / 4` and not once a message.
    """

    __slots__ = (
        "_armed_at",
        "_call",
        "_close_at",
        "_handle",
        "_limits",
        "_loop",
        "_progress_at",
        "_progress_checked_at",
        "_taken_bytes",
        "_transport",
        "_written_bytes",
        "heard_at",
        "is_hearing",
        "wish_at",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        transport: asyncio.WriteTransport,
        call: Callable[[Due, float], None],
    ) -> None:
        """Start to listen; `call` is called with what has come due and the time."""
        self._loop = loop
        self._limits = limits
        self._transport = transport
        self._call = call
        self.heard_at = loop.time()
        """When the last byte came; set by the reader."""
        self.is_hearing = True
        """Whether we are reading; if not, silence proves nothing."""
        self.wish_at: float | None = None
        """When `Due.WISH` is due. Who sets it rather than calling `wish` looks after it."""
        self._close_at: float | None = None
        self._written_bytes = 0
        self._taken_bytes = 0
        self._progress_at: float | None = None
        self._progress_checked_at = 0.0
        self._armed_at = _NEVER
        self._handle: asyncio.TimerHandle | None = None
        self._arm(self._next())

    def wish(self, at: float | None) -> None:
        """Ask for `Due.WISH` once at that time; replaces the earlier wish."""
        self.wish_at = at
        if at is not None:
            self._arm(at)

    def expect_close(self, now: float) -> None:
        """Our close frame goes out: the peer has `close_wait_s` to answer."""
        self._close_at = now + self._limits.close_wait_s
        self._arm(self._close_at)

    def stop_hearing(self) -> None:
        """Reading is paused."""
        self.is_hearing = False

    def resume_hearing(self, now: float) -> None:
        """Reading goes on; the silence until now was our own doing."""
        self.is_hearing = True
        self.heard_at = now
        self._arm(self._next())

    def wrote(self, size_bytes: int) -> int:
        """So much was given to the transport.

        Returns:
            The bytes that wait in it.
        """
        self._written_bytes += size_bytes
        waiting_bytes = self._transport.get_write_buffer_size()
        if waiting_bytes and self._progress_at is None:
            self._progress_at = self._progress_checked_at = self._loop.time()
            self._taken_bytes = self._written_bytes - waiting_bytes
            self._arm(self._next())
        return waiting_bytes

    def cancel(self) -> None:
        """Nothing comes due any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        # No time is before it, so nothing arms the timer again.
        self._armed_at = -_NEVER

    def _next(self) -> float:
        deadline = self._dead_at
        if self.wish_at is not None:
            deadline = min(deadline, self.wish_at)
        if self._close_at is not None:
            deadline = min(deadline, self._close_at)
        if self._progress_at is not None:
            deadline = min(deadline, self._progress_checked_at + self._limits.send_deadline_s / 4)
        return deadline

    def _arm(self, at: float) -> None:
        if at >= self._armed_at:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed_at = at
        self._handle = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._armed_at = _NEVER
        now = self._loop.time()
        due = self._find_due(now)
        if due is not None:
            self._call(due, now)
        if due is None or due is Due.WISH:
            self._arm(max(self._next(), now + _CLOCK_S))

    def _find_due(self, now: float) -> Due | None:
        if self._close_at is not None and now >= self._close_at:
            return Due.CLOSE
        if self._is_stalled(now):
            return Due.STALLED
        if self.wish_at is not None and now >= self.wish_at:
            self.wish_at = None
            return Due.WISH
        # After the wish, so that who watches for silence too can still say why it ends (HBT-3).
        if now >= self._dead_at:
            return Due.DEAD
        return None

    @property
    def _dead_at(self) -> float:
        # A peer that is being closed has `close_wait_s`, however silent it was before.
        if not self.is_hearing or self._close_at is not None:
            return _NEVER
        return self.heard_at + self._limits.dead_s

    def _is_stalled(self, now: float) -> bool:
        if self._progress_at is None:
            return False
        waiting_bytes = self._transport.get_write_buffer_size()
        if not waiting_bytes:
            self._progress_at = None
            return False
        self._progress_checked_at = now
        taken_bytes = self._written_bytes - waiting_bytes
        if taken_bytes > self._taken_bytes:
            self._taken_bytes = taken_bytes
            self._progress_at = now
        return now >= self._progress_at + self._limits.send_deadline_s
