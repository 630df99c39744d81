r"""A text as blocks of lines, with places in it and the replacing of what is between two.

This is the mechanism under `TextBuffer`: it finds places and replaces text. Which
changes are allowed, and in what order they are made, is decided there.

Whatever is done, the lines are those that splitting the whole text anew would
give: a `\r` and a `\n` that come to stand together become one line end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from streamctx.core.documents.block_list import BlockAddress, BlockList
from streamctx.core.documents.blocks import Block, Layout, cut_blocks
from streamctx.core.documents.line_edit import edited_line
from streamctx.core.documents.lines import content_length, count_line_ends, split_segments
from streamctx.core.documents.units import character_index, length_in
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__ = ["BlockText", "Place"]


class Place(NamedTuple):
    """A place between two characters; valid until the text changes.

    `offset` counts code points within the segment. At a seam either side may be
    named: the end of one segment is the start of the next.
    """

    address: BlockAddress
    segment: int
    offset: int


class BlockText:
    """The text and its lengths; `length` is in `unit`, `byte_length` in bytes of UTF-8."""

    __slots__ = (
        "_block_bytes_max",
        "_layout",
        "_open_blocks",
        "_open_lines",
        "_segment_characters_max",
        "blocks",
        "byte_length",
        "length",
        "unit",
    )

    def __init__(self, text: str, unit: Unit, layout: Layout) -> None:
        self.unit = unit
        self._layout = layout
        self._segment_characters_max = layout.segment_characters
        self._block_bytes_max = 2 * layout.block_characters
        blocks = list(cut_blocks(text, unit, layout)) or [Block("", unit)]
        self.blocks = BlockList(blocks, group_blocks=layout.group_blocks)
        self.length = sum(block.length for block in blocks)
        self.byte_length = sum(block.byte_length for block in blocks)
        # In the order of opening; the values are unused.
        self._open_blocks: OrderedDict[Block, None] = OrderedDict()
        self._open_lines = 0

    def replace_in_line(self, change: Change, *, ascii_only: bool) -> str | None:
        """Make a change if it is of the usual kind: within one line that is open.

        Args:
            change: The change.
            ascii_only: Whether the line and the new text must be ASCII, where all units agree.

        Returns:
            The text that was replaced, or `None` if the change is of another kind
            or not allowed, and nothing was done.
        """
        line = change.start_line
        text = change.text
        if line != change.end_line or "\n" in text or "\r" in text:
            return None
        found = self.blocks.find_line(line)
        if found is None:
            return None
        block, rank = found
        segments = block.segments
        # The line may start in the next block, or be one of several segments.
        if segments is None or not block.is_plain or rank >= len(segments):
            return None
        old = segments[rank]
        start, end = change.start_character, change.end_character
        if not (old.isascii() and text.isascii()):
            return None if ascii_only else self._replace_in_wide_line(block, rank, change)
        if start > end:
            return None
        # Only the last two characters can be a line end.
        if end > len(old) - 2 and end > content_length(old):
            return None
        if not text and not start and old[end : end + 1] in "\n":
            # What remains is a bare line feed, which a line before may be waiting for, or nothing.
            return None
        growth = len(text) - (end - start)
        if growth > 0 and (
            len(old) + growth > self._segment_characters_max or block.byte_length > self._block_bytes_max
        ):
            # The segment or its block must be divided.
            return None
        if change.old_length is not None and change.old_length != end - start:
            return None
        segments[rank] = old[:start] + text + old[end:]
        block.length += growth
        block.byte_length += growth
        self.length += growth
        self.byte_length += growth
        return old[start:end]

    def _replace_in_wide_line(self, block: Block, rank: int, change: Change) -> str | None:
        assert block.segments is not None
        made = edited_line(block.segments[rank], change, self.unit)
        if made is None:
            return None
        new, removed = made
        if not new or new.startswith("\n") or len(new) > self._segment_characters_max:
            return None
        if block.byte_length > self._block_bytes_max:
            return None
        block.segments[rank] = new
        block.refresh_shape()
        growth = length_in(change.text, self.unit) - (change.end_character - change.start_character)
        byte_growth = length_in(change.text, Unit.UTF_8) - length_in(removed, Unit.UTF_8)
        block.length += growth
        block.byte_length += byte_growth
        self.length += growth
        self.byte_length += byte_growth
        return removed

    # Finding places

    def line_start(self, line: int) -> Place:
        """Return the place where an existing line starts."""
        if line == 0:
            return Place(BlockAddress(0, 0), 0, 0)
        group, slot, rank = self.blocks.find_line_end(line)
        address = BlockAddress(group, slot)
        segments = self.segments_at(address)
        if self.blocks.at(address).is_plain:
            segment = rank
        else:
            segment = 0
            while rank:
                rank -= segments[segment].endswith(("\n", "\r"))
                segment += 1
        if segment == len(segments):
            following = self.blocks.next(address)
            if following is not None:
                return Place(following, 0, 0)
        return Place(address, segment, 0)

    def locate(self, line: int, character: int) -> Place:
        """Return the place of a position.

        Raises:
            EventRefused: `bad_position`, if there is no such line, the line's content
                is shorter, or the position is inside a character.
        """
        if line > self.blocks.line_ends:
            raise EventRefused(
                ErrorCode.BAD_POSITION,
                f"line {line} is outside a text of {self.blocks.line_ends + 1} lines",
                expected=self.blocks.line_ends,
            )
        start = self.line_start(line)
        rest = character
        for address, first, whole in self._stretches(start):
            block = self.blocks.at(address)
            if whole and rest > block.length:
                rest -= block.length
                continue
            segments = self.segments_at(address)
            for segment in range(first, len(segments)):
                text = segments[segment]
                content = text[: content_length(text)]
                length = length_in(content, self.unit)
                if rest <= length:
                    index = character_index(content, rest, self.unit)
                    if index is None:
                        raise EventRefused(
                            ErrorCode.BAD_POSITION,
                            f"character {character} of line {line} is inside a character, in {self.unit}",
                        )
                    return Place(address, segment, index)
                rest -= length
                if len(content) < len(text):
                    raise _past_line_end(line, character, character - rest, self.unit)
        if rest:
            raise _past_line_end(line, character, character - rest, self.unit)
        return start  # Only where the text ends with a line end, or is empty.

    def character_at(self, line: int, place: Place, unit: Unit) -> int:
        """Return what `character` a place in a line has in a unit."""
        count = 0
        for address, first, whole in self._stretches(self.line_start(line)):
            if address != place.address:
                if whole:
                    count += self.blocks.at(address).length_in(unit, self.unit)
                else:
                    count += sum(length_in(text, unit) for text in self.segments_at(address)[first:])
                continue
            segments = self.segments_at(address)
            count += sum(length_in(text, unit) for text in segments[first : place.segment])
            if place.offset:
                count += length_in(segments[place.segment][: place.offset], unit)
            break
        return count

    def line(self, index: int) -> str:
        """Return an existing line with its line end."""
        parts: list[str] = []
        for address, first, _whole in self._stretches(self.line_start(index)):
            for text in self.segments_at(address)[first:]:
                parts.append(text)
                if text.endswith(("\n", "\r")):
                    return "".join(parts)
        return "".join(parts)

    def before(self, place: Place) -> Place:
        """Return the place one character before the start of a line that is not the first."""
        address, segment, _offset = place
        if segment == 0:
            previous = self.blocks.previous(address)
            assert previous is not None
            address, segment = previous, len(self.segments_at(previous))
        return Place(address, segment - 1, len(self.segments_at(address)[segment - 1]) - 1)

    def after(self, place: Place, characters: int) -> Place:
        """Return the place so many code points after another."""
        rest = characters + place.offset
        for address, first, _whole in self._stretches(Place(place.address, place.segment, 0)):
            block = self.blocks.at(address)
            if first == 0 and rest > block.length_in(Unit.UTF_32, self.unit):
                rest -= block.length_in(Unit.UTF_32, self.unit)
                continue
            for segment, text in enumerate(self.segments_at(address)[first:], first):
                if rest <= len(text):
                    return Place(address, segment, rest)
                rest -= len(text)
        assert rest == 0
        return place

    def _stretches(self, place: Place) -> Iterator[tuple[BlockAddress, int, bool]]:
        """Walk the blocks from a place on: address, first segment, whether the block is inside one line."""
        address: BlockAddress | None = place.address
        first = place.segment
        while address is not None:
            yield address, first, first == 0 and self.blocks.at(address).line_ends == 0
            address = self.blocks.next(address)
            first = 0

    # Reading and measuring

    def read(self, start: Place, end: Place) -> str:
        """Return the text between two places."""
        parts = self._between(start, end)
        return "".join(part if isinstance(part, str) else part.text() for part in parts)

    def measure(self, start: Place, end: Place, unit: Unit) -> int:
        """Return the length between two places in a unit, without reading whole blocks."""
        parts = self._between(start, end)
        return sum(
            length_in(part, unit) if isinstance(part, str) else part.length_in(unit, self.unit)
            for part in parts
        )

    def _between(self, start: Place, end: Place) -> Iterator[str | Block]:
        if start == end:
            return
        segments = self.segments_at(start.address)
        if start[:2] == end[:2]:
            yield segments[start.segment][start.offset : end.offset]
            return
        if start.segment < len(segments):
            yield segments[start.segment][start.offset :]
        if start.address == end.address:
            yield from segments[start.segment + 1 : end.segment]
        else:
            yield from segments[start.segment + 1 :]
            address = self.blocks.next(start.address)
            while address is not None and address != end.address:
                yield self.blocks.at(address)
                address = self.blocks.next(address)
            segments = self.segments_at(end.address)
            yield from segments[: end.segment]
        if end.segment < len(segments):
            yield segments[end.segment][: end.offset]

    # Replacing

    def replace(self, start: Place, end: Place, text: str) -> bool:
        r"""Replace what is between two places; all places become invalid.

        Returns:
            Whether a `\n` that came to stand first was joined to a `\r` before it.
        """
        removed = self.measure(start, end, self.unit)
        removed_bytes = removed if self.unit is Unit.UTF_8 else self.measure(start, end, Unit.UTF_8)
        growth = length_in(text, self.unit) - removed
        byte_growth = length_in(text, Unit.UTF_8) - removed_bytes
        self.length += growth
        self.byte_length += byte_growth

        first, low, offset = start
        last, high, end_offset = end
        low_segments, high_segments = self.segments_at(first), self.segments_at(last)
        prefix = low_segments[low][:offset] if offset else ""
        new = prefix + text
        if high < len(high_segments):
            new += high_segments[high][end_offset:]
            high += 1
        if not new or new.endswith("\r"):
            last, high, line_feed = self._take_line_feed(last, high)
            new += line_feed
        is_joined = False
        if new.startswith("\n"):
            first, low, carriage_return = self._take_carriage_return(first, low)
            new = carriage_return + new
            is_joined = bool(carriage_return)

        if first == last and len(new) <= self._layout.block_characters:
            self._replace_segments(first, low, high, new, growth, byte_growth)
        else:
            left, right = self.segments_at(first)[:low], self.segments_at(last)[high:]
            self._replace_blocks(first, last, "".join([*left, new, *right]))
        return is_joined

    def _take_line_feed(self, address: BlockAddress, segment: int) -> tuple[BlockAddress, int, str]:
        r"""Find the segment that follows; if it is a bare `\n`, include it."""
        if segment == len(self.segments_at(address)):
            following = self.blocks.next(address)
            if following is None or not self.blocks.at(following).starts_with_line_feed():
                return address, segment, ""
            address, segment = following, 0
        text = self.segments_at(address)[segment]
        return (address, segment + 1, text) if text.startswith("\n") else (address, segment, "")

    def _take_carriage_return(self, address: BlockAddress, segment: int) -> tuple[BlockAddress, int, str]:
        r"""Find the segment that precedes; if it ends with `\r`, include it."""
        if segment == 0:
            previous = self.blocks.previous(address)
            if previous is None or not self.blocks.at(previous).ends_with_carriage_return():
                return address, segment, ""
            address, segment = previous, len(self.segments_at(previous))
        text = self.segments_at(address)[segment - 1]
        return (address, segment - 1, text) if text.endswith("\r") else (address, segment, "")

    def _replace_segments(
        self, address: BlockAddress, low: int, high: int, new: str, growth: int, byte_growth: int
    ) -> None:
        block = self.blocks.at(address)
        segments = self.segments_at(address)
        new_segments = split_segments(new, self._layout.segment_characters) if new else []
        line_ends = count_line_ends(new) - sum(text.endswith(("\n", "\r")) for text in segments[low:high])
        segments[low:high] = new_segments
        block.length += growth
        block.byte_length += byte_growth
        self._open_lines += len(new_segments) - (high - low)
        if line_ends:
            self.blocks.add_line_ends(address, line_ends)
        block.refresh_shape()
        self._settle(address, block, is_smaller=byte_growth < 0)

    def _settle(self, address: BlockAddress, block: Block, *, is_smaller: bool) -> None:
        """Divide a block that has become large, or join a small one to a neighbour."""
        layout = self._layout
        count = len(block.segments or ())
        characters_max = 2 * layout.block_characters
        if count > 2 * layout.block_lines or (
            # Bytes bound code points from above, and spare counting those each time.
            block.byte_length > characters_max and block.length_in(Unit.UTF_32, self.unit) > characters_max
        ):
            self._replace_blocks(address, address, block.text())
            return
        small_lines, small_bytes = layout.block_lines // 2, layout.block_characters // 2
        if not is_smaller or count > small_lines // 2 or block.byte_length > small_bytes // 2:
            return
        for first, last in (
            (address, self.blocks.next(address)),
            (self.blocks.previous(address), address),
        ):
            if first is None or last is None:
                continue
            one, other = self.blocks.at(first), self.blocks.at(last)
            if count == 0 or (
                one.line_ends + other.line_ends <= small_lines
                and one.byte_length + other.byte_length <= small_bytes
            ):
                self._replace_blocks(first, last, one.text() + other.text())
                return

    def _replace_blocks(self, first: BlockAddress, last: BlockAddress, text: str) -> None:
        for block in self.blocks.between(first, last):
            self._forget_open(block)
        self.blocks.replace(first, last, cut_blocks(text, self.unit, self._layout))
        if not self.byte_length:
            self.blocks = BlockList([Block("", self.unit)], group_blocks=self._layout.group_blocks)

    # Opening and closing blocks

    def segments_at(self, address: BlockAddress) -> list[str]:
        """Return the segments of a block, which is opened if need be."""
        block = self.blocks.at(address)
        segments = block.segments
        if segments is None:
            segments = block.open(self._layout.segment_characters)
            self._open_blocks[block] = None
            self._open_lines += len(segments)
        return segments

    def close_surplus(self) -> None:
        """Close the blocks that were opened first, until few enough lines are open; ends every operation."""
        layout = self._layout
        limit = max(layout.open_lines_min, self.byte_length // layout.bytes_per_open_line)
        while self._open_lines > limit:
            block = next(iter(self._open_blocks))
            self._forget_open(block)
            block.close()

    def _forget_open(self, block: Block) -> None:
        if block.segments is not None:
            del self._open_blocks[block]
            self._open_lines -= len(block.segments)


def _past_line_end(line: int, character: int, length: int, unit: Unit) -> EventRefused:
    return EventRefused(
        ErrorCode.BAD_POSITION,
        f"character {character} is outside line {line}, which has {length} in {unit}",
        expected=length,
    )
