"""Blocks: the stretches of text of which a buffer consists.

A block holds a few hundred lines. At rest it is their UTF-8; when an edit comes
it is opened into *segments*: a list of lines, where a very long line is several
segments that do not end in a line end, except the last. A line may go on from
one block into the next. Which blocks are open is the buffer's affair.

An open block costs about 57 bytes a line more than its text, a closed one
nothing: documents of very short lines would otherwise take thirty times their size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from streamctx.core.documents.lines import count_line_ends, split_segments
from streamctx.core.documents.units import length_in
from streamctx.vocabulary import Unit

__all__ = ["DEFAULT_LAYOUT", "Block", "Layout", "cut_blocks"]


@dataclass(frozen=True)
class Layout:
    """How finely a text is divided. Tests use tiny values to reach every seam."""

    block_lines: int = 128
    """Lines in a new block. Opening one costs 0.1 µs a line at its first edit; with 64, a
    text of line feeds alone takes 2.5 s to divide per 50 MB instead of 1.7 s."""
    block_characters: int = 65_536
    """Code points in a new block; bounds what opening one costs, about 0.2 ms."""
    segment_characters: int = 16_384
    """A longer line is held in parts, since an edit copies its segment."""
    group_blocks: int = 256
    """Blocks that share one table of running line counts."""
    open_lines_min: int = 512
    """Segments that may be open in any document."""
    bytes_per_open_line: int = 40
    """Segments open beyond that: one for so many bytes of text, so that a buffer stays
    under three times the text's size while code of ordinary line length is all open."""

    def __post_init__(self) -> None:
        """Check how the values relate."""
        if not 0 < self.segment_characters <= self.block_characters:
            raise ValueError(
                f"segment_characters is {self.segment_characters}, "
                f"expected 1 to block_characters, {self.block_characters}"
            )

    @cached_property
    def lines_pattern(self) -> re.Pattern[str]:
        """As many whole lines as a new block may have."""
        return re.compile(r"(?:[^\r\n]*+(?:\n|\r\n?)){1," + str(self.block_lines) + "}+")


DEFAULT_LAYOUT = Layout()


class Block:
    """A stretch of text with its measures, open or closed.

    Exactly one of `segments` and `data` is set. No segment is empty. `is_plain`
    holds if every segment but the last ends a line, so that the n-th line end of
    the block is that of segment n-1. `length` is in the buffer's unit.
    """

    __slots__ = ("_surplus", "byte_length", "data", "is_plain", "length", "line_ends", "segments")

    def __init__(self, text: str, unit: Unit) -> None:
        data = text.encode()
        self.data: bytes | None = data
        self.segments: list[str] | None = None
        self.byte_length = len(data)
        if unit is Unit.UTF_8 or len(data) == len(text):
            self.length = len(data)
        else:
            self.length = length_in(text, unit)
        self.line_ends = count_line_ends(text)
        self.is_plain = False
        self._surplus: tuple[Unit, int] | None = None

    def open(self, segment_characters: int) -> list[str]:
        """Make `segments` available and return them; the block must be closed."""
        assert self.data is not None
        segments = split_segments(self.data.decode(), segment_characters)
        self.segments = segments
        self.data = None
        self.refresh_shape()
        return segments

    def close(self) -> None:
        """Give up the segments for the UTF-8; the block must be open."""
        self.data = self.encoded()
        self.segments = None
        self.is_plain = False

    def refresh_shape(self) -> None:
        """Find out again whether the block is plain, after its segments have changed."""
        segments = self.segments
        assert segments is not None
        unended = len(segments) - self.line_ends
        self.is_plain = unended == 0 or (unended == 1 and not segments[-1].endswith(("\n", "\r")))
        self._surplus = None

    def text(self) -> str:
        """Return the text of the block."""
        if self.segments is not None:
            return "".join(self.segments)
        assert self.data is not None
        return self.data.decode()

    def encoded(self) -> bytes:
        """Return the UTF-8 of the block."""
        return self.data if self.data is not None else self.text().encode()

    def length_in(self, unit: Unit, own: Unit) -> int:
        """Return the length in any unit, where `own` is the buffer's.

        What must be counted is kept as a difference to `length`: edits of ASCII
        in ASCII, which are nearly all, do not change it.
        """
        if unit is own:
            return self.length
        if unit is Unit.UTF_8:
            return self.byte_length
        if self._surplus is None or self._surplus[0] is not unit:
            self._surplus = (unit, length_in(self.text(), unit) - self.length)
        return self.length + self._surplus[1]

    def starts_with_line_feed(self) -> bool:
        r"""Tell whether the first character is `\n`, without opening the block."""
        if self.segments is not None:
            return bool(self.segments) and self.segments[0].startswith("\n")
        return self.data is not None and self.data.startswith(b"\n")

    def ends_with_carriage_return(self) -> bool:
        r"""Tell whether the last character is `\r`, without opening the block."""
        if self.segments is not None:
            return bool(self.segments) and self.segments[-1].endswith("\r")
        return self.data is not None and self.data.endswith(b"\r")


def cut_blocks(text: str, unit: Unit, layout: Layout) -> Iterator[Block]:
    r"""Divide a text into closed blocks; `""` gives none.

    No cut is made between `\r` and `\n`, and none within a line that is short
    enough to be one segment.
    """
    position = 0
    while position < len(text):
        end = _block_end(text, position, layout)
        yield Block(text[position:end], unit)
        position = end


def _block_end(text: str, start: int, layout: Layout) -> int:
    limit = start + layout.block_characters
    found = layout.lines_pattern.match(text, start, limit)
    if found is None:
        # No line ends within the limit: the text does, or a long line goes on.
        return min(limit, len(text))
    end = found.end()
    if text[end - 1] == "\r" and text.startswith("\n", end):
        end += 1
    rest = len(text) - end
    if 0 < rest <= layout.segment_characters and count_line_ends(text[end:]) == 0:
        # The last line has no end; it is not worth a block of its own.
        return len(text)
    return end
