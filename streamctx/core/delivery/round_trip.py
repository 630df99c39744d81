"""The smoothed round-trip time."""

from __future__ import annotations

__all__ = ["RoundTrip"]

_INITIAL_RTT_S = 0.1
# RFC 6298 section 2: the shares that a new sample has in the mean and in the variation.
_ALPHA = 1 / 8
_BETA = 1 / 4


class RoundTrip:
    """Mean and mean deviation of round trips.

    Never feed it the round trip of a frame that was retransmitted (Karn's rule).

    Source: RFC 6298 section 2, without its clock granularity.
    """

    __slots__ = ("_rtt_s", "_variation_s")

    def __init__(self) -> None:
        self._rtt_s: float | None = None
        self._variation_s = _INITIAL_RTT_S / 2

    @property
    def rtt_s(self) -> float:
        """The smoothed round trip in seconds; 0.1 before the first sample."""
        return _INITIAL_RTT_S if self._rtt_s is None else self._rtt_s

    @property
    def variation_s(self) -> float:
        """How far samples are from it on average, in seconds; 0.05 before the first."""
        return self._variation_s

    def record(self, sample_s: float) -> None:
        """Note the seconds from sending a frame to its acknowledgement.

        A negative sample, which only a clock that ran back can give, is ignored.
        """
        if sample_s < 0:
            return
        if self._rtt_s is None:
            self._rtt_s = sample_s
            self._variation_s = sample_s / 2
            return
        self._variation_s += _BETA * (abs(self._rtt_s - sample_s) - self._variation_s)
        self._rtt_s += _ALPHA * (sample_s - self._rtt_s)
