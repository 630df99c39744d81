"""Blocks: the short stretches of UTF-8 of which a buffer consists.

A block holds a dozen lines of code, or a part of one long line. Where its lines start
is not kept but found when it is needed, in 0.3 µs. So a block costs 180 bytes beside
its text, whatever that is, and no part of a text is dearer to edit than another. A
string for every line is edited in 0.2 µs less, but takes three times the size of code
and thirty times that of short lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamctx.core.documents.lines import CARRIAGE_RETURN, line_end_in
from streamctx.core.documents.units import length_in
from streamctx.vocabulary import Unit

__all__ = ["DEFAULT_LAYOUT", "Block", "Layout", "cut_blocks"]


@dataclass(frozen=True)
class Layout:
    """How finely a text is divided. Tests use tiny values to reach every seam."""

    block_bytes: int = 512
    """What a new block holds, unless its one line is longer. With twice as much an edit takes
    0.2 µs more; with half as much 10 MB take longer, being spread over more memory. A block
    of several lines that comes to hold four times as much is divided."""
    block_bytes_max: int = 8_192
    """A line up to this size is not cut. An edit copies its block, which takes 0.3 µs; and it
    counts the characters in it, which takes 8 µs if they are not ASCII."""
    block_lines: int = 64
    """Line feeds in a new block, so that one costs at most 7 times its text even if half of
    them are deleted. A block that comes to hold twice as many is divided."""
    group_blocks: int = 128
    """Blocks that share one table of running totals: near the root of the number of blocks in 10 MB."""
    walk_blocks: int = 8
    """Blocks that are passed one by one, in 0.3 µs each; for more of them running totals of lengths
    are made, which then take 36 bytes a block and unit, and 2 µs an edit."""

    def __post_init__(self) -> None:
        """Check how the values relate."""
        # Half of a block that is one line must hold a character.
        minimum = max(8, 2 * self.block_bytes)
        if self.block_bytes_max < minimum:
            raise ValueError(f"block_bytes_max is {self.block_bytes_max}, expected {minimum} or more")


DEFAULT_LAYOUT = Layout()


class Block:
    r"""A stretch of text with its measures.

    Blocks are cut neither within a character nor between `\r` and `\n`. `characters`
    counts code points, and `astral_characters` those of them that are two units in
    utf-16. `is_plain` holds if every line end is, or ends with, a `\n`.
    """

    __slots__ = ("astral_characters", "characters", "data", "is_plain", "line_ends")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.characters = len(data)
        self.astral_characters = 0
        if not data.isascii():
            text = data.decode()
            self.characters = len(text)
            self.astral_characters = length_in(text, Unit.UTF_16) - len(text)
        self.line_ends = data.count(b"\n")
        self.is_plain = True
        if CARRIAGE_RETURN in data:
            bare = data.count(b"\r") - data.count(b"\r\n")
            self.line_ends += bare
            self.is_plain = not bare

    def length_in(self, unit: Unit) -> int:
        """Return the length of the block in a unit."""
        if unit is Unit.UTF_16:
            return self.characters + self.astral_characters
        return len(self.data) if unit is Unit.UTF_8 else self.characters

    def count_change(self, inserted: str, removed: str, unit: Unit) -> int:
        """Account for the characters of a change; return by how much the length in a unit grows."""
        growth = len(inserted) - len(removed)
        utf_16_growth = length_in(inserted, Unit.UTF_16) - length_in(removed, Unit.UTF_16)
        self.characters += growth
        self.astral_characters += utf_16_growth - growth
        if unit is Unit.UTF_16:
            return utf_16_growth
        return growth if unit is Unit.UTF_32 else length_in(inserted, unit) - length_in(removed, unit)

    def line_start(self, rank: int) -> int:
        """Return the offset behind a line end, counted from 1; 0 for 0."""
        data = self.data
        if not rank:
            return 0
        if not self.is_plain:
            # Of the same length, and with a line feed at the end of every line end.
            data = data.replace(b"\r\n", b"\0\n").replace(b"\r", b"\n")
        # To split is the fastest way in Python to find a line end by its number.
        rest = self.line_ends - rank
        if rank <= rest:
            return len(data) - len(data.split(b"\n", rank)[-1])
        return len(data.rsplit(b"\n", rest + 1)[0]) + 1


def cut_blocks(data: bytes, layout: Layout) -> Iterator[Block]:
    """Divide UTF-8 into blocks, at line ends except within a long line; `b""` gives none."""
    position = 0
    while position < len(data):
        end = _block_end(data, position, layout)
        yield Block(data[position:end])
        position = end


def _block_end(data: bytes, start: int, layout: Layout) -> int:
    size = layout.block_bytes
    rest = len(data) - start
    if rest <= size + size // 4:
        size = rest  # What would be left over is not worth a block of its own.
    window = data[start : start + size]
    lines = window.split(b"\n", layout.block_lines)
    if len(lines) > layout.block_lines or (len(lines) > 1 and size < rest):
        return start + size - len(lines[-1])
    if size == rest:
        return len(data)
    bare = start + window.rfind(b"\r") + 1
    if bare > start:
        return bare + data.startswith(b"\n", bare)
    stop = min(start + layout.block_bytes_max, len(data))
    end = line_end_in(data, start, stop)
    if end < stop:
        return end + (2 if data.startswith(b"\r\n", end) else 1)
    if stop == len(data):
        return stop
    # A long line is cut into parts that have room to grow.
    end = start + layout.block_bytes_max // 2
    while data[end] & 0xC0 == 0x80:  # Within a character.
        end -= 1
    return end
