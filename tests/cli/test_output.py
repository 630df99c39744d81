"""What is printed is aligned, and drives no terminal."""

from __future__ import annotations

import pytest

from streamctx.cli.output import age_text, echo_json_line, echo_table, printable, styled


def test_control_characters_become_visible() -> None:
    assert printable("a\x1b[31m\r\n\x07\x7f\x9b") == "a␛[31m␍␊␇␡\N{REPLACEMENT CHARACTER}"


def test_text_that_shows_in_another_order_is_undone() -> None:
    assert printable("a\u202eb\u2066c") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


def test_other_text_stays_as_it_is() -> None:
    assert printable("é\t🙂 \u00a0ß") == "é\t🙂 \u00a0ß"


def test_lone_surrogates_can_be_printed() -> None:
    printable("\ud800").encode()


def test_plain_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    echo_table(("A", "LONG"), [("long cell", "x"), ("y", "z")])
    assert capsys.readouterr().out == "A          LONG\nlong cell  x\ny          z\n"


def test_no_style_where_output_is_no_terminal() -> None:
    assert styled("a", fg="red") == "a"


def test_json_line_keeps_text_readable(capsys: pytest.CaptureFixture[str]) -> None:
    echo_json_line({"a": "é\n\x9b"})
    assert capsys.readouterr().out == '{"a":"é\\n\\u009b"}\n'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (119.9, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172_799, "47 h"),
        (172_800, "2 d"),
    ],
)
def test_ages_are_told_in_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
