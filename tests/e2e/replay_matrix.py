"""Replays recorded editing over every kind of bad connection; each copy must end equal.

    python -m tests.e2e.replay_matrix            everything, some minutes
    python -m tests.e2e.replay_matrix --quick    one trace, once an encoding, with and without faults
    python -m tests.e2e.replay_matrix --only worse

Each run is a process of its own, `streamctx replay --observe --json`, with its own server. The status is 0
only if all runs were as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["FAULTS", "TRACES", "WORSE_FAULTS", "Case", "Outcome", "cases", "main", "run_case"]

TRACES = Path(__file__).parents[3] / "shared" / "data" / "editing-traces"
NAMES = ("sveltecomponent", "rustcode", "json-crdt-blog-post", "clownschool_flat", "seph-blog1")
ENCODINGS = ("msgpack", "json")
UNITS = ("utf-16", "utf-8", "utf-32")
PARTS = ("faulty", "clean", "seeds", "worse")
FAULTS = "drop=0.02,dup=0.02,reorder=0.02,corrupt=0.01,cut=0.002"
WORSE_FAULTS = "drop=0.2,dup=0.1,reorder=0.2,corrupt=0.05,cut=0.02"

# A run that takes longer has failed.
_RUN_S_MAX = 600.0
_COUNTED = ("nacks", "retransmitted", "corrupt", "resumes")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    part: str
    trace: str
    encoding: str = "msgpack"
    unit: str = "utf-16"
    faults: str | None = None
    seed: int = 1

    @property
    def observer_unit(self) -> str:
        """Another one than the producer's, so that the server has to translate."""
        return UNITS[(UNITS.index(self.unit) + 1) % len(UNITS)]

    def arguments(self) -> list[str]:
        path = TRACES / f"{self.trace}.json.gz"
        arguments = ["replay", str(path), "--observe", "--observe-unit", self.observer_unit, "--json"]
        arguments += ["--encoding", self.encoding, "--unit", self.unit, "--seed", str(self.seed)]
        return arguments if self.faults is None else [*arguments, "--faults", self.faults]


@dataclass(kw_only=True)
class Outcome:
    """What became of a run; it is as expected if `problems` is empty."""

    case: Case
    wall_s: float
    report: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def cases(parts: Sequence[str], names: Sequence[str], *, is_quick: bool) -> Iterator[Case]:
    """The runs of some parts of the matrix."""
    encodings_units = [(encoding, unit) for encoding in ENCODINGS for unit in UNITS]
    if is_quick:
        names = [name for name in names if name == NAMES[0]]
        encodings_units = [(encoding, UNITS[0]) for encoding in ENCODINGS]
    if "faulty" in parts:
        for name in names:
            for encoding, unit in encodings_units:
                yield Case(part="faulty", trace=name, encoding=encoding, unit=unit, faults=FAULTS)
    if "clean" in parts:
        for name in names:
            for encoding in ENCODINGS:
                yield Case(part="clean", trace=name, encoding=encoding)
    if is_quick or NAMES[0] not in names:
        return
    if "seeds" in parts:
        for seed in range(1, 11):
            yield Case(part="seeds", trace=NAMES[0], faults=FAULTS, seed=seed)
    if "worse" in parts:
        for seed in range(1, 4):
            yield Case(part="worse", trace=NAMES[0], faults=WORSE_FAULTS, seed=seed)


def run_case(case: Case) -> Outcome:
    """Run one, in a process that finds no other server."""
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("STREAMCTX_")}
        environ |= {"XDG_RUNTIME_DIR": directory, "XDG_STATE_HOME": directory}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "streamctx", *case.arguments()],
                capture_output=True,
                text=True,
                env=environ,
                timeout=_RUN_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"took more than {_RUN_S_MAX:g} s"
            return Outcome(case=case, wall_s=time.monotonic() - started_at, problems=[problem])
    outcome = Outcome(case=case, wall_s=time.monotonic() - started_at)
    try:
        outcome.report = json.loads(done.stdout)
    except ValueError:
        outcome.problems.append(f"status {done.returncode}: {_last_line(done.stderr)}")
        return outcome
    outcome.problems = list(_judge(case, outcome.report, done.returncode, done.stderr))
    return outcome


def _judge(case: Case, report: dict[str, Any], status: int, said: str) -> Iterator[str]:
    if status != 0 or report["verified"] is not True:
        yield f"not verified, status {status}: {_last_line(said)}"
    if not report["sha256_expected"] == report["sha256_server"] == report["sha256_observer"]:
        yield "the copies differ"
    if "Traceback" in said:
        yield f"an end failed: {_last_line(said)}"
    if case.faults is None:
        for name in _COUNTED:
            if report[name]:
                yield f"{report[name]} {name} without a fault"
        return
    for name in _COUNTED:
        if not report[name]:
            yield f"no {name}"


def _last_line(said: str) -> str:
    return said.strip().rpartition("\n")[2][-500:]


def _row(outcome: Outcome) -> str:
    case, report = outcome.case, outcome.report
    cells = [
        f"{case.part:<7}{case.trace:<20}{case.encoding:<8}{case.unit:<7}{case.seed:>3}{outcome.wall_s:>8.1f}"
    ]
    if report:
        cells += [f"{report['edits']:>8}{report['edits_per_s']:>9.0f}{report['ack_ms']['p50'] or 0:>9.1f}"]
        cells += [f"{report['observer_ms']['p99'] or 0:>9.1f}"]
        cells += [f"{report[name]:>9}" for name in (*_COUNTED, "duplicates", "skipped")]
    return "".join(cells) + ("  verified" if not outcome.problems else f"  FAILED: {outcome.problems}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, and print a line for each run as it ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.replay_matrix", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first trace, once an encoding")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of the matrix")
    parser.add_argument("--traces", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--json", action="store_true", help="print all outcomes as JSON in the end")
    options = parser.parse_args(arguments)
    if not TRACES.is_dir():
        parser.error(f"the traces are not there: {TRACES}")
    wanted = list(cases(options.only, options.traces, is_quick=options.quick))
    out = sys.stderr if options.json else sys.stdout
    header = (
        f"{'part':<7}{'trace':<20}{'enc.':<8}{'unit':<7}{'seed':>3}{'wall s':>7}{'edits':>8}{'edits/s':>9}"
    )
    header += f"{'ack p50':>9}{'obs p99':>9}"
    header += "".join(f"{name[:8]:>9}" for name in (*_COUNTED, "duplicates", "skipped"))
    print(header, file=out, flush=True)
    outcomes = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(run_case, case) for case in wanted]):
            outcomes.append(future.result())
            print(_row(outcomes[-1]), file=out, flush=True)
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{len(outcomes)} runs, {failed} failed", file=out)
    if options.json:
        rows = [
            {**vars(one.case), "wall_s": round(one.wall_s, 2), "problems": one.problems, "report": one.report}
            for one in outcomes
        ]
        print(json.dumps(rows, indent=2))
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
