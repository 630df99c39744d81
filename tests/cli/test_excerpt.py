"""Places are marked below the text, under the right columns."""

from __future__ import annotations

import pytest

from streamctx.cli.excerpt import Mark, excerpt
from streamctx.vocabulary import Unit

TEXT = "".join(f"line {number}\n" for number in range(1, 13))


def cursor(line: int, character: int) -> Mark:
    return Mark((line, character), (line, character))


def show(text: str, *marks: Mark, around: int = 0, unit: Unit = Unit.UTF_16) -> list[str]:
    return excerpt(text, marks, unit=unit, around=around)


def test_cursor_stands_below_its_character() -> None:
    assert show(TEXT, cursor(2, 5)) == ["3 | line 3", "  |      ^"]


def test_cursor_can_be_after_the_last_character() -> None:
    assert show("ab", cursor(0, 2)) == ["1 | ab", "  |   ^"]


def test_cursor_can_be_on_the_empty_last_line() -> None:
    assert show("ab\n", cursor(1, 0)) == ["2 |", "  | ^"]


def test_cursor_can_be_in_an_empty_text() -> None:
    assert show("", cursor(0, 0)) == ["1 |", "  | ^"]


def test_selection_is_underlined_with_the_cursor_at_its_end() -> None:
    marks = (Mark.of_span((1, 4, 0, 2)), cursor(0, 2))
    assert show("abcd\nefgh\n", *marks) == ["1 | abcd", "  |   ^~", "2 | efgh", "  | ~~~~"]


def test_lines_around_are_shown_and_numbers_aligned() -> None:
    assert show(TEXT, cursor(9, 0), around=1) == [" 9 | line 9", "10 | line 10", "   | ^", "11 | line 11"]


def test_what_lies_between_is_left_out() -> None:
    assert show(TEXT, cursor(0, 0), cursor(11, 0)) == [
        " 1 | line 1",
        "   | ^",
        " …",
        "12 | line 12",
        "   | ^",
    ]


@pytest.mark.parametrize(("unit", "character"), [(Unit.UTF_16, 3), (Unit.UTF_8, 6), (Unit.UTF_32, 2)])
def test_columns_follow_the_unit_and_the_width_of_characters(unit: Unit, character: int) -> None:
    assert show("é🙂x", cursor(0, character), unit=unit) == ["1 | é🙂x", "  |    ^"]


def test_tabs_are_widened_for_the_marks_to_fit() -> None:
    assert show("\tab", cursor(0, 2)) == ["1 |     ab", "  |      ^"]


def test_long_line_is_cut_around_the_place() -> None:
    shown, below = show("x" * 500 + "HERE" + "y" * 500, Mark((0, 500), (0, 504)))
    assert len(shown) < 120
    place = shown.index("HERE")
    assert below[place : place + 4] == "~~~~"
    assert shown.startswith("1 | …")
    assert shown.endswith("…")


@pytest.mark.parametrize("place", [(99, 0), (0, 99)])
def test_place_outside_the_text_does_no_harm(place: tuple[int, int]) -> None:
    assert len(show("ab", cursor(*place))) in (0, 2)


def test_place_inside_a_character_is_before_it() -> None:
    assert show("🙂", cursor(0, 1)) == ["1 | 🙂", "  | ^"]


def test_many_places_show_a_bounded_number_of_lines() -> None:
    text = "x\n" * 1000
    assert len(show(text, *(cursor(line, 0) for line in range(1000)))) == 80


def test_text_without_places_shows_its_first_lines() -> None:
    assert show(TEXT, around=2) == ["1 | line 1", "2 | line 2", "3 | line 3", "4 | line 4"]


def test_escape_sequences_cannot_act() -> None:
    assert show("\x1b[2J", cursor(0, 0)) == ["1 | ␛[2J", "  | ^"]
