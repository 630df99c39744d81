"""The blocks of a buffer in order, found by the line ends or the length before them.

Blocks are kept in groups, as `RunningTotals` are. Those of line ends are always there. Those
of lengths are made when a stretch of many blocks is first measured: texts without a long line
do without them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from streamctx.core.documents.blocks import Block
from streamctx.core.documents.running_totals import Address, RunningTotals
from streamctx.vocabulary import Unit

__all__ = ["Address", "BlockList"]


class BlockList:
    """Blocks in order.

    There is always at least one group; a group is empty only if it is the only one.
    Whoever changes the data of a block looks up its line, or the first one of several,
    before; what is known of other lines is then forgotten. `lengths` are running totals
    of the lengths in a unit; whoever changes the data of a block while there are any calls
    `remeasure`.
    """

    __slots__ = (
        "_group_blocks",
        "_known_line",
        "_known_start",
        "_line_ends",
        "_walk_blocks",
        "groups",
        "lengths",
    )

    def __init__(self, blocks: Iterable[Block], *, group_blocks: int, walk_blocks: int) -> None:
        self._group_blocks = group_blocks
        self._walk_blocks = walk_blocks
        self.groups = self._divide(list(blocks)) or [[]]
        self._line_ends = RunningTotals(map(_line_ends, self.groups))
        self.lengths: dict[Unit, RunningTotals] = {}
        # The line found last, since what comes next is mostly about the same one.
        self._known_line: int | None = None
        self._known_start = 0, 0, 0

    @property
    def line_ends(self) -> int:
        """All line ends of the text."""
        return self._line_ends.group_totals[-1]

    def __iter__(self) -> Iterator[Block]:
        for group in self.groups:
            yield from group

    def at(self, address: Address) -> Block:
        """Return the block at an address."""
        return self.groups[address[0]][address[1]]

    def line_start(self, line: int) -> tuple[int, int, int] | None:
        """Find where a line starts.

        Returns:
            The two parts of the address of its block and the offset there, which may be at
            the end of the last block; or `None` if there is no such line.
        """
        if line == self._known_line:
            return self._known_start
        group_totals = self._line_ends.group_totals
        if not 0 <= line <= group_totals[-1]:
            return None
        group = slot = offset = 0
        if line:
            # As `reach` and `before` have it; a call of each takes as long as the searches.
            rank = line
            group = bisect_left(group_totals, rank)
            if group:
                rank -= group_totals[group - 1]
            totals = self._line_ends.totals[group]
            slot = bisect_left(totals, rank)
            if slot:
                rank -= totals[slot - 1]
            blocks = self.groups[group]
            offset = blocks[slot].line_start(rank)
            if offset == len(blocks[slot].data):
                following = self.next((group, slot))
                if following is not None:
                    group, slot = following
                    offset = 0
        self._known_line = line
        self._known_start = start = group, slot, offset
        return start

    def line_end(self, line: int) -> Address:
        """Return the address of the block where an existing line ends: the last of all, if it has no end."""
        if line < self.line_ends:
            return self._line_ends.reach(line + 1)
        return len(self.groups) - 1, len(self.groups[-1]) - 1

    def next(self, address: Address) -> Address | None:
        """Return the address of the following block, or `None` at the end."""
        group, slot = address
        if slot + 1 < len(self.groups[group]):
            return group, slot + 1
        return (group + 1, 0) if group + 1 < len(self.groups) else None

    def previous(self, address: Address) -> Address | None:
        """Return the address of the preceding block, or `None` at the start."""
        group, slot = address
        if slot:
            return group, slot - 1
        return (group - 1, len(self.groups[group - 1]) - 1) if group else None

    def between(self, first: Address, last: Address) -> Iterator[Block]:
        """Iterate over the blocks from one address to another, both included."""
        address: Address | None = first
        while address is not None and address <= last:
            yield self.at(address)
            address = self.next(address)

    # Lengths

    def reach(self, first: Address, last: Address, amount: int, unit: Unit) -> tuple[Address, int]:
        """Find the block with which the length of the blocks from `first` on reaches an amount.

        Returns:
            Its address, or `last` if all before that have less, and the length of those before it.
        """
        if self._is_far(first, last):
            lengths = self._lengths_in(unit)
            start = lengths.before(first)
            address = min(lengths.reach(start + amount), last) if amount > 0 else first
            return address, lengths.before(address) - start
        passed = 0
        address = first
        for block in self.between(first, last):
            length = block.length_in(unit)
            if address == last or passed + length >= amount:
                break
            passed += length
            address = self.next(address) or last
        return address, passed

    def length_between(self, first: Address, last: Address, unit: Unit) -> int:
        """Return the length of the blocks from one to another, which is not included."""
        if self._is_far(first, last):
            lengths = self._lengths_in(unit)
            return lengths.before(last) - lengths.before(first)
        blocks = self.between(first, last)
        return sum(block.length_in(unit) for block in blocks) - self.at(last).length_in(unit)

    def remeasure(self, address: Address) -> None:
        """Account for the length of a block whose data has changed."""
        block = self.at(address)
        for unit, lengths in self.lengths.items():
            lengths.add(address, block.length_in(unit) - lengths.at(address))

    def _is_far(self, first: Address, last: Address) -> bool:
        """Tell whether there are more blocks between two than should be passed one by one."""
        count = last[1] - first[1]
        if last[0] != first[0]:
            if last[0] > first[0] + 1:
                return True
            count += len(self.groups[first[0]])
        return count > self._walk_blocks

    def _lengths_in(self, unit: Unit) -> RunningTotals:
        lengths = self.lengths.get(unit)
        if lengths is None:
            lengths = self.lengths[unit] = RunningTotals(_lengths(group, unit) for group in self.groups)
        return lengths

    # Changing

    def add_line_ends(self, address: Address, count: int) -> None:
        """Account for line ends that a block has gained, or lost if negative."""
        self._known_line = None
        self._line_ends.add(address, count)

    def replace(self, first: Address, last: Address, blocks: list[Block]) -> None:
        """Put other blocks in the place of those from `first` to `last`, both included."""
        self._known_line = None
        if first == last and len(blocks) == 1:
            growth = blocks[0].line_ends - self.at(first).line_ends
            self.groups[first[0]][first[1]] = blocks[0]
            if growth:
                self.add_line_ends(first, growth)
            if self.lengths:
                self.remeasure(first)
            return
        low, high = first[0], last[0]
        kept = [*self.groups[low][: first[1]], *blocks, *self.groups[high][last[1] + 1 :]]
        if len(kept) < self._group_blocks and high + 1 < len(self.groups):
            # Small groups are joined, or their number would come to be that of the blocks.
            following = self.groups[high + 1]
            if len(kept) + len(following) <= self._group_blocks:
                kept += following
                high += 1
        groups = [kept] if 0 < len(kept) <= 2 * self._group_blocks else self._divide(kept)
        if not groups and high - low + 1 == len(self.groups):
            groups = [[]]
        self.groups[low : high + 1] = groups
        self._line_ends.replace(low, high + 1, map(_line_ends, groups))
        for unit, lengths in self.lengths.items():
            lengths.replace(low, high + 1, [_lengths(group, unit) for group in groups])

    def _divide(self, blocks: list[Block]) -> list[list[Block]]:
        size = self._group_blocks
        return [blocks[start : start + size] for start in range(0, len(blocks), size)]


def _line_ends(group: list[Block]) -> Iterator[int]:
    return (block.line_ends for block in group)


def _lengths(group: list[Block], unit: Unit) -> Iterator[int]:
    return (block.length_in(unit) for block in group)
