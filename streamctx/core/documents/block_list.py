"""The blocks of a buffer in order, found by the line ends before them.

Blocks are kept in groups, each with the running totals of its line ends, and one
more table runs over the groups. So a lookup is two binary searches, and a change
costs the length of one group and of the list of groups, never that of the document:
a flat table would take milliseconds per inserted line in 50 MB.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate

from streamctx.core.documents.blocks import Block

__all__ = ["Address", "BlockList"]

Address = tuple[int, int]
"""The group of a block and its number there; valid until blocks are replaced. They compare in text order."""


class BlockList:
    """Blocks in order.

    There is always at least one group; a group is empty only if it is the only one.
    Whoever changes the data of a block looks up its line, or the first one of several,
    before; what is known of other lines is then forgotten.
    """

    __slots__ = ("_group_blocks", "_group_totals", "_known_line", "_known_start", "_totals", "groups")

    def __init__(self, blocks: Iterable[Block], *, group_blocks: int) -> None:
        self._group_blocks = group_blocks
        self.groups = self._divide(list(blocks)) or [[]]
        self._totals = [_running_totals(group) for group in self.groups]
        self._group_totals: list[int] = []
        # The line found last, since what comes next is mostly about the same one.
        self._known_line: int | None = None
        self._known_start = 0, 0, 0
        self._sum_groups()

    @property
    def line_ends(self) -> int:
        """All line ends of the text."""
        return self._group_totals[-1]

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
        if not 0 <= line <= self._group_totals[-1]:
            return None
        group = slot = offset = 0
        if line:
            rank = line
            group = bisect_left(self._group_totals, rank)
            if group:
                rank -= self._group_totals[group - 1]
            totals = self._totals[group]
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

    def add_line_ends(self, address: Address, count: int) -> None:
        """Account for line ends that a block has gained, or lost if negative."""
        group, slot = address
        self._known_line = None
        totals = self._totals[group]
        totals[slot:] = [total + count for total in totals[slot:]]
        self._group_totals[group:] = [total + count for total in self._group_totals[group:]]

    def replace(self, first: Address, last: Address, blocks: list[Block]) -> None:
        """Put other blocks in the place of those from `first` to `last`, both included."""
        self._known_line = None
        if first == last and len(blocks) == 1:
            growth = blocks[0].line_ends - self.at(first).line_ends
            self.groups[first[0]][first[1]] = blocks[0]
            if growth:
                self.add_line_ends(first, growth)
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
        self.groups[low : high + 1] = groups
        self._totals[low : high + 1] = [_running_totals(group) for group in groups]
        if not self.groups:
            self.groups, self._totals = [[]], [[]]
        self._sum_groups()

    def _divide(self, blocks: list[Block]) -> list[list[Block]]:
        size = self._group_blocks
        return [blocks[start : start + size] for start in range(0, len(blocks), size)]

    def _sum_groups(self) -> None:
        self._group_totals = list(accumulate(totals[-1] if totals else 0 for totals in self._totals))


def _running_totals(group: list[Block]) -> list[int]:
    return list(accumulate(block.line_ends for block in group))
