"""The plainest text that could work, to compare `TextBuffer` with: a string and a table of positions."""

from __future__ import annotations

from collections.abc import Sequence

from streamctx.core.documents.blocks import DEFAULT_LAYOUT, Layout
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__ = ["LAYOUTS", "PIECES", "Refused", "apply_to_model", "positions", "refusal_of", "size", "state"]

PIECES = (
    *("a", "b", "xyz", " ", "\n", "\r", "\r\n", "\n\r", "\0", "\t", "\v", "\f", "\x1c", "\x85"),
    *(
        "é",
        "ù",
        "e\u0301",
        "\u2028",
        "\u2029",
        "\ufeff",
        "中",
        "😀",
        "👩\u200d👩\u200d👧",
        "🇩🇪",
        "a long word",
    ),
)
"""What texts are made of: everything that some editor has taken for something else."""

LAYOUTS = (
    DEFAULT_LAYOUT,
    Layout(block_bytes=1, block_bytes_max=8, block_lines=1, group_blocks=1, walk_blocks=0),
    Layout(block_bytes=6, block_bytes_max=12, block_lines=2, group_blocks=2, walk_blocks=1),
    Layout(block_bytes=20, block_bytes_max=40, block_lines=3, group_blocks=3),
    Layout(block_bytes=16, block_bytes_max=64, block_lines=8, group_blocks=2, walk_blocks=2),
)


class Refused(Exception):
    """What the model says of a batch that must be refused: the code, and which change."""


def size(text: str, unit: Unit) -> int:
    """Count the units of a text one character at a time."""
    if unit is Unit.UTF_32:
        return len(text)
    if unit is Unit.UTF_16:
        return sum(1 if ord(character) < 0x10000 else 2 for character in text)
    return sum(sum((1, ord(c) > 0x7F, ord(c) > 0x7FF, ord(c) > 0xFFFF)) for c in text)


def positions(text: str, unit: Unit) -> dict[tuple[int, int], int]:
    r"""List every position of a text with the index it stands for, in order."""
    table = {}
    line = column = 0
    for index, character in enumerate(text):
        is_within_line_end = character == "\n" and index > 0 and text[index - 1] == "\r"
        if not is_within_line_end:
            table[line, column] = index
        if character == "\n" or (character == "\r" and text[index + 1 : index + 2] != "\n"):
            line, column = line + 1, 0
        else:
            column += size(character, unit)
    table[line, column] = len(text)
    return table


def apply_to_model(text: str, changes: Sequence[Change], unit: Unit, *, simultaneous: bool) -> str:
    """Return the text after a batch, or raise `Refused`."""
    if not simultaneous:
        for number, change in enumerate(changes):
            start, end = _range_of(text, change, unit, number)
            text = text[:start] + change.text + text[end:]
        return text
    ranges = [_range_of(text, change, unit, number) for number, change in enumerate(changes)]
    gaps: list[list[tuple[bool, int, str]]] = [[] for _ in range(len(text) + 1)]
    deleted = [0] * len(text)
    for number, (start, end) in enumerate(ranges):
        gaps[start].append((start != end, number, changes[number].text))
        for index in range(start, end):
            deleted[index] += 1
    for start, end in ranges:
        if any(gaps[index] for index in range(start + 1, end)) or any(
            deleted[index] > 1 for index in range(start, end)
        ):
            raise Refused(ErrorCode.BAD_CHANGE)
    result = ""
    for index, gap in enumerate(gaps):
        result += "".join(inserted for _, _, inserted in sorted(gap))
        if index < len(text) and not deleted[index]:
            result += text[index]
    return result


def _range_of(text: str, change: Change, unit: Unit, number: int) -> tuple[int, int]:
    table = positions(text, unit)
    if any(0xD800 <= ord(character) < 0xE000 for character in change.text):
        raise Refused(ErrorCode.BAD_TEXT, number)
    start, end = (
        (change.start_line, change.start_character),
        (change.end_line, change.end_character),
    )
    if end < start:
        raise Refused(ErrorCode.BAD_CHANGE, number)
    if start not in table or end not in table:
        raise Refused(ErrorCode.BAD_POSITION, number)
    replaced = text[table[start] : table[end]]
    if change.old_length not in (None, size(replaced, unit)):
        raise Refused(ErrorCode.OLD_LENGTH_MISMATCH, number)
    return table[start], table[end]


def state(buffer: TextBuffer) -> tuple[object, ...]:
    """Return all that a buffer shows of its text."""
    lines = [buffer.line(index) for index in range(buffer.line_count)]
    return buffer.text(), buffer.length, buffer.byte_length, buffer.line_count, lines


def refusal_of(buffer: TextBuffer, changes: Sequence[Change], *, simultaneous: bool = False) -> EventRefused:
    """Apply a batch that must be refused and return the refusal."""
    try:
        buffer.apply(changes, simultaneous=simultaneous)
    except EventRefused as refusal:
        return refusal
    raise AssertionError("the batch was not refused")
