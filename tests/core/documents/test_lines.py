from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.lines import content_length, count_line_ends, split_lines, split_segments
from streamctx.vocabulary import Unit
from tests.core.documents.text_model import PIECES, positions

__all__: list[str] = []

TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


@given(TEXTS)
def test_lines_start_where_positions_have_character_zero(text: str) -> None:
    starts = [index for (_, character), index in positions(text, Unit.UTF_32).items() if character == 0]
    lines = split_lines(text)
    assert "".join(lines) == text
    assert [len("".join(lines[:number])) for number in range(len(starts))] == starts
    assert count_line_ends(text) == len(starts) - 1


@given(TEXTS)
def test_content_is_a_line_without_its_end(text: str) -> None:
    for line in split_lines(text):
        assert line[content_length(line) :] in {"", "\n", "\r", "\r\n"}
        assert not line[: content_length(line)].endswith(("\n", "\r"))


@given(TEXTS, st.integers(1, 9))
def test_segments_are_lines_or_bounded_parts_of_one(text: str, limit: int) -> None:
    segments = split_segments(text, limit)
    assert "".join(segments) == text
    assert all(len(segment) > 0 and content_length(segment) <= limit for segment in segments)
    whole = split_lines(text)
    ended = [segment for segment in segments if content_length(segment) < len(segment)]
    assert len(ended) == count_line_ends(text)
    assert [line for line in whole if len(line) <= limit] == [
        segment
        for number, segment in enumerate(segments)
        if segment in whole
        and len(segment) <= limit
        and (number == 0 or segments[number - 1].endswith(("\n", "\r")))
        and (segment.endswith(("\n", "\r")) or number == len(segments) - 1)
    ]


def test_a_line_is_divided_evenly() -> None:
    assert list(map(len, split_segments("x" * 17 + "\r\n", 16))) == [9, 10]
