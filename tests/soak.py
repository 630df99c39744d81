"""Everything at once for a long time: `python -m tests.soak --minutes 30`.

One server lives through all of it, while round after round of editors comes over a network on which
everything goes wrong, ends with equal copies, and leaves. Beside it the simulator runs fresh seeds. Nothing
may break a promise, and neither memory nor descriptors may grow.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from pathlib import Path

import streamctx
from tests.chaos.editing import check_copies, converge, editors, typing
from tests.chaos.faults import random_plan
from tests.chaos.process import ServerProcess, server_process
from tests.chaos.proxy import fault_proxy
from tests.chaos.test_bad_network import LIMITS, MEAN_BYTES

__all__: list[str] = []

_CLIENTS = 10
_TYPING_S = 12.0
_EQUAL_S = 30.0
_SETTLE_ROUNDS = 4
"""What the first rounds take is not a leak: code, caches, the allocator's first arenas."""
_GROWTH_BYTES_MAX = 8 * 1024 * 1024
_MIB = 1024 * 1024


async def _soak(minutes: float) -> list[str]:
    """Run rounds until the time is over; returns what was wrong."""
    began = time.monotonic()
    measured: list[tuple[int, int]] = []
    edits = faults = 0
    with tempfile.TemporaryDirectory() as home:
        async with server_process(Path(home), LIMITS) as server:
            for number in itertools.count(1):
                if time.monotonic() - began >= minutes * 60:
                    break
                more_edits, more_faults = await _round(server, number)
                edits, faults = edits + more_edits, faults + more_faults
                await _until_alone(server)
                measured.append((server.rss_bytes(), server.descriptors()))
                _say(
                    f"{(time.monotonic() - began) / 60:.1f} min, round {number}: {edits:,} edits, "
                    f"{faults:,} faults, all equal; "
                    f"server {measured[-1][0] / _MIB:.1f} MiB, {measured[-1][1]} descriptors"
                )
    return _grown(measured)


async def _round(server: ServerProcess, number: int) -> tuple[int, int]:
    """Editors come, type over a bad network, become equal, and go; returns the counts of edits and faults."""
    async with fault_proxy(server.port, random_plan(number, MEAN_BYTES)) as proxy:
        proxy.heal()
        async with (
            editors(proxy.url, server.token, _CLIENTS, limits=LIMITS) as found,
            streamctx.connect(proxy.url, server.token, role="observe", limits=LIMITS) as observer,
            await observer.observe("*") as observation,
        ):
            for editor in found:
                await editor.client.flush()
            proxy.harm()
            async with typing(found, 0.05):
                await asyncio.sleep(_TYPING_S)
            await check_copies(found, server.arena, [observation])
            proxy.heal()
            await converge(found, server.arena, [observation], within_s=_EQUAL_S)
            return sum(editor.edits for editor in found), proxy.counts.total()


async def _until_alone(server: ServerProcess) -> None:
    """Wait until the server has let go of every session."""
    async with asyncio.timeout(_EQUAL_S):
        while (await server.metrics())["sessions"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    await asyncio.sleep(0.5)


def _grown(measured: list[tuple[int, int]]) -> list[str]:
    if len(measured) <= _SETTLE_ROUNDS:
        return []
    settled = measured[_SETTLE_ROUNDS - 1]
    grown = measured[-1][0] - settled[0]
    more = measured[-1][1] - settled[1]
    limit = f"limit {_GROWTH_BYTES_MAX / _MIB:.0f}"
    _say(f"the server grew by {grown / _MIB:.1f} MiB ({limit}), descriptors by {more}")
    wrong = []
    if grown > _GROWTH_BYTES_MAX:
        wrong.append("the server's memory grows")
    if more > 0:
        wrong.append("the server's descriptors grow")
    return wrong


async def _simulate(minutes: float) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.sim", "soak", "--minutes", f"{minutes:g}"
    )
    return ["the simulation"] if await process.wait() else []


async def _main(minutes: float) -> int:
    async with asyncio.TaskGroup() as group:
        rounds = group.create_task(_soak(minutes))
        simulation = group.create_task(_simulate(minutes))
    wrong = rounds.result() + simulation.result()
    _say("wrong: " + ", ".join(wrong) if wrong else "nothing was wrong")
    return 1 if wrong else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    sys.exit(asyncio.run(_main(parser.parse_args().minutes)))
