"""`streamctx record` follows real files, pushes to a real server, and writes what can be played."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.load.recording import RecordedEvent, read_recording
from streamctx.wire.messages import Close, Edit, Open
from tests.cli.running import Home, wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text("one\n")
    (tmp_path / "b.md").write_text("# b\n")
    return tmp_path


def recorded(path: Path) -> list[RecordedEvent]:
    """The events so far; the recorder may be writing."""
    return list(read_recording(path)) if path.exists() and path.stat().st_size else []


def texts_of(events: list[RecordedEvent]) -> dict[int, str]:
    """The texts that a recording leads to, without those that were closed before its end."""
    buffers: dict[int, TextBuffer] = {}
    for recorded_event in events:
        event = recorded_event.event
        if isinstance(event, Open):
            buffers[event.document] = TextBuffer(event.text or "")
        elif isinstance(event, Edit):
            buffers[event.document].apply(event.changes, simultaneous=event.mode == "sim")
    return {alias: buffer.text() for alias, buffer in buffers.items()}


def wait_for_text(output: Path, alias: int, text: str) -> None:
    wait_until(lambda: texts_of(recorded(output)).get(alias) == text)


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[str, str]:
    process.send_signal(number)
    output, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    return output, errors


def test_changes_are_pushed_and_recorded(home: Home, work: Path) -> None:
    output = work / "recording.jsonl"
    with (
        home.serve() as server,
        home.start("record", str(work / "a.py"), (work / "b.md").as_uri(), "-o", str(output)) as process,
    ):
        wait_until(lambda: len(texts_of(recorded(output))) == 2)
        (work / "a.py").write_text("one\ntwo\n")
        wait_for_text(output, 1, "one\ntwo\n")
        # As editors do: write another file and rename it.
        (work / "b.tmp").write_text("# b\n\nmore é🙂\n")
        (work / "b.tmp").rename(work / "b.md")
        wait_for_text(output, 2, "# b\n\nmore é🙂\n")

        [session] = json.loads(home.run("sessions", "--json").stdout)
        assert session["client"]["name"] == "streamctx record"
        for name in ("a.py", "b.md"):
            view = json.loads(home.run("show", session["session"], name, "--json").stdout)
            assert view["text"] == (work / name).read_text()
            assert view["saved_version"] == view["version"] == 1
        told, errors = end(process)
        assert errors == f"Pushing to {server.url}.\n"
    assert "a.py edit to version 1: 2:1 insert 'two↵'" in told
    events = recorded(output)
    assert f"{len(events)} events in {output}" in told
    assert not any(isinstance(event.event, Close) for event in events)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_a_server_it_only_records(home: Home, work: Path, number: signal.Signals) -> None:
    output = work / "recording.jsonl"
    with home.start("record", str(work / "a.py"), "-o", str(output)) as process:
        wait_until(lambda: len(texts_of(recorded(output))) == 1)
        (work / "a.py").write_text("two\n")
        wait_for_text(output, 1, "two\n")
        _, errors = end(process, number)
    assert errors == "No server runs here: nothing is pushed, only recorded.\n"


def test_file_that_goes_and_comes_back_is_closed_and_opened(home: Home, work: Path) -> None:
    output = work / "recording.jsonl"
    with home.start("record", "--offline", str(work / "a.py"), "-o", str(output)) as process:
        wait_until(lambda: len(texts_of(recorded(output))) == 1)
        (work / "a.py").unlink()
        wait_until(lambda: isinstance(recorded(output)[-1].event, Close))
        (work / "a.py").write_text("again\n")
        wait_for_text(output, 1, "again\n")
        _, errors = end(process)
    assert errors == ""


def test_server_that_ends_does_not_end_the_recording(home: Home, work: Path) -> None:
    output = work / "recording.jsonl"
    with home.serve() as server, home.start("record", str(work / "a.py"), "-o", str(output)) as process:
        wait_until(lambda: "streamctx record" in home.run("sessions").stdout)
        server.stop()
        (work / "a.py").write_text("two\n")
        wait_for_text(output, 1, "two\n")
        end(process)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nothing", "-o", "out"], 2, "is not there; name a file"),
        (["a.py", "-o", "a.py"], 2, "both followed and written"),
        (["a.py", "-o", "b.md", "--offline"], 2, "is there already; --overwrite replaces it"),
        (["a.py"], 2, "Missing option"),
        (["binary", "-o", "out", "--offline"], 1, "is not UTF-8"),
        (["a.py", "-o", "out", "--url", "ws://127.0.0.1:1"], 1, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_followed_is_told(
    home: Home, work: Path, arguments: list[str], status: int, message: str
) -> None:
    (work / "binary").write_bytes(b"\xff")
    paths = [str(work / name) if (work / name).exists() or name == "out" else name for name in arguments]
    result = home.run("record", *paths, STREAMCTX_TOKEN="0123456789abcdef")
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert (work / "b.md").read_text() == "# b\n"
