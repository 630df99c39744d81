from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from streamctx.core.delivery.gap_detector import GapDetector
from streamctx.limits import DEFAULT_LIMITS, Limits

__all__: list[str] = []

LIMITS = replace(
    DEFAULT_LIMITS,
    nack_interval_min_s=0.05,
    nack_interval_max_s=2.0,
    nack_attempts_max=3,
    gap_timeout_s=10.0,
    nack_ranges_max=3,
)
RTT_S = 0.01


def _middle() -> float:
    return 0.5


def _detector(limits: Limits = LIMITS, jitter: Callable[[], float] = _middle) -> GapDetector:
    return GapDetector(limits, jitter)


def test_without_gaps_there_is_nothing_to_do() -> None:
    detector = _detector()
    detector.update([], 0.0)
    assert not detector.is_active
    assert detector.next_timeout() is None
    assert detector.ranges_to_ask(0.0, RTT_S) == []
    assert detector.expired(1e9) == []


def test_a_new_gap_is_asked_for_at_once_and_once() -> None:
    detector = _detector()
    detector.update([(3, 5)], 7.0)
    assert detector.next_timeout() == 7.0
    assert detector.ranges_to_ask(7.0, RTT_S) == [(3, 5)]
    assert detector.ranges_to_ask(7.0, RTT_S) == []
    assert detector.requests == 1


def test_the_intervals_grow_by_half_from_the_minimum() -> None:
    detector = _detector(replace(LIMITS, nack_attempts_max=9))
    detector.update([(3, 5)], 0.0)
    now = 0.0
    intervals = []
    for _ in range(4):
        detector.ranges_to_ask(now, RTT_S)
        due = detector.next_timeout()
        assert due is not None
        assert detector.ranges_to_ask(due - 1e-6, RTT_S) == []
        intervals.append(due - now)
        now = due
    assert intervals == pytest.approx([0.05, 0.075, 0.1125, 0.16875])


@pytest.mark.parametrize(("rtt_s", "interval_s"), [(0.02, 0.05), (0.025, 0.05), (0.03, 0.06), (5.0, 2.0)])
def test_the_first_interval_is_two_round_trips_within_its_bounds(rtt_s: float, interval_s: float) -> None:
    detector = _detector()
    detector.update([(3, 5)], 0.0)
    detector.ranges_to_ask(0.0, rtt_s)
    assert detector.next_timeout() == pytest.approx(interval_s)


@pytest.mark.parametrize(("jitter", "interval_s"), [(0.0, 0.04), (0.5, 0.05), (0.999999, 0.06)])
def test_the_interval_is_spread_by_a_fifth(jitter: float, interval_s: float) -> None:
    detector = _detector(jitter=lambda: jitter)
    detector.update([(3, 5)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    assert detector.next_timeout() == pytest.approx(interval_s, abs=1e-6)


def test_what_remains_of_a_gap_keeps_its_timer_and_what_is_new_is_due() -> None:
    detector = _detector()
    detector.update([(3, 9)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    detector.update([(2, 4), (6, 11)], 0.01)
    assert detector.ranges_to_ask(0.01, RTT_S) == [(2, 3), (9, 11)]
    assert detector.ranges_to_ask(0.05, RTT_S) == [(3, 4), (6, 9)]


def test_a_gap_between_known_ones_is_new() -> None:
    detector = _detector()
    detector.update([(3, 4), (6, 7)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    detector.update([(3, 7)], 0.01)
    assert detector.ranges_to_ask(0.01, RTT_S) == [(4, 6)]


def test_ranges_that_touch_are_asked_for_as_one() -> None:
    detector = _detector()
    detector.update([(3, 4)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    detector.update([(3, 6)], 0.01)
    assert detector.ranges_to_ask(0.06, RTT_S) == [(3, 6)]


def test_what_does_not_fit_into_one_request_is_still_due() -> None:
    detector = _detector()
    detector.update([(1, 2), (3, 4), (5, 6), (7, 8)], 0.0)
    assert detector.ranges_to_ask(0.0, RTT_S) == [(1, 2), (3, 4), (5, 6)]
    assert detector.next_timeout() == 0.0
    assert detector.ranges_to_ask(0.0, RTT_S) == [(7, 8)]


def test_while_the_buffer_is_full_only_the_first_gap_is_asked_for() -> None:
    detector = _detector()
    missing = [(1, 2), (5, 6)]
    detector.update(missing, 0.0, is_full=True)
    assert detector.ranges_to_ask(0.0, RTT_S) == [(1, 2)]
    assert detector.next_timeout() == pytest.approx(0.05)
    detector.update(missing, 0.01, is_full=False)
    assert detector.next_timeout() == 0.0
    assert detector.ranges_to_ask(0.01, RTT_S) == [(5, 6)]


def test_a_gap_that_was_never_asked_for_does_not_expire() -> None:
    detector = _detector()
    detector.update([(1, 2), (5, 6)], 0.0, is_full=True)
    detector.ranges_to_ask(0.0, RTT_S)
    assert detector.expired(1e6) == [(1, 2)]
    assert detector.ranges_to_ask(1e6, RTT_S) == [(5, 6)]


def test_a_gap_expires_after_the_last_request_has_had_its_time() -> None:
    detector = _detector()
    detector.update([(3, 5)], 0.0)
    due: float | None = 0.0
    for _ in range(3):
        assert due is not None
        assert detector.expired(due) == []
        assert detector.ranges_to_ask(due, RTT_S) == [(3, 5)]
        due = detector.next_timeout()
    assert due is not None
    assert detector.expired(due - 1e-6) == []
    assert detector.ranges_to_ask(due, RTT_S) == []
    assert detector.expired(due) == [(3, 5)]
    assert not detector.is_active


def test_a_gap_expires_at_its_timeout() -> None:
    detector = _detector(replace(LIMITS, nack_attempts_max=1000))
    detector.update([(3, 5)], 0.0)
    now, due = 0.0, 0.0
    while due < 10.0:
        now = due
        assert detector.expired(now) == []
        assert detector.ranges_to_ask(now, RTT_S) == [(3, 5)]
        due = detector.next_timeout() or 0.0
    assert due == 10.0
    assert detector.expired(9.999) == []
    assert detector.ranges_to_ask(10.0, RTT_S) == []
    assert detector.expired(10.0) == [(3, 5)]


def test_expired_ranges_are_merged_and_younger_gaps_stay() -> None:
    detector = _detector()
    detector.update([(3, 4)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    detector.update([(3, 5), (8, 9)], 1e-9)
    detector.ranges_to_ask(1e-9, RTT_S)
    detector.update([(3, 5), (8, 9), (11, 12)], 5.0)
    detector.ranges_to_ask(5.0, RTT_S)
    assert detector.expired(10.5) == [(3, 5), (8, 9)]
    assert detector.is_active


def test_closed_gaps_are_forgotten() -> None:
    detector = _detector()
    detector.update([(3, 5)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    detector.update([], 0.01)
    assert detector.next_timeout() is None
    detector.update([(3, 5)], 0.02)
    assert detector.ranges_to_ask(0.02, RTT_S) == [(3, 5)]


def test_a_new_connection_has_no_gaps_until_they_are_found_on_it() -> None:
    detector = _detector()
    detector.update([(3, 5)], 0.0)
    detector.ranges_to_ask(0.0, RTT_S)
    detector.ranges_to_ask(0.05, RTT_S)
    detector.restart()
    assert detector.expired(100.0) == []
    assert detector.next_timeout() is None
    assert detector.ranges_to_ask(100.0, RTT_S) == []
    detector.update([(3, 5)], 100.0)
    assert detector.ranges_to_ask(100.0, RTT_S) == [(3, 5)]
    assert detector.next_timeout() == pytest.approx(100.05)


def test_any_number_of_attempts_has_a_finite_interval() -> None:
    detector = _detector(replace(LIMITS, nack_attempts_max=5000, gap_timeout_s=1e9))
    detector.update([(3, 5)], 0.0)
    for attempt in range(2500):
        assert detector.ranges_to_ask(attempt * 2.0, RTT_S) == [(3, 5)]
