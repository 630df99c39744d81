from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.running_totals import RunningTotals

__all__: list[str] = []

GROUPS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), GROUPS), max_size=8)


@given(GROUPS, STEPS, st.booleans())
def test_sums_and_places_are_those_of_the_plain_numbers(
    groups: list[list[int]], steps: list[tuple[int, int, list[list[int]]]], grows: bool
) -> None:
    totals = RunningTotals(groups)
    groups = [list(group) for group in groups]
    for one, other, replacement in steps:
        low, high = sorted((one % len(groups), other % len(groups)))
        if grows:
            slot = other % len(groups[low])
            totals.add((low, slot), 2 - groups[low][slot])
            groups[low][slot] = 2
        else:
            totals.replace(low, high + 1, replacement)
            groups[low : high + 1] = [list(group) for group in replacement]
        addresses = [(group, slot) for group, numbers in enumerate(groups) for slot in range(len(numbers))]
        numbers = list(itertools.chain.from_iterable(groups))
        sums = list(itertools.accumulate(numbers))
        assert [totals.at(address) for address in addresses] == numbers
        assert [totals.before(address) for address in addresses] == [0, *sums[:-1]]
        past = len(groups), 0
        for amount in range(1, sums[-1] + 2):
            place = next((a for a, total in zip(addresses, sums, strict=True) if total >= amount), past)
            assert totals.reach(amount) == place


def test_without_a_number_nothing_is_reached() -> None:
    totals = RunningTotals([[]])
    assert totals.group_totals == [0]
    assert totals.reach(1) == (1, 0)
