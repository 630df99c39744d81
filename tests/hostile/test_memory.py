"""One server process bears all attacks of this folder, one after the other, and does not grow by them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from streamctx.vocabulary import Encoding
from streamctx.wire.messages import Focus
from tests.hostile import (
    test_bodies,
    test_documents,
    test_endings,
    test_frames,
    test_handshake,
    test_requests,
    test_resources,
    test_sequences,
    test_takeovers,
)
from tests.hostile.arena import LIMITS, Arena, log_faults, neighbour, until

__all__: list[str] = []

_GROWTH_KIB_MAX = 32 * 1024
_ROOT = Path(__file__).parents[2]
_MODULES = (
    test_requests,
    test_handshake,
    test_frames,
    test_endings,
    test_bodies,
    test_sequences,
    test_takeovers,
    test_documents,
    test_resources,
)

_WAITING = frozenset(
    {
        "test_silent_client_is_closed_with_4204",
        "test_client_that_never_acknowledges_is_closed_with_4103",
        "test_no_hello_is_answered_with_4101",
        "test_slow_head_is_answered_with_408",
        "test_control_messages_before_hello_are_dropped",
        "test_pings_and_pongs_before_hello_buy_no_time",
        "test_messages_of_nothing_are_corrupt_frames",
        "test_absurd_but_legal_announcements_end_nothing",
        "test_min_interval_is_kept_without_losing_the_last_value",
    }
)
"""Attacks that do nothing for a second or more, and look at nothing but their own connections."""

Attack = Callable[[Arena], Awaitable[None]]


def _attacks(module: ModuleType) -> Iterator[tuple[str, Attack]]:
    """The tests of a module that attack an arena, with every set of their parameters."""
    for name, test in vars(module).items():
        if not name.startswith("test_") or "arena" not in inspect.signature(test).parameters:
            continue
        choices: list[list[dict[str, object]]] = []
        for mark in getattr(test, "pytestmark", []):
            if mark.name == "parametrize":
                names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
                choices.append(
                    [
                        dict(zip(names, value if len(names) > 1 else (value,), strict=True))
                        for value in mark.args[1]
                    ]
                )
        for chosen in itertools.product(*choices):
            arguments = {key: value for choice in chosen for key, value in choice.items()}
            yield name, _bind(test, arguments)


def _bind(test: Callable[..., Awaitable[None]], arguments: dict[str, object]) -> Attack:
    return lambda arena: test(arena=arena, **arguments)


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise LookupError(pid)


@contextlib.asynccontextmanager
async def _server(log: Path) -> AsyncIterator[tuple[Arena, int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.hostile.server_process",
        str(log),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port, token = (await process.stdout.readline()).decode().split()
        yield Arena(int(port), token, LIMITS), process.pid
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.timeout(120)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_server_does_not_grow_by_attacks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    grown: dict[str, int] = {}
    async with _server(log) as (arena, pid):
        # What any use costs once: imports, pools, the allocator's arenas.
        for encoding in Encoding:
            async with neighbour(arena), arena.greeted(encoding) as raw:
                await raw.applied(await raw.push(Focus()))
        first = last = _rss_kib(pid)
        attacks = [found for module in _MODULES for found in _attacks(module)]
        assert {name for name, _ in attacks} >= _WAITING
        async with neighbour(arena):
            await asyncio.gather(*(attack(arena) for name, attack in attacks if name in _WAITING))
            for name, attack in attacks:
                if name not in _WAITING:
                    await attack(arena)
                    now = _rss_kib(pid)
                    grown[name] = grown.get(name, 0) + now - last
                    last = now

        # What is kept for a client that may come back is gone when it may not any more.
        async def are_forgotten() -> bool:
            return await arena.metric("sessions") == 0

        await until(are_forgotten)
        last = _rss_kib(pid)
        worst = sorted(grown.items(), key=lambda item: -item[1])[:8]
        assert last - first <= _GROWTH_KIB_MAX, worst
    assert log_faults(log.read_text(errors="replace").splitlines()) == []


def test_every_module_with_attacks_is_among_them() -> None:
    folder = Path(__file__).parent
    attacking = {path.stem for path in folder.glob("test_*.py") if "(arena: Arena" in path.read_text()}
    assert {module.__name__.rpartition(".")[2] for module in _MODULES} == attacking - {"test_memory"}
