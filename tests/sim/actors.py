"""Who connects: an actor with a link, and the honest client with the production core."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from streamctx.client.reconnect import ReconnectPolicy
from streamctx.core.session.client_session import ClientSession, ClientSettings, Draining, Welcomed
from streamctx.core.session.state import ClientState
from streamctx.errors import CloseCode, RemoteProtocolError
from streamctx.wire.messages import ClientInfo
from tests.sim.dice import Dice
from tests.sim.network import Fates, Link
from tests.sim.plan import ActorPlan

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Actor", "Client", "Echo"]


class Actor:
    """Somebody with at most one connection."""

    def __init__(self, world: World, plan: ActorPlan) -> None:
        self.world = world
        self.plan = plan
        self.name = plan.name
        self.link: Link | None = None
        self.links = 0
        self.is_alive = True
        self.is_stranger = False
        run = world.plan
        self.fates_up = Fates(f"{plan.name}.up", run.seed, run.odds, run.only)
        self.fates_down = Fates(f"{plan.name}.down", run.seed, run.odds, run.only)
        self.has_header = False

    @property
    def is_asleep(self) -> bool:
        """Whether its host is suspended."""
        return False

    def open_link(self) -> Link | None:
        """Connect, if there is a server."""
        if self.world.host.hub is None:
            return None
        self.links += 1
        self.world.link_count += 1
        link = Link(self.world, self, self.world.link_count)
        self.world.links.append(link)
        self.link = link
        return link

    def receive(self, link: Link, message: bytes) -> None:
        """Take one message."""

    def read_done(self, link: Link) -> None:
        """All messages of one read have come."""

    def disconnected(self, link: Link, code: int | None) -> None:
        """The connection is over."""
        if link is self.link:
            self.link = None

    def heal(self) -> None:
        """Whatever holds it up ends."""
        if self.link is not None:
            self.link.up.unblock()
            self.link.resume_reading()


class Echo(Actor):
    """Something between client and server that sends what it has seen again, and listens to nobody."""

    def __init__(self, world: World, plan: ActorPlan, name: str) -> None:
        super().__init__(world, msgspec.structs.replace(plan, name=name))
        self.is_stranger = True

    def say(self, message: bytes, dice: Dice) -> None:
        """Send one message, and go."""
        link = self.open_link()
        if link is not None:
            link.up.send(message)
            self.world.at(self.world.now + 0.5 + dice.odds(), lambda _: link.client_leaves(None))


class Client(Actor):
    """A client session with its driver, as `streamctx.client` drives it, but for the tasks."""

    def __init__(self, world: World, plan: ActorPlan, session: ClientSession | None = None) -> None:
        super().__init__(world, plan)
        run = world.plan
        jitter = Dice(run.seed ^ self.fates_up.salt)
        settings = ClientSettings(
            client=ClientInfo(name=f"sim {plan.name}"),
            encoding=plan.encoding,
            digest=plan.digest,
            unit=plan.unit,
            hash=plan.hash,
            # As of a literal: what is not the very default is written out.
            role=sys.intern(plan.role),  # type: ignore[arg-type]
            token=plan.principal,
            limits=run.limits,
        )
        self.session = session or ClientSession(settings, jitter=jitter.odds)
        self._policy = ReconnectPolicy(jitter.odds, run.limits)
        self._clock = jitter.odds() * 1000
        self._told = 0.0
        """The last time that the session was told, which rounding must not undo."""
        self._timer_due = float("inf")
        self._wakes_at = 0.0
        self._returns_at = 0.0
        self._retry_ms: int | None = None
        self.has_header = jitter.happens(0.3)
        world.watch.actors[self.session] = self
        world.at(world.now, self.connect)
        if plan.role != "produce" and session is None:
            self.subscribe()

    @property
    def now(self) -> float:
        """The time on this host's clock."""
        return max(self.world.now + self._clock, self._told)

    @property
    @override
    def is_asleep(self) -> bool:
        """Whether the host is suspended."""
        return self.world.now < self._wakes_at

    @property
    def is_well(self) -> bool:
        """Whether it has a connection that carries everything, or is done."""
        if not self.is_alive or self.session.state is ClientState.CLOSED:
            return True
        return self.link is not None and self.link.is_whole

    def subscribe(self) -> None:
        """Observe everything, as planned."""
        plan = self.plan
        self.session.subscribe(
            "*",
            self.now,
            documents=plan.documents,
            presence=plan.presence,
            min_interval_ms=plan.min_interval_ms,
        )

    def ask_again(self) -> None:
        """Unsubscribe and subscribe anew."""
        if self.plan.role == "produce" or self.session.state is ClientState.CLOSED:
            return
        for subscription in list(self.session.subscriptions):
            self.session.unsubscribe(subscription, self.now)
        self.subscribe()
        self.pump()

    # Connections.

    def connect(self, _: object = None) -> None:
        """Open a connection, if the session wants one."""
        if not self.is_alive or self.link is not None or self.session.state is not ClientState.DETACHED:
            return
        if self.world.now < max(self._wakes_at, self._returns_at):
            self.world.at(max(self._wakes_at, self._returns_at), self.connect)
            return
        if self.open_link() is None:
            self.world.at(self.world.now + self._policy.failed(self.world.now), self.connect)
            return
        self.session.connected(self.now)
        self.pump()

    @override
    def receive(self, link: Link, message: bytes) -> None:
        """Take one message."""
        if link is not self.link:
            return
        try:
            self.session.receive(message, self.now)
        except RemoteProtocolError as error:
            self._fail(error)

    @override
    def read_done(self, link: Link) -> None:
        """Send what is due after a read."""
        if link is self.link:
            self.pump()

    @override
    def disconnected(self, link: Link, code: int | None) -> None:
        """The connection is over."""
        if link is not self.link or not self.is_alive:
            return
        self.link = None
        self.session.disconnected(self.now, code)
        self._hear()
        delay_s = self._policy.lost(code, self.now, retry_ms=self._retry_ms)
        self._retry_ms = None
        if delay_s is not None:
            self.world.at(self.world.now + delay_s, self.connect)
        self._set_timer()

    def _fail(self, error: RemoteProtocolError) -> None:
        """The server broke a rule, or is silent: drop the connection."""
        link = self.link
        assert link is not None
        self.world.say("fails", self.name, str(error))
        self.world.watch.given_up(link, error)
        link.client_leaves(None)
        code = CloseCode.CONFLICT if error.close_code == CloseCode.CONFLICT else None
        self.disconnected(link, code)

    def pump(self) -> None:
        """Send what is to be sent, take events, set the timer."""
        if self.is_asleep or not self.is_alive:
            return
        try:
            frames = self.session.data_to_send(self.now)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        self._hear()
        link = self.link
        if link is not None:
            for frame in frames:
                link.up.send(frame)
            self.world.watch.pumped(link, self.session)
        self._set_timer()

    def _hear(self) -> None:
        while (event := self.session.next_event()) is not None:
            if isinstance(event, Welcomed):
                self._policy.welcomed()
            elif isinstance(event, Draining):
                self._retry_ms = event.retry_ms
            self.told(event)

    def told(self, event: object) -> None:
        """The session tells its application something."""

    def _set_timer(self) -> None:
        due = self.session.next_timeout()
        if due is None:
            return
        at = max(self.world.now, due - self._clock)
        if at < self._timer_due:
            self._timer_due = at
            self.world.at(at, self._timeout, at)

    def _timeout(self, at: float) -> None:
        if at != self._timer_due:
            return  # An earlier one took its place.
        self._timer_due = float("inf")
        if not self.is_alive:
            return
        if self.is_asleep:
            return
        due = self.session.next_timeout()
        if due is None:
            return
        if self.now < due - 1e-9:
            self._set_timer()
            return
        self._told = max(self.now, due)
        try:
            self.session.handle_timeout(self._told)
        except RemoteProtocolError as error:
            if self.link is not None:
                self._fail(error)
            return
        self.pump()

    # What befalls it.

    def lose_place(self, _: object = None) -> None:
        """Be wrong about where each feed is."""
        if self.plan.role != "produce" and not self.world.is_healed:
            for observed in self.session.observed.values():
                observed.offset += observed.is_synced

    def sleep(self, seconds: float) -> None:
        """Suspend the host: no timer fires, and what comes waits."""
        self._wakes_at = self.world.now + seconds
        if self.link is not None:
            self.link.stall()
        self.world.at(self._wakes_at, self.wake)

    def leave(self, seconds: float, dice: Dice) -> None:
        """Be without any network."""
        self._returns_at = self.world.now + seconds
        if self.link is not None:
            self.link.cut(dice)

    def wake(self, _: object = None) -> None:
        """Go on."""
        if self.world.now >= self._wakes_at and self.is_alive:
            if self.link is not None:
                self.link.resume_reading()
            self._timer_due = self.world.now
            self._timeout(self.world.now)
            self.connect()

    @override
    def heal(self) -> None:
        """Whatever holds it up ends."""
        if self.is_asleep:
            self._wakes_at = self.world.now
        self._returns_at = 0.0
        super().heal()
        self.wake()

    def die(self, dice: Dice) -> None:
        """The process is killed."""
        self.is_alive = False
        link, self.link = self.link, None
        self.session.close()
        if link is not None:
            link.client_leaves(dice)

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it waits or is under way."""
        session = self.session
        if not self.is_alive or session.state is ClientState.CLOSED:
            return True
        is_answered = not session._unanswered and not session._anew_due
        return session.state is ClientState.ESTABLISHED and session.is_settled and is_answered
