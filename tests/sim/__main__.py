"""The simulator's command line: `python -m tests.sim run | replay | shrink | mutants | soak`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from tests.sim.batch import Totals, quiet, run_seeds
from tests.sim.plan import Plan, draw_plan
from tests.sim.run import Result, run_plan
from tests.sim.shrink import Shrunk, shrink

__all__ = ["SEEDS", "load", "main", "save"]

SEEDS = Path(__file__).parents[1] / "seeds"
"""Every plan that ever failed."""


def load(path: Path) -> Shrunk:
    """Read a plan that was kept.

    Raises:
        OSError: It cannot be read.
        msgspec.DecodeError: It is not what `save` writes.
    """
    return msgspec.json.decode(path.read_bytes(), type=Shrunk)


def save(shrunk: Shrunk, folder: Path = SEEDS) -> Path:
    """Keep a plan that fails; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{shrunk.checker.lower()}-{shrunk.plan.seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(shrunk), indent=1) + b"\n")
    return path


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code, 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run many seeds")
    run.add_argument("--seeds", type=int, default=1000)
    run.add_argument("--start", type=int, default=0)
    run.add_argument("--procs", type=int, default=2)
    run.add_argument("--json", action="store_true", help="print the totals as JSON")
    run.add_argument("--keep", action="store_true", help="shrink what fails, and keep it")

    replay = commands.add_parser("replay", help="run one plan, or all of some files")
    replay.add_argument("files", nargs="*", type=Path)
    replay.add_argument("--seed", type=int)
    replay.add_argument("--trace", action="store_true", help="print every message and happening")
    replay.add_argument("--twice", action="store_true", help="and demand the same history again")

    smaller = commands.add_parser("shrink", help="make a failing plan small, and keep it")
    smaller.add_argument("file", nargs="?", type=Path)
    smaller.add_argument("--seed", type=int)

    mutants = commands.add_parser("mutants", help="prove that known-bad code is found")
    mutants.add_argument("--seeds", type=int, default=1000, help="seeds for each, at most")
    mutants.add_argument("--procs", type=int, default=2)
    mutants.add_argument("--only", help="a part of the name of those to hunt")
    mutants.add_argument("--share", action="store_true", help="and how many of 100 seeds find each")
    mutants.add_argument("--note", action="store_true", help="keep which seeds find them, to be tried first")
    mutants.add_argument("--json", action="store_true")

    soak = commands.add_parser("soak", help="run fresh seeds for a time, and watch memory and descriptors")
    soak.add_argument("--minutes", type=float, default=30.0)
    soak.add_argument("--start", type=int, help="the first seed; by default another one each time")

    options = parser.parse_args(arguments)
    if options.command == "mutants":
        from tests.sim import mutants as mutation

        return mutation.main(
            options.seeds,
            options.procs,
            options.only,
            options.json,
            share=options.share,
            note=options.note,
        )
    quiet()
    if options.command == "run":
        return _run(options)
    if options.command == "replay":
        return _replay(options)
    if options.command == "shrink":
        return _shrink(options)
    from tests.sim import soak as soaking

    return soaking.main(options.minutes, options.start)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _run(options: argparse.Namespace) -> int:
    def progress(totals: Totals) -> None:
        left_s = totals.elapsed_s / totals.seeds * (options.seeds - totals.seeds)
        failed = f"failed: {sorted(totals.failed)[:10]}" if totals.failed else "none failed"
        _note(f"{totals.seeds:,} of {options.seeds:,} seeds, {failed}, {left_s:.0f} s left")

    totals = run_seeds(options.start, options.seeds, options.procs, progress)
    if options.json:
        _say(msgspec.json.encode(totals).decode())
    else:
        _say(totals.describe())
    for seed, (checker, detail) in sorted(totals.failed.items()):
        _say(f"seed {seed}: {checker}: {detail}")
        if options.keep:
            _keep(run_plan(draw_plan(seed)))
    if totals.failed and not options.keep:
        _say(f"To make one small and keep it: python -m tests.sim shrink --seed {min(totals.failed)}")
    return 1 if totals.failed else 0


def _replay(options: argparse.Namespace) -> int:
    plans: dict[str, Plan] = {str(path): load(path).plan for path in options.files}
    if options.seed is not None:
        plans[f"seed {options.seed}"] = draw_plan(options.seed)
    if not plans:
        _say("nothing to replay: name files, or --seed N")
        return 2
    failed = 0
    for name, plan in plans.items():
        result = run_plan(plan, _say if options.trace else None)
        verdict = "passes" if result.violation is None else f"{result.violation[0]}: {result.violation[1]}"
        if options.twice and run_plan(plan).history != result.history:
            verdict = "runs differently the second time"
        failed += verdict != "passes"
        _say(
            f"{name}: {verdict} ({result.steps} steps, {len(result.fired)} faults, history {result.history})"
        )
    return 1 if failed else 0


def _shrink(options: argparse.Namespace) -> int:
    if (options.file is None) is (options.seed is None):
        _say("name one: a file, or --seed N")
        return 2
    plan = load(options.file).plan if options.file is not None else draw_plan(options.seed)
    result = run_plan(plan)
    if result.violation is None:
        _say("this plan fails no checker: there is nothing to shrink")
        return 2
    _keep(result)
    return 0


def _keep(failing: Result) -> None:
    assert failing.violation is not None
    shrunk = shrink(failing, _say)
    path = save(shrunk)
    _say(f"{shrunk.checker}: {shrunk.detail}")
    _say(f"kept as {path}: {len(shrunk.plan.steps)} steps, {len(shrunk.plan.only or ())} message faults")


def _note(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
