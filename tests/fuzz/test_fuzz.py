"""A minute of fuzzing, and every input that was worth keeping."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.__main__ import TARGETS, run, store
from tests.fuzz.drivers import fuzz_of, has_atheris, seeds

__all__: list[str] = []

_SECONDS = 60
"""Of all processes together."""
_PROCESSES = 2


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_minute_of_fuzzing_finds_nothing(report: Callable[[str], None]) -> None:
    driver = "atheris" if has_atheris() else "plain"
    seed = 1 if os.environ.get("CI") else random.randrange(1, 2**31)

    outcomes = run(list(TARGETS), seconds=_SECONDS, driver=driver, seed=seed, processes=_PROCESSES)

    executions = sum(outcome.executions for outcome in outcomes)
    report(f"fuzz: {executions:,} executions in {_SECONDS} s of {_PROCESSES} processes, seed {seed}")
    for outcome in outcomes:
        report(f"fuzz: {outcome.summary()}")
    found = [store(outcome) for outcome in outcomes if outcome.crash is not None]
    assert found == []
    # One that runs nothing finds nothing.
    assert all(outcome.executions > 10 for outcome in outcomes), outcomes


def test_fuzzing_is_guided_by_coverage() -> None:
    if not has_atheris():
        pytest.skip("atheris has no wheel for this Python or platform: inputs are made blindly")


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_of_the_past_pass(target: str) -> None:
    fuzz = fuzz_of(target)
    paths = seeds(target)
    assert paths

    for path in paths:
        fuzz(path.read_bytes())


def test_every_target_has_its_share_and_every_folder_its_target() -> None:
    folder = Path(__file__).parent
    modules = {path.stem for path in (folder / "targets").glob("*.py")} - {"__init__"}

    assert modules == TARGETS.keys()
    for kind in ("corpus", "crashes", "dictionaries"):
        assert {path.stem for path in (folder / kind).glob("*")} <= modules
