"""Clocks that jump by an hour in the middle of work end no session, and wake nobody up for nothing."""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import streamctx
from streamctx.limits import Limits
from tests.chaos.editing import converge, editors, typing
from tests.chaos.packages import missing
from tests.chaos.process import ServerProcess, client_process, server_process
from tests.chaos.report import report

__all__: list[str] = []

LIMITS = Limits(
    heartbeat_s=0.5,
    dead_s=2.0,
    send_deadline_s=2.0,
    detached_session_s=10.0,
    gap_timeout_s=2.0,
    reconnect_delay_max_s=1.0,
)
_EDITORS = 4
_INTERVAL_S = 0.02
_QUIET_S = 2.0
_HOUR_S = 3600
_JUMPS_S = (_HOUR_S, 0, -_HOUR_S, _HOUR_S, -_HOUR_S, 0)
_JUMP_INTERVAL_S = 0.4

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]


def _libraries() -> list[Path]:
    return sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


class _Clock:
    """The clock of processes that are started with `environ`."""

    def __init__(self, file: Path, *, is_monotonic_real: bool) -> None:
        if reason := missing("libfaketime", lambda: bool(_libraries())):
            pytest.skip(reason)
        self._file = file
        self.jump(0)
        self.environ = {
            "LD_PRELOAD": str(_libraries()[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": str(int(is_monotonic_real)),
        }

    def jump(self, seconds: int) -> None:
        """Be so far from the real clock from now on."""
        # Replaced in one step, since it is read again and again.
        new = self._file.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.replace(self._file)


@dataclass(frozen=True)
class _Work:
    """What a server does in a second."""

    cpu_s: float
    frames: float


async def _measure(server: ServerProcess, jumps: Sequence[tuple[_Clock, int]], interval_s: float) -> _Work:
    """Make the jumps, and see what the server does meanwhile."""
    loop = asyncio.get_running_loop()
    started, cpu_s, metrics = loop.time(), server.cpu_s(), await server.metrics()
    for clock, seconds in jumps:
        clock.jump(seconds)
        await asyncio.sleep(interval_s)
    took_s, after = loop.time() - started, await server.metrics()
    frames = (
        after["frames_sent"] + after["frames_received"] - metrics["frames_sent"] - metrics["frames_received"]
    )
    return _Work((server.cpu_s() - cpu_s) / took_s, frames / took_s)


def _check_no_storm(name: str, quiet: _Work, jumping: _Work, **figures: object) -> None:
    report(
        name,
        cpu=round(jumping.cpu_s, 3),
        quiet_cpu=round(quiet.cpu_s, 3),
        frames_per_s=round(jumping.frames),
        quiet_frames_per_s=round(quiet.frames),
        **figures,
    )
    assert jumping.cpu_s < 2 * quiet.cpu_s + 0.2
    assert jumping.frames < 2 * quiet.frames


async def _difference_s(server: ServerProcess) -> float:
    """How far the server's clock is from ours."""
    date = (await server.arena.get("/healthz")).headers["date"]
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()


async def test_wall_clocks_that_jump_by_an_hour_change_nothing(tmp_path: Path) -> None:
    clock = _Clock(tmp_path / "clock", is_monotonic_real=True)
    async with (
        server_process(tmp_path, LIMITS, environ=clock.environ) as server,
        client_process(
            server.url, server.token, LIMITS, "editor", "editor", "observer", environ=clock.environ
        ) as jumping_clients,
        editors(server.url, server.token, _EDITORS, limits=LIMITS) as found,
        streamctx.connect(server.url, server.token, role="observe", limits=LIMITS) as watcher,
        await watcher.observe("*") as observation,
    ):
        async with typing(found, _INTERVAL_S):
            quiet = await _measure(server, [(clock, 0)], _QUIET_S)
            before = await server.metrics()
            jumping = await _measure(server, [(clock, jump) for jump in _JUMPS_S], _JUMP_INTERVAL_S)
            clock.jump(-_HOUR_S)
            # The date in answers is made anew once a second.
            await asyncio.sleep(1.2)
            assert abs(await _difference_s(server) + _HOUR_S) < 10
        await converge(found, server.arena, [observation], within_s=5.0)
        after = await server.metrics()
        clients = await jumping_clients.finish()
        _check_no_storm("wall clock", quiet, jumping, jumps=len(_JUMPS_S))
        for name in (
            "accepted",
            "sessions",
            "sessions_opened",
            "sessions_ended",
            "sessions_resumed",
            "failed",
        ):
            assert after[name] == before[name], name
        assert after["takeovers"] == 0
        assert [client["connections"] for client in clients] == [1, 1, 1]
        assert all(client["edits"] > 50 for client in clients[:2])
        assert all(editor.client.counters.connections == 1 for editor in found)


async def test_all_clocks_of_the_server_that_jump_by_an_hour_end_no_session(tmp_path: Path) -> None:
    """A monotonic clock only ever jumps ahead, as in a virtual machine that was stopped for an hour."""
    clock = _Clock(tmp_path / "clock", is_monotonic_real=False)
    async with (
        server_process(tmp_path, LIMITS, environ=clock.environ) as server,
        editors(server.url, server.token, _EDITORS, limits=LIMITS) as found,
        streamctx.connect(server.url, server.token, role="observe", limits=LIMITS) as watcher,
        await watcher.observe("*") as observation,
    ):
        async with typing(found, _INTERVAL_S):
            quiet = await _measure(server, [(clock, 0)], _QUIET_S)
            before = await server.metrics()
            jumping = await _measure(server, [(clock, _HOUR_S)], _QUIET_S)
            assert abs(await _difference_s(server) - _HOUR_S) < 10
        await converge(found, server.arena, [observation], within_s=5.0)
        after = await server.metrics()
        counters = [editor.client.counters for editor in found]
        _check_no_storm(
            "all clocks", quiet, jumping, resumed=after["sessions_resumed"], takeovers=after["takeovers"]
        )
        assert after["sessions"] == before["sessions"] == _EDITORS + 1
        assert after["sessions_opened"] == before["sessions_opened"]
        assert all(each.resets == each.lost == 0 for each in counters)
