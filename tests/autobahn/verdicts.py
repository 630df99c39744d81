"""What Autobahn said of each case, against the table of what it is expected to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

__all__ = ["Outcome", "Table", "compare", "differences", "load_table", "summary"]

_TABLE = Path(__file__).with_name("expected.toml")


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """A case's verdict in wstest's words: on what was sent, on the close, and the close code we sent."""

    behavior: str
    behavior_close: str
    remote_close_code: int | None

    @property
    def is_plain(self) -> bool:
        """Whether it needs no explanation. wstest has compared the close code with the right ones then."""
        return self.behavior == self.behavior_close == "OK"

    @property
    def text(self) -> str:
        return f"{self.behavior}, close {self.behavior_close} {self.remote_close_code}"


class CaseSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`cases` is for wstest, in its form; `count` is how many cases that is."""

    cases: tuple[str, ...]
    count: int


class Deviation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cases, by patterns, that end in another way than OK, and why that is as it should be.

    `is_by_limit` cases are OK where the limits are raised.
    """

    cases: tuple[str, ...]
    behavior: str
    behavior_close: str
    close_code: int
    reason: str
    is_by_limit: bool = False

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.behavior, self.behavior_close, self.close_code)

    def covers(self, case: str) -> bool:
        return any(fnmatchcase(case, pattern) for pattern in self.cases)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`expected.toml`; the `waiting` cases are in every set."""

    waiting: tuple[str, ...]
    sets: dict[str, CaseSet]
    deviations: tuple[Deviation, ...]

    def deviations_of(self, case: str) -> list[Deviation]:
        return [deviation for deviation in self.deviations if deviation.covers(case)]


def load_table() -> Table:
    return msgspec.toml.decode(_TABLE.read_bytes(), type=Table)


def compare(
    outcomes: Mapping[str, Outcome], table: Table, *, set_name: str, are_limits_raised: bool = False
) -> list[str]:
    """What is not as the table has it, a line for each."""
    count = table.sets[set_name].count
    problems = [] if len(outcomes) == count else [f"{len(outcomes)} cases ran, not {count}"]
    for case in sorted(outcomes, key=_numbers):
        found = outcomes[case]
        listed = [
            deviation
            for deviation in table.deviations_of(case)
            if not (deviation.is_by_limit and are_limits_raised)
        ]
        if len(listed) > 1:
            problems.append(f"{case}: listed {len(listed)} times")
        elif not listed:
            if not found.is_plain:
                problems.append(f"{case}: {found.text}; not listed")
        elif found.is_plain:
            problems.append(f"{case}: OK, and listed as {listed[0].outcome.text}")
        elif found != listed[0].outcome:
            problems.append(f"{case}: {found.text}; listed as {listed[0].outcome.text}")
    return problems


def differences(one: Mapping[str, Outcome], other: Mapping[str, Outcome]) -> list[str]:
    """The cases of both runs in which they ended differently, close codes included."""
    return [
        f"{case}: {one[case].text} and {other[case].text}"
        for case in sorted(one.keys() & other.keys(), key=_numbers)
        if one[case] != other[case]
    ]


def summary(outcomes: Mapping[str, Outcome]) -> Counter[str]:
    """How many cases ended in which way; a wrong close is a failure."""
    return Counter(
        outcome.behavior if outcome.behavior_close in ("OK", "INFORMATIONAL") else "FAILED"
        for outcome in outcomes.values()
    )


def _numbers(case: str) -> list[int]:
    return [int(number) for number in case.split(".")]
