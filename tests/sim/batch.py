"""Many runs in several processes, and what they came to."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.sim.plan import draw_plan
from tests.sim.run import Result, run_plan

__all__ = ["Totals", "quiet", "run_seeds"]

_CHUNK = 25
_PROGRESS_S = 5.0


@dataclass(slots=True)
class Totals:
    """What many runs came to."""

    seeds: int = 0
    steps: int = 0
    messages: int = 0
    virtual_s: float = 0.0
    events: int = 0
    acks: int = 0
    given_up: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def add(self, result: Result) -> None:
        """Count one more run."""
        self.seeds += 1
        self.steps += result.steps
        self.messages += result.messages
        self.virtual_s += result.virtual_s
        self.events += result.events
        self.acks += result.acks
        self.given_up += result.lost
        self.faults.update(result.faults)
        if result.violation is not None:
            self.failed[result.plan.seed] = result.violation

    def describe(self) -> str:
        """For people."""
        rate = self.seeds / self.elapsed_s if self.elapsed_s else 0.0
        faults = ", ".join(f"{name} {count:,}" for name, count in self.faults.most_common())
        return (
            f"{self.seeds:,} seeds in {self.elapsed_s:.1f} s ({rate:.1f} a second): {self.steps:,} steps, "
            f"{self.messages:,} messages, {self.virtual_s / 3600:.1f} virtual hours\n"
            f"{sum(self.faults.values()):,} faults injected: {faults}\n"
            f"{self.events:,} durable events applied, {self.acks:,} acknowledgements checked, "
            f"{self.given_up:,} numbers given up, told and healed\n"
            f"lost events: {'0' if not self.failed else 'see below'}; violations: {len(self.failed)}"
        )


def quiet() -> None:
    """Keep the server's log out: it tells of every fault."""
    logging.disable(logging.CRITICAL)


def _run_chunk(seeds: range) -> list[Result]:
    return [run_plan(draw_plan(seed)) for seed in seeds]


def run_seeds(start: int, count: int, procs: int, progress: Callable[[Totals], None] | None = None) -> Totals:
    """Run seeds in several processes.

    Args:
        start: The first one.
        count: How many.
        procs: Processes; with 1 they run in this one.
        progress: Called every few seconds.
    """
    totals = Totals()
    began = told = time.monotonic()
    for result in _results(start, count, procs):
        totals.add(result)
        totals.elapsed_s = time.monotonic() - began
        if progress is not None and time.monotonic() - told >= _PROGRESS_S:
            told = time.monotonic()
            progress(totals)
    return totals


def _results(start: int, count: int, procs: int) -> Iterator[Result]:
    chunks = [range(at, min(at + _CHUNK, start + count)) for at in range(start, start + count, _CHUNK)]
    if procs == 1:
        for chunk in chunks:
            yield from _run_chunk(chunk)
        return
    with get_context("spawn").Pool(procs, initializer=quiet) as pool:
        for results in pool.imap_unordered(_run_chunk, chunks):
            yield from results
