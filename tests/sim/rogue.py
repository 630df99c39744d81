"""A peer that speaks the protocol badly on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.changes import Change
from streamctx.wire.codec import encode_body
from streamctx.wire.digests import DIGESTS, crc32_digest
from streamctx.wire.frames import pack_frame
from streamctx.wire.messages import (
    Ack,
    ClientInfo,
    Close,
    Cursor,
    Edit,
    Focus,
    Heartbeat,
    Hello,
    Mention,
    Message,
    Nack,
    Open,
    Resume,
    Skip,
    Subscribe,
)
from tests.sim.actors import Actor
from tests.sim.dice import Dice
from tests.sim.plan import ActorPlan

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Rogue"]


class Rogue(Actor):
    """A peer that speaks the protocol badly on purpose. It hurts nobody but itself."""

    def __init__(self, world: World, plan: ActorPlan) -> None:
        super().__init__(world, plan)
        self._next = 1
        self._attempt = 0

    def act(self, dice: Dice) -> None:
        """Do one thing that must not be done, or one that may."""
        if self.link is None or dice.happens(0.1):
            if self.link is not None:
                self.link.client_leaves(dice)
            if self.open_link() is None:
                return
            self._hello(dice)
            return
        for _ in range(dice.pick((1, 1, 5, 40))):
            self._misbehave(dice)

    def _send(
        self, message: Message, sequence: int = 0, *, is_handshake: bool = False, dice: Dice | None = None
    ) -> None:
        encoding = self.plan.encoding
        digest = crc32_digest if is_handshake else DIGESTS[self.plan.digest]
        frame = pack_frame(
            encode_body(message, encoding), encoding=encoding, digest=digest, sequence=sequence
        )
        if dice is not None:
            damaged = bytearray(frame)
            damaged[dice.below(16)] ^= 1
            frame = bytes(damaged)
        if self.link is not None:
            self.link.up.send(frame)

    def _hello(self, dice: Dice) -> None:
        self._attempt += 1
        self._next = 1
        resume = None
        if dice.happens(0.5):
            # Somebody else's session, with the secret that a thief of its state file has, or a guess.
            victim = next(iter(self.world.watch.actors))
            if victim.session_id is not None and victim._epoch is not None:
                secret = victim._secret if self.plan.principal != "ann" and dice.happens(0.5) else "guess"
                resume = Resume(
                    session=victim.session_id, secret=secret or "x", epoch=victim._epoch, expects=1, next=1
                )
        token = self.plan.principal if dice.happens(0.9) else "nobody"
        hello = Hello(
            attempt=self._attempt + 1000,
            client=ClientInfo(name="rogue"),
            digests=(self.plan.digest,),
            units=(self.plan.unit,),
            hash=self.plan.hash,
            auth=token,
            resume=resume,
        )
        self._send(hello, is_handshake=True)

    def _misbehave(self, dice: Dice) -> None:
        kind = dice.below(14)
        if kind < 5:
            self._send(self._event(dice), self._next)
            self._next += 1
        elif kind == 5:
            ahead = dice.pick((1, 3, 2000, INTEGER_MAX - self._next))
            for more in range(40 if ahead == 3 else 1):
                self._send(self._event(dice), self._next + ahead + more)
        elif kind == 6:
            self._send(self._event(dice), max(1, self._next - dice.between(1, 3)))
        elif kind == 7:
            self._send(self._event(dice), self._next, dice=dice)
        elif kind == 8:
            n = dice.pick((1, 5, 10**6, INTEGER_MAX))
            self._send(Ack(received=n, applied=n, durable=dice.pick((1, n)), limit=n))
        elif kind == 9:
            start = dice.pick((1, 5, 10**6))
            self._send(Nack(ranges=((start, start + dice.pick((1, 100, 10**7))),)))
        elif kind == 10:
            start = dice.pick((1, self._next, 10**6))
            self._send(Skip(ranges=((start, start + dice.between(1, 5)),), reason="evicted"))
        elif kind == 11:
            n = dice.pick((1, self._next, self._next + 5, INTEGER_MAX))
            self._send(Heartbeat(next=n, received=1, applied=1, durable=1, limit=n))
        elif kind == 12 and self.link is not None:
            junk = bytes(dice.below(256) for _ in range(dice.pick((0, 1, 30, 300))))
            self.link.up.send(junk if self.plan.encoding is Encoding.MSGPACK else junk.hex().encode())
        else:
            self._hello(dice)

    def _event(self, dice: Dice) -> Message:
        alias = dice.between(1, 3)
        kind = dice.below(8)
        if kind < 2:
            return Open(
                document=alias,
                uri=f"file:///rogue/{alias}.py",
                version=0,
                length=1,
                hash="xxh3-64:0",
                text="x",
            )
        if kind == 2:
            return Edit(document=alias, base=0, version=1, changes=(Change(0, 9, 0, 9, "y"),))
        if kind == 3:
            return Close(document=alias)
        if kind == 4:
            return Cursor(document=alias, version=dice.below(3), position=(dice.below(3), 0))
        if kind == 5:
            return Subscribe(subscription=alias, session=dice.pick(("*", "1-1", "no such session")))
        if kind == 6:
            return Mention(document=alias, version=0, range=(0, 0, 0, 0))
        return Focus(document=alias)
