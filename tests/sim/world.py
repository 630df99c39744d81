"""The clock and the server: what happens next, the hub and its store, their deaths and restarts."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import xxhash

from streamctx.engine.base import Durability, Engine, StoreError
from streamctx.engine.memory import MemoryEngine
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from tests.sim.dice import Dice
from tests.sim.plan import Plan
from tests.sim.store import Disk, ModelStore

if TYPE_CHECKING:
    from tests.sim.network import Link
    from tests.sim.watch import Watch

__all__ = ["Host", "World"]

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


_POWER_CUT = 0.4
"""How often a crash takes the power with it."""


class Host:
    """The machine of the server: one hub after the other, each with a life of its own, and their disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.durability = cast(Durability, world.plan.durability)
        self.incarnation = 0
        self.told = 0.0
        """The last time that the server was told, which rounding must not undo."""
        self.hub: Hub | None = None
        self.disk = Disk(self)
        self.store = ModelStore(self, self.disk)
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
        self.store = ModelStore(self, self.disk)
        engine: Engine = MemoryEngine() if plan.durability == "none" else self.store
        self.hub = Hub(
            tokens={name: Principal(name, _ALL_SCOPES) for name in PRINCIPALS},
            version="sim",
            limits=plan.limits,
            engine=engine,
            new_id=self._new_id,
            jitter=Dice(plan.seed + self.incarnation).odds,
        )
        self.hub.on_failure = self._must_end
        self.world.say("start", "server", f"incarnation {self.incarnation}")
        self.world.at(self.world.now + 1.0, self._sweep, self.incarnation)

    def crash(self, down_s: float, dice: Dice) -> None:
        """Die between two effects: what was sent is under way, everything else is gone."""
        if self.hub is None:
            return
        self.world.say("crash", "server", f"for {down_s:.3f} s")
        self.world.watch.restarts.server_dies(self.hub)
        self.hub = None
        self.store.die(dice)
        for link in self.world.links:
            link.server_dies(dice)
        if self.durability == "relaxed" and dice.happens(_POWER_CUT):
            self.disk.cut_power(dice)
            self.world.watch.restarts.power_cut()
        self.world.at(self.world.now + down_s, self.start)

    def lose_disk(self) -> None:
        """Another disk, with nothing on it, is there when the next server starts; call it while none runs."""
        assert self.hub is None
        self.world.watch.restarts.disk_lost()
        self.disk = Disk(self)

    def gives_up(self, store: ModelStore) -> None:
        """A server whose store has failed ends."""
        if store is self.store:
            self.crash(0.5, Dice(self.world.plan.seed ^ self.incarnation))

    def _must_end(self, error: StoreError) -> None:
        """The hub has found out; its process ends soon (`gives_up`)."""
        self.world.watch.restarts.must_end(error)

    def _new_id(self) -> str:
        return f"{self.incarnation}-{next(self._ids)}"

    def _sweep(self, incarnation: int) -> None:
        if self.hub is not None and incarnation == self.incarnation:
            self.hub.sweep(self.now)
            self.world.watch.after_sweep()
            self.world.at(self.world.now + 1.0, self._sweep, incarnation)
