"""`streamctx demo` as a process, and the recording that ships with the package."""

from __future__ import annotations

import gzip
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import streamctx
from streamctx.load.script import read_script
from streamctx.load.typist import encode_recording, type_out
from streamctx.vocabulary import Unit
from tests.cli.running import Home

__all__: list[str] = []

RECORDING = Path(streamctx.__file__).parent / "data" / "demo.jsonl.gz"
REPOSITORY = Path(__file__).parents[2]
PATH = "streamctx/server/websocket.py"
COMMITS = ("57a7b2f", "7423e52", "e5ce638")


def test_the_recording_is_small_and_labelled() -> None:
    assert RECORDING.stat().st_size <= 300_000
    header = gzip.decompress(RECORDING.read_bytes()).split(b"\n", 1)[0].decode()
    source = f"typed out by streamctx.load.typist (seed 7) from the history of {PATH} at {', '.join(COMMITS)}"
    assert source in header


def test_the_recording_plays_to_its_end() -> None:
    script = read_script(RECORDING)
    assert script.edit_count > 2000
    assert script.duration_s > 60
    for _ in script.events(Unit.UTF_8):
        pass
    assert len(script.expected_texts()[1]) > 10_000


def test_the_recording_is_what_the_history_gives() -> None:
    versions = []
    for commit in COMMITS:
        shown = subprocess.run(
            ["git", "show", f"{commit}:{PATH}"], capture_output=True, cwd=REPOSITORY, check=False
        )
        if shown.returncode:
            pytest.skip("the history of the repository is not at hand")
        versions.append(shown.stdout.decode())
    events = type_out(versions, uri=f"file:///{PATH}", language="python", seed=7)
    source = f"typed out by streamctx.load.typist (seed 7) from the history of {PATH} at {', '.join(COMMITS)}"
    made = encode_recording(events, created="2026-11-30T00:00:00Z", source=source, is_packed=False)
    assert made == gzip.decompress(RECORDING.read_bytes())


@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_ends_with_a_verdict(home: Home) -> None:
    done = home.run("demo", "--seconds", "3", "--seed", "5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("verified: 6,762 edits, ")
    assert lines[-1].endswith("lost events 0; all copies are equal.")
    hashes = {line.split()[-1] for line in lines if "sha-256" in line}
    assert len(hashes) == 1
    faults = next(line for line in lines if line.startswith("faults "))
    assert all(kind in faults for kind in ("drop", "dup", "reorder", "corrupt", "cut"))
    # A line a second meanwhile.
    assert sum("agent at version" in line for line in lines) >= 2
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_shows_both_texts_on_a_terminal(home: Home) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "streamctx", "demo", "--fast"],
        env=home.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:
                break  # The terminal is gone with the process.
            if not read:
                break
            shown += read
        os.close(ours)
        assert process.wait() == 0, shown
    text = shown.decode()
    assert "editor, connected" in text
    assert "what the agent sees" in text
    assert "edits acknowledged" in text
    assert "lost events 0; all copies are equal." in text
