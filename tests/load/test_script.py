from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.load.recording import RecordedEvent, RecordingError
from streamctx.load.script import RecordingScript, Script, TraceScript, read_script
from streamctx.load.traces import Trace, TraceError, Transaction
from streamctx.load.typist import encode_recording, type_out
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, Cursor, Edit, Open, Selection

__all__: list[str] = []

VERSIONS = ("é😀\n", "é😀 x\r\ny😀\n", "😀y\r\n")


def _played(script: Script, unit: Unit) -> dict[int, str]:
    """What a session in this unit would hold; every position is checked."""
    buffers: dict[int, TextBuffer] = {}
    for recorded in script.events(unit):
        event = recorded.event
        if isinstance(event, Open):
            buffers[event.document] = TextBuffer(event.text or "", unit=unit)
        elif isinstance(event, Edit):
            buffers[event.document].apply(event.changes, simultaneous=event.mode == "sim")
        elif isinstance(event, Cursor):
            buffers[event.document].check_position(*event.position)
        elif isinstance(event, Close):
            del buffers[event.document]
    return {alias: buffer.text() for alias, buffer in buffers.items()}


def _typed() -> bytes:
    events = type_out(VERSIONS, uri="file:///f", language=None, seed=1)
    return encode_recording(events, created="2026-01-01T00:00:00Z", source="test", is_packed=False)


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_recording_plays_in_every_unit(unit: Unit, is_packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "typed.jsonl"
    path.write_bytes(gzip.compress(_typed()) if is_packed else _typed())
    script = read_script(path)
    assert _played(script, unit) == {1: VERSIONS[-1]} == script.expected_texts()
    assert script.edit_count > 10
    # And again.
    assert _played(script, unit) == {1: VERSIONS[-1]}


@pytest.mark.parametrize("unit", Unit)
def test_a_trace_plays_in_every_unit(unit: Unit, tmp_path: Path) -> None:
    content = {
        "startContent": "😀",
        "endContent": "é\nz",
        "txns": [{"patches": [[1, 0, "é\n"], [0, 1, ""]]}, {"patches": [[2, 0, "z"]]}],
    }
    path = tmp_path / "small.json"
    path.write_text(json.dumps(content), "utf-8")
    script = read_script(path)
    assert script.edit_count == 2
    assert _played(script, unit) == {1: "é\nz"} == script.expected_texts()


def test_a_patch_outside_the_text_names_its_transaction() -> None:
    script = TraceScript(Trace("", "", [Transaction(0, [(0, 0, "a")]), Transaction(0, [(5, 0, "b")])]), "t")
    with pytest.raises(TraceError, match="t, transaction 1: position 5"):
        list(script.events(Unit.UTF_16))


def test_a_trace_that_ends_elsewhere_is_refused() -> None:
    script = TraceScript(Trace("", "b", [Transaction(0, [(0, 0, "a")])]), "t")
    with pytest.raises(TraceError, match="do not lead to endContent"):
        list(script.events(Unit.UTF_16))


def test_selections_and_several_documents_are_said_in_the_unit_of_the_session() -> None:
    recorded = [
        RecordedEvent(0, Open(document=1, uri="a", version=0, length=3, hash="", text="😀b")),
        RecordedEvent(0, Open(document=2, uri="b", version=0, length=1, hash="", text="c")),
        RecordedEvent(1, Selection(document=1, version=0, ranges=((0, 0, 0, 2),))),
        RecordedEvent(2, Edit(document=1, base=0, version=1, changes=(Change(0, 2, 0, 3, "é"),))),
        RecordedEvent(3, Close(document=2)),
    ]
    script = RecordingScript(recorded, "two", unit=Unit.UTF_16)
    events = [one.event for one in script.events(Unit.UTF_8)]
    assert events[2] == Selection(document=1, version=0, ranges=((0, 0, 0, 4),))
    assert events[3] == Edit(document=1, base=0, version=1, changes=(Change(0, 4, 0, 5, "é"),))
    assert script.expected_texts() == {1: "😀é"}


def test_an_event_that_does_not_fit_is_named() -> None:
    recorded = [
        RecordedEvent(0, Open(document=1, uri="a", version=0, length=0, hash="", text="")),
        RecordedEvent(0, Edit(document=1, base=0, version=1, changes=(Change(3, 0, 3, 0, "x"),))),
    ]
    with pytest.raises(RecordingError, match="bad, event 2: bad_position"):
        list(RecordingScript(recorded, "bad", unit=Unit.UTF_16).events(Unit.UTF_16))


def test_a_damaged_recording_names_the_file_and_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(_typed() + b'{"t": 1')
    with pytest.raises(RecordingError, match=r"bad\.jsonl line \d+"):
        read_script(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.txt"
    path.write_text("hello\n", "utf-8")
    with pytest.raises(TraceError, match=r"other\.txt is not an editing trace"):
        read_script(path)
