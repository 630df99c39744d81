"""Clients and a hub in memory: real frames, a virtual clock, seeded faults.

Nothing here sleeps or opens a socket. A `World` holds the clock, one hub and any
number of clients; each client has one link at a time, whose two directions drop,
duplicate, reorder, corrupt and cut as the `Faults` say. Everything is a function of the seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from streamctx.core.session.client_session import ClientEvent, ClientSession, ClientSettings
from streamctx.core.session.state import ClientState
from streamctx.errors import CloseCode, RemoteProtocolError
from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Principal
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import Encoding

__all__ = ["Faults", "SimClient", "World"]

TOKEN = "token-of-the-simulation"
PRINCIPAL = Principal("owner", frozenset({"produce", "observe", "resource", "admin"}))


@dataclass(frozen=True)
class Faults:
    """Odds for each message, in [0, 1]."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    cut: float = 0.0
    latency_s: float = 0.002


PERFECT = Faults()


class World:
    """The clock, the hub, and everybody who is connected to it."""

    def __init__(self, seed: int, faults: Faults = PERFECT, limits: Limits = DEFAULT_LIMITS) -> None:
        self.now = 0.0
        self.faults = faults
        self.limits = limits
        self.random = random.Random(seed)
        self.clients: list[SimClient] = []
        self.connection_ids = itertools.count(1)
        self.injected = 0
        self.sent = 0
        """Messages handed to the network so far, in both directions."""
        self.cut_at: set[int] = set()
        """Which of them are lost together with their connection."""
        self.on_cut: Callable[[], None] | None = None
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self.hub = self._new_hub()

    def _new_hub(self) -> Hub:
        return Hub(
            tokens={TOKEN: PRINCIPAL},
            version="sim",
            limits=self.limits,
            new_id=lambda: f"id-{next(self._ids)}",
            jitter=self.random.random,
        )

    def client(self, settings: ClientSettings, session: ClientSession | None = None) -> SimClient:
        """Add a client, which connects at once; with another's state, if `session` is a copy of that."""
        client = SimClient(self, settings, session)
        self.clients.append(client)
        self.at(self.now, client.connect)
        return client

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._order), action))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        stop = self.now + seconds
        while self._heap and self._heap[0][0] <= stop:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        self.now = stop

    def run_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until something holds; returns whether it came to hold in time."""
        stop = self.now + seconds
        while not holds():
            if not self._heap or self._heap[0][0] > stop:
                return False
            self.now, _, action = heapq.heappop(self._heap)
            action()
        return True

    def sweep(self) -> None:
        """Let the hub do its housekeeping now, as the server does every second."""
        self.hub.sweep(self.now)

    def restart(self) -> None:
        """The server dies without a word, and a new one without its state takes its place."""
        self.hub = self._new_hub()
        for client in self.clients:
            if client.link is not None:
                client.link.cut()


@dataclass
class Direction:
    """One direction of a link: first in, first out, but for the faults."""

    world: World
    deliver: Callable[[bytes], None]
    cut: Callable[[], None]
    is_open: bool = True
    free_at: float = 0.0
    held: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, message: bytes) -> None:
        """Hand a message to the network."""
        world, chance, faults = self.world, self.world.random, self.world.faults
        if not self.is_open:
            return
        world.sent += 1
        if world.sent in world.cut_at:
            world.injected += 1
            self.cut()
            if world.on_cut is not None:
                world.on_cut()
            return
        if faults.cut and chance.random() < faults.cut:
            world.injected += 1
            self.cut()
            return
        if faults.drop and chance.random() < faults.drop:
            world.injected += 1
            return
        if faults.corrupt and chance.random() < faults.corrupt:
            world.injected += 1
            message = corrupted(message, chance)
        if faults.reorder and chance.random() < faults.reorder:
            world.injected += 1
            self.held.append((chance.randint(1, 8), message))
            world.at(world.now + 0.1, self._release_all)
            return
        self._schedule(message)
        if faults.duplicate and chance.random() < faults.duplicate:
            world.injected += 1
            self._schedule(message)
        still: list[tuple[int, bytes]] = []
        for behind, late in self.held:
            if behind <= 1:
                self._schedule(late)
            else:
                still.append((behind - 1, late))
        self.held = still

    def _release_all(self) -> None:
        held, self.held = self.held, []
        for _, late in held:
            self._schedule(late)

    def _schedule(self, message: bytes) -> None:
        self.free_at = max(self.free_at, self.world.now + self.world.faults.latency_s)
        self.world.at(self.free_at, lambda: self._arrive(message))

    def _arrive(self, message: bytes) -> None:
        if self.is_open:
            self.deliver(message)


def corrupted(message: bytes, chance: random.Random) -> bytes:
    """Flip one bit, but keep a text message text."""
    index = chance.randrange(len(message))
    flipped = bytearray(message)
    if message[index] < 0x80 and all(byte < 0x80 for byte in message[:24]) and message[16:17] == b" ":
        flipped[index] ^= 1
    else:
        flipped[index] ^= 1 << chance.randrange(8)
    return bytes(flipped)


class Link:
    """One connection between a client and the hub, both ends of it."""

    def __init__(self, world: World, client: SimClient) -> None:
        self.world = world
        self.client = client
        self.is_open = True
        self.timer: float | None = None
        self.up = Direction(world, self._arrive_at_server, self.cut)
        self.down = Direction(world, self._arrive_at_client, self.cut)
        encoding = client.session.settings.encoding
        self.is_text = encoding is Encoding.JSON
        info = ConnectionInfo(
            encoding=encoding, principal=None, address="sim", connection_id=next(world.connection_ids)
        )
        self.handler: ConnectionHandler = world.hub.connect(self, info, world.now)

    # Peer, for the hub.

    @property
    def is_writable(self) -> bool:
        return self.is_open and not self.client.is_stalled

    def send(self, messages: Sequence[bytes | str]) -> None:
        for message in messages:
            self.down.send(message.encode() if isinstance(message, str) else message)

    def close(self, code: int, reason: str) -> None:
        self.up.is_open = False
        self.world.at(self.down.free_at + self.world.faults.latency_s, lambda: self.close_client_side(code))

    def abort(self) -> None:
        self.cut()

    def set_timer(self, at: float | None) -> None:
        self.timer = at
        if at is not None:
            self.world.at(at, self._timeout)

    # The network.

    def writable(self) -> None:
        """The client reads again."""
        if self.is_open:
            self.handler.writable(self.world.now)

    def cut(self) -> None:
        """Break the connection; both ends notice a moment later."""
        if not self.is_open:
            return
        self.is_open = self.up.is_open = self.down.is_open = False
        self.world.at(self.world.now + 0.001, lambda: self.handler.closed(self.world.now, None))
        self.world.at(self.world.now + 0.001, lambda: self.client.disconnected(self, None))

    def close_client_side(self, code: int | None) -> None:
        if self.is_open:
            self.is_open = self.up.is_open = self.down.is_open = False
            self.handler.closed(self.world.now, code)
            self.client.disconnected(self, code)

    def _timeout(self) -> None:
        if self.is_open and self.timer is not None and self.world.now >= self.timer:
            self.timer = None
            self.handler.handle_timeout(self.world.now)

    def _arrive_at_server(self, message: bytes) -> None:
        payload = message.decode("utf-8", "replace") if self.is_text else message
        self.handler.receive(payload, self.world.now)
        self.handler.read_done(self.world.now)

    def _arrive_at_client(self, message: bytes) -> None:
        self.client.arrive(self, message)


class SimClient:
    """A client session, its link, and what it told its application."""

    def __init__(self, world: World, settings: ClientSettings, session: ClientSession | None = None) -> None:
        self.world = world
        self.session = session or ClientSession(settings, jitter=world.random.random)
        self.on_event: Callable[[ClientEvent], None] | None = None
        self.link: Link | None = None
        self.events: list[ClientEvent] = []
        self.is_stalled = False
        self.failures = 0

    def connect(self) -> None:
        """Open a connection, if the session wants one."""
        if self.link is None and self.session.state is ClientState.DETACHED:
            self.link = Link(self.world, self)
            self.session.connected(self.world.now)
            self.pump()

    def pump(self) -> None:
        """Send what is to be sent, take events, and set the timer."""
        try:
            frames = self.session.data_to_send(self.world.now)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        while (event := self.session.next_event()) is not None:
            self.events.append(event)
            if self.on_event is not None:
                self.on_event(event)
        if self.link is not None:
            for frame in frames:
                self.link.up.send(frame)
        due = self.session.next_timeout()
        if due is not None:
            self.world.at(due, self._timeout)

    def arrive(self, link: Link, message: bytes) -> None:
        if link is not self.link:
            return
        try:
            self.session.receive(message, self.world.now)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        self.pump()

    def fail(self, error: RemoteProtocolError) -> None:
        """The server broke a rule: drop the connection, and resume."""
        self.failures += 1
        link = self.link
        assert link is not None
        link.cut()
        if error.close_code == CloseCode.CONFLICT:
            self.disconnected(link, CloseCode.CONFLICT)

    def disconnected(self, link: Link, code: int | None) -> None:
        if link is not self.link:
            return
        self.link = None
        self.session.disconnected(self.world.now, code)
        self.pump()
        self.world.at(self.world.now + self.world.random.random() * 0.5, self.connect)

    def _timeout(self) -> None:
        due = self.session.next_timeout()
        if due is None or due > self.world.now:
            return
        try:
            self.session.handle_timeout(self.world.now)
        except RemoteProtocolError as error:
            self.fail(error)
            return
        self.pump()

    def die(self) -> None:
        """Die without a word: the link goes, nothing of the client stays."""
        link, self.link = self.link, None
        self.session.close()
        if link is not None:
            link.cut()
