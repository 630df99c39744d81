"""What an editor must have done to a text, seen from before and after."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from streamctx.core.documents.lines import split_lines
from streamctx.core.documents.units import length_in
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__ = ["changes_between"]

_COMPARED_LINES_MAX = 1_000
"""Above this many lines that may differ, finding small changes takes longer than sending one large one."""
_CHANGES_MAX = 1_000


def changes_between(old: str, new: str, unit: Unit = Unit.UTF_16) -> tuple[Change, ...]:
    """The changes that lead from one text to the other, all on the old text (mode `sim`), in order.

    What both have at their ends is left alone; between, lines are compared, and within a run of changed
    lines again only what lies between their common ends is replaced. No position is inside a line end or a
    character.
    """
    if old == new:
        return ()
    old_lines, new_lines = split_lines(old), split_lines(new)
    first = _common(old_lines, new_lines)
    last = _common(old_lines[first:][::-1], new_lines[first:][::-1])
    old_middle, new_middle = (
        old_lines[first : len(old_lines) - last],
        new_lines[first : len(new_lines) - last],
    )
    changes = tuple(
        _change(old_middle, new_middle, run, first_line=first, unit=unit)
        for run in _runs(old_middle, new_middle)
    )
    if len(changes) > _CHANGES_MAX:
        whole = (0, len(old_middle), 0, len(new_middle))
        return (_change(old_middle, new_middle, whole, first_line=first, unit=unit),)
    return changes


_Run = tuple[int, int, int, int]
"""Old lines from, to; new lines from, to."""


def _runs(old: list[str], new: list[str]) -> Iterator[_Run]:
    if max(len(old), len(new)) > _COMPARED_LINES_MAX:
        yield 0, len(old), 0, len(new)
        return
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, old_start, old_stop, new_start, new_stop in matcher.get_opcodes():
        if tag != "equal":
            yield old_start, old_stop, new_start, new_stop


def _change(old: list[str], new: list[str], run: _Run, *, first_line: int, unit: Unit) -> Change:
    old_start, old_stop, new_start, new_stop = run
    before, after = "".join(old[old_start:old_stop]), "".join(new[new_start:new_stop])
    prefix = _common(before, after)
    # A position between \r and \n is none: whoever changes one half of a line end replaces both.
    if prefix and before[prefix - 1 : prefix + 1] == "\r\n":
        prefix -= 1
    rest = min(len(before), len(after)) - prefix
    suffix = _common(
        before[: prefix - 1 if prefix else None : -1], after[: prefix - 1 if prefix else None : -1]
    )
    suffix = min(suffix, rest)
    if suffix and before[len(before) - suffix - 1 : len(before) - suffix + 1] == "\r\n":
        suffix -= 1
    start_line, start_character = _position(before[:prefix], unit)
    end_line, end_character = _position(before[: len(before) - suffix], unit)
    base = first_line + old_start
    return Change(
        base + start_line,
        start_character,
        base + end_line,
        end_character,
        after[prefix : len(after) - suffix],
    )


def _position(text: str, unit: Unit) -> tuple[int, int]:
    """Where the end of a text that starts a line is; the text does not end inside a line end."""
    lines = split_lines(text)
    if not lines or lines[-1][-1] in "\r\n":
        return len(lines), 0
    return len(lines) - 1, length_in(lines[-1], unit)


def _common(one: str | list[str], other: str | list[str]) -> int:
    """How many items both have at their start."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    # Comparing slices runs in C, so halving beats looking at one item after the other.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
