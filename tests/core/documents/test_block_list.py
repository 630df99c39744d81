from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.block_list import BlockAddress, BlockList
from streamctx.core.documents.blocks import Block
from streamctx.vocabulary import Unit

__all__: list[str] = []

COUNTS = st.lists(st.integers(0, 3), max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), COUNTS), max_size=12)


def _blocks(counts: list[int]) -> list[Block]:
    return [Block("x" + "\n" * count, Unit.UTF_16) for count in counts]


def _addresses(blocks: BlockList) -> list[BlockAddress]:
    addresses = []
    address: BlockAddress | None = BlockAddress(0, 0)
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
            blocks.add_line_ends(addresses[low], 2)
            counts[low] += 2

        addresses = _addresses(blocks)
        assert [block.line_ends for block in blocks] == counts
        assert [blocks.at(address).line_ends for address in addresses] == counts
        assert blocks.line_ends == sum(counts)
        expected = [
            (*addresses[number], rank) for number, count in enumerate(counts) for rank in range(1, count + 1)
        ]
        assert [blocks.find_line_end(rank) for rank in range(1, sum(counts) + 1)] == expected
        previous = [blocks.previous(address) for address in addresses]
        assert previous == [None, *addresses[:-1]]
        assert len(list(blocks.between(addresses[0], addresses[-1]))) == len(counts)
