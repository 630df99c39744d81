from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.units import byte_index, character_index, length_in, well_formed
from streamctx.vocabulary import Unit
from tests.core.documents.text_model import PIECES, size

__all__: list[str] = []

TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


@given(TEXTS, st.sampled_from(Unit))
def test_length_is_that_of_the_characters_one_by_one(text: str, unit: Unit) -> None:
    assert length_in(text, unit) == size(text, unit)


@given(TEXTS, st.sampled_from(Unit))
def test_an_offset_has_an_index_exactly_at_the_start_of_a_character(text: str, unit: Unit) -> None:
    starts = {size(text[:index], unit): index for index in range(len(text) + 1)}
    for character in range(size(text, unit) + 1):
        assert character_index(text, character, unit) == starts.get(character)


@given(TEXTS, st.sampled_from(Unit))
def test_an_offset_has_an_index_of_utf_8_exactly_at_the_start_of_a_character(text: str, unit: Unit) -> None:
    starts = {size(text[:index], unit): len(text[:index].encode()) for index in range(len(text) + 1)}
    for character in range(-2, size(text, unit) + 3):
        assert byte_index(text.encode(), character, unit) == starts.get(character)


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("text", ["ab", "é😀"])
@pytest.mark.parametrize("beyond", [-1, 1])
def test_an_offset_outside_the_text_is_an_error(text: str, unit: Unit, beyond: int) -> None:
    character = -1 if beyond < 0 else size(text, unit) + 1
    with pytest.raises(ValueError, match=f"offset {character} is outside"):
        character_index(text, character, unit)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", "abc"),
        ("é😀", "é😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00a", "\ufffda"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\n\ude00", "\ufffd\n\ufffd"),
    ],
    ids=ascii,
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@given(st.text(st.sampled_from("a\n\ud83d\ude00😀\ufffd")))
def test_a_well_formed_text_keeps_its_utf_16_length_and_stays_as_it_is(text: str) -> None:
    result = well_formed(text)
    assert size(result, Unit.UTF_16) == size(text, Unit.UTF_16)
    assert well_formed(result) is result
