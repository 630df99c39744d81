from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.line_edit import edited_line
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from tests.core.documents.text_model import PIECES, Refused, apply_to_model, positions, size

__all__: list[str] = []

INLINE = [piece for piece in PIECES if not {"\n", "\r"} & set(piece)]
CONTENT = st.lists(st.sampled_from(INLINE), max_size=4).map("".join)


@given(CONTENT, st.sampled_from(["", "\n", "\r\n", "\r"]), CONTENT, st.sampled_from(Unit))
def test_exactly_the_changes_of_the_model_are_made(
    content: str, line_end: str, inserted: str, unit: Unit
) -> None:
    line = content + line_end
    limit = size(line, unit) + 1
    table = positions(line, unit)
    for start in range(limit):
        for end in range(limit):
            change = Change(0, start, 0, end, inserted)
            try:
                expected = apply_to_model(line, [change], unit, simultaneous=False)
            except Refused:
                assert edited_line(line, change, unit) is None
            else:
                assert edited_line(line, change, unit) == (expected, line[table[0, start] : table[0, end]])


def test_a_surrogate_and_a_wrong_old_length_are_left_to_others() -> None:
    assert edited_line("é", Change(0, 0, 0, 1, "\ud800"), Unit.UTF_32) is None
    assert edited_line("é", Change(0, 0, 0, 1, "", 2), Unit.UTF_16) is None
    assert edited_line("é", Change(0, 0, 0, 1, "", 2), Unit.UTF_8) is None
