from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.drivers import has_atheris, mutated, run_target
from tests.fuzz.minimising import failure_of, fewest, minimised
from tests.fuzz.program import Program
from tests.fuzz.targets import codec

__all__: list[str] = []

_DRIVERS = ("plain", *(("atheris",) if has_atheris() else ()))


def _fails_on_two_letters(data: bytes) -> None:
    program = Program(data)
    while not program.is_over:
        if program.byte() == ord("a") and program.byte() == ord("b"):
            raise KeyError("ab")


@pytest.mark.timeout(60)
@pytest.mark.slow
@pytest.mark.parametrize("driver", _DRIVERS)
def test_a_driver_runs_a_target_and_counts(driver: str, tmp_path: Path) -> None:
    outcome = run_target("pattern", driver=driver, seconds=1, seed=1, corpus=tmp_path / "new")

    assert outcome.crash is None
    assert outcome.executions > 10
    assert bool(outcome.edges) is (driver == "atheris")


def test_what_does_not_matter_for_a_failure_is_left_out() -> None:
    assert minimised(_fails_on_two_letters, b"xxxxaabxxabxx", seconds=5) == b"ab"


def test_an_input_that_passes_stays_as_it_is() -> None:
    assert minimised(_fails_on_two_letters, b"xxx", seconds=5) == b"xxx"


def test_failures_differ_by_their_root() -> None:
    def chained(data: bytes) -> None:
        try:
            _fails_on_two_letters(data)
        except KeyError as error:
            raise AssertionError("logged") from error

    failure = failure_of(chained, b"ab")

    assert failure is not None
    assert failure == failure_of(_fails_on_two_letters, b"ab")
    assert failure_of(chained, b"") is None


def test_inputs_that_reach_nothing_new_are_not_chosen() -> None:
    assert fewest(codec.fuzz, [b"\0\xc0", b"\0\xc0", b"\0\xc2"], bytes_max=1000) == [b"\0\xc0"]
    assert fewest(codec.fuzz, [b"\0\xc0"], bytes_max=1) == []


@pytest.mark.parametrize("known", [[], [b"seed"]])
def test_mutations_follow_from_the_seed(known: list[bytes]) -> None:
    first, second = random.Random(7), random.Random(7)

    assert [mutated(first, known) for _ in range(50)] == [mutated(second, known) for _ in range(50)]
