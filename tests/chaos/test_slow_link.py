"""A session that resumes over a slow link without losses asks for nothing again, and loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import streamctx
from streamctx.limits import Limits
from tests.chaos.process import server_process
from tests.chaos.proxy import fault_proxy
from tests.chaos.report import report

__all__: list[str] = []

_BYTES_PER_S = 20_000.0
_EDITS = 500
_TEXT = "y" * 100
# What a gap may take to be filled is shorter here than what all edits take to arrive, which is some 5 s.
_LIMITS = Limits(gap_timeout_s=2.0)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_resume_over_a_slow_link_sends_once_and_loses_nothing(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with (
        server_process(tmp_path, _LIMITS) as server,
        fault_proxy(server.port) as proxy,
        streamctx.connect(proxy.url, server.token, limits=_LIMITS, flush_s=0) as client,
    ):
        document = await client.open("file:///work/a.txt", "start\n")
        await client.flush()
        proxy.silence()
        for _ in range(_EDITS):
            document.edit((0, 0, 0, 0, _TEXT))
        await asyncio.sleep(0.05)
        client.abort()
        proxy.bytes_per_s = _BYTES_PER_S
        proxy.resume()
        started, passed = loop.time(), proxy.passed
        async with asyncio.timeout(40):
            while client.pending and not (metrics := await server.metrics())["frames_lost"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        report(
            "slow link",
            seconds=round(loop.time() - started, 1),
            kib=(proxy.passed - passed) // 1024,
            retransmitted=client.counters.retransmitted,
            nacks=metrics["frames_nacks_sent"],
            lost=metrics["frames_lost"],
        )
        assert metrics["frames_lost"] == 0
        assert metrics["frames_nacks_sent"] == 0
        assert client.counters.retransmitted <= _EDITS
