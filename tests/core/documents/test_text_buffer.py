from __future__ import annotations

import tracemalloc

import pytest

from streamctx.core.documents.blocks import Layout
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from tests.core.documents.text_model import LAYOUTS, refusal_of, state

__all__: list[str] = []


def test_an_empty_text_has_one_empty_line() -> None:
    buffer = TextBuffer()
    assert state(buffer) == ("", 0, 0, 1, [""])
    assert buffer.unit is Unit.UTF_16


def test_a_final_line_end_is_followed_by_an_empty_line() -> None:
    assert state(TextBuffer("a\n")) == ("a\n", 2, 2, 2, ["a\n", ""])


@pytest.mark.parametrize("character", ["\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\0"])
def test_what_other_splitters_take_for_a_line_end_is_none(character: str) -> None:
    assert TextBuffer(f"a{character}b").line_count == 1


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_each_line_end_is_one(line_end: str) -> None:
    buffer = TextBuffer(f"a{line_end}b")
    assert (buffer.line(0), buffer.line(1)) == (f"a{line_end}", "b")


@pytest.mark.parametrize("index", [-1, 2])
def test_a_line_that_is_not_there_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"line {index} is outside a text of 2 lines"):
        TextBuffer("a\nb").line(index)


@pytest.mark.parametrize(
    ("unit", "length"), [(Unit.UTF_16, 4), (Unit.UTF_8, 7), (Unit.UTF_32, 3)], ids=lambda value: str(value)
)
def test_length_is_in_the_unit_and_byte_length_is_not(unit: Unit, length: int) -> None:
    buffer = TextBuffer("é", unit=unit)
    buffer.apply([Change(0, 0, 0, 0, "😀a")])
    assert (buffer.length, buffer.byte_length) == (length, 7)


@pytest.mark.parametrize(
    ("unit", "inside"),
    [(Unit.UTF_16, [2]), (Unit.UTF_8, [2, 3, 4]), (Unit.UTF_32, [])],
    ids=str,
)
def test_a_position_inside_a_character_is_refused(unit: Unit, inside: list[int]) -> None:
    buffer = TextBuffer("x😀", unit=unit)
    refused = []
    for character in range(buffer.length + 1):
        try:
            buffer.check_position(0, character)
        except EventRefused as refusal:
            assert refusal.code is ErrorCode.BAD_POSITION
            refused.append(character)
    assert refused == inside


def test_a_position_between_carriage_return_and_line_feed_is_refused() -> None:
    buffer = TextBuffer("ab\r\ncd")
    buffer.check_position(0, 2)
    with pytest.raises(EventRefused) as caught:
        buffer.check_position(0, 3)
    assert caught.value.expected == 2
    assert caught.value.message == "character 3 is outside line 0, which has 2 in utf-16"


def test_a_line_past_the_end_is_refused() -> None:
    refusal = refusal_of(TextBuffer("a\nb"), [Change(0, 0, 2, 0, "")])
    assert (refusal.code, refusal.change_index, refusal.expected) == (ErrorCode.BAD_POSITION, 0, 1)
    assert refusal.message == "line 2 is outside a text of 2 lines"


def test_a_range_that_ends_before_its_start_is_refused() -> None:
    assert refusal_of(TextBuffer("abc"), [Change(0, 2, 0, 1, "")]).code is ErrorCode.BAD_CHANGE


def test_a_wrong_old_length_is_refused_with_the_right_one() -> None:
    refusal = refusal_of(TextBuffer("a😀b"), [Change(0, 1, 0, 3, "", 1)])
    assert (refusal.code, refusal.expected) == (ErrorCode.OLD_LENGTH_MISMATCH, 2)


@pytest.mark.parametrize("text", ["\ud83d", "a\ude00", "\ud83d\ude00"])
def test_a_surrogate_is_refused_at_opening_and_in_a_change(text: str) -> None:
    with pytest.raises(EventRefused) as caught:
        TextBuffer(text)
    assert caught.value.code is ErrorCode.BAD_TEXT
    assert refusal_of(TextBuffer("a"), [Change(0, 0, 0, 0, text)]).code is ErrorCode.BAD_TEXT


def test_a_refusal_tells_nothing_of_the_text() -> None:
    batches = [
        [Change(0, 0, 0, 99, "hidden")],
        [Change(0, 0, 0, 6, "hidden", 3)],
        [Change(0, 6, 0, 0, "hidden")],
        [Change(0, 0, 0, 0, "hidden\ud800")],
    ]
    for batch in batches:
        refusal = refusal_of(TextBuffer("secret"), batch)
        assert "secret" not in str(refusal)
        assert "hidden" not in str(refusal)


def test_a_late_refusal_takes_back_the_changes_before_it() -> None:
    buffer = TextBuffer("a\r😀\nb\n")
    before = state(buffer)
    refusal = refusal_of(
        buffer,
        [
            Change(1, 0, 1, 2, ""),  # joins "\r" and "\n"
            Change(0, 0, 1, 0, "\r"),
            Change(1, 0, 1, 0, "\n\nx"),
            Change(9, 0, 9, 0, ""),
        ],
    )
    assert refusal.change_index == 3
    assert state(buffer) == before


def test_a_line_feed_inserted_after_a_carriage_return_makes_one_line_end() -> None:
    buffer = TextBuffer("a\rb")
    buffer.apply([Change(1, 0, 1, 0, "\n")])
    assert state(buffer) == ("a\r\nb", 4, 4, 2, ["a\r\n", "b"])


def test_a_carriage_return_inserted_before_a_line_feed_makes_one_line_end() -> None:
    buffer = TextBuffer("a\nb")
    buffer.apply([Change(0, 1, 0, 1, "\r")])
    assert state(buffer) == ("a\r\nb", 4, 4, 2, ["a\r\n", "b"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("content", ["b", "é", "bcd", "b😀"])
@pytest.mark.parametrize("is_open", [False, True])
def test_deleting_all_between_carriage_return_and_line_feed_makes_one_line_end(
    layout: Layout, content: str, is_open: bool
) -> None:
    buffer = TextBuffer(f"a\r{content}\nc", layout=layout)
    if is_open:
        buffer.line(1)
    buffer.apply([Change(1, 0, 1, len(content.encode("utf-16-le")) // 2, "")])
    assert state(buffer) == ("a\r\nc", 4, 4, 2, ["a\r\n", "c"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("text", ["\r", "x\r", "\n\r"])
def test_a_carriage_return_at_the_end_of_an_insertion_joins_a_line_feed(layout: Layout, text: str) -> None:
    buffer = TextBuffer("a\nb", layout=layout)
    buffer.apply([Change(0, 1, 0, 1, text)])
    assert state(buffer) == state(TextBuffer(f"a{text}\nb"))


def test_simultaneous_changes_may_touch_across_a_line_end() -> None:
    buffer = TextBuffer("a\rb\nc")
    buffer.apply([Change(1, 1, 2, 0, "\n"), Change(1, 0, 1, 1, "")], simultaneous=True)
    assert buffer.text() == "a\r\nc"


def test_at_one_place_insertions_come_first_in_array_order() -> None:
    buffer = TextBuffer("abc")
    buffer.apply(
        [Change(0, 1, 0, 2, "D"), Change(0, 1, 0, 1, "1"), Change(0, 1, 0, 1, "2"), Change(0, 2, 0, 2, "3")],
        simultaneous=True,
    )
    assert buffer.text() == "a12D3c"


@pytest.mark.parametrize("insert_at", [1, 2])
def test_simultaneous_changes_that_overlap_are_refused(insert_at: int) -> None:
    buffer = TextBuffer("abcd")
    batch = [Change(0, insert_at, 0, 4, ""), Change(0, 0, 0, 3, "x")]
    refusal = refusal_of(buffer, batch, simultaneous=True)
    assert (refusal.code, refusal.change_index) == (ErrorCode.BAD_CHANGE, 0)
    assert buffer.text() == "abcd"


def test_old_length_is_converted_with_its_change() -> None:
    buffer = TextBuffer("é😀x", unit=Unit.UTF_16)
    batch = [Change(0, 1, 0, 3, "y", 2)]
    assert buffer.convert_changes(batch, Unit.UTF_8) == (Change(0, 2, 0, 6, "y", 4),)
    assert buffer.convert_changes(batch, Unit.UTF_32) == (Change(0, 1, 0, 2, "y", 1),)
    assert buffer.text() == "é😀x"


@pytest.mark.parametrize("is_open", [False, True])
def test_an_edit_in_ascii_is_handed_on_as_the_same_tuple(is_open: bool) -> None:
    changes = (Change(0, 1, 0, 2, "x", 1), Change(0, 0, 1, 0, "y\n", 4))
    buffer = TextBuffer("abc\n😀")
    if is_open:
        buffer.line(0)
    assert buffer.apply_and_convert(changes, [Unit.UTF_8])[Unit.UTF_8] is changes


def test_an_empty_batch_changes_nothing() -> None:
    buffer = TextBuffer("a")
    buffer.apply([])
    buffer.apply([], simultaneous=True)
    assert buffer.text() == "a"


@pytest.mark.parametrize("line", ["x" * 200_000, "x" * 99_999 + "😀" + "é" * 100_001])
def test_a_huge_line_is_edited_divided_and_joined(line: str) -> None:
    buffer = TextBuffer(f"{line}\r\nlast")
    middle = 100_001
    buffer.apply([Change(0, middle, 0, middle, "\r")])
    assert (buffer.line_count, len(buffer.line(0)) + len(buffer.line(1))) == (3, len(line) + 3)
    buffer.apply([Change(0, middle, 1, 0, "y")])
    expected = line.encode("utf-16-le")
    assert buffer.line(0).encode("utf-16-le") == (
        expected[: 2 * middle] + b"y\0" + expected[2 * middle :] + b"\r\0\n\0"
    )
    assert buffer.line_count == 2


@pytest.mark.parametrize(
    ("text", "ratio_max"),
    [
        ("\n" * 200_000, 8),
        ("\r" * 100_000, 8),
        ("\r\n" * 100_000, 8),
        ("ab\n" * 70_000, 8),
        ("é\n" * 70_000, 8),
        (("x" * 50 + "😀\n") * 4_000, 3),
        ("x" * 200_000, 3),
        ("    return self.value  # as it is\n" * 6_000, 3),
    ],
    ids=[
        "line feeds",
        "carriage returns",
        "crlf",
        "short",
        "short, not ascii",
        "one emoji a line",
        "one line",
        "code",
    ],
)
def test_memory_stays_in_proportion_when_every_part_has_been_edited(text: str, ratio_max: int) -> None:
    buffer = TextBuffer("")
    tracemalloc.start()
    try:
        buffer = TextBuffer(text)
        for line in range(0, buffer.line_count, 100):
            buffer.apply([Change(line, 0, line, 0, "x")])
        used, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= ratio_max * buffer.byte_length


def test_memory_stays_in_proportion_when_half_of_many_short_lines_are_deleted() -> None:
    tracemalloc.start()
    try:
        buffer = TextBuffer("\n" * 20_000)
        for line in range(10_000):
            buffer.apply([Change(line, 0, line + 1, 0, "")])
        used, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used <= 8 * buffer.byte_length


@pytest.mark.parametrize("unit", Unit)
def test_neither_a_negative_position_nor_a_reversed_one_is_taken_for_another(unit: Unit) -> None:
    buffer = TextBuffer("é😀x\nab\r\nc\rd", unit=unit)
    before = state(buffer)
    for change in (
        Change(0, -1, 0, 0, "y"),
        Change(1, -1, 1, 1, "y"),
        Change(-1, 0, -1, 0, "y"),
        Change(0, 1, 0, 0, "y"),
        Change(1, 2, 1, 1, "y"),
        Change(1, 0, 0, 1, "y"),
    ):
        assert refusal_of(buffer, [change]).code in {ErrorCode.BAD_POSITION, ErrorCode.BAD_CHANGE}
        assert state(buffer) == before


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("other", Unit)
def test_a_position_deep_in_a_huge_line_converts(unit: Unit, other: Unit) -> None:
    line = "first\n" + "aé😀" * 100_000 + "\nlast"
    character = {Unit.UTF_16: 4, Unit.UTF_8: 7, Unit.UTF_32: 3}
    buffer = TextBuffer(line, unit=unit)
    for count in (0, 5_461, 50_000, 100_000):
        assert buffer.convert_character(1, count * character[unit], other) == count * character[other]


def test_typing_into_many_lines_of_one_block_divides_it() -> None:
    layout = Layout(block_bytes=16, block_bytes_max=32, block_lines=100)
    buffer = TextBuffer("a\n" * 8, layout=layout)
    for _ in range(20):
        for line in range(8):
            buffer.apply([Change(line, 1, line, 1, "x")])
    assert buffer.text() == ("a" + "x" * 20 + "\n") * 8


def test_a_line_that_grows_by_typing_is_held_in_parts() -> None:
    layout = Layout(block_bytes=4, block_bytes_max=8, block_lines=8)
    buffer = TextBuffer("\nb", layout=layout)
    for count in range(300):
        buffer.apply([Change(0, count, 0, count, "x")])
    assert buffer.text() == "x" * 300 + "\nb"
    assert buffer.line(0) == "x" * 300 + "\n"
