"""How many bytes of a transfer may be under way: absolute limits that the consumer grants."""

from __future__ import annotations

from streamctx.errors import LocalProtocolError

__all__ = ["CreditExceeded", "ReceiveCredit", "SendCredit"]

# What may wait in front of a keystroke, on a link that a transfer fills.
_HOLD_S = 0.02
# A window is granted in so many pieces at most. In two, a window that limits the rate would be half empty.
_GRANTS = 8
# Over less than this a rate is that of one chunk, and not of the link or the application.
_MEASURE_S = 0.02
# The highest rate of this time and the one before it counts.
_RATES_S = 0.5


class CreditExceeded(Exception):
    """The peer has sent more than it was granted."""


class SendCredit:
    """What a producer may send: `sent_bytes` never exceeds `limit_bytes`, which never falls."""

    __slots__ = ("_limit_bytes", "_sent_bytes")

    def __init__(self, limit_bytes: int) -> None:
        """Start with nothing sent.

        Args:
            limit_bytes: What the consumer grants with its request.
        """
        self._limit_bytes = limit_bytes
        self._sent_bytes = 0

    @property
    def available_bytes(self) -> int:
        """How much more may be sent now."""
        return self._limit_bytes - self._sent_bytes

    def grant(self, limit_bytes: int) -> bool:
        """Take over a limit; one that is not higher, as a late message has it, changes nothing.

        Returns:
            Whether more may be sent than before.
        """
        if limit_bytes <= self._limit_bytes:
            return False
        self._limit_bytes = limit_bytes
        return True

    def spend(self, count_bytes: int) -> None:
        """Note what is being sent.

        Raises:
            LocalProtocolError: If that is more than is available; nothing is noted then.
        """
        if not 0 <= count_bytes <= self.available_bytes:
            raise LocalProtocolError(f"{count_bytes} bytes, {self.available_bytes} may be sent")
        self._sent_bytes += count_bytes


class ReceiveCredit:
    """What a consumer grants: `consumed <= received <= limit`, and `limit` is `consumed + window` at most.

    Only where the window has become smaller is the limit higher, since it never falls.

    The window follows the rate at which the application consumes: it is what arrives in one round trip and
    `_HOLD_S`. So a transfer has the whole link, and no more than `_HOLD_S` of it waits anywhere on the way
    in front of a keystroke. Where the window itself is what limits the rate this makes it grow, at most
    twofold at a time.

    Source: the model of a path in BBR (draft-ietf-ccwg-bbr): its bandwidth is the highest that was seen.
    """

    __slots__ = (
        "_consumed_bytes",
        "_limit_bytes",
        "_max_bytes",
        "_measured_at",
        "_measured_bytes",
        "_min_bytes",
        "_old_rate",
        "_rate",
        "_rates_since",
        "_received_bytes",
        "_window_bytes",
    )

    def __init__(self, *, initial_bytes: int, min_bytes: int, max_bytes: int) -> None:
        """Grant `initial_bytes`.

        Raises:
            ValueError: If the window cannot be within its bounds.
        """
        if not 0 < min_bytes <= initial_bytes <= max_bytes:
            raise ValueError(f"a window of {initial_bytes} bytes, expected {min_bytes} to {max_bytes}")
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._window_bytes = initial_bytes
        self._limit_bytes = initial_bytes
        self._received_bytes = 0
        self._consumed_bytes = 0
        self._measured_bytes = 0
        self._measured_at: float | None = None
        self._rates_since = 0.0
        self._rate = self._old_rate = 0.0

    @property
    def limit_bytes(self) -> int:
        """What has been granted, counted from the start of the transfer."""
        return self._limit_bytes

    @property
    def window_bytes(self) -> int:
        """How much is granted ahead of what is consumed."""
        return self._window_bytes

    @property
    def buffered_bytes(self) -> int:
        """What has arrived and is not consumed."""
        return self._received_bytes - self._consumed_bytes

    def receive(self, count_bytes: int) -> None:
        """Note what has arrived.

        Raises:
            CreditExceeded: If that is more than was granted; nothing is noted then.
        """
        if self._received_bytes + count_bytes > self._limit_bytes:
            raise CreditExceeded(
                f"{self._received_bytes + count_bytes} bytes were sent, {self._limit_bytes} were granted"
            )
        self._received_bytes += count_bytes

    def consume(self, count_bytes: int, now: float, rtt_s: float) -> int | None:
        """Give the producer more credit.

        Args:
            count_bytes: What the application has taken since the last call.
            now: Seconds.
            rtt_s: The round trip without what waits on the way: the least of late.

        Returns:
            The new absolute limit to announce, or `None` while the change is too small to be worth a message.

        Raises:
            LocalProtocolError: If more is consumed than has arrived; nothing is noted then.
        """
        if count_bytes > self.buffered_bytes:
            raise LocalProtocolError(f"{count_bytes} bytes are consumed, {self.buffered_bytes} are here")
        self._consumed_bytes += count_bytes
        self._measure(now, rtt_s)
        if self._consumed_bytes + self._window_bytes - self._limit_bytes < self._window_bytes // _GRANTS:
            return None
        self._limit_bytes = self._consumed_bytes + self._window_bytes
        return self._limit_bytes

    def _measure(self, now: float, rtt_s: float) -> None:
        """Set the window by the highest rate of late: others were cut down by the window, or by a pause."""
        if self._measured_at is None:
            self._measured_at = self._rates_since = now
            self._measured_bytes = self._consumed_bytes
        elapsed_s = now - self._measured_at
        if elapsed_s < _MEASURE_S:
            return
        rate = (self._consumed_bytes - self._measured_bytes) / elapsed_s
        self._measured_bytes = self._consumed_bytes
        self._measured_at = now
        if now - self._rates_since >= _RATES_S:
            self._rates_since, self._old_rate, self._rate = now, self._rate, 0.0
        self._rate = max(self._rate, rate)
        wanted = int(max(self._rate, self._old_rate) * (rtt_s + _HOLD_S))
        self._window_bytes = max(self._min_bytes, min(wanted, 2 * self._window_bytes, self._max_bytes))
