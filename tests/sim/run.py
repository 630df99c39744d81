"""One run of a plan: chaos, then a network that is well, then the demand that all copies become equal."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamctx.core.session.state import ClientState
from streamctx.hub.hub import Hub
from streamctx.wire.changes import Change
from tests.sim import probes
from tests.sim.actors import Client, Echo
from tests.sim.dice import Dice
from tests.sim.editor import Editor
from tests.sim.equality import Equality
from tests.sim.ledger import Violation
from tests.sim.network import LATE_S
from tests.sim.plan import Plan, Step
from tests.sim.rogue import Rogue
from tests.sim.watch import Watch
from tests.sim.world import World

__all__ = ["Result", "run_plan"]

_POLL_S = 0.5
_QUIET_S = 3.0
_SLACK_S = 12.0
_WELL_S = 8.0
"""So long after all connections are whole, all copies are equal: a client asks again after 5 s."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a plan.

    `violation` is the name of the checker that failed and what it said; `fired` are the names of the message
    faults that happened. `history` is a hash of every message and when it came.
    """

    plan: Plan
    violation: tuple[str, str] | None
    history: str
    steps: int
    messages: int
    virtual_s: float
    fired: tuple[str, ...]
    faults: Counter[str]
    events: int
    acks: int
    lost: int


class Run:
    """The actors of a plan, and what is done to them."""

    def __init__(self, plan: Plan, trace: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.watch = Watch()
        self.world = world = World(plan, self.watch)
        self.watch.world = world
        world.trace = trace
        self.harms: Counter[str] = Counter()
        self.healed_at = 0.0
        self.clients: dict[str, Client] = {}
        self.rogues: dict[str, Rogue] = {}
        self._copies = 0
        for actor in plan.actors:
            if actor.role == "rogue":
                self.rogues[actor.name] = Rogue(world, actor)
            elif actor.role == "observe":
                self.clients[actor.name] = Client(world, actor)
            else:
                self.clients[actor.name] = Editor(world, actor)
        for step in plan.steps:
            world.at(step.at, self._act, step)

    # The script.

    def _act(self, step: Step) -> None:
        world = self.world
        dice = Dice(step.draw)
        world.say("does", step.actor, f"{step.do} {step.draw}")
        if step.do == "rogue":
            rogue = self.rogues.get(step.actor)
            if rogue is not None:
                self.harms["rogue"] += 1
                rogue.act(dice)
            return
        client = self.clients.get(step.actor)
        if client is None:
            return
        harm = _HARMS.get(step.do)
        if harm is not None:
            self.harms[step.do] += 1
            harm(self, client, dice, step.actor)
        elif isinstance(client, Editor):
            client.act(step.do, dice)

    def _crash(self, _client: Client, dice: Dice, _name: str) -> None:
        self.world.host.crash(dice.pick((0.0, 0.0, 0.1, 2.0, 10.0)) * dice.odds(), dice)

    def _cut(self, client: Client, dice: Dice, _name: str) -> None:
        if client.link is not None:
            client.link.cut(dice)

    def _vanish(self, client: Client, dice: Dice, _name: str) -> None:
        """Neither end is told that nothing arrives any more."""
        if client.link is not None:
            client.link.up.is_severed = client.link.down.is_severed = True

    def _block(self, client: Client, dice: Dice, _name: str) -> None:
        """One direction holds everything back, then lets it arrive at once."""
        if client.link is not None:
            direction = dice.pick((client.link.up, client.link.down))
            direction.is_blocked = True
            seconds = dice.pick((0.1, 1.0, 6.0)) * dice.odds()
            self.world.at(self.world.now + seconds, lambda _: direction.unblock())

    def _stall(self, client: Client, dice: Dice, _name: str) -> None:
        link = client.link
        if link is not None:
            link.stall()
            seconds = dice.pick((0.2, 2.0, 10.0)) * dice.odds()
            self.world.at(self.world.now + seconds, lambda _: link.resume_reading())

    def _sleep(self, client: Client, dice: Dice, _name: str) -> None:
        client.sleep(dice.pick((0.5, 5.0, 60.0)) * dice.odds())

    def _die(self, client: Client, dice: Dice, name: str) -> None:
        if isinstance(client, Editor) and client.is_alive:
            client.die(dice)
            self._copies += 1
            # The script goes on with the one that takes its place.
            self.clients[name] = client.reborn(f"{client.plan.name}+{self._copies}")
            self.clients[f"dead {self._copies}"] = client

    def _twin(self, client: Client, _dice: Dice, name: str) -> None:
        if isinstance(client, Editor) and client.is_alive and client.session.state is not ClientState.CLOSED:
            self._copies += 1
            twin = client.twin(f"{client.plan.name}*{self._copies}")
            if twin is None:
                return
            self.clients[f"{name} {self._copies}"] = client
            self.clients[name] = twin
            # Both go on typing: the script knows the copy by the old name, and the first one types once more.
            client.act("edits", Dice(self._copies))

    def _ask_again(self, client: Client, _dice: Dice, _name: str) -> None:
        client.ask_again()

    def _diverge(self, client: Client, dice: Dice, name: str) -> None:
        """The server's copy of a text rots."""
        hub, session_id = self.world.host.hub, client.session.session_id
        held = None if hub is None or session_id is None else hub.registry.get(session_id)
        if held is None:
            return
        documents = [
            d for d in held.session.context.documents.values() if d.buffer is not None and not d.is_stale
        ]
        if documents:
            document = dice.pick(documents)
            assert document.buffer is not None
            document.buffer.apply((Change(0, 0, 0, 0, "rot"),), simultaneous=False)
            self.watch.diverged.add((held.session.epoch, document.alias))
            self.watch.diverged_uris.add(document.uri)
            self.watch.epochs[held.session.epoch].rotted.add(document.uri)
            if isinstance(client, Editor) and dice.happens(0.9):
                client.save_all()
                if dice.happens(0.8):
                    # While it is being healed.
                    at = self.world.now + self.plan.latency_s * (2.0 + 1.3 * dice.odds())
                    self.world.at(at, lambda _: self._cut(client, dice, name))

    def _swamp(self, client: Client, dice: Dice, name: str) -> None:
        """A fast typist on a connection that takes nothing any more, and then is gone."""
        if isinstance(client, Editor) and client.link is not None:
            client.link.up.is_blocked = True
            for _ in range(4):
                client.act("edits", dice)
            self.world.at(self.world.now + 0.1 * dice.odds(), lambda _: self._cut(client, dice, name))

    def _break(self, client: Client, _dice: Dice, _name: str) -> None:
        """An observer's copies lose their place in the feed, again and again."""
        self.watch.misplaced.add(client.session)
        for index in range(40):
            self.world.at(self.world.now + 0.05 * index, client.lose_place)

    def _echo(self, client: Client, dice: Dice, _name: str) -> None:
        """A HELLO arrives once more, on a connection of its own, as some proxies try again."""
        hello = client.session._hello
        if hello and self.world.host.hub is not None:
            self._copies += 1
            Echo(self.world, client.plan, f"{client.plan.name} echo {self._copies}").say(hello, dice)

    def _odd_frame(self, client: Client, dice: Dice, _name: str) -> None:
        """Somebody of the same kind sends what no core sends: here a text that no decoder takes."""
        if client.link is not None and client.link.lineage is None:
            client.link.up.send(bytes(dice.below(128) for _ in range(30)).hex().encode())

    # What befalls the store.

    def _full_disk(self, _client: Client, dice: Dice, _name: str) -> None:
        self.world.host.disk.full_until = self.world.now + dice.pick((0.1, 1.0, 5.0)) * dice.odds()

    def _slow_disk(self, _client: Client, dice: Dice, _name: str) -> None:
        self.world.host.disk.slow_until = self.world.now + dice.pick((0.1, 1.0, 5.0)) * dice.odds()

    def _fail_sync(self, _client: Client, _dice: Dice, _name: str) -> None:
        self.world.host.disk.is_failing = True

    def _lose_disk(self, client: Client, dice: Dice, name: str) -> None:
        self._crash(client, dice, name)
        if self.world.host.hub is None:
            self.world.host.lose_disk()

    def _damage(self, client: Client, dice: Dice, name: str) -> None:
        """What is stored of a session cannot be read any more, which is found when somebody has to."""
        session_id = client.session.session_id
        if session_id is None or not self.world.host.disk.damage(session_id, has_record=dice.happens(0.7)):
            return
        if dice.happens(0.4):
            self._late_echo(client, dice, name)
        elif dice.happens(0.7):
            self._crash(client, dice, name)

    def _late_echo(self, client: Client, dice: Dice, _name: str) -> None:
        """The HELLO that the present connection began with arrives once more, when its server is dead."""
        hello = client.session._hello
        if not hello:
            return
        host, world = self.world.host, self.world
        host.crash(0.2 * dice.odds(), dice)
        if dice.happens(0.5):
            client.leave(2.0 * dice.odds(), dice)
        self._copies += 1
        echo = Echo(world, client.plan, f"{client.plan.name} echo {self._copies}")
        at = world.now + dice.pick((0.2, 0.5, 2.0)) * dice.odds()
        world.at(at, lambda _: None if world.is_healed else echo.say(hello, dice))

    def _choke(self, client: Client, dice: Dice, name: str) -> None:
        """A fast typist gives events up, and the server dies when it has just been told so."""
        link, world = client.link, self.world
        if not isinstance(client, Editor) or link is None:
            return
        link.up.is_blocked = True
        for _ in range(6):
            client.act("edits", dice)
        opens_at = world.now + 0.2 * dice.odds()
        world.at(opens_at, lambda _: link.up.unblock())
        dies_at = opens_at + (4 * self.plan.latency_s + self.plan.sync_s) * dice.odds()
        world.at(dies_at, lambda _: None if world.is_healed else self._crash(client, dice, name))

    def _leave(self, client: Client, dice: Dice, _name: str) -> None:
        """Be away for so long that the server may forget the session."""
        client.leave(dice.pick((1.0, 3.0, 12.0)) * dice.odds(), dice)

    # The end.

    def heal(self) -> None:
        """Whatever went wrong goes wrong no more."""
        world = self.world
        world.is_healed = True
        self.healed_at = world.now
        self.watch.heal()
        world.say("heal", "network", "")
        world.host.start()
        world.host.disk.heal()
        for link in world.links:
            if link.actor.is_stranger or not link.actor.is_alive:
                link.client_leaves(None)
                link.server_notices()
        for client in dict.fromkeys(self.clients.values()):
            client.heal()
            if isinstance(client, Editor) and self.watch.diverged_uris:
                client.save_all()  # A copy that rots after the last hash of a document is not to be found.
        for link in world.links:
            link.up.unblock()
            link.down.unblock()

    def go(self) -> None:
        """Do all of it."""
        world, plan = self.world, self.plan
        world.run(plan.chaos_s, steps_max=_STEPS_MAX)
        self._require_calm(_STEPS_MAX, "the chaos has too many steps")
        self.heal()
        limits = plan.limits
        deadline = world.now + limits.dead_s + limits.reconnect_delay_max_s + _SLACK_S
        before = world.steps
        well_at = world.now
        probe_s = self._longest_probe_s()
        self.watch.repaired_by += probe_s
        patience_s = _WELL_S + probe_s
        while True:
            world.run(world.now + _POLL_S, steps_max=_STEPS_MAX)
            self._require_calm(before + _STEPS_MAX, "the network is well, and too much is sent")
            if not all(client.is_well for client in self.clients.values()):
                well_at = world.now
            unequal = self._unequal(is_well=well_at < world.now)
            if unequal is None:
                break
            if world.now >= min(deadline, well_at + patience_s):
                self.watch.fail("Converge", unequal)
        self._require_quiet()
        self._require_conserved()
        self._require_sent_again()
        if plan.is_ordered:
            self._require_lossless()

    def _longest_probe_s(self) -> float:
        """How far away the last probe for a lost tail is: unanswered ones come ever less often."""
        deliveries = [(client.session._delivery, client.now) for client in self.clients.values()]
        deliveries += [(held.session.delivery, self.world.host.now) for held in self._hub().registry]
        probes = [(d._probe_at, now) for d, now in deliveries if d is not None]
        return max((at - now for at, now in probes if at is not None and at > now), default=0.0)

    def _unequal(self, *, is_well: bool) -> str | None:
        """What has to come yet; `None` once all is equal."""
        if not is_well:
            return "a connection is not whole"
        unsettled = [client for client in self.clients.values() if not client.is_settled]
        if not unsettled:
            return self._difference()
        return "not all is acknowledged: " + ", ".join(
            f"{client.plan.name} {client.session.state.name} {client.session.pending}" for client in unsettled
        )

    def _require_calm(self, steps_max: int, what: str) -> None:
        if self.world.steps >= steps_max:
            self.watch.fail("Calm", what)

    def _require_quiet(self) -> None:
        """Nothing but heartbeats, and the same state after it."""
        world = self.world
        # What was late before the network was well may come until then.
        world.run(max(world.now + 0.5, self.healed_at + LATE_S + 0.5))
        messages, steps = world.messages, world.steps
        world.run(world.now + _QUIET_S)
        links = sum(1 for link in world.links if link.is_client_open and link.is_server_open)
        beats = 1 + _QUIET_S / world.plan.limits.heartbeat_s
        if world.messages - messages > 8 * links * beats:
            self.watch.fail(
                "Calm", f"{world.messages - messages} messages in {_QUIET_S} quiet seconds, {links} links"
            )
        if world.steps - steps > 60 * (1 + len(self.clients)) * beats:
            self.watch.fail("Calm", f"{world.steps - steps} steps in {_QUIET_S} quiet seconds")
        difference = self._difference()
        for _ in range(4):
            if difference is None:
                return
            world.run(world.now + _POLL_S)  # The session of a client that was killed may just have ended.
            difference = self._difference()
        if difference is not None:
            self.watch.fail("Converge", f"not any more: {difference}")

    def _require_conserved(self) -> None:
        hub = self._hub()
        for held in hub.registry:
            session = held.session
            if not session.produces or session.epoch not in self.watch.epochs:
                continue  # Nobody was told of a session whose server died before.
            counts = session.context.counts()
            became = sum(counts[name] for name in ("applied", "superseded", "dropped", "refused", "waiting"))
            events = self.watch.epochs[session.epoch].events
            if became != events:
                self.watch.fail("Conserved", f"{events} events, of which {became} are counted: {counts}")

    def _require_sent_again(self) -> None:
        for client in self.clients.values():
            if client.is_alive and client.session.state is ClientState.ESTABLISHED:
                self.watch.check_sent_again(client.session)

    def _require_lossless(self) -> None:
        """On a link that is in order there are no gaps; what a resume sends again is none."""
        for client in self.clients.values():
            counters = client.session.counters
            is_lossless = self.plan.is_lossless and self.world.host.incarnation == 1
            is_repeated = counters.retransmitted and is_lossless
            if counters.nacks_sent or counters.nacks_received or counters.lost or is_repeated:
                self.watch.fail("Lossless", f"{client.plan.name}: {counters}")

    def _difference(self) -> str | None:
        return Equality(self.watch, self.clients, self._hub().registry).difference()

    def _hub(self) -> Hub:
        hub = self.world.host.hub
        assert hub is not None
        return hub


_STEPS_MAX = 60_000
_HARMS: dict[str, Callable[[Run, Client, Dice, str], None]] = {
    "crash": Run._crash,
    "cut": Run._cut,
    "vanish": Run._vanish,
    "block": Run._block,
    "stall": Run._stall,
    "sleep": Run._sleep,
    "die": Run._die,
    "twin": Run._twin,
    "ask again": Run._ask_again,
    "diverge": Run._diverge,
    "odd frame": Run._odd_frame,
    "swamp": Run._swamp,
    "break": Run._break,
    "echo": Run._echo,
    "full disk": Run._full_disk,
    "slow disk": Run._slow_disk,
    "fail sync": Run._fail_sync,
    "lose disk": Run._lose_disk,
    "damage": Run._damage,
    "late echo": Run._late_echo,
    "choke": Run._choke,
    "leave": Run._leave,
}


def run_plan(plan: Plan, trace: Callable[[str], None] | None = None) -> Result:
    """Run a plan.

    Args:
        trace: Takes a line for every message and happening.
    """
    probes.install()
    run = Run(plan, trace)
    violation: tuple[str, str] | None = None
    probes.observe(run.watch)
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        run.go()
    except Violation as broken:
        violation = broken.checker, broken.detail
    except Exception as error:
        violation = "Quiet", _described(error)
    finally:
        probes.observe(None)
        if was_collecting:
            gc.enable()
    world, watch = run.world, run.watch
    faults = Counter(name.rpartition(".")[2] for name in world.faults)
    faults.update(run.harms)
    return Result(
        plan=plan,
        violation=violation,
        history=world.history,
        steps=world.steps,
        messages=world.messages,
        virtual_s=world.now,
        fired=tuple(world.faults),
        faults=faults,
        events=watch.applied_durable,
        acks=watch.acks,
        lost=sum(len(epoch.lost) for epoch in watch.epochs.values()),
    )


def _described(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))[-2500:]


_: Any = None
