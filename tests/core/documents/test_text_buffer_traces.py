"""Recorded editing sessions and reduced faults of real editors, where the data is at hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.errors import EventRefused
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__: list[str] = []

DATA = Path(__file__).parents[4] / "shared" / "data"
FIXTURES = DATA / "edit-fixtures.jsonl"


def _fixtures() -> list[dict[str, Any]]:
    if not FIXTURES.exists():
        return []
    return [json.loads(row) for row in FIXTURES.read_text("utf-8").split("\n") if row]


def _name(fixture: dict[str, Any]) -> str:
    return str(fixture["id"])


@pytest.mark.skipif(not FIXTURES.exists(), reason="edit-fixtures.jsonl is not at hand")
@pytest.mark.parametrize("fixture", _fixtures(), ids=_name)
def test_a_fault_of_a_real_editor_has_the_stated_outcome(fixture: dict[str, Any]) -> None:
    buffer = TextBuffer(fixture["t0"], unit=Unit(fixture["unit"]))
    error = None
    for step in fixture["steps"]:
        before = buffer.text()
        try:
            changes = [Change(*edit) for edit in step["edits"]]
            buffer.apply(changes, simultaneous=step.get("mode") == "sim")
        except EventRefused as refusal:
            error = refusal.code
            assert buffer.text() == before
            break
    assert error == fixture.get("want_error")
    if "want" in fixture:
        assert buffer.text() == fixture["want"]


def _position(text: str, index: int) -> tuple[int, int]:
    """Find a position in a text whose only line end is the line feed."""
    line_start = text.rfind("\n", 0, index) + 1
    return text.count("\n", 0, index), len(text[line_start:index].encode("utf-16-le")) // 2


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["sveltecomponent", "json-crdt-blog-post"])
def test_a_recorded_session_ends_with_the_recorded_text(trace: str) -> None:
    path = DATA / "editing-traces" / f"{trace}.json.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand")
    session = json.loads(gzip.decompress(path.read_bytes()))
    text = session["startContent"]
    buffer = TextBuffer(text)
    for transaction in session["txns"]:
        batch = []
        for index, deleted, inserted in transaction["patches"]:
            old = text[index : index + deleted]
            old_length = len(old.encode("utf-16-le")) // 2
            batch.append(
                Change(*_position(text, index), *_position(text, index + deleted), inserted, old_length)
            )
            text = text[:index] + inserted + text[index + deleted :]
        buffer.apply(batch)
    assert "\r" not in text
    assert buffer.text() == text == session["endContent"]
    assert buffer.line_count == text.count("\n") + 1
