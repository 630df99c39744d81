"""What it costs that an acknowledged event survives the server: latency, server CPU, and the engine alone.

    python -m benchmarks.bench_durability [--quick] [--parts latency,cpu,engine] [--clients N] [--rate R]
        [--seconds S] [--reps N] [--json]

README.md has the method.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.paced import Paced
from streamctx.core.session.stored import JournalBatch, SessionRecord, StoredSession
from streamctx.engine.base import StoreError
from streamctx.engine.sqlite.codec import encode_batch
from streamctx.engine.sqlite.engine import SqliteEngine
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.engine.sqlite.writer import Append
from streamctx.limits import DEFAULT_LIMITS
from streamctx.wire.capabilities import negotiated_limits
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo, Edit

__all__: list[str] = []

_TOKEN = "a-token-for-benchmarks-on-loopback"
_ENGINES = {"sqlite": ("--data", "data"), "memory": ("--ephemeral",)}
_BATCHES = (1, 10, 100)
_ENGINE_SESSIONS = 64
_EVENT_BYTES = 300
_START_S_MAX = 20.0


@dataclass(frozen=True)
class Run:
    """One run of a server. CPU is that of all threads of the server, in microseconds an event."""

    server_us: float
    load_us: float
    acks_per_event: float
    ack_ms_p50: float
    ack_ms_p99: float
    ack_ms_max: float
    late_ms_max: float
    lost: int


@contextlib.contextmanager
def running(engine: str, home: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `streamctx serve`; yields the process and its port."""
    token_file, ready_file = home / "token", home / "ready.json"
    token_file.write_text(_TOKEN)
    token_file.chmod(0o600)
    ready_file.unlink(missing_ok=True)
    options = ("--port", "0", "--token-file", str(token_file), "--ready-file", str(ready_file))
    process = subprocess.Popen(
        (sys.executable, "-m", "streamctx", "serve", *options, *_ENGINES[engine]),
        cwd=home,
        env={**os.environ, "XDG_RUNTIME_DIR": str(home), "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.DEVNULL,
    )
    try:
        stop_at = time.monotonic() + _START_S_MAX
        while not ready_file.exists():
            if process.poll() is not None or time.monotonic() > stop_at:
                raise SystemExit("the server did not start")
            time.sleep(0.02)
        yield process, int(json.loads(ready_file.read_bytes())["url"].split(":")[2].split("/")[0])
    finally:
        process.kill()
        process.wait()


def cpu_ns(pid: int) -> int:
    """CPU time that all threads of a process have used; Linux only."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def measure(engine: str, place: Path, *, clients: int, rate: float, seconds: float) -> Run:
    """Let clients type, kill the server, and look for what it had called durable."""
    home = Path(tempfile.mkdtemp(dir=place))
    events = round(rate * seconds)
    with running(engine, home) as (process, port):
        load = Paced(port, _TOKEN, clients, events)
        gc.collect()
        gc.disable()
        try:
            server_ns, load_ns = cpu_ns(process.pid), time.process_time_ns()
            paces = load.run(rate)
            load_ns, server_ns = time.process_time_ns() - load_ns, cpu_ns(process.pid) - server_ns
        finally:
            gc.enable()
        process.send_signal(signal.SIGKILL)
        process.wait()
        load.close()
    lost = _lost(home / "data", load.sessions, events) if engine == "sqlite" else 0
    shutil.rmtree(home)
    total, took = clients * events, paces.ack_s
    return Run(
        server_us=server_ns / 1000 / total,
        load_us=load_ns / 1000 / total,
        acks_per_event=paces.acks / total,
        ack_ms_p50=took[len(took) // 2] * 1000,
        ack_ms_p99=took[len(took) * 99 // 100] * 1000,
        ack_ms_max=took[-1] * 1000,
        late_ms_max=paces.late_s_max * 1000,
        lost=lost,
    )


def _lost(data: Path, sessions: Sequence[str], events: int) -> int:
    """How many events of those, and of the `open` before them, are not in the store."""
    store = SqliteStore.open(data)
    missing = 0
    for session_id in sessions:
        stored = store.load(session_id)
        assert isinstance(stored, StoredSession), stored
        stops = [batch.stop for batch in stored.batches] or [stored.state.stop if stored.state else 1]
        missing += events + 2 - stops[-1]
    store.close()
    return missing


# The engine alone.


def _record(number: int) -> SessionRecord:
    return SessionRecord(
        session_id=f"session-{number}",
        epoch="epoch",
        principal="me",
        role="produce",
        client=ClientInfo(name="benchmark"),
        workspace=None,
        encoding="msgpack",
        digest="xxh3-64",
        unit="utf-16",
        hash="xxh3-64",
        limits=negotiated_limits(DEFAULT_LIMITS, is_stored=True),
        attempt=1,
        lease=1,
    )


def _batch(first: int, count: int, text: str) -> JournalBatch:
    entries = tuple(
        (number, Edit(document=1, base=number, version=number + 1, changes=(Change(0, 0, 0, 0, text),)))
        for number in range(first, first + count)
    )
    return JournalBatch(first=first, stop=first + count, entries=entries)


def _event_text() -> str:
    """So much text that an event takes as many bytes as it should in the journal."""
    own = len(encode_batch(_batch(1, 1, "")))
    return "x" * (_EVENT_BYTES - own - 2)


def _rate(step: Callable[[], None], per_step: int, seconds: float) -> float:
    """Events a second."""
    start, count = time.perf_counter(), 0
    while (took := time.perf_counter() - start) < seconds:
        step()
        count += per_step
    return count / took


def _file_rates(place: Path, batch: int, seconds: float, *, allocated: bool) -> float:
    """A bare file: one write and one fdatasync a batch."""
    path = place / "bare"
    data = bytes(_EVENT_BYTES * batch)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        if allocated:
            for _ in range(64):
                os.write(descriptor, bytes(1 << 20))
            os.fsync(descriptor)
            os.lseek(descriptor, 0, os.SEEK_SET)

        def step() -> None:
            if allocated and os.lseek(descriptor, 0, os.SEEK_CUR) > 63 << 20:
                os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, data)
            os.fdatasync(descriptor)

        return _rate(step, batch, seconds)
    finally:
        os.close(descriptor)
        path.unlink()


def _store_rate(place: Path, batch: int, seconds: float, *, sessions: int) -> float:
    """The store: `batch` events with one commit, of one session or of as many sessions; upkeep included."""
    home = Path(tempfile.mkdtemp(dir=place))
    store = SqliteStore.open(home / "data")
    text = _event_text()
    for number in range(sessions):
        store.fence(_record(number))
    batches = [_batch(1, batch // sessions, text)] * sessions

    def step() -> None:
        payloads = [encode_batch(each) for each in batches]
        failed = store.write([Append(f"session-{n}", "epoch", data) for n, data in enumerate(payloads)])
        assert not any(failed), failed
        store.upkeep(is_idle=False)

    try:
        return _rate(step, batch, seconds)
    finally:
        store.close()
        shutil.rmtree(home)


def _engine_rate(place: Path, batch: int, seconds: float, *, sessions: int) -> float:
    """The store behind its thread: each session hands over `batch` events when its last ones are safe."""
    home = Path(tempfile.mkdtemp(dir=place))
    try:
        return asyncio.run(_engine_rate_in(home, batch, seconds, sessions))
    finally:
        shutil.rmtree(home)


async def _engine_rate_in(home: Path, batch: int, seconds: float, sessions: int) -> float:
    loop = asyncio.get_running_loop()
    engine = SqliteEngine(SqliteStore.open(home / "data"))
    engine.start(loop)
    events = _batch(1, batch, _event_text())
    all_ended = loop.create_future()
    start = time.perf_counter()
    count, live = 0, sessions

    def hand_over(session_id: str, error: StoreError | None) -> None:
        nonlocal count, live
        assert error is None, error
        if time.perf_counter() - start < seconds:
            count += batch
            engine.append(session_id, "epoch", events, functools.partial(hand_over, session_id))
        else:
            live -= 1
            if not live:
                all_ended.set_result(time.perf_counter() - start)

    for number in range(sessions):
        engine.fence(_record(number), functools.partial(hand_over, f"session-{number}"))
    took: float = await all_ended
    await engine.close()
    return count / took


def measure_engine(place: Path, seconds: float, reps: int) -> dict[str, dict[int, list[float]]]:
    """Events a second, by contestant and batch, in turns."""
    contestants: dict[str, Callable[[int], float]] = {
        "bare file, growing": lambda batch: _file_rates(place, batch, seconds, allocated=False),
        "bare file, allocated": lambda batch: _file_rates(place, batch, seconds, allocated=True),
        "store, one session": lambda batch: _store_rate(place, batch, seconds, sessions=1),
        "store, a session an event": lambda batch: _store_rate(place, batch, seconds, sessions=batch),
        f"engine, {_ENGINE_SESSIONS} sessions": lambda batch: _engine_rate(
            place, batch, seconds, sessions=_ENGINE_SESSIONS
        ),
    }
    rates: dict[str, dict[int, list[float]]] = {
        name: {batch: [] for batch in _BATCHES} for name in contestants
    }
    for _ in range(reps):
        for batch in _BATCHES:
            for name, contestant in contestants.items():
                rates[name][batch].append(contestant(batch))
    return rates


# What is told.


def _spread(values: Sequence[float], digits: int = 1) -> str:
    median = statistics.median(values)
    return f"{median:,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def show_runs(title: str, runs: dict[str, list[Run]]) -> None:
    print(f"\n{title}")
    for name, found in runs.items():
        print(f"  {name}, n = {len(found)}")
        for field in asdict(found[0]):
            print(f"    {field:16} {_spread([getattr(run, field) for run in found], 2)}")
    if len(runs) == 2:
        ours, theirs = ([run.server_us for run in found] for found in runs.values())
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        print(f"  server CPU an event, {' ÷ '.join(runs)}: {_spread(ratios, 2)}")


def show_engine(rates: dict[str, dict[int, list[float]]]) -> None:
    print(f"\nThe engine alone, events of {_EVENT_BYTES} bytes: events/s")
    for name, by_batch in rates.items():
        print(f"  {name:26}", *(f"{batch:>5}: {_spread(found, 0)}" for batch, found in by_batch.items()))
    for file in ("bare file, growing", "bare file, allocated"):
        for name in (name for name in rates if not name.startswith("bare")):
            medians = [
                (batch, statistics.median(rates[name][batch]), statistics.median(rates[file][batch]))
                for batch in _BATCHES
            ]
            ratios = [f"{batch}: {ours / theirs:.2f}" for batch, ours, theirs in medians]
            print(f"  {name} ÷ {file}: {', '.join(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--quick", action="store_true", help="short and once, to try it")
    parser.add_argument("--parts", default="latency,cpu,engine", help="some of latency,cpu,engine")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="events a second of each client")
    parser.add_argument("--seconds", type=float, default=25.0, help="of the latency run; half for CPU")
    parser.add_argument("--reps", type=int, default=5, help="interleaved runs, of which medians are taken")
    parser.add_argument("--place", type=Path, default=Path.cwd(), help="a folder on the disk to measure")
    options = parser.parse_args()
    parts = set(options.parts.split(","))
    seconds, reps = (4.0, 1) if options.quick else (options.seconds, options.reps)
    if not Path("/proc/self/schedstat").exists():
        raise SystemExit("this benchmark reads the CPU time of other processes from /proc: Linux only")
    report: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=options.place, prefix=".bench-") as folder:
        place, load = Path(folder), {"clients": options.clients, "rate": options.rate}
        title = f"{options.clients:,} clients, {options.rate:g} events/s each"
        if "latency" in parts:
            runs = {
                "sqlite": [measure("sqlite", place, **load, seconds=seconds) for _ in range(min(reps, 3))]
            }
            report["latency"] = [asdict(run) for run in runs["sqlite"]]
            if not options.json:
                show_runs(f"{title}, {seconds:g} s", runs)
        if "cpu" in parts:
            runs = {name: [] for name in _ENGINES}
            for _ in range(reps):
                for name, found in runs.items():
                    found.append(measure(name, place, **load, seconds=seconds / 2))
            report["cpu"] = {name: [asdict(run) for run in found] for name, found in runs.items()}
            if not options.json:
                show_runs(f"{title}, {seconds / 2:g} s, in turns", runs)
        if "engine" in parts:
            rates = measure_engine(place, 0.5 if options.quick else 2.0, reps)
            report["engine"] = rates
            if not options.json:
                show_engine(rates)
    if options.json:
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
