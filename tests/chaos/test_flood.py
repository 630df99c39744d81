"""Floods of handshakes, slow ones and readers that never read: caps hold, and good clients work on."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamctx.limits import KIB, MIB, Limits
from tests.chaos.editing import Editor, converge, editors
from tests.chaos.process import ServerProcess, flood_process, server_process
from tests.chaos.report import report
from tests.chaos.scale import minutes
from tests.hostile.arena import until
from tests.server.raw_client import RawClient

__all__: list[str] = []

LIMITS = Limits(
    request_head_timeout_s=1.0,
    hello_timeout_s=1.0,
    heartbeat_s=0.5,
    dead_s=3.0,
    send_deadline_s=1.0,
    close_wait_s=0.3,
    detached_session_s=1.0,
    connections_max=256,
    unauthenticated_connections_max=32,
)
_GOOD = 5
_WARM_S = 0.5
_FLOOD_S = minutes(0.1) * 60
_INTERVAL_S = 0.02
_DESCRIPTORS = 60
# Where other programs have the processors, one answer in a hundred is late whatever the server does.
_P50_FLOOR_S = 0.01
_P99_FLOOR_S = 0.25


async def _latencies(found: Sequence[Editor], duration_s: float) -> list[float]:
    """How long each of many edits takes until it is acknowledged as applied."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + duration_s
    taken: list[float] = []

    async def edit(editor: Editor) -> None:
        while (started := loop.time()) < deadline:
            editor.step()
            await editor.client.flush()
            taken.append(loop.time() - started)
            await asyncio.sleep(editor.random.uniform(0.5, 1.5) * _INTERVAL_S)

    async with asyncio.TaskGroup() as group:
        for editor in found:
            group.create_task(edit(editor))
    return taken


def _p99(taken: list[float]) -> float:
    return statistics.quantiles(taken, n=100)[-1]


async def _metrics(server: ServerProcess, probe: RawClient) -> dict[str, int]:
    """As `ServerProcess.metrics`, on a connection that is there already: a new one might be refused."""
    await probe.send(
        f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n".encode()
    )
    lines = (await probe.response()).body.decode().splitlines()
    return {name.removeprefix("streamctx_"): int(value) for name, value in map(str.split, lines)}


async def _watch(server: ServerProcess, probe: RawClient, worst: dict[str, int]) -> None:
    """Note the largest of every value for ever."""
    while True:
        metrics = await _metrics(server, probe)
        metrics |= {"descriptors": server.descriptors(), "rss_bytes": server.rss_bytes()}
        for name, value in metrics.items():
            worst[name] = max(worst.get(name, 0), value)
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(_FLOOD_S + 60)
async def test_flood_does_not_reach_the_good_clients_and_leaves_nothing(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("flooded", "quiet")]
    for home in homes:
        home.mkdir()
    async with (
        server_process(homes[0], LIMITS) as server,
        server_process(homes[1], LIMITS) as quiet_server,
        editors(server.url, server.token, _GOOD, limits=LIMITS) as found,
        editors(quiet_server.url, quiet_server.token, _GOOD, limits=LIMITS) as quiet_found,
        contextlib.AsyncExitStack() as stack,
    ):
        await _latencies([*found, *quiet_found], _WARM_S)
        probe = await stack.enter_async_context(RawClient.open(server.port))
        before = await _metrics(server, probe)
        descriptors, rss_bytes = server.descriptors(), server.rss_bytes()
        worst: dict[str, int] = {}
        async with flood_process(server.port, server.token) as attackers:
            watching = asyncio.create_task(_watch(server, probe, worst))
            # Both at the same time, so that whatever else this machine does is felt by both.
            flooded, quiet = await asyncio.gather(
                _latencies(found, _FLOOD_S), _latencies(quiet_found, _FLOOD_S)
            )
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            attacks = await attackers.finish()

        async def is_free() -> bool:
            metrics = await _metrics(server, probe)
            return (
                server.descriptors() <= descriptors
                and metrics["connections_open"] <= before["connections_open"]
                and metrics["sessions"] == _GOOD
            )

        await until(is_free, LIMITS.dead_s + LIMITS.detached_session_s + 3.0)
        await converge(found, server.arena, [], within_s=5.0)
        grown_bytes = worst["rss_bytes"] - rss_bytes
        report(
            "flood",
            p50_ms=round(statistics.median(flooded) * 1000, 1),
            quiet_p50_ms=round(statistics.median(quiet) * 1000, 1),
            p99_ms=round(_p99(flooded) * 1000, 1),
            quiet_p99_ms=round(_p99(quiet) * 1000, 1),
            edits=len(flooded),
            attacks=attacks,
            connections=worst["connections_open"],
            refused=worst["connections_refused"] + worst["websockets_refused"],
            unauthenticated=worst["websockets_unauthenticated"],
            descriptors=worst["descriptors"],
            sessions=worst["sessions"],
            grown_kib=grown_bytes // KIB,
        )
        assert all(count > 10 for count in attacks.values())
        assert worst["connections_refused"] > 0
        assert worst["websockets_refused"] > 0
        assert worst["heads_refused"] > 0
        assert worst["websockets_stalled"] > 0
        assert worst["handler_failures"] == 0
        assert worst["websockets_unauthenticated"] <= LIMITS.unauthenticated_connections_max
        assert grown_bytes < 32 * MIB + worst["sessions"] * LIMITS.server_ring_bytes_max
        assert statistics.median(flooded) < max(3 * statistics.median(quiet), _P50_FLOOR_S)
        assert _p99(flooded) < max(3 * _p99(quiet), _P99_FLOOR_S)
        assert all(editor.client.counters.connections == 1 for editor in found)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_running_out_of_descriptors_costs_newcomers_only(tmp_path: Path) -> None:
    command = ("sh", "-c", f'ulimit -n {_DESCRIPTORS}; exec "$@"', "sh")
    async with (
        server_process(tmp_path, LIMITS, command=command) as server,
        editors(server.url, server.token, _GOOD, limits=LIMITS) as found,
        contextlib.AsyncExitStack() as stack,
    ):
        await _latencies(found, _WARM_S)
        descriptors = server.descriptors()
        for _ in range(3 * _DESCRIPTORS):
            await stack.enter_async_context(RawClient.open(server.port))
        used_s = server.cpu_s()
        await _latencies(found, LIMITS.request_head_timeout_s / 2)
        assert server.descriptors() == _DESCRIPTORS
        # It does not ask again and again for what it cannot have.
        assert server.cpu_s() - used_s < LIMITS.request_head_timeout_s / 4

        async def is_free() -> bool:
            return server.descriptors() <= descriptors

        await until(is_free, LIMITS.request_head_timeout_s + 3.0)
        await converge(found, server.arena, [], within_s=5.0)
        assert all(editor.client.counters.connections == 1 for editor in found)
