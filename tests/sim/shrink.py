"""Make a failing plan small: fewer faults, actors, steps and seconds, as long as the same checker fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from tests.sim.plan import Odds, Plan
from tests.sim.run import Result, run_plan

__all__ = ["Shrunk", "shrink"]

T = TypeVar("T")

RUNS_MAX = 2000


class Shrunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plan that fails, as it is kept.

    `note` says what was wrong, once that is known.
    """

    checker: str
    detail: str
    plan: Plan
    note: str = ""


class _Search:
    """Counts the runs of one search, and remembers the best failing plan."""

    def __init__(self, failing: Result, say: Callable[[str], None]) -> None:
        assert failing.violation is not None
        self.checker = failing.violation[0]
        self.best = failing
        self.runs = 0
        self._say = say

    def try_(self, plan: Plan) -> bool:
        """Whether a plan fails in the same way; it is the best one then."""
        if self.runs >= RUNS_MAX:
            return False
        self.runs += 1
        result = run_plan(plan)
        if result.violation is None or result.violation[0] != self.checker:
            return False
        self.best = result
        return True

    def reduce(self, what: str, items: Sequence[T], make: Callable[[tuple[T, ...]], Plan]) -> tuple[T, ...]:
        """The fewest items with which a plan still fails, as far as taking away finds them."""
        kept = tuple(items)
        size = (len(kept) + 1) // 2
        while kept and size:
            at = 0
            while at < len(kept):
                fewer = kept[:at] + kept[at + size :]
                if self.try_(make(fewer)):
                    kept = fewer
                else:
                    at += size
            size //= 2
        self._say(f"{what}: {len(items)} -> {len(kept)} ({self.runs} runs)")
        return kept


def shrink(failing: Result, say: Callable[[str], None]) -> Shrunk:
    """Search for a small plan that fails as `failing` did.

    Args:
        failing: A result with a violation.
        say: Takes a line of progress.
    """
    search = _Search(failing, say)
    plan = failing.plan
    # The faults that fired, by name, in place of odds: taking one away leaves the others where they are.
    listed = msgspec.structs.replace(plan, odds=Odds(), only=failing.fired)
    if search.try_(listed):
        plan = listed
    for _ in range(2):
        plan = _without_actors(search, plan)
        plan = _with_fewer(search, plan)
        plan = _shorter(search, plan)
    assert search.best.violation is not None
    return Shrunk(*search.best.violation, plan=search.best.plan)


def _without_actors(search: _Search, plan: Plan) -> Plan:
    def with_actors(names: tuple[str, ...]) -> Plan:
        return msgspec.structs.replace(
            plan,
            actors=tuple(actor for actor in plan.actors if actor.name in names),
            steps=tuple(step for step in plan.steps if step.actor in names),
        )

    names = search.reduce("actors", [actor.name for actor in plan.actors], with_actors)
    return with_actors(names)


def _with_fewer(search: _Search, plan: Plan) -> Plan:
    def with_steps(steps: tuple[object, ...]) -> Plan:
        return msgspec.structs.replace(plan, steps=steps)

    plan = with_steps(search.reduce("steps", plan.steps, with_steps))
    if plan.only is None:
        return plan

    def with_faults(only: tuple[str, ...]) -> Plan:
        return msgspec.structs.replace(plan, only=only)

    return with_faults(search.reduce("faults", plan.only, with_faults))


def _shorter(search: _Search, plan: Plan) -> Plan:
    last = max((step.at for step in plan.steps), default=0.0)
    for chaos_s in (last, last + 1.0):
        shorter = msgspec.structs.replace(plan, chaos_s=round(chaos_s, 6))
        if chaos_s < plan.chaos_s and search.try_(shorter):
            return shorter
    return plan
