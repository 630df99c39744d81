"""Fresh seeds for a time, in this process too, whose memory and descriptors must not grow."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

from tests.sim.batch import Totals
from tests.sim.plan import draw_plan
from tests.sim.run import run_plan

__all__ = ["main"]

_SETTLED_S = 60.0
"""What the first minute takes is not a leak: code, caches, the allocator's first arenas."""
_GROWTH_BYTES_MAX = 8 * 1024 * 1024
_TELL_S = 30.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main(minutes: float, start: int | None = None) -> int:
    """Run seeds until the time is over; returns the exit code.

    Args:
        minutes: How long.
        start: The first seed; by default another one each time, from the clock.
    """
    first = int(time.time()) * 1000 if start is None else start
    _say(f"soaking for {minutes:g} minutes, from seed {first}")
    began = time.monotonic()
    settled: tuple[int, int] | None = None
    told = 0.0
    totals = Totals()
    seed = first
    while (elapsed_s := time.monotonic() - began) < minutes * 60:
        totals.add(run_plan(draw_plan(seed)))
        if seed in totals.failed:
            checker, detail = totals.failed[seed]
            _say(f"seed {seed}: {checker}: {detail}")
        totals.elapsed_s = elapsed_s
        seed += 1
        if seed % 50 == 0:
            gc.collect()
        if settled is None and elapsed_s >= min(_SETTLED_S, minutes * 15):
            settled = _measure()
        if elapsed_s - told >= _TELL_S:
            told = elapsed_s
            _say(
                f"{elapsed_s / 60:.1f} min: {totals.seeds:,} seeds, {len(totals.failed)} failed, "
                f"{_measure()[0] / 2**20:.1f} MiB, {_measure()[1]} descriptors"
            )
    _say(totals.describe())
    return 1 if totals.failed or not _is_flat(settled) else 0


def _is_flat(settled: tuple[int, int] | None) -> bool:
    gc.collect()
    now = _measure()
    if settled is None:
        return True
    grown, more = now[0] - settled[0], now[1] - settled[1]
    limit = f"limit {_GROWTH_BYTES_MAX / 2**20:.0f}"
    _say(f"memory grew by {grown / 2**20:.1f} MiB ({limit}), descriptors by {more}")
    return grown <= _GROWTH_BYTES_MAX and more <= 0


def _measure() -> tuple[int, int]:
    """Resident bytes and open descriptors of this process."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    return resident, len(os.listdir("/proc/self/fd"))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
