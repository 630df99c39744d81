"""What an edit costs the server, from the socket to the observer, beside other ways to relay it.

    python -m benchmarks.bench_event_path [--quick] [--long] [--in-flight N] [--peers a,b] [--reps N] [--json]
    python -m benchmarks.bench_event_path --stages

One writer plays a whole recorded session with 64 edits in flight, one observer is shown it, and what the
observer was shown is played again and compared with the end of the session. README.md has the method.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import selectors
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import util
from pathlib import Path

from benchmarks.peers.edits import Trace, generated_trace, played, read_trace
from benchmarks.peers.loads import EchoLoad, Load, RelayLoad, SocketIoLoad, StreamctxLoad
from benchmarks.peers.stages import measure_stages

__all__: list[str] = []

PEERS = Path(__file__).parent / "peers"
IN_FLIGHT = 64
SERVER_CORE, LOAD_CORE = 0, 1
SILENCE_S = 30.0
QUICK_EDITS = 4_000


@dataclass(frozen=True)
class Contestant:
    """One server program; `load` says how one speaks to it."""

    command: tuple[str, ...]
    load: Callable[[int, Trace], Load]
    package: str | None = None
    """What must be installed for it, besides what the benchmarks need."""


def _python(module: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", f"benchmarks.peers.{module}", *options)


CONTESTANTS = {
    "streamctx": Contestant(_python("streamctx_server"), StreamctxLoad),
    "streamctx-uvloop": Contestant(_python("streamctx_server", "--uvloop"), StreamctxLoad, "uvloop"),
    "sans-io-echo": Contestant(_python("sans_io_echo"), EchoLoad),
    "websockets": Contestant(_python("websockets_relay"), RelayLoad),
    "websockets-uvloop": Contestant(_python("websockets_relay", "--uvloop"), RelayLoad, "uvloop"),
    "ws": Contestant(("node", str(PEERS / "ws_relay.mjs")), RelayLoad, "node"),
    "socket.io": Contestant(("node", str(PEERS / "socketio_relay.mjs")), SocketIoLoad, "node"),
}


@dataclass(frozen=True)
class Result:
    """One run: CPU in microseconds an edit, and the rate of the whole."""

    server_us: float
    load_us: float
    edits_per_s: float


def missing(contestant: Contestant) -> str | None:
    """What a contestant lacks, or `None`; Node's packages are installed here."""
    if contestant.package is None:
        return None
    if contestant.package != "node":
        return None if util.find_spec(contestant.package) else contestant.package
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node or npm"
    if not (PEERS / "node_modules" / "socket.io").exists():
        options = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent")
        if subprocess.run(("npm", "install", *options), cwd=PEERS, check=False).returncode:
            return "the packages of package.json"
    return None


@contextmanager
def running(contestant: Contestant) -> Iterator[tuple[int, int]]:
    """Start a server on its own core; yields its process id and port."""
    _pin(SERVER_CORE)
    process = subprocess.Popen(
        contestant.command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    _pin(LOAD_CORE)
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


def _pin(core: int) -> None:
    """Run on one core from now on, children too, where there is a choice."""
    if hasattr(os, "sched_setaffinity") and {SERVER_CORE, LOAD_CORE} <= ALLOWED_CORES:
        os.sched_setaffinity(0, {core})


ALLOWED_CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()


def cpu_ns(pid: int) -> int:
    """CPU time that all threads of a process have used; Linux only."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def play(load: Load, in_flight: int) -> None:
    """Send everything, with so many edits in flight, and read all answers."""
    frames, total = load.frames, len(load.frames)
    with selectors.DefaultSelector() as selector:
        selector.register(load.writer.socket, selectors.EVENT_READ, load.take_acks)
        selector.register(load.observer.socket, selectors.EVENT_READ, load.take_updates)
        sent = 0
        while load.acknowledged < total or load.observed < total:
            stop = min(total, load.acknowledged + in_flight)
            if stop > sent:
                load.writer.send(b"".join(frames[sent:stop]))
                sent = stop
            ready = selector.select(SILENCE_S)
            if not ready:
                raise SystemExit(
                    f"nothing came for {SILENCE_S:g} s: {sent} sent, {load.acknowledged} acknowledged, "
                    f"{load.observed} shown, of {total}"
                )
            for key, _ in ready:
                key.data()


def measure(contestant: Contestant, trace: Trace, in_flight: int) -> Result:
    """Let a fresh server relay a trace, and check what the observer was shown."""
    with running(contestant) as (pid, port):
        load = contestant.load(port, trace)
        gc.collect()
        gc.disable()
        try:
            server_ns, load_ns, start = cpu_ns(pid), time.process_time_ns(), time.perf_counter()
            play(load, in_flight)
            took_s = time.perf_counter() - start
            load_ns, server_ns = time.process_time_ns() - load_ns, cpu_ns(pid) - server_ns
        finally:
            gc.enable()
        load.close()
    if played(load.observed_changes()) != trace.end:
        raise SystemExit(f"{contestant.command}: the observer's text is not the end of {trace.name}")
    count = len(trace.changes)
    return Result(server_ns / 1000 / count, load_ns / 1000 / count, count / took_s)


def compare(trace: Trace, names: Sequence[str], *, in_flight: int, reps: int) -> dict[str, list[Result]]:
    """Let all contestants run in turns, each time with a fresh server."""
    results: dict[str, list[Result]] = {name: [] for name in names}
    for _ in range(reps):
        for name in names:
            results[name].append(measure(CONTESTANTS[name], trace, in_flight))
    return results


def traces(*, quick: bool, long: str | None) -> list[Trace]:
    found: list[Trace] = []
    for name in ["sveltecomponent"] + ([long] if long else []):
        trace = read_trace(name)
        if trace is None:
            print(f"the trace {name} is absent, skipped", file=sys.stderr)
        else:
            found.append(trace)
    if not found:
        print("a generated trace takes its place", file=sys.stderr)
        found.append(generated_trace())
    if quick:
        found = [
            Trace(trace.name, changes, played(changes))
            for trace in found
            for changes in [trace.changes[:QUICK_EDITS]]
        ]
    return found


def show(trace: Trace, in_flight: int, results: dict[str, list[Result]], absent: dict[str, str]) -> None:
    print(f"\n{trace.name}, {len(trace.changes)} edits, {in_flight} in flight")
    print(f"  {'':18} {'server CPU, µs an edit':>25} {'÷ websockets':>13} {'÷ socket.io':>12}", end="")
    print(f" {'edits/s':>9} {'load CPU':>9}")
    medians = {name: statistics.median(r.server_us for r in runs) for name, runs in results.items()}
    for name, runs in results.items():
        spread = f"({min(r.server_us for r in runs):.1f}-{max(r.server_us for r in runs):.1f})"
        ratios = [
            f"{medians[name] / medians[other]:.2f}" if other in medians else ""
            for other in ("websockets", "socket.io")
        ]
        print(
            f"  {name:18} {medians[name]:10.1f} {spread:>14} {ratios[0]:>13} {ratios[1]:>12} "
            f"{statistics.median(r.edits_per_s for r in runs):9,.0f} "
            f"{statistics.median(r.load_us for r in runs):9.1f}"
        )
    for name, what in absent.items():
        print(f"  {name:18} not installed: {what}")


def show_stages(stages: dict[str, float]) -> None:
    print("\nIn memory, 64 edits a read: µs an edit")
    for name, took_us in stages.items():
        print(f"  {name:28} {took_us:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_EDITS} edits once, to try it")
    parser.add_argument(
        "--long",
        nargs="?",
        const="seph-blog1",
        choices=("rustcode", "seph-blog1"),
        help="a longer trace too, on which Node's warm-up weighs less",
    )
    parser.add_argument(
        "--in-flight", type=int, default=IN_FLIGHT, help="edits sent and not acknowledged; 1 is one by one"
    )
    parser.add_argument("--peers", help=f"some of {','.join(CONTESTANTS)}")
    parser.add_argument("--reps", type=int, help="interleaved runs, of which medians are taken")
    parser.add_argument(
        "--stages", action="store_true", help="only show where our time goes, without sockets"
    )
    options = parser.parse_args()
    report: dict[str, object] = {}
    played_traces = traces(quick=options.quick, long=options.long)
    if options.stages:
        _pin(SERVER_CORE)
        stages = measure_stages(played_traces[0], rounds=options.reps or 5)
        print(json.dumps(stages, indent=2)) if options.json else show_stages(stages)
        return
    if not Path("/proc/self/schedstat").exists():
        raise SystemExit("this benchmark reads the CPU time of other processes from /proc: Linux only")
    names = options.peers.split(",") if options.peers else list(CONTESTANTS)
    unknown = set(names) - set(CONTESTANTS)
    if unknown:
        parser.error(f"unknown peers {sorted(unknown)}; there are {', '.join(CONTESTANTS)}")
    absent = {name: what for name in names if (what := missing(CONTESTANTS[name]))}
    present = [name for name in names if name not in absent]
    for trace in played_traces:
        results = compare(
            trace, present, in_flight=options.in_flight, reps=options.reps or (1 if options.quick else 5)
        )
        report[trace.name] = {name: [asdict(run) for run in runs] for name, runs in results.items()}
        if not options.json:
            show(trace, options.in_flight, results, absent)
    if options.json:
        print(json.dumps({"not_installed": absent, "traces": report}, indent=2))


if __name__ == "__main__":
    main()
