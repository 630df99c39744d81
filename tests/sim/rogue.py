"""A peer that speaks the protocol badly on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamctx.core.documents.text_digest import text_hash
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
    from streamctx.core.session.client_session import ClientSession
    from tests.sim.world import World

__all__ = ["Rogue"]

_OPENS_MAX = 8
_POLITE = (0, 0, 0, 0, 0, 0, 0, 0, 7, 14, 15)
"""What does not end a session, and is odd nevertheless."""


class Rogue(Actor):
    """A peer that speaks the protocol badly on purpose. It hurts nobody but itself."""

    def __init__(self, world: World, plan: ActorPlan) -> None:
        super().__init__(world, plan)
        self._next = 1
        self._attempt = 0
        self._is_rude = True
        self._opens = _OPENS_MAX
        self.is_stranger = True

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
        self._is_rude = dice.happens(0.35)
        victims = tuple(self.world.watch.actors)
        old = [v for v in victims if v.session_id and self.world.watch.old_secret(v.session_id)]
        victim = dice.pick(old or victims)
        resume = self._theft(victim, dice) if dice.happens(0.6) else None
        token = self.plan.principal if dice.happens(0.9) else "nobody"
        hello = Hello(
            attempt=self._attempt + 1000,
            client=ClientInfo(name="rogue"),
            digests=(self.plan.digest,),
            units=(self.plan.unit,),
            hash=self.plan.hash,
            role="both" if resume is None else victim.settings.role,
            auth=token,
            resume=resume,
        )
        self._send(hello, is_handshake=True)

    def _theft(self, victim: ClientSession, dice: Dice) -> Resume | None:
        """Somebody else's session, with the secret of another principal, an old one, or a guess."""
        delivery = victim._delivery
        if victim.session_id is None or victim._epoch is None or delivery is None:
            return None
        is_foreign = self.plan.principal != victim.settings.token
        secret = victim._secret if is_foreign else self.world.watch.old_secret(victim.session_id)
        if secret is None or dice.happens(0.3):
            secret = "guess"
        return Resume(
            session=victim.session_id,
            secret=secret,
            epoch=victim._epoch,
            expects=delivery.expected,
            next=delivery.next_sequence,
        )

    def _misbehave(self, dice: Dice) -> None:
        kind = dice.below(16) if self._is_rude else dice.pick(_POLITE)
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
        elif kind == 14:
            # Behind a gap, more than can be held.
            count = dice.pick((3, 30, 30))
            for ahead in (*range(1, count), 0):
                self._send(self._event(dice), self._next + ahead)
            self._next += count
        elif kind == 15:
            # An event that comes, behind one that does not, and then is said not to come.
            self._send(self._event(dice), self._next + 1)
            self._send(Skip(ranges=((self._next, self._next + 2),), reason="superseded"))
            self._next += 2
        elif kind == 12 and self.link is not None:
            junk = bytes(dice.below(256) for _ in range(dice.pick((0, 1, 30, 300))))
            self.link.up.send(junk if self.plan.encoding is Encoding.MSGPACK else junk.hex().encode())
        else:
            self._hello(dice)

    def _event(self, dice: Dice) -> Message:
        alias = dice.between(1, 3)
        kind = dice.below(8)
        if kind < 2 and self._opens:
            # A feed shows one whole text an interval: many would keep its observers busy for long.
            self._opens -= 1
            return Open(
                document=alias,
                uri=f"file:///rogue/{alias}.py",
                version=0,
                length=1,
                hash=text_hash("x", self.plan.hash) if dice.happens(0.8) else "xxh3-64:0",
                text="x",
            )
        if kind == 2:
            base = dice.below(3)
            at = dice.pick((0, 0, 0, 9))
            return Edit(document=alias, base=base, version=base + 1, changes=(Change(0, at, 0, at, "y"),))
        if kind == 3:
            return Close(document=alias)
        if kind == 4:
            return Cursor(document=alias, version=dice.below(3), position=(dice.below(3), 0))
        if kind == 5:
            return Subscribe(subscription=alias, session=dice.pick(("*", "1-1", "no such session")))
        if kind == 6:
            return Mention(document=alias, version=0, range=(0, 0, 0, 0))
        return Focus(document=alias)
