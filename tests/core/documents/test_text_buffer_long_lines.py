"""What one line of many blocks costs, in steps of Python counted by its tracing: the same on any machine."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from streamctx.core.documents.block_text import BlockText
from streamctx.core.documents.blocks import DEFAULT_LAYOUT, Layout
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__: list[str] = []

LAYOUT = Layout(block_bytes=16, block_bytes_max=64, group_blocks=32)
SHORT = 4_000
"""Some hundred blocks; the long line has 32 times as many."""
LONG = 32 * SHORT


def steps(call: Callable[[], object]) -> int:
    """Count what the interpreter goes through: lines, calls, and the turns of loops."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def line_of(character: str, length: int) -> TextBuffer:
    """A buffer with a long line between others, that has been measured once in each unit."""
    line = character * length
    buffer = TextBuffer(f"first\n{line}\nlast", layout=LAYOUT)
    for unit in Unit:
        buffer.convert_character(1, near_end(buffer), unit)
    return buffer


def near_end(buffer: TextBuffer) -> int:
    """A place in the long line that is between two characters, whatever they are."""
    return buffer.length - len("first\n\nlast") - 20


def past_the_end(buffer: TextBuffer) -> None:
    with pytest.raises(EventRefused) as refused:
        buffer.check_position(1, buffer.length)
    assert refused.value.code is ErrorCode.BAD_POSITION
    assert refused.value.expected == buffer.length - len("first\n\nlast")


def another_length(buffer: TextBuffer) -> None:
    with pytest.raises(EventRefused) as refused:
        buffer.apply([Change(1, 2, 1, near_end(buffer), "", 5)])
    assert refused.value.code is ErrorCode.OLD_LENGTH_MISMATCH
    assert refused.value.expected == near_end(buffer) - 2


def edit(buffer: TextBuffer) -> None:
    at = near_end(buffer)
    buffer.apply([Change(1, at, 1, at, "x" * 4)] * 8)


def edit_and_convert(buffer: TextBuffer) -> None:
    at = near_end(buffer)
    buffer.apply_and_convert([Change(1, at - 2, 1, at, "é", 2)], [Unit.UTF_8, Unit.UTF_32])


SEARCHES: dict[str, Callable[[TextBuffer], object]] = {
    "check": lambda buffer: buffer.check_position(1, near_end(buffer)),
    "check past the end": past_the_end,
    "convert": lambda buffer: buffer.convert_character(1, near_end(buffer), Unit.UTF_8),
    "another length than stated": another_length,
}
EDITS: dict[str, Callable[[TextBuffer], object]] = {
    "edit": edit,
    "edit and convert": edit_and_convert,
    "edit its start": lambda buffer: buffer.apply([Change(1, 2, 1, 2, "x")]),
}


@pytest.mark.parametrize("character", ["x", "é", "😀"])
@pytest.mark.parametrize("operation", [*SEARCHES, *EDITS])
def test_a_line_of_many_blocks_costs_hardly_more_than_one_of_some(operation: str, character: str) -> None:
    call = {**SEARCHES, **EDITS}[operation]
    short, long = (steps(functools.partial(call, line_of(character, length))) for length in (SHORT, LONG))
    # An edit passes the list of groups, which a search does not.
    assert long < short * (8 if operation in EDITS else 1.5)


def test_only_a_stretch_of_many_blocks_has_its_lengths_kept() -> None:
    text = BlockText(b"some code\n" * 2_000, Unit.UTF_16, DEFAULT_LAYOUT)
    for line in range(0, 2_000, 7):
        text.character_at(line, text.locate(line, 5), Unit.UTF_8)
    text.measure(text.locate(0, 0), text.locate(300, 0), Unit.UTF_16)
    assert not text.blocks.lengths
    text.measure(text.locate(0, 0), text.locate(1_999, 0), Unit.UTF_16)
    assert set(text.blocks.lengths) == {Unit.UTF_16}
