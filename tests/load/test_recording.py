"""What was recorded is read again, event by event, and a broken file is told from a whole one."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamctx.load.recording import (
    RecordableEvent,
    RecordedEvent,
    RecordingError,
    RecordingWriter,
    read_header,
    read_recording,
)
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, Cursor, Edit, Open

HEADER = '{"streamctx_recording": 1, "created": "2026-01-01T00:00:00Z", "source": "test"}\n'
EVENTS: list[tuple[float, RecordableEvent]] = [
    (0.0, Open(document=1, uri="file:///a", version=0, length=3, hash="xxh3-64:0", text="a🙂")),
    (0.5, Edit(document=1, base=0, version=1, changes=(Change(0, 0, 0, 1, "é\n"),))),
    (0.5, Cursor(document=1, version=1, position=(1, 0))),
    (1.25, Close(document=1)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "recording.jsonl"


def written(path: Path) -> Path:
    with RecordingWriter(path, source="test") as writer:
        for at_s, event in EVENTS:
            writer.write(at_s, event)
        assert writer.event_count == len(EVENTS)
    return path


def test_events_are_read_as_they_were_written(path: Path) -> None:
    assert list(read_recording(written(path))) == [RecordedEvent(*event) for event in EVENTS]


def test_header_says_what_it_is(path: Path) -> None:
    header = read_header(written(path))
    assert (header.streamctx_recording, header.source, header.unit) == (1, "test", Unit.UTF_16)
    assert path.read_text().startswith('{"streamctx_recording":1,"created":"')
    assert header.created.endswith("Z")


def test_file_of_texts_is_its_owners(path: Path) -> None:
    assert stat.S_IMODE(written(path).stat().st_mode) == 0o600


def test_event_is_in_the_file_when_it_was_written(path: Path) -> None:
    with RecordingWriter(path, source="test") as writer:
        writer.write(*EVENTS[0])
        assert len(list(read_recording(path))) == 1


def test_another_file_is_replaced_on_demand_alone(path: Path) -> None:
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        RecordingWriter(path, source="test")
    assert path.read_text() == "mine"
    RecordingWriter(path, source="test", is_overwriting=True).close()
    assert list(read_recording(path)) == []


def test_recording_by_hand_is_read(path: Path) -> None:
    path.write_text(HEADER + '{"t": 1, "event": {"type": "close", "document": 1}}\n\n')
    assert list(read_recording(path)) == [RecordedEvent(1.0, Close(document=1))]


def test_unknown_fields_are_ignored(path: Path) -> None:
    path.write_text(HEADER + '{"t": 1, "event": {"type": "close", "document": 1, "new": 1}, "newer": 2}\n')
    assert list(read_recording(path)) == [RecordedEvent(1.0, Close(document=1))]


@pytest.mark.parametrize(
    "content",
    ["", "{}\n", "[]\n", "text\n", '{"streamctx_recording": 2, "created": "", "source": ""}\n', "\xff\n"],
)
def test_another_file_is_refused(path: Path, content: str) -> None:
    path.write_text(content, encoding="latin-1")
    with pytest.raises(RecordingError, match="is not a recording"):
        list(read_recording(path))
    with pytest.raises(RecordingError, match="is not a recording"):
        read_header(path)


def read_until_broken(events: Iterator[RecordedEvent], message: str) -> list[RecordedEvent]:
    read: list[RecordedEvent] = []
    with pytest.raises(RecordingError, match=message):
        read.extend(events)
    return read


@pytest.mark.parametrize(
    "line",
    [
        '{"t": 1, "event": {"type": "close"}}',
        '{"t": 1, "event": {"type": "hello"}}',
        '{"t": 1, "event": {"type": "part", "document": 1, "version": 0, "index": 0, "text": ""}}',
        '{"t": -1, "event": {"type": "close", "document": 1}}',
        '{"t": 1, "ev',
        "[" * 100_000,
    ],
    ids=["field", "message", "part", "time", "cut", "deep"],
)
def test_broken_line_is_named_and_what_came_before_stands(path: Path, line: str) -> None:
    path.write_text(HEADER + '{"t": 0, "event": {"type": "close", "document": 1}}\n' + line)
    assert len(read_until_broken(read_recording(path), "line 3")) == 1


def test_time_never_goes_back(path: Path) -> None:
    path.write_text(HEADER + '{"t": 2, "event": {"type": "close", "document": 1}}\n' * 2)
    assert len(list(read_recording(path))) == 2
    with path.open("a") as file:
        file.write('{"t": 1.5, "event": {"type": "close", "document": 1}}\n')
    read_until_broken(read_recording(path), "line 4: t is 1.5, after 2")
    with RecordingWriter(path, source="test", is_overwriting=True) as writer:
        writer.write(1.0, Close(document=1))
        with pytest.raises(ValueError, match="never goes back"):
            writer.write(0.5, Close(document=1))
