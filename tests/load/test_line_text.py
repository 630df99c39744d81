from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.load.line_text import LineText
from streamctx.load.traces import TraceError
from streamctx.vocabulary import Unit

__all__: list[str] = []

TRACES = Path(__file__).parents[3] / "shared" / "data" / "editing-traces"
CODECS = {Unit.UTF_8: ("utf-8", 1), Unit.UTF_16: ("utf-16-le", 2), Unit.UTF_32: ("utf-32-le", 4)}

texts = st.text(st.sampled_from("ab \n\r\n\ré€😀"), max_size=12)
units = st.sampled_from(list(Unit))
# Where a patch starts and how much it deletes, as fractions of what is possible.
fractions = st.floats(0, 1)


def _naive_position(text: str, index: int, unit: Unit) -> tuple[int, int]:
    """Count from the start of the text; within a CR LF it is before both."""
    if 0 < index < len(text) and text[index - 1 : index + 1] == "\r\n":
        index -= 1
    lines = text[:index].replace("\r\n", "\n").replace("\r", "\n").split("\n")
    codec, size = CODECS[unit]
    return len(lines) - 1, len(lines[-1].encode(codec)) // size


@given(start=texts, unit=units, patches=st.lists(st.tuples(fractions, fractions, texts), max_size=12))
def test_changes_do_what_the_patches_say(
    start: str, unit: Unit, patches: list[tuple[float, float, str]]
) -> None:
    model = start
    text = LineText(start, unit)
    buffer = TextBuffer(start, unit=unit)
    for where, how_much, inserted in patches:
        position = round(where * len(model))
        deleted = round(how_much * (len(model) - position))
        assert text.position(position) == _naive_position(model, position, unit)
        change = text.patch(position, deleted, inserted)
        model = model[:position] + inserted + model[position + deleted :]
        buffer.apply((change,))
        assert text.text() == model == buffer.text()
        assert text.length == len(model)
        for index in {0, position, position + len(inserted), len(model)}:
            assert text.position(index) == _naive_position(model, index, unit)


@given(text=texts, unit=units)
def test_every_position_is_that_of_a_naive_count(text: str, unit: Unit) -> None:
    lines = LineText(text, unit)
    for index in (*range(len(text) + 1), *reversed(range(len(text) + 1))):
        assert lines.position(index) == _naive_position(text, index, unit)


@pytest.mark.parametrize("unit", Unit)
def test_a_plain_patch_is_the_plain_change(unit: Unit) -> None:
    text = LineText("a😀b\nc", unit)
    after_emoji = {Unit.UTF_8: 5, Unit.UTF_16: 3, Unit.UTF_32: 2}[unit]
    change = text.patch(2, 1, "x")
    assert change.start_line == change.end_line == 0
    assert (change.start_character, change.end_character, change.text) == (after_emoji, after_emoji + 1, "x")


def test_a_patch_within_a_line_end_replaces_it_whole() -> None:
    text = LineText("a\r\nb", Unit.UTF_16)
    change = text.patch(2, 0, "x")
    assert (change.start_line, change.start_character, change.end_line, change.end_character) == (0, 1, 1, 0)
    assert change.text == "\rx\n"
    assert text.text() == "a\rx\nb"


@pytest.mark.parametrize(("position", "deleted"), [(4, 0), (3, 1), (0, 4)])
def test_a_patch_outside_the_text_is_refused_and_changes_nothing(position: int, deleted: int) -> None:
    text = LineText("a\nb", Unit.UTF_16)
    with pytest.raises(TraceError, match="in a text of 3"):
        text.patch(position, deleted, "x")
    assert text.text() == "a\nb"


@pytest.mark.slow
@pytest.mark.parametrize("unit", Unit)
def test_a_recorded_session_leads_to_its_end(unit: Unit) -> None:
    path = TRACES / "json-crdt-blog-post.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand")
    session = json.loads(gzip.decompress(path.read_bytes()))
    text = LineText(session["startContent"], unit)
    buffer = TextBuffer(session["startContent"], unit=unit)
    for transaction in session["txns"]:
        buffer.apply([text.patch(*patch) for patch in transaction["patches"]])
    assert text.text() == buffer.text() == session["endContent"]
