from __future__ import annotations

import pytest

from tests.autobahn.verdicts import CaseSet, Deviation, Outcome, Table, compare, differences, load_table

__all__: list[str] = []

_OK = Outcome("OK", "OK", 1000)
_TOO_BIG = Outcome("FAILED", "FAILED", 1009)

_TABLE = Table(
    waiting=(),
    sets={"three": CaseSet(("*",), 3)},
    deviations=(
        Deviation(
            cases=("9.*",),
            behavior="FAILED",
            behavior_close="FAILED",
            close_code=1009,
            reason="A limit.",
            is_by_limit=True,
        ),
    ),
)


def _compare(**changes: Outcome) -> list[str]:
    outcomes = {"1.1.1": _OK, "1.1.10": _OK, "9.1.1": _TOO_BIG}
    return compare(
        outcomes | {case.replace("_", "."): outcome for case, outcome in changes.items()},
        _TABLE,
        set_name="three",
    )


def test_a_run_as_listed_is_without_problems() -> None:
    assert _compare() == []


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("FAILED", "OK", 1000),
        Outcome("NON-STRICT", "OK", 1000),
        Outcome("OK", "WRONG CODE", 1002),
        Outcome("OK", "UNCLEAN", None),
        Outcome("UNIMPLEMENTED", "OK", 1000),
    ],
)
def test_a_deviation_that_is_not_listed_is_a_problem(outcome: Outcome) -> None:
    assert _compare(**{"1_1_10": outcome}) == [f"1.1.10: {outcome.text}; not listed"]


def test_a_listed_case_that_is_ok_is_a_problem() -> None:
    assert _compare(**{"9_1_1": _OK}) == ["9.1.1: OK, and listed as FAILED, close FAILED 1009"]


def test_a_listed_case_that_deviates_otherwise_is_a_problem() -> None:
    assert _compare(**{"9_1_1": Outcome("FAILED", "FAILED", None)}) == [
        "9.1.1: FAILED, close FAILED None; listed as FAILED, close FAILED 1009"
    ]


def test_a_case_too_few_or_too_many_or_none_at_all_is_a_problem() -> None:
    assert _compare(**{"1_1_2": _OK}) == ["4 cases ran, not 3"]
    assert compare({"1.1.1": _OK, "1.1.2": _OK}, _TABLE, set_name="three") == ["2 cases ran, not 3"]
    assert compare({}, _TABLE, set_name="three") == ["0 cases ran, not 3"]


def test_what_a_limit_refuses_is_to_be_ok_with_raised_limits() -> None:
    outcomes = {"1.1.1": _OK, "1.1.2": _OK, "9.1.1": _OK}

    assert compare(outcomes, _TABLE, set_name="three", are_limits_raised=True) == []
    assert compare(outcomes | {"9.1.1": _TOO_BIG}, _TABLE, set_name="three", are_limits_raised=True) == [
        "9.1.1: FAILED, close FAILED 1009; not listed"
    ]


def test_runs_differ_in_a_close_code_too() -> None:
    assert differences({"1.1": _OK, "1.2": _OK}, {"1.1": _OK, "1.2": Outcome("OK", "OK", 1001)}) == [
        "1.2: OK, close OK 1000 and OK, close OK 1001"
    ]


def test_the_table_gives_a_reason_for_each_deviation_and_lists_no_plain_outcome() -> None:
    for deviation in load_table().deviations:
        assert len(deviation.reason.split()) > 10, deviation.cases
        assert not deviation.outcome.is_plain, deviation.cases
