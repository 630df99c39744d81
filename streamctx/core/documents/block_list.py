"""The blocks of a buffer in order, found by the line ends before them.

Blocks are kept in groups, each with the running totals of its line ends, and one
more table runs over the groups. So a lookup is two binary searches, and a change
costs the length of one group and of the list of groups, never that of the document:
a flat table would take milliseconds per inserted line in 50 MB of short lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from streamctx.core.documents.blocks import Block

__all__ = ["BlockAddress", "BlockList"]


class BlockAddress(NamedTuple):
    """Where a block is; valid until blocks are replaced. Addresses compare in text order."""

    group: int
    slot: int


class BlockList:
    """Blocks in order. There is always at least one group; a group is empty only if it is the only one."""

    __slots__ = ("_group_blocks", "_group_totals", "_groups", "_totals")

    def __init__(self, blocks: Iterable[Block], *, group_blocks: int) -> None:
        self._group_blocks = group_blocks
        self._groups = self._divide(list(blocks)) or [[]]
        self._totals = [_running_totals(group) for group in self._groups]
        self._group_totals: list[int] = []
        self._sum_groups()

    @property
    def line_ends(self) -> int:
        """All line ends of the text."""
        return self._group_totals[-1]

    def __iter__(self) -> Iterator[Block]:
        for group in self._groups:
            yield from group

    def at(self, address: BlockAddress) -> Block:
        """Return the block at an address."""
        return self._groups[address[0]][address[1]]

    def find_line_end(self, rank: int) -> tuple[int, int, int]:
        """Find the block that holds a line end.

        Args:
            rank: Which line end of the text, from 1 to `line_ends`.

        Returns:
            The two parts of the block's address, and the rank within the block.
        """
        group = bisect_left(self._group_totals, rank)
        if group:
            rank -= self._group_totals[group - 1]
        totals = self._totals[group]
        slot = bisect_left(totals, rank)
        return group, slot, rank - totals[slot - 1] if slot else rank

    def find_line(self, line: int) -> tuple[Block, int] | None:
        """Find the block with the line end before a line, quickly: every keystroke needs it.

        Returns:
            The block, and how many of its line ends are before the line, or `None`
            if there is no such line.
        """
        if line == 0:
            return self._groups[0][0], 0
        if line > self._group_totals[-1]:
            return None
        group = bisect_left(self._group_totals, line)
        if group:
            line -= self._group_totals[group - 1]
        totals = self._totals[group]
        slot = bisect_left(totals, line)
        return self._groups[group][slot], line - totals[slot - 1] if slot else line

    def next(self, address: BlockAddress) -> BlockAddress | None:
        """Return the address of the following block, or `None` at the end."""
        group, slot = address
        if slot + 1 < len(self._groups[group]):
            return BlockAddress(group, slot + 1)
        return BlockAddress(group + 1, 0) if group + 1 < len(self._groups) else None

    def previous(self, address: BlockAddress) -> BlockAddress | None:
        """Return the address of the preceding block, or `None` at the start."""
        group, slot = address
        if slot:
            return BlockAddress(group, slot - 1)
        return BlockAddress(group - 1, len(self._groups[group - 1]) - 1) if group else None

    def between(self, first: BlockAddress, last: BlockAddress) -> Iterator[Block]:
        """Iterate over the blocks from one address to another, both included."""
        address: BlockAddress | None = first
        while address is not None and address <= last:
            yield self.at(address)
            address = self.next(address)

    def add_line_ends(self, address: BlockAddress, count: int) -> None:
        """Account for line ends that a block has gained, or lost if negative."""
        group, slot = address
        self.at(address).line_ends += count
        totals = self._totals[group]
        totals[slot:] = [total + count for total in totals[slot:]]
        self._group_totals[group:] = [total + count for total in self._group_totals[group:]]

    def replace(self, first: BlockAddress, last: BlockAddress, blocks: Iterable[Block]) -> None:
        """Put other blocks in the place of those from `first` to `last`, both included."""
        low, high = first.group, last.group
        kept = [*self._groups[low][: first.slot], *blocks, *self._groups[high][last.slot + 1 :]]
        if len(kept) < self._group_blocks and high + 1 < len(self._groups):
            # Small groups are joined, or their number would come to be that of the blocks.
            following = self._groups[high + 1]
            if len(kept) + len(following) <= self._group_blocks:
                kept += following
                high += 1
        groups = [kept] if 0 < len(kept) <= 2 * self._group_blocks else self._divide(kept)
        self._groups[low : high + 1] = groups
        self._totals[low : high + 1] = [_running_totals(group) for group in groups]
        if not self._groups:
            self._groups, self._totals = [[]], [[]]
        self._sum_groups()

    def _divide(self, blocks: list[Block]) -> list[list[Block]]:
        size = self._group_blocks
        return [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def _sum_groups(self) -> None:
        self._group_totals = list(accumulate(totals[-1] if totals else 0 for totals in self._totals))


def _running_totals(group: list[Block]) -> list[int]:
    return list(accumulate(block.line_ends for block in group))
