from __future__ import annotations

from dataclasses import replace

import pytest

from streamctx.core.documents.parts import PART_CHARACTERS, cut, part_characters, part_count
from streamctx.limits import DEFAULT_LIMITS

__all__: list[str] = []


@pytest.mark.parametrize("length", [1, PART_CHARACTERS - 1, PART_CHARACTERS, PART_CHARACTERS + 1, 100_000])
@pytest.mark.parametrize("character", ["x", "é", "😀", "\x01"])
def test_the_parts_of_a_text_are_the_text_and_each_fits_its_limit(length: int, character: str) -> None:
    text = character * length
    parts = list(cut(text))
    assert len(parts) == part_count(text)
    assert "".join(parts) == text
    assert all(len(part.encode()) <= DEFAULT_LIMITS.part_text_bytes_max for part in parts)


def test_parts_are_as_short_as_asked_for() -> None:
    assert list(cut("abcde", 2)) == ["ab", "cd", "e"]
    assert part_count("abcde", 2) == 3


@pytest.mark.parametrize(
    ("part_text_bytes", "frame_bytes", "characters"),
    [
        (65_536, 262_144, PART_CHARACTERS),
        (65_535, 262_144, PART_CHARACTERS - 1),
        (400, 262_144, 100),
        (4_000, 4_096, 512),
        (2, 3, 1),
    ],
)
def test_a_message_carries_no_more_than_part_and_frame_surely_take(
    part_text_bytes: int, frame_bytes: int, characters: int
) -> None:
    limits = replace(DEFAULT_LIMITS, part_text_bytes_max=part_text_bytes, frame_bytes_max=frame_bytes)
    assert part_characters(limits) == characters
