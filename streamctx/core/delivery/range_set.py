"""Sets of integers, kept as ordered half-open ranges.

The model is aioquic's `rangeset.py`; here the bounds are two parallel lists, so
that a lookup is a bisection. How many ranges a set may hold is up to its owner.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["RangeSet"]


class RangeSet:
    """Integers as disjoint ranges `[start, stop)`, ascending, never touching.

    `_starts[i] < _stops[i] < _starts[i + 1]` for every `i`.
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Put `[start, stop)` into the set; what it overlaps or touches is merged.

        Raises:
            ValueError: If the range is empty.
        """
        _require_range(start, stop)
        starts, stops = self._starts, self._stops
        # Most additions continue the last range or open a new one behind it.
        if not stops or start > stops[-1]:
            starts.append(start)
            stops.append(stop)
            return
        if start == stops[-1]:
            stops[-1] = stop
            return
        low = bisect_left(stops, start)
        high = bisect_right(starts, stop)
        if low < high:
            start = min(start, starts[low])
            stop = max(stop, stops[high - 1])
        starts[low:high] = [start]
        stops[low:high] = [stop]

    def subtract(self, start: int, stop: int) -> None:
        """Take `[start, stop)` out of the set.

        Raises:
            ValueError: If the range is empty.
        """
        _require_range(start, stop)
        starts, stops = self._starts, self._stops
        low = bisect_right(stops, start)
        high = bisect_left(starts, stop)
        if low >= high:
            return
        kept: list[tuple[int, int]] = []
        if starts[low] < start:
            kept.append((starts[low], start))
        if stop < stops[high - 1]:
            kept.append((stop, stops[high - 1]))
        starts[low:high] = [kept_start for kept_start, _ in kept]
        stops[low:high] = [kept_stop for _, kept_stop in kept]

    def clear_below(self, number: int) -> None:
        """Take out everything below `number`."""
        starts, stops = self._starts, self._stops
        count = bisect_right(stops, number)
        del starts[:count], stops[:count]
        if starts and starts[0] < number:
            starts[0] = number

    def clear(self) -> None:
        """Take out everything."""
        self._starts.clear()
        self._stops.clear()

    def first_absent(self, number: int) -> int:
        """Return the lowest integer from `number` on that is not in the set."""
        index = bisect_right(self._starts, number) - 1
        if index >= 0 and number < self._stops[index]:
            return self._stops[index]
        return number

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return what of `[start, stop)` is not in the set, ascending."""
        found: list[tuple[int, int]] = []
        if start >= stop:
            return found
        starts, stops = self._starts, self._stops
        for index in range(bisect_right(stops, start), len(starts)):
            if starts[index] >= stop:
                break
            if start < starts[index]:
                found.append((start, starts[index]))
            start = stops[index]
        if start < stop:
            found.append((start, stop))
        return found

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return what of `[start, stop)` is in the set, ascending."""
        low = bisect_right(self._stops, start)
        high = bisect_left(self._starts, stop)
        return [
            (max(start, self._starts[index]), min(stop, self._stops[index])) for index in range(low, high)
        ]

    def first(self, count: int) -> list[tuple[int, int]]:
        """Return the lowest `count` ranges, or fewer if there are fewer."""
        return list(zip(self._starts[:count], self._stops[:count], strict=True))

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._stops[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """Return how many ranges there are, not how many integers."""
        return len(self._starts)

    def __bool__(self) -> bool:
        """Refuse: "has ranges" and "holds 0" are too easily taken for one another."""
        raise NotImplementedError("the truth of a RangeSet is ambiguous; compare its len() with 0")


def _require_range(start: int, stop: int) -> None:
    if start >= stop:
        raise ValueError(f"range [{start}, {stop}) is empty")
