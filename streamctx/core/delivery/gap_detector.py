"""Which missing numbers to ask for, when to ask again, and when to give up.

What is missing is the receive window's to say; what a lost range means for a
document is the session's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from streamctx.limits import Limits

__all__ = ["GapDetector"]

_BACKOFF_FACTOR = 1.5  # KCP's; doubling leaves a lossy link idle too long.
_BACKOFF_STEPS_MAX = 32  # Far beyond any interval limit; a float overflows after some 1750.
_JITTER_SHARE = 0.2  # Peers that lost frames in the same instant do not ask in step.


class _Gap:
    """One missing range whose numbers share one history.

    `attempts` counts requests so far, `ask_at` is when the next is due, or when
    the last one has had its time, and `deadline` ends it all; a gap that was
    never asked for has none.
    """

    __slots__ = ("ask_at", "attempts", "deadline", "start", "stop")

    def __init__(self, start: int, stop: int, *, attempts: int, ask_at: float, deadline: float) -> None:
        self.start = start
        self.stop = stop
        self.attempts = attempts
        self.ask_at = ask_at
        self.deadline = deadline


class GapDetector:
    """Timers of all gaps of one direction of a session.

    Call `update` when what is missing has changed, once per read rather than once
    per frame; then, or when `next_timeout` has come, `expired` and after it
    `ranges_to_ask`.

    The first request for a number is due at once, the next ones after
    max(2 * rtt, `nack_interval_min_s`) * 1.5^n, give or take 20 %, at most
    `nack_interval_max_s`. A number is given up `gap_timeout_s` after its first
    request, or when `nack_attempts_max` requests have had their time.

    Source: SPEC NAK-1, NAK-2, NAK-4; Aeron `LossDetector`; KCP's backoff.
    """

    __slots__ = ("_gaps", "_is_full", "_jitter", "_limits", "requests")

    def __init__(self, limits: Limits, jitter: Callable[[], float]) -> None:
        """Start without gaps.

        Args:
            limits: The `nack_*` limits and `gap_timeout_s`.
            jitter: Returns a number in [0, 1); called once for each request.
        """
        self.requests = 0
        """Ranges asked for so far."""
        self._limits = limits
        self._jitter = jitter
        self._gaps: list[_Gap] = []
        self._is_full = False

    @property
    def is_active(self) -> bool:
        """Whether any gap is known."""
        return bool(self._gaps)

    def update(self, missing: Sequence[tuple[int, int]], now: float, *, is_full: bool = False) -> None:
        """Take over what is missing now.

        Numbers known already keep their attempts and timers, whatever range they
        are part of now; new ones are due at once.

        Args:
            missing: Disjoint half-open ranges, ascending.
            now: The present instant, in seconds.
            is_full: Whether the reorder buffer is full. Then only the first gap is
                asked for, the one that unblocks it: what else came would be dropped.
        """
        self._is_full = is_full
        if not missing:
            if self._gaps:
                self._gaps = []
            return
        gaps: list[_Gap] = []
        known = iter(self._gaps)
        gap = next(known, None)
        for start, stop in missing:
            while start < stop:
                while gap is not None and gap.stop <= start:
                    gap = next(known, None)
                if gap is None or stop <= gap.start:
                    gaps.append(_Gap(start, stop, attempts=0, ask_at=now, deadline=math.inf))
                    break
                if start < gap.start:
                    gaps.append(_Gap(start, gap.start, attempts=0, ask_at=now, deadline=math.inf))
                    start = gap.start
                end = min(stop, gap.stop)
                gaps.append(_Gap(start, end, attempts=gap.attempts, ask_at=gap.ask_at, deadline=gap.deadline))
                start = end
        self._gaps = gaps

    def ranges_to_ask(self, now: float, rtt_s: float) -> list[tuple[int, int]]:
        """Return the ranges to put into one NACK now, ascending and merged.

        They count as asked for. At most `nack_ranges_max` are returned; those that
        did not fit are still due.
        """
        asked: list[tuple[int, int]] = []
        if not self._gaps:
            return asked
        limits = self._limits
        interval_s = max(2 * rtt_s, limits.nack_interval_min_s)
        for gap in self._gaps[:1] if self._is_full else self._gaps:
            if gap.ask_at > now or self._has_given_up(gap, now):
                continue
            if asked and asked[-1][1] == gap.start:
                asked[-1] = (asked[-1][0], gap.stop)
            elif len(asked) == limits.nack_ranges_max:
                break
            else:
                asked.append((gap.start, gap.stop))
            delay_s = interval_s * _BACKOFF_FACTOR ** min(gap.attempts, _BACKOFF_STEPS_MAX)
            delay_s *= 1 - _JITTER_SHARE + 2 * _JITTER_SHARE * self._jitter()
            gap.ask_at = now + min(delay_s, limits.nack_interval_max_s)
            if gap.attempts == 0:
                gap.deadline = now + limits.gap_timeout_s
            gap.attempts += 1
        self.requests += len(asked)
        return asked

    def expired(self, now: float) -> list[tuple[int, int]]:
        """Return the ranges to announce as lost, merged, and forget them."""
        lost: list[tuple[int, int]] = []
        if not self._gaps:
            return lost
        kept: list[_Gap] = []
        for gap in self._gaps:
            if not self._has_given_up(gap, now):
                kept.append(gap)
            elif lost and lost[-1][1] == gap.start:
                lost[-1] = (lost[-1][0], gap.stop)
            else:
                lost.append((gap.start, gap.stop))
        self._gaps = kept
        return lost

    def next_timeout(self) -> float | None:
        """Return the instant at which to call again, or `None` without gaps."""
        if not self._gaps:
            return None
        return min(
            # While the buffer is full, only the first gap has a request to wait for.
            gap.deadline
            if self._is_full and index > 0 and gap.attempts < self._limits.nack_attempts_max
            else min(gap.ask_at, gap.deadline)
            for index, gap in enumerate(self._gaps)
        )

    def restart(self) -> None:
        """Begin anew on a new connection: what was missing on the old one is on its way again (RSM-6)."""
        self._gaps = []

    def _has_given_up(self, gap: _Gap, now: float) -> bool:
        return now >= gap.deadline or (gap.attempts >= self._limits.nack_attempts_max and now >= gap.ask_at)
