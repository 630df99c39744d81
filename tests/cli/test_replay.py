"""`streamctx replay` as a process."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from streamctx.load.typist import encode_recording, type_out
from tests.cli.running import Home, RunningServer

pytestmark = pytest.mark.e2e

__all__: list[str] = []

KEYS = [
    "edits",
    "events",
    "seconds",
    "edits_per_s",
    "ack_ms",
    "observer_ms",
    "retransmitted",
    "nacks",
    "skipped",
    "duplicates",
    "corrupt",
    "resumes",
    "sha256_expected",
    "sha256_server",
    "sha256_observer",
    "verified",
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    words = [f"word{number} é😀\n" for number in range(40)]
    text = ""
    transactions = []
    for word in words:
        transactions.append({"time": "2026-01-01T00:00:00Z", "patches": [[len(text), 0, word]]})
        text += word
    transactions.append({"time": "2026-01-01T00:00:01Z", "patches": [[0, 1, "W"], [3, 0, "!"]]})
    text = "W" + text[1:3] + "!" + text[3:]
    path = tmp_path / "small.json.gz"
    content = {"startContent": "", "endContent": text, "txns": transactions}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def _recording(path: Path, uri: str) -> Path:
    events = type_out(("one\n", "one two\n"), uri=uri, language=None, seed=1)
    path.write_bytes(encode_recording(events, created="2026-01-01T00:00:00Z", source="test", is_packed=False))
    return path


def test_without_a_server_one_is_started_for_the_run(home: Home, trace: Path) -> None:
    done = home.run("replay", str(trace), "--observe", "--json")
    assert done.returncode == 0, done.stderr
    assert "starting one for this run" in done.stderr
    report = json.loads(done.stdout)
    assert list(report) == KEYS
    assert list(report["ack_ms"]) == list(report["observer_ms"]) == ["p50", "p90", "p99", "max"]
    assert report["verified"] is True
    assert report["sha256_expected"] == report["sha256_server"] == report["sha256_observer"]
    assert (report["edits"], report["retransmitted"], report["nacks"], report["resumes"]) == (41, 0, 0, 0)
    assert report["ack_ms"]["max"] > 0 and report["observer_ms"]["max"] > 0
    # Nothing of it is left for others to find.
    assert not list(home.path.rglob("*.json"))


@pytest.mark.parametrize("unit", ["utf-8", "utf-16", "utf-32"])
def test_it_plays_into_the_server_that_runs_here(server: RunningServer, trace: Path, unit: str) -> None:
    done = server.home.run("replay", str(trace), "--unit", unit, "--encoding", "json", "--digest", "crc32")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "verified"
    assert "41 edits, 83 events" in done.stdout


def test_it_plays_a_recording_over_a_bad_connection(server: RunningServer, tmp_path: Path) -> None:
    recording = _recording(tmp_path / "typed.jsonl", "file:///work/typed.txt")
    faults = "drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1,cut=0.02"
    done = server.home.run(
        "replay", str(recording), "--faults", faults, "--observe-unit", "utf-32", "--seed", "4", "--json"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verified"] is True
    assert report["sha256_observer"] == report["sha256_expected"]


def test_the_rate_is_kept(server: RunningServer, trace: Path) -> None:
    started_at = time.monotonic()
    done = server.home.run("replay", str(trace), "--rate", "80", "--json")
    assert time.monotonic() - started_at > 0.5
    report = json.loads(done.stdout)
    assert report["seconds"] >= 0.5
    assert report["edits_per_s"] < 85


def test_a_document_that_the_server_refuses_is_not_verified(server: RunningServer, tmp_path: Path) -> None:
    recording = _recording(tmp_path / "typed.jsonl", "file:///work/.env")
    done = server.home.run("replay", str(recording))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "NOT VERIFIED"
    assert "the server refused a document: excluded" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--faults", "drop=2"], 2, "drop=2 is not a number from 0 to 1"),
        (["--faults", "burn=0.1"], 2, "'burn' is not one of"),
        (["--unit", "utf-7"], 2, "'utf-7' is not one of"),
        (["--rate", "0"], 2, "--rate"),
        (["--url", "ftp://here"], 2, "--url"),
    ],
)
def test_wrong_usage_is_told(
    home: Home, trace: Path, arguments: list[str], status: int, message: str
) -> None:
    done = home.run("replay", str(trace), *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_trace_is_one_line(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# Notes\n", "utf-8")
    done = home.run("replay", str(path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {path} is not an editing trace")
    assert len(done.stderr.splitlines()) == 1


def test_a_trace_that_does_not_fit_itself_is_one_line(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"startContent": "", "endContent": "", "txns": [{"patches": [[9, 0, "x"]]}]}', "utf-8")
    done = home.run("replay", str(path))
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1] == "Error: bad, transaction 0: position 9 and 0 deleted, in a text of 0"
    )


def test_a_server_that_is_not_there_is_told(home: Home, trace: Path) -> None:
    done = home.run("replay", str(trace), "--url", "ws://127.0.0.1:9", STREAMCTX_TOKEN="x" * 32)
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr
