"""Changes found between two texts lead from one to the other, wherever positions are strict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.cli.text_diff import changes_between
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

TEXTS = st.text(alphabet="ab\r\n\u2028é🙂", max_size=30)


def applied(old: str, changes: tuple[Change, ...], unit: Unit) -> str:
    buffer = TextBuffer(old, unit=unit)
    if changes:
        buffer.apply(changes, simultaneous=True)
    return buffer.text()


@given(old=TEXTS, new=TEXTS, unit=st.sampled_from(Unit))
def test_changes_lead_from_old_to_new(old: str, new: str, unit: Unit) -> None:
    assert applied(old, changes_between(old, new, unit), unit) == new


@given(
    lines=st.lists(st.sampled_from(["a\n", "b\r\n", "\r", "c🙂\n", "\n"]), max_size=12),
    edits=st.lists(st.tuples(st.integers(0, 11), st.sampled_from(["", "x\n", "y\r", "\n"])), max_size=4),
)
def test_changed_lines_lead_from_old_to_new(lines: list[str], edits: list[tuple[int, str]]) -> None:
    changed = list(lines)
    for index, line in edits:
        changed[index : index + 1] = [line]
    old, new = "".join(lines), "".join(changed)
    assert applied(old, changes_between(old, new), Unit.UTF_16) == new


def test_equal_texts_have_no_change_between() -> None:
    assert changes_between("a\n", "a\n") == ()


def test_two_places_are_two_small_changes() -> None:
    old = "".join(f"line {number}\n" for number in range(100))
    new = old.replace("line 7\n", "line seven\n").replace("line 90\n", "")
    assert changes_between(old, new) == (Change(7, 5, 7, 6, "seven"), Change(90, 0, 91, 0, ""))


@pytest.mark.parametrize("unit", list(Unit))
def test_characters_count_in_the_unit(unit: Unit) -> None:
    width = {Unit.UTF_16: 2, Unit.UTF_8: 4, Unit.UTF_32: 1}[unit]
    assert changes_between("🙂a", "🙂b", unit) == (Change(0, width, 0, width + 1, "b"),)


@pytest.mark.parametrize("count", [1000, 1001])
def test_texts_of_many_different_lines_are_changed_too(count: int) -> None:
    old = "".join(f"old {number}\n" for number in range(count))
    new = "".join(f"new {number} {number % 7}\n" for number in range(count))
    assert applied(old, changes_between(old, new), Unit.UTF_16) == new
