"""Every plan that ever failed passes now, and a share of fresh ones does; a plan always runs the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.__main__ import SEEDS, load
from tests.sim.batch import run_seeds
from tests.sim.plan import draw_plan
from tests.sim.run import run_plan

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
HISTORIES = Path(__file__).with_name("histories.json")
"""Histories of some seeds, by number: equal on every Python. Write them anew: see `test_same_everywhere`."""


def seeds_in_ci() -> int:
    return int(os.environ.get("STREAMCTX_SIM_SEEDS", "10000" if os.environ.get("CI") else "1000"))


@pytest.mark.parametrize("path", sorted(SEEDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_plan_that_failed_once_passes(path: Path) -> None:
    result = run_plan(load(path).plan)
    assert result.violation is None


@pytest.mark.timeout(600)
def test_fresh_seeds_break_no_promise(capfd: pytest.CaptureFixture[str]) -> None:
    totals = run_seeds(0, seeds_in_ci(), procs=2)
    with capfd.disabled():
        sys.stdout.write("\n" + totals.describe() + "\n")
    assert not totals.failed, min(totals.failed.items())
    assert totals.seeds == seeds_in_ci()
    assert totals.events > 50 * totals.seeds
    assert sum(totals.faults.values()) > 50 * totals.seeds


def test_a_run_is_a_function_of_its_plan() -> None:
    for seed in range(20):
        plan = draw_plan(seed)
        assert run_plan(plan).history == run_plan(plan).history


def test_another_hash_seed_changes_nothing() -> None:
    ours = {str(seed): run_plan(draw_plan(seed)).history for seed in range(20)}
    assert histories(20, sys.executable, PYTHONHASHSEED="4711") == ours
    assert histories(20, sys.executable, PYTHONHASHSEED="0") == ours


def test_same_everywhere() -> None:
    """If a change of plans or protocol is meant, write the file anew with what the failure shows."""
    kept = json.loads(HISTORIES.read_text(encoding="utf-8"))
    ours = {seed: run_plan(draw_plan(int(seed))).history for seed in kept}
    assert ours == kept, json.dumps(ours, indent=1)


def histories(count: int, python: str, **environment: str) -> dict[str, str]:
    code = (
        "import json, sys; from tests.sim.batch import quiet; from tests.sim.plan import draw_plan; "
        "from tests.sim.run import run_plan; quiet(); "
        "print(json.dumps({s: run_plan(draw_plan(s)).history for s in range(int(sys.argv[1]))}))"
    )
    done = subprocess.run(
        [python, "-c", code, str(count)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, str] = json.loads(done.stdout)
    return result
