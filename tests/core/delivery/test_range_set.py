from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.delivery.range_set import RangeSet

__all__: list[str] = []

_RANGES = st.tuples(st.integers(0, 30), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def _as_ranges(numbers: set[int]) -> list[tuple[int, int]]:
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    stops = sorted(number + 1 for number in numbers if number + 1 not in numbers)
    return list(zip(starts, stops, strict=True))


@given(st.lists(st.tuples(st.sampled_from(["add", "subtract", "clear_below"]), _RANGES)), _RANGES)
def test_it_behaves_like_a_set_of_integers(
    steps: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges = RangeSet()
    model: set[int] = set()
    for step, (start, stop) in steps:
        if step == "add":
            ranges.add(start, stop)
            model |= set(range(start, stop))
        elif step == "subtract":
            ranges.subtract(start, stop)
            model -= set(range(start, stop))
        else:
            ranges.clear_below(start)
            model = {number for number in model if number >= start}
        assert list(ranges) == _as_ranges(model)
    within = set(range(*asked))
    assert ranges.gaps(*asked) == _as_ranges(within - model)
    assert ranges.within(*asked) == _as_ranges(within & model)
    assert [number for number in range(40) if number in ranges] == sorted(model)
    assert ranges.first_absent(asked[0]) == min(set(range(asked[0], 60)) - model)
    assert ranges.first(2) == _as_ranges(model)[:2]
    assert len(ranges) == len(_as_ranges(model))


def test_touching_ranges_become_one() -> None:
    assert list(RangeSet([(5, 6), (1, 3), (3, 5)])) == [(1, 6)]


def test_its_truth_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="ambiguous"):
        bool(RangeSet([(0, 1)]))


@pytest.mark.parametrize("start", [3, 4])
def test_an_empty_range_is_refused(start: int) -> None:
    ranges = RangeSet([(1, 9)])
    with pytest.raises(ValueError, match="is empty"):
        ranges.add(start, 3)
    with pytest.raises(ValueError, match="is empty"):
        ranges.subtract(start, 3)
    assert list(ranges) == [(1, 9)]


def test_nothing_is_missing_in_an_empty_range() -> None:
    assert RangeSet([(1, 2)]).gaps(7, 7) == []


def test_clearing_empties_it() -> None:
    ranges = RangeSet([(1, 2), (4, 5)])
    ranges.clear()
    assert list(ranges) == []
