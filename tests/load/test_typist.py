from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.load.recording import read_header, read_recording
from streamctx.load.typist import encode_recording, keystrokes, main, replacements, type_out
from streamctx.wire.messages import Cursor, Edit, Open, Save

__all__: list[str] = []

VERSIONS = (
    "def f():\n    return 1\n",
    "def f(x):\n    y = x\n    return y\n\n\nf(1)\n",
    "f(2)  # 😀\n",
)
texts = st.text(st.sampled_from("ab \n\r(😀"), max_size=40)


@given(before=texts, after=texts)
def test_strokes_lead_from_one_text_to_the_other(before: str, after: str) -> None:
    text = before
    for strokes in keystrokes(before, after):
        for position, deleted, inserted in strokes:
            assert 0 <= position <= position + deleted <= len(text)
            text = text[:position] + inserted + text[position + deleted :]
    assert text == after


def test_only_the_words_that_changed_are_typed() -> None:
    found = replacements("a = old + 1\nb\n", "a = new + 1\nb\n")
    assert [(one.position, one.deleted, one.inserted) for one in found] == [(4, 3, "new")]


def test_deletions_are_backspaces_and_insertions_single_characters() -> None:
    (strokes,) = keystrokes("one two", "one six")
    assert strokes == [(6, 1, ""), (5, 1, ""), (4, 1, ""), (4, 0, "s"), (5, 0, "i"), (6, 0, "x")]


def test_a_new_line_brings_its_indentation() -> None:
    (strokes,) = keystrokes("", "if x:\n    y")
    assert [inserted for _, _, inserted in strokes] == ["i", "f", " ", "x", ":", "\n    ", "y"]


def test_the_same_seed_types_the_same_and_another_one_pauses_otherwise() -> None:
    def typed(seed: int) -> bytes:
        events = type_out(VERSIONS, uri="file:///f.py", language="python", seed=seed)
        return encode_recording(events, created="2026-01-01T00:00:00Z", source="test", is_packed=True)

    assert typed(7) == typed(7)
    assert gzip.decompress(typed(7)) != gzip.decompress(typed(8))


def test_the_recording_ends_with_the_last_version() -> None:
    events = list(type_out(VERSIONS, uri="file:///f.py", language="python", seed=1))
    opened = events[0].event
    assert isinstance(opened, Open) and opened.text == VERSIONS[0]
    buffer = TextBuffer(opened.text)
    saved = []
    version = opened.version
    for recorded in events[1:]:
        event = recorded.event
        if isinstance(event, Edit):
            assert (event.base, event.version) == (version, version + 1)
            version = event.version
            buffer.apply(event.changes)
        elif isinstance(event, Cursor):
            assert event.version == version
            buffer.check_position(*event.position)
        elif isinstance(event, Save):
            saved.append(buffer.text())
    assert tuple(saved) == VERSIONS[1:]
    assert all(earlier.at_s <= later.at_s for earlier, later in pairwise(events))


def test_the_command_writes_a_labelled_recording(tmp_path: Path) -> None:
    files = []
    for index, version in enumerate(VERSIONS):
        file = tmp_path / f"{index}.py"
        file.write_text(version, "utf-8", newline="")
        files.append(str(file))
    output = tmp_path / "typed.jsonl"
    assert main([*files, "--language", "python", "--seed", "3", "--output", str(output)]) == 0
    assert "typed out by streamctx.load.typist (seed 3)" in read_header(output).source
    assert isinstance(next(read_recording(output)).event, Open)


def test_a_missing_version_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "none.py"), "--output", str(tmp_path / "out.jsonl")])
    assert "cannot be read" in capsys.readouterr().err
