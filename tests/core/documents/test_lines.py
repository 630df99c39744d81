from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.lines import LINE_END, content_length, line_end_in, split_lines
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
    assert len(LINE_END.findall(text.encode())) == len(starts) - 1


@given(TEXTS)
def test_content_is_a_line_without_its_end(text: str) -> None:
    for line in split_lines(text):
        assert line[content_length(line) :] in {"", "\n", "\r", "\r\n"}
        assert not line[: content_length(line)].endswith(("\n", "\r"))


@given(TEXTS, st.integers(0, 20), st.integers(0, 20))
def test_the_end_of_a_line_is_found_between_two_offsets(text: str, start: int, length: int) -> None:
    data = text.encode()
    start = min(start, len(data))
    stop = min(start + length, len(data))
    found = LINE_END.search(data, start, stop)
    assert line_end_in(data, start, stop) == (stop if found is None else found.start())
