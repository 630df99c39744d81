"""A few lines of a text around cursors and selections, with the places marked below them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from streamctx.cli.output import printable
from streamctx.core.documents.lines import split_lines
from streamctx.core.documents.units import character_index, length_in
from streamctx.vocabulary import Unit

__all__ = ["Mark", "excerpt"]

_LINES_MAX = 40
_WIDTH_MAX = 100
_TAB = "    "


@dataclass(frozen=True, slots=True)
class Mark:
    """A cursor, where start and end are equal, or a selection; lines and characters from 0."""

    start: tuple[int, int]
    end: tuple[int, int]

    @classmethod
    def of_span(cls, span: tuple[int, int, int, int]) -> Mark:
        """The same range, whichever end comes first."""
        one, other = span[:2], span[2:]
        return cls(min(one, other), max(one, other))


def excerpt(text: str, marks: Sequence[Mark], *, unit: Unit, around: int) -> list[str]:
    """Show the lines with marks and `around` more on either side.

    A cursor is `^` below its character, a selection `~`. Lines are numbered from 1. A long selection shows
    its beginning and its end; a mark outside the text is left out. Without marks the text's first lines are
    shown.
    """
    lines = [line.rstrip("\r\n") for line in split_lines(text)]
    if not text or text[-1] in "\r\n":
        lines.append("")
    shown: set[int] = set()
    for mark in marks:
        for line_index in (mark.start[0], mark.end[0]):
            if line_index < len(lines):
                shown.update(range(max(0, line_index - around), min(len(lines), line_index + around + 1)))
    if not marks:
        shown.update(range(min(len(lines), 2 * around)))
    numbers = sorted(shown)[:_LINES_MAX]
    width = len(str(numbers[-1] + 1)) if numbers else 0
    result: list[str] = []
    last = None
    for line_index in numbers:
        if last is not None and line_index > last + 1:
            result.append(f"{'…':>{width}}")
        last = line_index
        result += _line_with_marks(lines[line_index], line_index, marks, unit=unit, number_width=width)
    return result


def _line_with_marks(
    line: str, line_index: int, marks: Iterable[Mark], *, unit: Unit, number_width: int
) -> list[str]:
    signs = [" "] * (len(line) + 1)
    for mark in marks:
        if not mark.start[0] <= line_index <= mark.end[0]:
            continue
        start = 0 if line_index > mark.start[0] else _index(line, mark.start[1], unit)
        stop = len(line) if line_index < mark.end[0] else _index(line, mark.end[1], unit)
        if mark.start == mark.end:
            signs[start] = "^"
        for index in range(start, stop):
            signs[index] = "~" if signs[index] == " " else signs[index]
    first = next((index for index, sign in enumerate(signs) if sign != " "), 0)
    begin = max(0, first - _WIDTH_MAX // 2) if len(line) > _WIDTH_MAX else 0
    end = begin + _WIDTH_MAX
    before, after = "…" if begin else "", "…" if end < len(line) else ""
    cells = [_TAB if character == "\t" else printable(character) for character in line[begin:end]]
    shown = f"{line_index + 1:>{number_width}} | {before}{''.join(cells)}{after}".rstrip()
    below = " " * len(before) + "".join(
        _sign_below(sign, cell_len(cell)) for sign, cell in zip(signs[begin:end], [*cells, " "], strict=False)
    )
    below = below.rstrip()
    return [shown, f"{'':>{number_width}} | {below}"] if below else [shown]


def _sign_below(sign: str, columns: int) -> str:
    """What stands below a character that is so many columns wide: a cursor once, a selection all along."""
    return "^".ljust(columns) if sign == "^" else sign * columns


def _index(line: str, character: int, unit: Unit) -> int:
    """The index into the line; a place outside it, or inside a character, becomes the nearest before."""
    character = min(character, length_in(line, unit))
    while (index := character_index(line, character, unit)) is None:
        character -= 1
    return index
