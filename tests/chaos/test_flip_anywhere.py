"""Whichever byte of a connection has a flipped bit, somebody notices, and no copy is ever wrong."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import streamctx
from streamctx.client.client import Client
from streamctx.errors import SessionClosed
from streamctx.limits import Limits
from streamctx.vocabulary import Encoding
from tests.chaos.faults import Fault
from tests.chaos.process import ServerProcess, server_process
from tests.chaos.proxy import fault_proxy
from tests.chaos.report import report

__all__: list[str] = []

# Every byte takes a minute: STREAMCTX_FLIP_STEP=1 does that. A prime step meets every bit and kind of place.
_STEP = int(os.environ.get("STREAMCTX_FLIP_STEP", "13"))
_AT_ONCE = 20
_NOTICE_S = 2.0
_NEVER = 1 << 60
_WORDS = ("one", "two\n", "três ", "😀", "five\r\n")

_LIMITS = Limits(
    request_head_timeout_s=0.5,
    hello_timeout_s=1.0,
    heartbeat_s=0.2,
    dead_s=0.8,
    send_deadline_s=0.8,
    close_wait_s=0.2,
    reconnect_delay_min_s=0.05,
    reconnect_delay_max_s=0.2,
)


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    passed: int
    """Bytes of the whole session."""
    head_bytes: int
    """Bytes of them before the first frame."""
    is_flipped: bool
    """Whether its byte was among them; what the close sends is not looked at."""
    is_refused: bool = False
    """Whether the server did not take the client, which was told so."""
    is_noticed: bool = False


async def _edit(server: ServerProcess, offset: int, encoding: Encoding) -> _Outcome:
    """One short session, in which a bit of that byte is flipped; all copies must be equal after it."""
    is_flipped = is_refused = is_noticed = False
    loop = asyncio.get_running_loop()
    async with fault_proxy(server.port, strike=(offset, Fault.FLIP)) as proxy, asyncio.timeout(30):
        started = loop.time()
        try:
            async with streamctx.connect(
                proxy.url, server.token, encoding=encoding, limits=_LIMITS, flush_s=0
            ) as client:
                document = await client.open("file:///work/a.txt", "start\n")
                for index in range(10):
                    document.edit((0, 0, 0, 0, f"{index}{_WORDS[index % len(_WORDS)]}"))
                    document.cursor((0, 1))
                    if index % 4 == 3:
                        await asyncio.sleep(0.002)
                await client.flush()
                took_s = loop.time() - started
                path = f"/v1/sessions/{client.session_id}"
                view = json.loads((await server.arena.get(f"{path}/documents/1")).body)
                expected = (document.text, document.version, False)
                assert (view["text"], view["version"], view["stale"]) == expected, offset
                # HELLO or WELCOME come again for a flip in them.
                is_noticed = took_s >= _LIMITS.hello_repeat_s or await _is_noticed(client, server, path)
                deadline = loop.time() + _NOTICE_S
                while proxy.counts and not is_noticed and loop.time() < deadline:
                    # It was one of the last bytes, and is still under way.
                    await asyncio.sleep(0.05)
                    is_noticed = await _is_noticed(client, server, path)
                is_flipped = is_noticed or bool(proxy.counts)
        except SessionClosed:
            is_refused = is_flipped = True
        return _Outcome(
            passed=proxy.passed,
            head_bytes=proxy.head_bytes,
            is_flipped=is_flipped,
            is_refused=is_refused,
            is_noticed=is_noticed,
        )


async def _is_noticed(client: Client, server: ServerProcess, path: str) -> bool:
    """Whether a frame was corrupt or turned into something else, or the connection was."""
    theirs = json.loads((await server.arena.get(path)).body)["counters"]
    ours = client.counters
    return (
        ours.corrupt + theirs["frames_corrupt"] > 0
        or ours.nacks_sent + theirs["frames_nacks_sent"] > 0
        or ours.connections + ours.failed_connections > 1
    )


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(600)
@pytest.mark.parametrize("encoding", Encoding)
async def test_flip_of_any_byte_is_noticed_and_changes_no_text(tmp_path: Path, encoding: Encoding) -> None:
    async with server_process(tmp_path, _LIMITS) as server:
        cleans = [await _edit(server, _NEVER, encoding) for _ in range(3)]
        # A busy machine can make one of them late.
        clean = next(outcome for outcome in cleans if not outcome.is_noticed and not outcome.is_refused)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def flip(offset: int) -> tuple[int, _Outcome]:
            async with gate:
                return offset, await _edit(server, offset, encoding)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(flip(offset)) for offset in range(0, clean.passed, _STEP)]
    outcomes = [task.result() for task in tasks]
    flipped = [(offset, outcome) for offset, outcome in outcomes if outcome.is_flipped]
    assert len(flipped) > 0.8 * len(outcomes)
    in_frames = [(offset, outcome) for offset, outcome in flipped if offset >= clean.head_bytes]
    assert len(in_frames) > 100
    assert [offset for offset, outcome in in_frames if not outcome.is_noticed] == []
    report(f"flips, {encoding}", flipped=len(flipped), in_frames=len(in_frames), bytes=clean.passed)
    # A head with a wrong token, path or version is refused for good, and says so.
    assert any(outcome.is_refused for offset, outcome in flipped if offset < clean.head_bytes)
