"""Connections between clients and the server, and what befalls the messages on them.

What befalls a message is a function of the seed, the direction, the message's first bytes (its digest and
number) and how often these were sent before: the same message meets the same fate, whatever became of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import xxhash

from streamctx.hub.connection import Connection
from streamctx.hub.ports import ConnectionInfo, Principal
from streamctx.vocabulary import Encoding
from tests.sim.dice import Dice, mixed
from tests.sim.plan import Odds

if TYPE_CHECKING:
    from tests.sim.actors import Actor
    from tests.sim.ledger import Epoch, Lineage
    from tests.sim.world import World

__all__ = ["LATE_S", "Direction", "Fates", "Link"]

_HIGH_WATER_BYTES = 64 * 1024
_ABORT_BYTES = 8 * 1024 * 1024
LATE_S = 2.0
"""So much later than others a message comes at most."""
_IDENTITY_BYTES = 24
_KINDS = ("loss", "duplicate", "flip", "truncate", "late", "cut")
_NEVER = -1.0


class Fates:
    """What befalls the messages of one direction of one client."""

    __slots__ = ("_counts", "_limits", "_name", "_only", "salt")

    def __init__(self, name: str, seed: int, odds: Odds, only: Sequence[str] | None) -> None:
        self._name = name
        self.salt = xxhash.xxh3_64_intdigest(name.encode(), seed & (2**64 - 1))
        self._counts: dict[int, int] = {}
        self._limits = tuple(int(getattr(odds, kind) * 65536) for kind in _KINDS)
        self._only: dict[str, set[str]] | None = None
        if only is not None:
            self._only = {}
            for fault in only:
                message, _, kind = fault.rpartition(".")
                self._only.setdefault(message, set()).add(kind)
        if only is not None or not any(self._limits):
            self._limits = (0, 0, 0, 0, 0, 0)

    @property
    def is_clean(self) -> bool:
        """Whether nothing ever happens."""
        return not self._only and not any(self._limits)

    def of(self, message: bytes) -> tuple[int, int, tuple[str, ...]]:
        """The message's identity, 64 bits for details, and the kinds of faults."""
        key = xxhash.xxh3_64_intdigest(message[:_IDENTITY_BYTES], self.salt)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        key = (key + count) & (2**64 - 1)
        first = mixed(key)
        if self._only is not None:
            kinds = self._only.get(self.name_of(key), ())
            return key, first, tuple(kind for kind in _KINDS if kind in kinds)
        loss, duplicate, flip, truncate, late, cut = self._limits
        second = mixed(first)
        is_hit = (
            first & 0xFFFF < loss
            or first >> 16 & 0xFFFF < duplicate
            or first >> 32 & 0xFFFF < flip
            or first >> 48 < late
            or second & 0xFFFF < truncate
            or second >> 16 & 0xFFFF < cut
        )
        if not is_hit:
            return key, first, ()
        drawn = (
            first & 0xFFFF,
            first >> 16 & 0xFFFF,
            first >> 32 & 0xFFFF,
            second & 0xFFFF,
            first >> 48,
            second >> 16 & 0xFFFF,
        )
        odds = zip(_KINDS, drawn, self._limits, strict=True)
        return key, first, tuple(kind for kind, value, limit in odds if value < limit)

    def name_of(self, identity: int) -> str:
        """The message's name in a list of faults."""
        return f"{self._name}.{identity:x}"


class Direction:
    """One direction of a link: first in, first out, but for the faults."""

    __slots__ = (
        "_fates",
        "_free_at",
        "_is_due",
        "_link",
        "_world",
        "backlog_bytes",
        "is_blocked",
        "is_severed",
        "is_up",
        "queue",
    )

    def __init__(self, link: Link, fates: Fates, *, is_up: bool) -> None:
        self._link = link
        self._world = link.world
        self._fates = fates
        self.is_up = is_up
        self.queue: deque[tuple[float, bytes | int]] = deque()
        self.backlog_bytes = 0
        self.is_severed = False
        self.is_blocked = False
        self._free_at = 0.0
        self._is_due = False

    def send(self, message: bytes) -> None:
        """Hand a message to the network."""
        world = self._world
        world.messages += 1
        world.watch.sending(self._link, message, is_up=self.is_up)
        if world.trace is not None:
            world.trace(self._link.describe(message, is_up=self.is_up))
        if self.is_severed:
            return
        if world.is_healed or self._fates.is_clean:
            self._put(message)
            return
        identity, draw, kinds = self._fates.of(message)
        if kinds:
            self._suffer(message, self._fates.name_of(identity), draw, kinds)
        else:
            self._put(message)

    def close(self, code: int) -> None:
        """Let the other end see a close after all that was sent."""
        self._put(code)

    def _suffer(self, message: bytes, name: str, draw: int, kinds: tuple[str, ...]) -> None:
        world = self._world
        for kind in kinds:
            world.faults.append(f"{name}.{kind}")
            world.say(kind, self._link.actor.name, name)
        dice = Dice(draw)
        if "cut" in kinds:
            self._link.cut(dice)
            return
        if "loss" in kinds:
            return
        if "flip" in kinds:
            message = _flipped(message, dice)
        if "truncate" in kinds:
            message = message[: dice.below(len(message) or 1)]
        if "late" in kinds:
            world.at(world.now + world.plan.latency_s + LATE_S * dice.odds() ** 2, self._arrive_late, message)
        else:
            self._put(message)
        if "duplicate" in kinds:
            self._put(message)

    def _put(self, message: bytes | int) -> None:
        world = self._world
        self._free_at = max(self._free_at, world.now + world.plan.latency_s)
        self.queue.append((self._free_at, message))
        if isinstance(message, bytes):
            self.backlog_bytes += len(message)
        if not self._is_due and not self.is_blocked:
            self._is_due = True
            world.at(self._free_at, self._deliver)

    def unblock(self) -> None:
        """Let all that was held up arrive at once, if there is somebody who reads."""
        self.is_blocked = self._link.is_stalled and not self.is_up
        if self.queue and not self._is_due and not self.is_blocked:
            self._is_due = True
            self._world.at(max(self.queue[0][0], self._world.now), self._deliver)

    def _deliver(self, _: object) -> None:
        self._is_due = False
        if self.is_blocked:
            return
        queue, now = self.queue, self._world.now
        messages: list[bytes | int] = []
        while queue and queue[0][0] <= now:
            message = queue.popleft()[1]
            messages.append(message)
            if isinstance(message, bytes):
                self.backlog_bytes -= len(message)
        if queue:
            self._is_due = True
            self._world.at(queue[0][0], self._deliver)
        self._link.arrive(messages, is_up=self.is_up)

    def _arrive_late(self, message: bytes) -> None:
        if self.is_blocked:
            self._put(message)
        else:
            self._link.arrive([message], is_up=self.is_up)


def _flipped(message: bytes, dice: Dice) -> bytes:
    """Flip one bit; of a text message a low one, so that it stays text."""
    if not message:
        return message
    flipped = bytearray(message)
    index = dice.below(len(message))
    bit = dice.below(8)
    flipped[index] ^= 1 if message[16:17] == b" " else 1 << bit
    return bytes(flipped)


class Link:
    """One connection. Each end notices in its own time that it is over, or never.

    It is the hub's `Peer`.
    """

    def __init__(self, world: World, actor: Actor, number: int) -> None:
        self.world = world
        self.actor = actor
        self.number = number
        self.incarnation = world.host.incarnation
        self.is_client_open = True
        self.is_server_open = True
        self.is_closing = False
        self.is_stalled = False
        self.is_unwritable = False
        self.timer: float | None = None
        self.last_down: deque[bytes] = deque(maxlen=4)
        self.epoch: Epoch | None = None
        self.life = 0
        """How often the session had been restored when the server said WELCOME."""
        self.lineage: Lineage | None = None
        self.hello: bytes | None = None
        self.hello_at = 0.0
        self.is_confirmed = False
        self.bytes_up = 0
        self.bytes_down = 0
        self._timer_due = float("inf")
        self.is_text = actor.plan.encoding is Encoding.JSON
        self.up = Direction(self, actor.fates_up, is_up=True)
        self.down = Direction(self, actor.fates_down, is_up=False)
        hub = world.host.hub
        assert hub is not None
        principal = None
        if actor.has_header:
            principal = Principal(actor.plan.principal, frozenset({"produce", "observe"}))
        info = ConnectionInfo(
            encoding=actor.plan.encoding, principal=principal, address="sim", connection_id=number
        )
        self.handler: Connection = hub.connect(self, info, world.host.now)

    # Peer, for the hub.

    @property
    def is_writable(self) -> bool:
        """Whether the client reads."""
        if self.is_closing or not self.is_server_open:
            return False
        if self.is_stalled or self.down.backlog_bytes > _HIGH_WATER_BYTES:
            self.is_unwritable = True
            return False
        return True

    def send(self, messages: Sequence[bytes | str]) -> None:
        """Send to the client."""
        if not self.is_server_open or self.is_closing:
            return
        for message in messages:
            data = message.encode() if isinstance(message, str) else message
            self.last_down.append(data)
            self.bytes_down += len(data)
            self.down.send(data)
        if self.down.backlog_bytes > _ABORT_BYTES:
            self.abort()

    def close(self, code: int, reason: str) -> None:
        """Close from the server's side."""
        if not self.is_server_open or self.is_closing:
            return
        self.world.watch.closing(self, code)
        self.is_closing = True
        if not self.down.is_severed:
            self.down.close(code)
        self.world.at(self.world.now + 2 * self.world.plan.latency_s, self._server_ends)

    def abort(self) -> None:
        """Drop the connection from the server's side."""
        self.down.is_severed = self.up.is_severed = True
        self.world.at(self.world.now, self._server_ends)
        self.world.at(self.world.now + self.world.plan.latency_s, self._client_ends)

    def set_timer(self, at: float | None) -> None:
        """Ask for a timeout."""
        self.timer = at
        if at is not None and at < self._timer_due and self.is_server_open:
            self._timer_due = at
            self.world.at(max(self.world.now, self.world.now + (at - self.world.host.now)), self._timeout, at)

    def _timeout(self, at: float) -> None:
        if at != self._timer_due:
            return  # An earlier one took its place.
        self._timer_due = float("inf")
        if self.timer is None or not self.is_server_open or self.is_closing:
            return
        now = self.world.host.now
        if now < self.timer - 1e-9:
            self.set_timer(self.timer)
            return
        self.world.host.told = max(now, self.timer)
        self.timer = None
        self.world.watch.turn(self)
        self.handler.handle_timeout(self.world.host.told)
        self.world.watch.turn_done(self)

    # What comes.

    def _hears(self) -> bool:
        return self.is_server_open and not self.is_closing

    def arrive(self, messages: list[bytes | int], *, is_up: bool) -> None:
        """Let one read happen at an end."""
        world = self.world
        if not is_up:
            if self.is_unwritable and self.is_writable:
                self.is_unwritable = False
                self.handler.writable(world.host.now)
            if self.is_client_open:
                for message in messages:
                    if isinstance(message, int):
                        self._client_ends(message)
                        return
                    world.note(message)
                    self.actor.receive(self, message)
                self.actor.read_done(self)
            return
        if not self._hears():
            return
        now = world.host.now
        world.watch.turn(self)
        for message in messages:
            assert isinstance(message, bytes)
            world.note(message)
            self.bytes_up += len(message)
            if self.actor.is_stranger:
                world.watch.stranger_says(self, message, now)
            else:
                self.hand_over(message, now)
            if not self._hears():
                break
        else:
            self.handler.read_done(now)
        world.watch.turn_done(self)

    def hand_over(self, message: bytes, now: float) -> None:
        """Let the server take one message."""
        self.handler.receive(message.decode("utf-8", "replace") if self.is_text else message, now)

    # How it ends.

    @property
    def is_whole(self) -> bool:
        """Whether everything arrives, at both ends."""
        is_open = self.is_client_open and self.is_server_open and not self.is_closing
        return is_open and not (self.up.is_severed or self.down.is_severed)

    def cut(self, dice: Dice) -> None:
        """Lose the connection. What is under way may still arrive; the ends notice when they do."""
        if self.up.is_severed and self.down.is_severed:
            return
        self.up.is_severed = self.down.is_severed = True
        if dice.happens(0.5):
            self.up.queue.clear()
            self.up.backlog_bytes = 0
        if dice.happens(0.5):
            self.down.queue.clear()
            self.down.backlog_bytes = 0
        self._ends_in(dice.pick((0.001, 0.001, 0.05, 1.0, _NEVER)), self._client_ends)
        self._ends_in(dice.pick((0.001, 0.05, 1.0, 5.0, _NEVER)), self._server_ends)

    def client_leaves(self, dice: Dice | None) -> None:
        """The client drops its end; the server notices in its own time, or with `dice` perhaps never."""
        if not self.is_client_open:
            return
        self.is_client_open = False
        self.up.is_severed = True
        delay = 2 * self.world.plan.latency_s
        self._ends_in(delay if dice is None else dice.pick((delay, 0.5, _NEVER)), self._server_ends)

    def server_notices(self) -> None:
        """Let the server see that the client has left, if it did not yet."""
        self._ends_in(2 * self.world.plan.latency_s, self._server_ends)

    def server_dies(self, dice: Dice) -> None:
        """The server's process is gone."""
        if not self.is_server_open:
            return
        self.is_server_open = False
        self.up.is_severed = self.down.is_severed = True
        self._ends_in(dice.pick((0.001, 0.001, 0.3, _NEVER)), self._client_ends)

    def _ends_in(self, delay_s: float, end: object) -> None:
        if delay_s is not _NEVER:
            self.world.at(self.world.now + delay_s, end)  # type: ignore[arg-type]

    def _server_ends(self, _: object = None) -> None:
        if self.is_server_open:
            self.is_server_open = False
            self.up.is_severed = self.down.is_severed = True
            self.world.watch.turn(self)
            self.handler.closed(self.world.host.now, None)
            self.world.watch.turn_done(self)

    def _client_ends(self, code: int | None = None) -> None:
        if self.is_client_open:
            self.is_client_open = False
            self.up.is_severed = True
            self.actor.disconnected(self, code)

    def stall(self) -> None:
        """The client stops reading."""
        self.is_stalled = True
        self.down.is_blocked = True

    def resume_reading(self) -> None:
        """The client reads again, unless its host is suspended."""
        if self.actor.is_asleep:
            return
        self.is_stalled = False
        self.down.unblock()
        if self.is_unwritable and self.is_writable:
            self.is_unwritable = False
            self.handler.writable(self.world.host.now)

    def describe(self, message: bytes, *, is_up: bool) -> str:
        """One message for a trace."""
        arrow = "->" if is_up else "<-"
        body = bytes(message[24:] if not self.is_text else message[17:])
        return f"{self.world.now:10.6f} {self.actor.name:<6} {arrow} #{self.number} {body[:150]!r}"
