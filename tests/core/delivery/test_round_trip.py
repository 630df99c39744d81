from __future__ import annotations

import pytest

from streamctx.core.delivery.round_trip import RoundTrip

__all__: list[str] = []


def test_before_the_first_sample_a_tenth_of_a_second_is_assumed() -> None:
    round_trip = RoundTrip()
    assert (round_trip.rtt_s, round_trip.variation_s) == (0.1, 0.05)


def test_the_first_sample_replaces_the_assumption() -> None:
    round_trip = RoundTrip()
    round_trip.record(0.02)
    assert (round_trip.rtt_s, round_trip.variation_s) == (0.02, 0.01)


def test_later_samples_are_smoothed() -> None:
    round_trip = RoundTrip()
    round_trip.record(0.08)
    round_trip.record(0.16)
    assert round_trip.rtt_s == pytest.approx(0.09)
    assert round_trip.variation_s == pytest.approx(0.75 * 0.04 + 0.25 * 0.08)


def test_a_first_sample_of_zero_is_a_sample() -> None:
    round_trip = RoundTrip()
    round_trip.record(0.0)
    assert round_trip.rtt_s == 0.0
    round_trip.record(0.08)
    assert round_trip.rtt_s == pytest.approx(0.01)


def test_a_negative_sample_is_ignored() -> None:
    round_trip = RoundTrip()
    round_trip.record(-0.001)
    assert round_trip.rtt_s == 0.1
