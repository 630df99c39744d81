"""Many editors over a network on which everything goes wrong lose nothing, and end equal once it is well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

import streamctx
from streamctx.client.observation import Observation
from streamctx.limits import Limits
from tests.chaos.editing import Editor, check_copies, converge, editors, typing
from tests.chaos.faults import Fault, random_plan
from tests.chaos.process import ServerProcess, server_process
from tests.chaos.proxy import fault_proxy
from tests.chaos.report import report
from tests.chaos.scale import CLIENTS, SEED, minutes

__all__: list[str] = []

_MINUTES = minutes(0.2)

LIMITS = Limits(
    request_head_timeout_s=2.0,
    hello_timeout_s=2.0,
    heartbeat_s=0.5,
    dead_s=2.0,
    send_deadline_s=1.5,
    close_wait_s=0.3,
    reconnect_delay_max_s=1.0,
    gap_timeout_s=60.0,
    nack_attempts_max=1000,
)
"""Short times, so that a connection that is of no use is given up within the 10 s to become equal.

Nothing may be given up for lost; where a busy machine makes a link slow, it otherwise may.
"""

_HEAL_S = 10.0
MEAN_BYTES = {
    Fault.LATENCY: 10_000,
    Fault.SLICES: 15_000,
    Fault.FLIP: 20_000,
    Fault.STALL: 60_000,
    Fault.BLOCK: 80_000,
    Fault.HALF_CLOSE: 80_000,
    Fault.CUT: 60_000,
    Fault.RESET: 60_000,
}


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(_MINUTES * 60 + 60)
async def test_editors_on_a_bad_network_lose_nothing(tmp_path: Path) -> None:
    async with (
        server_process(tmp_path, LIMITS) as server,
        fault_proxy(server.port, random_plan(SEED, MEAN_BYTES)) as proxy,
    ):
        # A session that its client has not confirmed yet may be lost; none is after that.
        proxy.heal()
        async with (
            editors(proxy.url, server.token, CLIENTS, limits=LIMITS) as found,
            streamctx.connect(server.url, server.token, role="observe", limits=LIMITS) as near,
            streamctx.connect(proxy.url, server.token, role="observe", limits=LIMITS) as far,
            await near.observe("*") as near_observation,
            await far.observe("*") as far_observation,
        ):
            observations = [near_observation, far_observation]
            for editor in found:
                await editor.client.flush()
            proxy.harm()
            seen = await _type_for(_MINUTES * 60, found, server, observations)
            proxy.heal()
            took_s = await converge(found, server.arena, observations, within_s=_HEAL_S)
            counters = [editor.client.counters for editor in found] + [far.counters]
            metrics = await server.metrics()
    corrupt = sum(each.corrupt for each in counters) + metrics["frames_corrupt"]
    report(
        f"bad network, seed {SEED}",
        faults=proxy.counts.total(),
        **{str(fault): count for fault, count in proxy.counts.items()},
        edits=sum(editor.edits for editor in found),
        connections=proxy.connections,
        resumed=sum(each.resumes for each in counters),
        corrupt=corrupt,
        copies_seen=seen,
        equal_after_s=round(took_s, 2),
    )
    assert all(proxy.counts[fault] for fault in Fault)
    assert sum(each.resets for each in counters) == 0
    assert sum(each.lost for each in counters) + metrics["frames_lost"] == 0
    assert metrics["events_refused"] == metrics["handler_failures"] == 0
    # The other flips ended a connection, or were on one that ended before they arrived.
    assert corrupt > proxy.counts[Fault.FLIP] / 3
    assert seen > len(found)


async def _type_for(
    duration_s: float, found: Sequence[Editor], server: ServerProcess, observations: Sequence[Observation]
) -> int:
    """Have all type, and look whether any copy is ever wrong; returns how many copies were seen."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + duration_s
    seen = 0
    async with typing(found, 0.02):
        while loop.time() < deadline:
            await asyncio.sleep(0.5)
            seen += await check_copies(found, server.arena, observations)
    return seen
