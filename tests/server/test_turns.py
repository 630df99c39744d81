from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from streamctx.server.turns import PASTS_MAX, WAITING_MAX, PastTurns

__all__: list[str] = []

pytestmark = pytest.mark.asyncio


class Askers:
    """Tasks that take turns, and hold them until they are let go."""

    def __init__(self) -> None:
        self._turns = PastTurns()
        self._tasks: list[asyncio.Task[None]] = []
        self.holding: list[str] = []
        self.refused: Counter[str] = Counter()
        self.done: list[str] = []
        self._go = asyncio.Semaphore(0)

    async def ask(self, *principals: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.ensure_future(self._hold(principal)) for principal in principals]
        self._tasks += tasks
        await self.settle()
        return tasks

    async def let_go(self, count: int = 1) -> None:
        for _ in range(count):
            self._go.release()
            await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _hold(self, principal: str) -> None:
        async with self._turns.turn(principal) as refusal:
            if refusal is not None:
                self.refused[principal] += 1
                return
            self.holding.append(principal)
            try:
                await self._go.acquire()
            finally:
                self.holding.remove(principal)
        self.done.append(principal)


async def test_a_principal_has_one_turn_at_a_time_and_few_wait() -> None:
    askers = Askers()
    await askers.ask(*["anna"] * (1 + WAITING_MAX))
    assert (askers.holding, askers.refused["anna"]) == (["anna"], 0)
    await askers.ask("anna")
    assert (askers.holding, askers.refused["anna"]) == (["anna"], 1)
    await askers.let_go()
    assert askers.holding == ["anna"]
    await askers.ask("anna")
    assert askers.refused["anna"] == 1
    await askers.let_go(1 + WAITING_MAX)
    assert askers.done == ["anna"] * (2 + WAITING_MAX)


async def test_so_many_principals_have_turns_and_others_follow_in_order() -> None:
    askers = Askers()
    names = [f"p{number}" for number in range(PASTS_MAX + 2)]
    await askers.ask(*["p0"] * (1 + WAITING_MAX), *names[1:])
    assert askers.holding == names[:PASTS_MAX]
    for name in (*names[PASTS_MAX:], "p0"):
        await askers.let_go()
        assert len(askers.holding) == PASTS_MAX
        assert askers.holding[-1] == name
    assert not askers.refused


async def test_who_leaves_makes_room_for_the_next() -> None:
    askers = Askers()
    first, waiting, *_ = await askers.ask(*["anna"] * (1 + WAITING_MAX))
    waiting.cancel()
    first.cancel()
    await askers.settle()
    assert askers.holding == ["anna"]
    await askers.ask("anna", "anna")
    assert not askers.refused
    await askers.let_go(WAITING_MAX + 1)
    assert askers.done == ["anna"] * (WAITING_MAX + 1)
