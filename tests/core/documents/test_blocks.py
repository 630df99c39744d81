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


@given(TEXTS, st.sampled_from(LAYOUTS), st.sampled_from(Unit))
def test_blocks_are_bounded_and_cut_neither_line_ends_nor_short_lines(
    text: str, layout: Layout, unit: Unit
) -> None:
    texts = [block.text() for block in cut_blocks(text, unit, layout)]
    assert "".join(texts) == text
    for before, after in itertools.pairwise(texts):
        assert not (before.endswith("\r") and after.startswith("\n"))
    for block in texts:
        assert len(split_lines(block)) <= layout.block_lines + 1
        assert len(block) <= layout.block_characters + layout.segment_characters + 1


def test_a_line_that_fits_one_segment_is_in_one_block() -> None:
    layout = Layout(block_lines=9, block_characters=10, segment_characters=8)
    texts = [block.text() for block in cut_blocks("12345\n1234567\n123\n" + "x" * 25, Unit.UTF_16, layout)]
    assert texts == ["12345\n", "1234567\n", "123\n", "x" * 10, "x" * 10, "x" * 5]


@given(TEXTS, st.sampled_from(Unit), st.sampled_from(Unit), st.integers(1, 9))
def test_a_block_has_the_same_measures_open_and_closed(
    text: str, unit: Unit, other: Unit, limit: int
) -> None:
    block = Block(text, unit)
    closed = (block.text(), block.encoded(), block.length_in(other, unit), block.line_ends)
    assert "".join(block.open(limit)) == text
    assert (block.text(), block.encoded(), block.length_in(other, unit), block.line_ends) == closed
    block.close()
    assert (block.text(), block.encoded(), block.length_in(other, unit), block.line_ends) == closed
    assert closed == (text, text.encode(), size(text, other), len(split_lines(text + "x")) - 1)


@pytest.mark.parametrize(("text", "is_plain"), [("a\nb", True), ("abcd\n", False), ("a\nbbbb", False)])
def test_a_block_is_plain_if_only_its_last_segment_may_lack_a_line_end(text: str, is_plain: bool) -> None:
    block = Block(text, Unit.UTF_16)
    block.open(3)
    assert block.is_plain is is_plain


def test_a_segment_that_fits_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="segment_characters is 11, expected 1 to block_characters, 10"):
        Layout(block_characters=10, segment_characters=11)
