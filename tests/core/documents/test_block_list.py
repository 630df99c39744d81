from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.block_list import Address, BlockList
from streamctx.core.documents.blocks import Block
from streamctx.vocabulary import Unit

__all__: list[str] = []

COUNTS = st.lists(st.integers(0, 3), max_size=6)
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), COUNTS), max_size=12)


def _blocks(counts: list[int]) -> list[Block]:
    return [Block("😀é"[: count % 3].encode() + b"x" + b"\n" * count) for count in counts]


def _addresses(blocks: BlockList) -> list[Address]:
    addresses = []
    address: Address | None = (0, 0)
    while address is not None:
        addresses.append(address)
        address = blocks.next(address)
    return addresses


def _change(
    blocks: BlockList, counts: list[int], low: int, high: int, replacement: list[int]
) -> list[Address]:
    """Replace blocks, or let one grow if nothing would be left; return the addresses then."""
    addresses = _addresses(blocks)
    if replacement or high - low + 1 < len(counts):
        blocks.replace(addresses[low], addresses[high], _blocks(replacement))
        counts[low : high + 1] = replacement
    else:
        block = blocks.at(addresses[low])
        block.data += b"\n\n"
        block.line_ends += 2
        block.characters += 2
        blocks.add_line_ends(addresses[low], 2)
        blocks.remeasure(addresses[low])
        counts[low] += 2
    return _addresses(blocks)


@given(COUNTS.filter(bool), STEPS, st.integers(1, 4))
def test_it_behaves_like_a_list(
    counts: list[int], steps: list[tuple[int, int, list[int]]], size: int
) -> None:
    blocks = BlockList(_blocks(counts), group_blocks=size, walk_blocks=8)
    for one, other, replacement in steps:
        low, high = sorted((one % len(counts), other % len(counts)))
        addresses = _change(blocks, counts, low, high, replacement)
        assert [block.line_ends for block in blocks] == counts
        assert [blocks.at(address).line_ends for address in addresses] == counts
        assert blocks.line_ends == sum(counts)
        # The first block starts the text; line ends are the last characters of their blocks.
        starts = [(*addresses[0], 0)]
        ends: list[Address] = []
        for address, following in zip(addresses, [*addresses[1:], None], strict=True):
            block = blocks.at(address)
            count, size_bytes = block.line_ends, len(block.data)
            starts += [(*address, size_bytes - count + rank + 1) for rank in range(count)]
            ends += [address] * count
            if count and following is not None:
                starts[-1] = *following, 0
        assert [blocks.line_start(line) for line in range(-1, len(starts) + 1)] == [None, *starts, None]
        assert [blocks.line_end(line) for line in range(len(starts))] == [*ends, addresses[-1]]
        previous = [blocks.previous(address) for address in addresses]
        assert previous == [None, *addresses[:-1]]
        assert len(list(blocks.between(addresses[0], addresses[-1]))) == len(counts)


@given(COUNTS.filter(bool), STEPS, st.integers(1, 4), st.integers(0, 4), st.sampled_from(Unit))
def test_lengths_are_those_of_the_blocks_between(
    counts: list[int], steps: list[tuple[int, int, list[int]]], size: int, walk: int, unit: Unit
) -> None:
    blocks = BlockList(_blocks(counts), group_blocks=size, walk_blocks=walk)
    for one, other, replacement in steps:
        low, high = sorted((one % len(counts), other % len(counts)))
        addresses = _change(blocks, counts, low, high, replacement)
        lengths = [block.length_in(unit) for block in blocks]
        low = min(low, len(addresses) - 1)
        for stop in range(low, len(addresses)):
            first, last = addresses[low], addresses[stop]
            assert blocks.length_between(first, last, unit) == sum(lengths[low:stop])
            totals = list(itertools.accumulate(lengths[low:stop]))
            for amount in range(sum(lengths[low:]) + 2):
                passed = [total for total in totals if total < amount]
                reached = addresses[low + len(passed)], passed[-1] if passed else 0
                assert blocks.reach(first, last, amount, unit) == reached
