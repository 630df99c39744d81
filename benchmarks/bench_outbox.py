"""What an outbox on disk costs a client, an edit; also one that survives a power cut.

    python -m benchmarks.bench_outbox [--quick] [--in-flight N] [--reps N] [--directory DIR] [--json]

A client plays a recorded session to a server in another process; the server's text must be the recorded end.
README.md has the method.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import streamctx
from benchmarks.peers.edits import Trace, generated_trace, read_trace
from benchmarks.peers.loads import TOKEN

__all__: list[str] = []

QUICK_EDITS = 2_000
FSYNC_EDITS = 2_000
"""So many with a wait for the disk each: more would measure the disk for minutes."""
IN_FLIGHT = (1, 64)
SERVER_CORE, CLIENT_CORE = 0, 1
MODES = ("none", "outbox", "fsync")


@dataclass(frozen=True)
class Result:
    """One run: times in microseconds an edit; `call` is what the caller of `edit` waits."""

    cpu_us: float
    call_us: float
    call_p99_us: float
    wall_us: float
    log_bytes: int
    compactions: int


@contextmanager
def running() -> Iterator[int]:
    """Start a server on its own core; yields its port."""
    _pin(SERVER_CORE)
    process = subprocess.Popen(
        (sys.executable, "-m", "benchmarks.peers.streamctx_server"),
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    _pin(CLIENT_CORE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def _pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity") and {SERVER_CORE, CLIENT_CORE} <= ALLOWED_CORES:
        os.sched_setaffinity(0, {core})


ALLOWED_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()


async def play(port: int, trace: Trace, count: int, mode: str, in_flight: int, directory: Path) -> Result:
    """Make the edits, so many before the server has confirmed them, and compare the text."""
    outbox = None if mode == "none" else directory
    calls: list[int] = []
    async with streamctx.connect(
        f"ws://127.0.0.1:{port}", TOKEN, outbox=outbox, outbox_fsync=mode == "fsync"
    ) as client:
        await client.ready()
        document = await client.open("file:///bench", "")
        await client.flush()
        gc.collect()
        gc.disable()
        try:
            cpu, start = time.process_time_ns(), time.perf_counter_ns()
            for first in range(0, count, in_flight):
                for change in trace.changes[first : min(first + in_flight, count)]:
                    before = time.perf_counter_ns()
                    document.edit(change)
                    calls.append(time.perf_counter_ns() - before)
                await client.flush()
            cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - start
        finally:
            gc.enable()
        if count == len(trace.changes) and document.text != trace.end:
            raise SystemExit(f"the text is not the end of {trace.name}")
        if client.counters.resets or client.errors:
            raise SystemExit(f"the server refused something: {list(client.errors)}")
        status = client.outbox
        return Result(
            cpu / 1000 / count,
            statistics.mean(calls) / 1000,
            statistics.quantiles(calls, n=100)[-1] / 1000,
            wall / 1000 / count,
            0 if status is None else status.size_bytes,
            0 if status is None else status.compactions,
        )


def compare(
    trace: Trace, count: int, *, in_flight: int, reps: int, directory: Path
) -> dict[str, list[Result]]:
    """Let all modes run in turns against one server."""
    results: dict[str, list[Result]] = {mode: [] for mode in MODES}
    with running() as port:
        for _ in range(reps):
            for mode in MODES:
                played = min(count, FSYNC_EDITS) if mode == "fsync" and in_flight == 1 else count
                results[mode].append(
                    asyncio.run(play(port, trace, played, mode, in_flight, directory / mode))
                )
    return results


def show(trace: Trace, count: int, in_flight: int, results: dict[str, list[Result]]) -> None:
    print(f"\n{trace.name}, {count} edits, {in_flight} in flight: µs an edit")
    print(f"  {'':8} {'client CPU':>20} {'÷ none':>7} {'call':>7} {'call p99':>9} {'wall':>8}")
    base = statistics.median(run.cpu_us for run in results["none"])
    for mode, runs in results.items():
        cpu = statistics.median(run.cpu_us for run in runs)
        spread = f"({min(run.cpu_us for run in runs):.1f}-{max(run.cpu_us for run in runs):.1f})"
        print(
            f"  {mode:8} {cpu:7.1f} {spread:>12} {cpu / base:7.2f} "
            f"{statistics.median(run.call_us for run in runs):7.1f} "
            f"{statistics.median(run.call_p99_us for run in runs):9.1f} "
            f"{statistics.median(run.wall_us for run in runs):8.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_EDITS} edits once, to try it")
    parser.add_argument("--in-flight", type=int, help="edits that are not confirmed; 1 and 64 by default")
    parser.add_argument("--reps", type=int, help="interleaved runs, of which medians are taken")
    parser.add_argument("--directory", type=Path, help="where the outbox lies, in place of /tmp")
    options = parser.parse_args()
    trace = read_trace("sveltecomponent")
    if trace is None:
        print("the trace sveltecomponent is absent; a generated one takes its place", file=sys.stderr)
        trace = generated_trace()
    count = QUICK_EDITS if options.quick else len(trace.changes)
    report: dict[int, dict[str, list[dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for in_flight in [options.in_flight] if options.in_flight else IN_FLIGHT:
            results = compare(
                trace,
                count,
                in_flight=in_flight,
                reps=options.reps or (1 if options.quick else 5),
                directory=Path(directory),
            )
            report[in_flight] = {mode: [asdict(run) for run in runs] for mode, runs in results.items()}
            if not options.json:
                show(trace, count, in_flight, results)
    if options.json:
        print(json.dumps({"trace": trace.name, "edits": count, "in_flight": report}, indent=2))


if __name__ == "__main__":
    main()
