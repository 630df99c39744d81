"""Every known-bad variant of the product is found, and one that does not fit it any more says so."""

from __future__ import annotations

import os

import pytest

from streamctx.core.delivery.round_trip import RoundTrip
from tests.sim import mutants
from tests.sim.ledger import CHECKERS
from tests.sim.mutant_list import MUTANTS
from tests.sim.mutants import MutantError, Substitution

__all__: list[str] = []

_TARGET = "streamctx.core.delivery.round_trip:RoundTrip.record"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        assert mutants.main(1000, min(2, os.cpu_count() or 1), None, as_json=False) == 0


def test_a_mutant_whose_text_is_gone_says_so() -> None:
    with pytest.raises(
        MutantError, match=r"RoundTrip\.record has 0 times, instead of once, the text 'no such'"
    ):
        mutants.apply(Substitution(_TARGET, "no such", "text"))


def test_a_mutant_whose_text_is_there_twice_says_so() -> None:
    with pytest.raises(MutantError, match=r"has 3 times, instead of once, the text '_variation_s'"):
        mutants.apply(Substitution(_TARGET, "_variation_s", "_other_s"))


def test_a_mutant_whose_function_is_gone_says_so() -> None:
    with pytest.raises(MutantError, match="is gone"):
        mutants.apply(Substitution("streamctx.core.delivery.round_trip:RoundTrip.no_such", "a", "b"))


def test_a_mutant_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundTrip, "record", RoundTrip.record)  # So that it is put back.
    mutants.apply(Substitution(_TARGET, "self._rtt_s = sample_s", "self._rtt_s = 2 * sample_s"))
    round_trip = RoundTrip()
    round_trip.record(1.0)
    assert round_trip.rtt_s == 2.0


def test_mutants_have_names_of_their_own_and_expect_checkers_that_exist() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 26
    assert {checker for mutant in MUTANTS for checker in mutant.checkers} <= set(CHECKERS)
    assert all(bool(mutant.off) is (mutant.masked_by is not None) for mutant in MUTANTS)
