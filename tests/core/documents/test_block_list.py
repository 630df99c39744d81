from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.block_list import Address, BlockList
from streamctx.core.documents.blocks import Block

__all__: list[str] = []

COUNTS = st.lists(st.integers(0, 3), max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), COUNTS), max_size=12)


def _blocks(counts: list[int]) -> list[Block]:
    return [Block(b"x" + b"\n" * count) for count in counts]


def _addresses(blocks: BlockList) -> list[Address]:
    addresses = []
    address: Address | None = (0, 0)
    while address is not None:
        addresses.append(address)
        address = blocks.next(address)
    return addresses


@given(COUNTS.filter(bool), STEPS, st.integers(1, 4))
def test_it_behaves_like_a_list(
    counts: list[int], steps: list[tuple[int, int, list[int]]], size: int
) -> None:
    blocks = BlockList(_blocks(counts), group_blocks=size)
    for one, other, replacement in steps:
        addresses = _addresses(blocks)
        low, high = sorted((one % len(counts), other % len(counts)))
        if replacement or high - low + 1 < len(counts):
            blocks.replace(addresses[low], addresses[high], _blocks(replacement))
            counts[low : high + 1] = replacement
        else:
            block = blocks.at(addresses[low])
            block.data += b"\n\n"
            block.line_ends += 2
            blocks.add_line_ends(addresses[low], 2)
            counts[low] += 2

        addresses = _addresses(blocks)
        assert [block.line_ends for block in blocks] == counts
        assert [blocks.at(address).line_ends for address in addresses] == counts
        assert blocks.line_ends == sum(counts)
        # The first block starts the text; line ends are the last characters of their blocks.
        starts = [(*addresses[0], 0)]
        for address, following in zip(addresses, [*addresses[1:], None], strict=True):
            count = blocks.at(address).line_ends
            starts += [(*address, rank + 1) for rank in range(1, count + 1)]
            if count and following is not None:
                starts[-1] = *following, 0
        assert [blocks.line_start(line) for line in range(-1, len(starts) + 1)] == [None, *starts, None]
        previous = [blocks.previous(address) for address in addresses]
        assert previous == [None, *addresses[:-1]]
        assert len(list(blocks.between(addresses[0], addresses[-1]))) == len(counts)
