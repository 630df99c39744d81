from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.blocks import Block, Layout, cut_blocks
from streamctx.core.documents.lines import split_lines
from streamctx.vocabulary import Unit
from tests.core.documents.text_model import LAYOUTS, PIECES, size

__all__: list[str] = []

TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


@given(TEXTS, st.sampled_from(LAYOUTS))
def test_blocks_are_bounded_and_cut_neither_characters_nor_line_ends(text: str, layout: Layout) -> None:
    blocks = list(cut_blocks(text.encode(), layout))
    assert "".join(block.data.decode() for block in blocks) == text
    for before, after in itertools.pairwise(blocks):
        assert not (before.data.endswith(b"\r") and after.data.startswith(b"\n"))
    for block in blocks:
        assert 0 < len(block.data) <= layout.block_bytes_max + 1
        assert block.data.count(b"\n") <= layout.block_lines + 1


def test_blocks_end_with_lines_and_only_a_long_one_is_cut() -> None:
    layout = Layout(block_bytes=10, block_bytes_max=20, block_lines=2)
    text = "1\n2\n3\n45678\n" + "x" * 19 + "\n" + "y" * 25 + "\nrest"
    assert [block.data.decode() for block in cut_blocks(text.encode(), layout)] == [
        "1\n2\n",
        "3\n45678\n",
        "x" * 19 + "\n",
        "y" * 10,
        "y" * 15 + "\n",
        "rest",
    ]


@pytest.mark.parametrize("text", ["😀" * 9, "a" + "😀" * 9, "ab" + "é" * 20, "abc" + "中" * 20])
def test_a_character_of_a_long_line_is_not_cut(text: str) -> None:
    blocks = cut_blocks(text.encode(), Layout(block_bytes=1, block_bytes_max=8))
    assert "".join(block.data.decode() for block in blocks) == text


@given(TEXTS, st.sampled_from(Unit))
def test_a_block_has_the_measures_of_its_text(text: str, unit: Unit) -> None:
    block = Block(text.encode())
    assert block.length_in(unit) == size(text, unit)
    lines = split_lines(text + "x")
    starts = [len("".join(lines[:rank]).encode()) for rank in range(len(lines))]
    assert [block.line_start(rank) for rank in range(block.line_ends + 1)] == starts


@given(TEXTS, TEXTS, TEXTS, st.sampled_from(Unit))
def test_a_block_counts_a_change_as_if_it_were_new(
    before: str, removed: str, inserted: str, unit: Unit
) -> None:
    block, expected = Block((before + removed).encode()), Block((before + inserted).encode())
    growth = block.count_change(inserted, removed, unit)
    assert growth == size(inserted, unit) - size(removed, unit)
    assert (block.characters, block.astral_characters) == (expected.characters, expected.astral_characters)


@pytest.mark.parametrize(("block_bytes", "minimum"), [(1, 8), (4, 8), (5, 10)])
def test_a_maximum_that_is_too_low_is_refused(block_bytes: int, minimum: int) -> None:
    Layout(block_bytes=block_bytes, block_bytes_max=minimum)
    with pytest.raises(ValueError, match=f"block_bytes_max is {minimum - 1}, expected {minimum} or more"):
        Layout(block_bytes=block_bytes, block_bytes_max=minimum - 1)
