r"""A text as a list of UTF-16 units, as an editor in JavaScript has it, to compare `TextBuffer` with.

Nothing here is shared with the code under test, nor with `text_model`, which counts characters: lines,
lengths and positions in all units come from walking the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamctx.vocabulary import Unit

__all__ = ["Boundary", "Span", "UnitText", "overlap", "units_of"]

_CR, _LF = 13, 10
_COUNTED = tuple(Unit)

Span = tuple[int, int]
"""Two indexes of the list, half-open."""


class Boundary(NamedTuple):
    """A place that a position can name: its index in the list, its line, its column in each unit."""

    at: int
    line: int
    columns: dict[Unit, int]

    def position(self, unit: Unit) -> tuple[int, int]:
        """Line and character."""
        return self.line, self.columns[unit]


def units_of(text: str) -> list[int]:
    """The UTF-16 units of a text, astral characters as two."""
    units: list[int] = []
    for character in map(ord, text):
        if character < 0x10000:
            units.append(character)
        else:
            units += [0xD800 + (character - 0x10000 >> 10), 0xDC00 + (character - 0x10000 & 0x3FF)]
    return units


class UnitText:
    """The list, and what can be seen of the text in it."""

    def __init__(self, units: Sequence[int]) -> None:
        self.units = list(units)

    def text(self, start: int = 0, stop: int | None = None) -> str:
        """The text between two indexes."""
        return b"".join(unit.to_bytes(2, "little") for unit in self.units[start:stop]).decode("utf-16-le")

    def length(self, unit: Unit, start: int = 0, stop: int | None = None) -> int:
        """How long the text between two indexes is in a unit."""
        return sum(_width(value, unit) for value in self.units[start:stop])

    def lines(self) -> list[str]:
        r"""The lines with their ends, which are `\r\n`, `\r` or `\n`; the last has none and may be empty."""
        lines: list[str] = []
        start = 0
        for index in range(len(self.units)):
            if self._ends_line(index):
                lines.append(self.text(start, index + 1))
                start = index + 1
        return [*lines, self.text(start)]

    def boundaries(self) -> list[Boundary]:
        r"""All places that a position can name, in order: not within a pair, nor within `\r\n`."""
        found: list[Boundary] = []
        line = 0
        columns = dict.fromkeys(_COUNTED, 0)
        before = 0
        for index, value in enumerate(self.units):
            if not 0xD800 <= before < 0xDC00 and not (before == _CR and value == _LF):
                found.append(Boundary(index, line, dict(columns)))
            if self._ends_line(index):
                line += 1
                columns = dict.fromkeys(_COUNTED, 0)
            else:
                for unit in _COUNTED:
                    columns[unit] += _width(value, unit)
            before = value
        found.append(Boundary(len(self.units), line, columns))
        return found

    def replace(self, spans: Sequence[Span], texts: Sequence[str]) -> UnitText:
        """Replace spans that do not overlap, all at once; at one place insertions come first, in order."""
        order = sorted(range(len(spans)), key=lambda number: (*spans[number], number))
        result: list[int] = []
        last = 0
        for number in order:
            start, stop = spans[number]
            assert start >= last
            result += self.units[last:start] + units_of(texts[number])
            last = stop
        return UnitText(result + self.units[last:])

    def _ends_line(self, index: int) -> bool:
        value = self.units[index]
        return value == _LF or (value == _CR and self.units[index + 1 : index + 2] != [_LF])


def overlap(one: Span, other: Span) -> bool:
    """Whether two spans may not be replaced at once: they share a unit, or one lies within the other."""
    return one[0] < other[1] and other[0] < one[1]


def _width(value: int, unit: Unit) -> int:
    """What one UTF-16 unit adds to a length. In the other units, the first of a pair stands for both."""
    if unit is Unit.UTF_16:
        return 1
    if 0xDC00 <= value < 0xE000:
        return 0
    if unit is Unit.UTF_32:
        return 1
    if 0xD800 <= value < 0xDC00:
        return 4
    return 1 + (value >= 0x80) + (value >= 0x800)
