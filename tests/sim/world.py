"""The clock and the server: what happens next, the hub and its store, their deaths and restarts."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xxhash

from streamctx.core.session.stored import JournalBatch
from streamctx.engine.base import Done, Engine
from streamctx.engine.memory import MemoryEngine
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from tests.sim.dice import Dice
from tests.sim.plan import Plan

if TYPE_CHECKING:
    from tests.sim.network import Link
    from tests.sim.watch import Watch

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["Host", "ModelStore", "World"]

_ALL_SCOPES = frozenset({"produce", "observe", "resource", "admin"})
PRINCIPALS = ("ann", "bob", "mallory")
_SERVER_CLOCK = 5_000.0
"""The monotonic clock of each host began at another time: mixing two of them shows."""


class World:
    """Virtual time, in seconds, and what is to happen in it.

    A step is one thing that happens: a message arrives, a timer fires, somebody acts.
    """

    def __init__(self, plan: Plan, watch: Watch) -> None:
        self.plan = plan
        self.watch = watch
        self.now = 0.0
        self.steps = 0
        self.messages = 0
        self.faults: list[str] = []
        """The names of all message faults that have happened."""
        self.is_healed = False
        self.links: list[Link] = []
        self.link_count = 0
        self.trace: Callable[[str], None] | None = None
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()
        self._history = xxhash.xxh3_64()
        self.host = Host(self)

    def at(self, time: float, action: Callable[[Any], None], argument: Any = None) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._heap, (time, next(self._order), action, argument))

    def run(self, until: float, *, steps_max: int = 10**9) -> int:
        """Let time pass; returns how many steps happened. Stops early at `steps_max`."""
        heap, before = self._heap, self.steps
        while heap and heap[0][0] <= until and self.steps - before < steps_max:
            time, _, action, argument = heapq.heappop(heap)
            if time > self.now:
                self.now = time
            self.steps += 1
            action(argument)
        if self.steps - before < steps_max:
            self.now = max(self.now, until)
        return self.steps - before

    def note(self, what: bytes) -> None:
        """Add to the history, of which equal runs have an equal hash."""
        self._history.update(what)
        self._history.update(repr(self.now).encode())

    @property
    def history(self) -> str:
        """A hash of all that has happened."""
        return self._history.hexdigest()

    def say(self, kind: str, who: str, what: str) -> None:
        """Trace, where somebody looks."""
        if self.trace is not None:
            self.trace(f"{self.now:10.6f} {who:<6} {kind:<8} {what}")


class Host:
    """The machine of the server: one hub after the other, each with its own life."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.incarnation = 0
        self.told = 0.0
        """The last time that the server was told, which rounding must not undo."""
        self.hub: Hub | None = None
        self.store = ModelStore(self)
        self._ids = itertools.count(1)
        self.start()

    @property
    def now(self) -> float:
        """The time on this host's clock."""
        return max(self.world.now + _SERVER_CLOCK, self.told)

    def start(self, _: object = None) -> None:
        """Start a server, unless one runs."""
        if self.hub is not None:
            return
        plan = self.world.plan
        self.incarnation += 1
        self.store = ModelStore(self)
        engine: Engine = self.store if plan.durability == "full" else MemoryEngine()
        self.hub = Hub(
            tokens={name: Principal(name, _ALL_SCOPES) for name in PRINCIPALS},
            version="sim",
            limits=plan.limits,
            engine=engine,
            new_id=self._new_id,
            jitter=Dice(plan.seed + self.incarnation).odds,
        )
        self.world.say("start", "server", f"incarnation {self.incarnation}")
        self.world.at(self.world.now + 1.0, self._sweep, self.incarnation)

    def crash(self, down_s: float, dice: Dice) -> None:
        """Die between two effects: what was sent is under way, everything else is gone."""
        if self.hub is None:
            return
        self.world.say("crash", "server", f"for {down_s:.3f} s")
        self.hub = None
        self.store.die()
        for link in self.world.links:
            link.server_dies(dice)
        self.world.at(self.world.now + down_s, self.start)

    def _new_id(self) -> str:
        return f"{self.incarnation}-{next(self._ids)}"

    def _sweep(self, incarnation: int) -> None:
        if self.hub is not None and incarnation == self.incarnation:
            self.hub.sweep(self.now)
            self.world.watch.after_sweep()
            self.world.at(self.world.now + 1.0, self._sweep, incarnation)


class ModelStore(MemoryEngine):
    """An engine that makes batches safe after a while, as one sync of the disk for all that wait."""

    def __init__(self, host: Host) -> None:
        super().__init__(durability="full")
        self._host = host
        self._dice = Dice(host.world.plan.seed ^ 0xD15C ^ host.incarnation)
        self._queue: list[tuple[str, JournalBatch, Done]] = []
        self._is_syncing = False
        self._is_dead = False

    @override
    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        """Queue a batch."""
        plan = self._host.world.plan
        self._host.world.watch.claims.journalled(batch)
        if not plan.sync_s:
            self._host.world.watch.synced(epoch, batch)
            done(None)
            return
        self._queue.append((epoch, batch, done))
        if not self._is_syncing:
            self._is_syncing = True
            self._sync()

    def die(self) -> None:
        """The host has crashed: nothing completes any more."""
        self._is_dead = True

    def _sync(self) -> None:
        world = self._host.world
        group, self._queue = self._queue, []
        world.at(world.now + world.plan.sync_s * self._dice.odds(), self._synced, group)

    def _synced(self, group: list[tuple[str, JournalBatch, Done]]) -> None:
        if self._is_dead:
            return
        if not self._host.world.is_healed and self._dice.happens(0.003):
            # After a failed sync nothing is acknowledged any more: the server ends.
            self._host.crash(0.5, self._dice)
            return
        for epoch, batch, done in group:
            self._host.world.watch.synced(epoch, batch)
            done(None)
        if self._queue:
            self._sync()
        else:
            self._is_syncing = False
