"""Peers that are there and do nothing, stopped or half-open, are held for a short time and cost little."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import streamctx
from streamctx.limits import KIB, Limits
from tests.chaos import network
from tests.chaos.editing import converge, editors
from tests.chaos.process import ServerProcess, client_process, server_process
from tests.chaos.proxy import fault_proxy
from tests.chaos.report import report
from tests.hostile.arena import neighbour, until

__all__: list[str] = []

LIMITS = Limits(
    request_head_timeout_s=1.0,
    hello_timeout_s=1.0,
    heartbeat_s=0.5,
    dead_s=3.0,
    send_deadline_s=1.0,
    close_wait_s=0.3,
    reconnect_delay_max_s=0.5,
)
_PATIENT = dataclasses.replace(LIMITS, dead_s=20.0, send_deadline_s=20.0)
"""Of the clients: the server has to notice by itself, and not by a client that comes again."""

# One to whom much is sent is found out earlier than one to whom nothing is.
_FLOODED_FREED_S_MAX = LIMITS.send_deadline_s + 2.0
_IDLE_FREED_S_MAX = LIMITS.dead_s + 2.0
_IDLE = 4
_FLOODED = 6
_GROWTH_BYTES_MAX = 2 * LIMITS.server_ring_bytes_max * _FLOODED
_FLOOD_TEXT = "x" * (30 * KIB)
_FLOOD_INTERVAL_S = 0.01
# What a flood costs a server whose peers all read.
_WARM_S = 1.0

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


@contextlib.asynccontextmanager
async def _crowd(home: Path) -> AsyncIterator[ServerProcess]:
    """A server, a neighbour that must notice nothing, and a session that floods all who observe it."""
    async with server_process(home, LIMITS) as server, neighbour(server.arena), _flood(server):
        yield server


@contextlib.asynccontextmanager
async def _flood(server: ServerProcess) -> AsyncIterator[None]:
    """A session from which every observer gets some megabytes a second."""
    is_flowing = asyncio.Event()

    async def push() -> None:
        async with streamctx.connect(server.url, server.token, name="flood", limits=LIMITS) as client:
            document = await client.open("file:///flood.txt", "")
            await client.flush()
            is_flowing.set()
            while True:
                document.edit((0, 0, 0, len(document.text), _FLOOD_TEXT))
                await asyncio.sleep(_FLOOD_INTERVAL_S)

    pushing = asyncio.create_task(push())
    try:
        await is_flowing.wait()
        yield
        assert not pushing.done(), pushing.exception()
    finally:
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)


async def _check_freed(server: ServerProcess, name: str, *, idle: set[int], flooded: set[int]) -> None:
    """See how long the server holds the connections of these ports, and what it grows by meanwhile."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    before = most = server.rss_bytes()
    freed_s: dict[str, float] = {}
    async with asyncio.timeout(15):
        while len(freed_s) < 2:
            held = server.peer_ports(server.port)
            for kind, ports in (("idle", idle), ("flooded", flooded)):
                if not held & ports:
                    freed_s.setdefault(kind, loop.time() - started)
            await asyncio.sleep(0.02)
            most = max(most, server.rss_bytes())
    report(
        name,
        idle_freed_after_s=round(freed_s["idle"], 2),
        flooded_freed_after_s=round(freed_s["flooded"], 2),
        grown_kib=(most - before) // KIB,
    )
    assert freed_s["idle"] <= _IDLE_FREED_S_MAX
    assert freed_s["flooded"] <= _FLOODED_FREED_S_MAX
    assert most - before < _GROWTH_BYTES_MAX


async def test_stopped_clients_are_freed_and_come_back(tmp_path: Path) -> None:
    async with _crowd(tmp_path) as server, contextlib.AsyncExitStack() as stack:
        others = server.peer_ports(server.port)
        processes = []
        ports = []
        for kind, count in (("idle", _IDLE), ("observer", _FLOODED)):
            before = server.peer_ports(server.port)
            processes.append(
                await stack.enter_async_context(
                    client_process(server.url, server.token, _PATIENT, *[kind] * count)
                )
            )
            ports.append(server.peer_ports(server.port) - before)
            assert len(ports[-1]) == count
        await asyncio.sleep(_WARM_S)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        await _check_freed(server, "stopped clients", idle=ports[0], flooded=ports[1])
        assert others <= server.peer_ports(server.port)
        for process in processes:
            process.send_signal(signal.SIGCONT)

        async def are_back() -> bool:
            return (await server.metrics())["sessions_resumed"] == _IDLE + _FLOODED

        await until(are_back)
        for process in processes:
            for client in await process.finish():
                assert client["resumes"] == 1
                assert client["resets"] == client["lost"] == 0


@pytest.mark.parametrize("means", ["proxy", "nftables"])
async def test_half_open_connections_are_freed_and_resume(tmp_path: Path, means: str) -> None:
    # A proxy that goes silent still takes some bytes in; packets that are dropped are the real thing.
    with contextlib.ExitStack() as stack:
        if means == "nftables":
            if reason := network.missing():
                pytest.skip(reason)
            stack.enter_context(network.own_network())
        async with _crowd(tmp_path) as server, fault_proxy(server.port) as proxy:
            others = server.peer_ports(server.port)
            url = proxy.url if means == "proxy" else server.url
            async with (
                editors(url, server.token, _IDLE, limits=_PATIENT) as found,
                contextlib.AsyncExitStack() as observers,
            ):
                for editor in found:
                    await editor.client.flush()
                idle = server.peer_ports(server.port) - others
                assert len(idle) == _IDLE
                observations = []
                for _ in range(_FLOODED):
                    client = await observers.enter_async_context(
                        streamctx.connect(url, server.token, role="observe", limits=_PATIENT)
                    )
                    observations.append(await client.observe("*"))
                flooded = server.peer_ports(server.port) - others - idle
                assert len(flooded) == _FLOODED
                await asyncio.sleep(_WARM_S)
                if means == "proxy":
                    proxy.silence()
                else:
                    network.drop(idle | flooded)
                for editor in found:
                    editor.step()
                await _check_freed(server, f"half-open by {means}", idle=idle, flooded=flooded)
                assert others <= server.peer_ports(server.port)
                if means == "proxy":
                    proxy.resume()
                else:
                    network.restore()
                await converge(found, server.arena, observations, within_s=10.0)
                assert all(editor.client.counters.resets == 0 for editor in found)
