r"""A text as blocks, with places in it and the replacing of what is between two.

This is the mechanism under `TextBuffer`: it finds places and replaces text. Which
changes are allowed, and in what order they are made, is decided there.

Whatever is done, the lines are those that splitting the whole text anew would
give: a `\r` and a `\n` that come to stand together become one line end.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamctx.core.documents.block_list import Address, BlockList
from streamctx.core.documents.blocks import Block, Layout, cut_blocks
from streamctx.core.documents.lines import CARRIAGE_RETURN, LINE_END, LINE_FEED, line_end_in
from streamctx.core.documents.units import byte_index, length_in
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__ = ["BlockText", "Place"]

Place = tuple[int, int, int]
"""A place between two characters: the two parts of a block's address, and an offset in its bytes.

Valid until the text changes. At a seam either side may be named: the end of one
block is the start of the next.
"""


class BlockText:
    """The text and its lengths; `length` is in `unit`, `byte_length` in bytes of UTF-8."""

    __slots__ = (
        "_block_bytes_max",
        "_block_bytes_min",
        "_layout",
        "blocks",
        "byte_length",
        "length",
        "unit",
    )

    def __init__(self, data: bytes, unit: Unit, layout: Layout) -> None:
        self.unit = unit
        self._layout = layout
        self._block_bytes_max = layout.block_bytes_max
        self._block_bytes_min = layout.block_bytes // 4
        blocks = list(cut_blocks(data, layout)) or [Block(b"")]
        self.blocks = BlockList(blocks, group_blocks=layout.group_blocks, walk_blocks=layout.walk_blocks)
        self.length = sum(block.length_in(unit) for block in blocks)
        self.byte_length = len(data)

    def replace_in_block(self, change: Change, *, ascii_only: bool) -> bytes | None:
        """Make a change if it is of the usual kind: within one block, which then needs no dividing.

        Args:
            change: The change.
            ascii_only: Whether its numbers must be the same in all units, because all
                that they count is ASCII.

        Returns:
            The text that was replaced, or `None` if the change is of another kind
            or not allowed, and nothing was done.
        """
        blocks, line, text = self.blocks, change.start_line, change.text
        start = blocks.line_start(line)
        if start is None:
            return None
        group, slot, offset = start
        block = blocks.groups[group][slot]
        data = block.data
        low, high = offset + change.start_character, offset + change.end_character
        head = data[offset:high]
        if (
            line != change.end_line
            or not block.is_plain
            or not offset <= low <= high
            or len(head) != change.end_character
            or not head.isascii()
            or LINE_FEED in head
            or CARRIAGE_RETURN in head
        ):
            span = None if ascii_only else self._span_in_block(block, start, change)
            if span is None:
                return None
            low, high = span
        removed = data[low:high] if low < high else b""
        old_length = change.old_length
        if old_length is not None and old_length != _length_of(removed, self.unit):
            return None
        try:
            inserted = text.encode()
        except UnicodeEncodeError:
            return None
        result = b"".join((data[:low], inserted, data[high:]))
        growth = byte_growth = len(result) - len(data)
        if (
            len(result) > self._block_bytes_max
            or len(result) < self._block_bytes_min <= len(data)
            # A line feed at the start may belong to a carriage return in the block before.
            or (low == 0 and (not result or result[0] == LINE_FEED))
        ):
            return None
        if ("\n" in text or "\r" in text or line != change.end_line) and not self._move_lines(
            start, change, len(result)
        ):
            return None
        block.data = result
        if len(inserted) == len(text) and removed.isascii():
            block.characters += growth
        else:
            growth = block.count_change(text, removed.decode(), self.unit)
        if blocks.lengths:
            blocks.remeasure((group, slot))
        self.length += growth
        self.byte_length += byte_growth
        return removed

    def _span_in_block(self, block: Block, start: Place, change: Change) -> tuple[int, int] | None:
        """Return the offsets between which a change replaces, if both are in the block of its first line."""
        if not block.is_plain:
            return None
        low = self._offset_in_line(block.data, start[2], change.start_character)
        if low is None:
            return None
        if change.end_line == change.start_line:
            high = self._offset_in_line(block.data, low, change.end_character - change.start_character)
        else:
            end = self.blocks.line_start(change.end_line)
            if end is None or end[:2] != start[:2]:
                return None
            high = self._offset_in_line(block.data, end[2], change.end_character)
        return None if high is None or low > high else (low, high)

    def _offset_in_line(self, data: bytes, offset: int, character: int) -> int | None:
        """Go on by so many characters in a line of a plain block, if there are so many there."""
        if not character:
            return offset
        line_end = data.find(b"\n", offset)
        if line_end < 0:
            line_end = len(data)
        elif line_end > offset and data[line_end - 1] == CARRIAGE_RETURN:
            line_end -= 1
        index = byte_index(data[offset:line_end], character, self.unit)
        return None if index is None else offset + index

    def _move_lines(self, start: Place, change: Change, byte_count: int) -> bool:
        """Account for the line ends of a change, unless they are not plain or make the block large."""
        text = change.text
        count = text.count("\n") - (change.end_line - change.start_line)
        block = self.blocks.at(start[:2])
        if self._is_large(byte_count, block.line_ends + count) or text.count("\r") != text.count("\r\n"):
            return False
        block.line_ends += count
        self.blocks.add_line_ends(start[:2], count)
        return True

    def _is_large(self, byte_count: int, line_ends: int) -> bool:
        """Tell whether a block should be divided."""
        layout = self._layout
        return (
            byte_count > layout.block_bytes_max
            or line_ends > 2 * layout.block_lines
            # Two lines can be long ones, which are as they should be.
            or (byte_count > 4 * layout.block_bytes and line_ends > 2)
        )

    # Finding places

    def locate(self, line: int, character: int) -> Place:
        """Return the place of a position.

        Raises:
            EventRefused: `bad_position`, if there is no such line, the line's content
                is shorter, or the position is inside a character.
        """
        start = self.blocks.line_start(line)
        if start is None:
            raise EventRefused(
                ErrorCode.BAD_POSITION,
                f"line {line} is outside a text of {self.blocks.line_ends + 1} lines",
                expected=self.blocks.line_ends,
            )
        group, slot, low = start
        block = self.blocks.groups[group][slot]
        line_end = _line_end(block, low)
        if line_end < len(block.data) or character <= block.length_in(self.unit):
            index = byte_index(block.data[low:line_end], character, self.unit)
            if index is not None:
                return group, slot, low + index
        return self._locate_beyond(line, start, character)

    def _locate_beyond(self, line: int, start: Place, character: int) -> Place:
        """Return the place of a position that may be in a later block than that where its line starts.

        Raises:
            EventRefused: As `locate`.
        """
        first, low = start[:2], start[2]
        wanted = character + _length_of(self.blocks.at(first).data[:low], self.unit)
        address, passed = self.blocks.reach(first, self.blocks.line_end(line), wanted, self.unit)
        low, within = (low, character) if address == first else (0, wanted - passed)
        block = self.blocks.at(address)
        content = block.data[low : _line_end(block, low)]
        index = byte_index(content, within, self.unit)
        if index is not None:
            return *address, low + index
        length = _length_of(content, self.unit)
        if within <= length:
            raise EventRefused(
                ErrorCode.BAD_POSITION,
                f"character {character} of line {line} is inside a character, in {self.unit}",
            )
        length += character - within
        raise EventRefused(
            ErrorCode.BAD_POSITION,
            f"character {character} is outside line {line}, which has {length} in {self.unit}",
            expected=length,
        )

    def character_at(self, line: int, place: Place, unit: Unit) -> int:
        """Return what `character` a place in an existing line has in a unit."""
        start = self.blocks.line_start(line)
        assert start is not None
        return self.measure(start, place, unit)

    def line(self, index: int) -> str:
        """Return an existing line with its line end."""
        start = self.blocks.line_start(index)
        assert start is not None
        end = start
        for block, place, line_end in self._line_parts(start):
            found = LINE_END.match(block.data, line_end)
            end = *place[:2], found.end() if found else line_end
        return self.read(start, end).decode()

    def before(self, place: Place) -> Place:
        """Return the place one byte before another that is not the start of the text."""
        address, offset = place[:2], place[2]
        if not offset:
            previous = self.blocks.previous(address)
            assert previous is not None
            address, offset = previous, len(self.blocks.at(previous).data)
        return *address, offset - 1

    def after(self, place: Place, byte_count: int) -> Place:
        """Return the place so many bytes after another."""
        address, offset = place[:2], place[2] + byte_count
        while offset > (size := len(self.blocks.at(address).data)):
            following = self.blocks.next(address)
            assert following is not None
            address, offset = following, offset - size
        return *address, offset

    def _line_parts(self, start: Place) -> Iterator[tuple[Block, Place, int]]:
        """Walk along a line: each block, the place where the line goes on there, the offset of its end."""
        group, slot, low = start
        groups = self.blocks.groups
        while group < len(groups):
            for at in range(slot, len(groups[group])):
                block = groups[group][at]
                line_end = _line_end(block, low)
                yield block, (group, at, low), line_end
                if line_end < len(block.data):
                    return
                low = 0
            group, slot = group + 1, 0

    # Reading and measuring

    def read(self, start: Place, end: Place) -> bytes:
        """Return the text between two places."""
        first, last = start[:2], end[:2]
        if first == last:
            return self.blocks.at(first).data[start[2] : end[2]]
        parts = [block.data for block in self.blocks.between(first, last)]
        parts[0] = parts[0][start[2] :]
        parts[-1] = parts[-1][: end[2]]
        return b"".join(parts)

    def measure(self, start: Place, end: Place, unit: Unit) -> int:
        """Return the length between two places in a unit, without reading whole blocks."""
        first, last = start[:2], end[:2]
        data = self.blocks.at(first).data
        if first == last:
            return _length_of(data[start[2] : end[2]], unit)
        length = self.blocks.length_between(first, last, unit) - _length_of(data[: start[2]], unit)
        return length + _length_of(self.blocks.at(last).data[: end[2]], unit)

    # Replacing

    def replace(self, start: Place, end: Place, data: bytes) -> bool:
        r"""Replace what is between two places; all places become invalid.

        Returns:
            Whether there is now a `\r` before the place and a `\n` behind it.
        """
        blocks = self.blocks
        first, last, low = start[:2], end[:2], start[2]
        data = blocks.at(first).data[:low] + data + blocks.at(last).data[end[2] :]
        following = blocks.next(last)
        if following is not None and (not data or _are_joined(data, blocks.at(following).data)):
            data += blocks.at(following).data
            last, following = following, blocks.next(following)
        previous = blocks.previous(first)
        if previous is not None and _are_joined(blocks.at(previous).data, data):
            data = blocks.at(previous).data + data
            low += len(blocks.at(previous).data)
            first, previous = previous, blocks.previous(previous)
        is_joined = low > 0 and data[low - 1 : low + 1] == b"\r\n"

        block = Block(data)
        if following is not None and self._are_small(block, blocks.at(following)):
            last, data = following, data + blocks.at(following).data
        elif previous is not None and self._are_small(blocks.at(previous), block):
            first, data = previous, blocks.at(previous).data + data
        self._put(first, last, data)
        return is_joined

    def _are_small(self, one: Block, other: Block) -> bool:
        """Tell whether two neighbours should be one block."""
        smaller = min(len(one.data), len(other.data))
        return not smaller or (
            smaller < self._block_bytes_min
            and len(one.data) + len(other.data) <= self._layout.block_bytes
            and one.line_ends + other.line_ends <= self._layout.block_lines
        )

    def _put(self, first: Address, last: Address, data: bytes) -> None:
        """Put text in the place of whole blocks."""
        new = [Block(data)]
        if self._is_large(len(data), new[0].line_ends):
            new = list(cut_blocks(data, self._layout))
        for old in self.blocks.between(first, last):
            self.length -= old.length_in(self.unit)
            self.byte_length -= len(old.data)
        self.length += sum(block.length_in(self.unit) for block in new)
        self.byte_length += len(data)
        self.blocks.replace(first, last, new)


def _line_end(block: Block, low: int) -> int:
    """Return the offset where the line that is at an offset of a block ends, there or in a later block."""
    data = block.data
    return line_end_in(data, low, len(data)) if block.line_ends else len(data)


def _length_of(data: bytes, unit: Unit) -> int:
    return len(data) if unit is Unit.UTF_8 or data.isascii() else length_in(data.decode(), unit)


def _are_joined(one: bytes, other: bytes) -> bool:
    return one.endswith(b"\r") and other.startswith(b"\n")
