from __future__ import annotations

import pytest

from streamctx.core.delivery.corruption import CorruptionMeter

__all__: list[str] = []


def test_good_frames_never_trip_it() -> None:
    meter = CorruptionMeter(64)
    assert not any(meter.record(False) for _ in range(1000))
    assert meter.corrupt_count == 0


@pytest.mark.parametrize(("window", "at_limit"), [(64, 32), (5, 2), (1, 0)])
def test_half_of_the_window_does_not_trip_it_and_one_more_does(window: int, at_limit: int) -> None:
    meter = CorruptionMeter(window)
    assert not any(meter.record(True) for _ in range(at_limit))
    assert meter.record(True)
    assert meter.corrupt_count == at_limit + 1


def test_corrupt_frames_count_wherever_they_are_in_the_window() -> None:
    meter = CorruptionMeter(4)
    verdicts = [meter.record(is_corrupt) for is_corrupt in (True, True, False, True, False, False)]
    assert verdicts == [False, False, False, True, False, False]


def test_corrupt_frames_leave_the_window() -> None:
    meter = CorruptionMeter(4)
    for is_corrupt in (True, True, False, False, False, True):
        assert not meter.record(is_corrupt)
    assert not meter.record(True)
    assert meter.record(True)


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        CorruptionMeter(0)
