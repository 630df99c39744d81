"""What the ends claim: what was lost, what is missing, what came before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.delivery import Delivery
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import JournalBatch
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import parse_frame
from streamctx.wire.messages import (
    Edit,
    Message,
    Open,
    Part,
    Snapshot,
    Subscribe,
    Welcome,
)
from tests.sim.ledger import SECRET

if TYPE_CHECKING:
    from tests.sim.network import Link
    from tests.sim.watch import Watch

__all__ = ["Claims"]

_NACKS_PER_SECOND_MAX = 8
"""Of one number. Growing by a half from 50 ms less a fifth, the eighth comes after 1.3 s."""
_ASKED_MAX = 3
_ASKED_S = 4.9
"""So often a subscription may be asked for in so many seconds, where none was given up."""


class Claims:
    """The checkers of claims. They hear of losses and requests."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._asked: dict[tuple[Delivery, int], list[float]] = {}
        self._subscribed: dict[tuple[object, int], list[float]] = {}
        self._lost_now: set[int] = set()
        self._first_frames: dict[tuple[str, int], bytes] = {}

    # Handshakes.

    def turn(self) -> None:
        """The server handles input."""
        self._lost_now.clear()

    def welcoming(self, welcome: Welcome) -> None:
        """The server says WELCOME."""
        untold = self._lost_now.difference(*(range(start, stop) for start, stop in welcome.lost))
        if untold or (welcome.lost and welcome.verdict != "resynced"):
            self._watch.fail("VerdictTruth", f"{welcome.verdict}, of the lost {sorted(untold)} are not told")

    # Losses.

    def lost(self, numbers: Iterable[int]) -> None:
        """The server gives numbers up."""
        self._lost_now.update(numbers)

    # Requests.

    def asked(self, delivery: Delivery, ranges: Sequence[tuple[int, int]], reason: str) -> None:
        """An end asks for what is missing."""
        if reason != "gap":
            return
        now = self._watch.world.now
        attempts_max = self._watch.world.plan.limits.nack_attempts_max
        for start, _ in ranges:
            times = self._asked.setdefault((delivery, start), [])
            times.append(now)
            recent = sum(1 for time in times if time > now - 1.0)
            if recent > _NACKS_PER_SECOND_MAX or len(times) > attempts_max:
                self._watch.fail(
                    "NackBound", f"{start} is asked for {recent} times in a second, {len(times)} in all"
                )

    def attached(self, delivery: Delivery) -> None:
        """A connection begins: what is missing may be asked for anew."""
        if self._asked:
            for key in [key for key in self._asked if key[0] is delivery]:
                del self._asked[key]

    def subscribing(self, session: ClientSession, subscribe: Subscribe) -> None:
        """A client asks for a feed."""
        now = self._watch.world.now
        times = self._subscribed.setdefault((session._delivery, subscribe.subscription), [])
        times.append(now)
        recent = sum(1 for time in times if time > now - _ASKED_S)
        if recent > _ASKED_MAX:
            self._watch.fail("AskedSlowly", f"{recent} times in {_ASKED_S} s: {subscribe!r}")

    def subscribes_anew(self, session: ClientSession) -> None:
        """A client asks for all of its feeds again, since the server has forgotten them."""
        for key in [key for key in self._subscribed if key[0] is session._delivery]:
            del self._subscribed[key]

    # Content.

    def restored(self, epoch_id: str) -> None:
        """A server does not know the digests of the one before."""
        for key in [key for key in self._first_frames if key[0] == epoch_id]:
            del self._first_frames[key]

    def said(self, link: Link, session: ServerSession, message: bytes, *, was_settled: bool) -> None:
        """A stranger's frame was handled: other content under a number that is settled ends the session."""
        frame = parse_frame(message, encoding=session.encoding, digest=DIGESTS[session.capabilities.digest])
        if frame is None or not frame.sequence:
            return
        key = (session.epoch, frame.sequence)
        if not was_settled:
            self._first_frames[key] = message
        elif self._first_frames.get(key, message) != message and link.handler._held is not None:
            self._watch.fail("ConflictFound", f"number {frame.sequence} came with two contents")

    def journalled(self, batch: JournalBatch) -> None:
        """Events go to the store."""
        for _, item in batch.entries:
            if isinstance(item, Message) and SECRET in _text_in(item):
                self._watch.fail("Secret", f"{item!r} is journalled")


def _text_in(event: Message) -> str:
    if isinstance(event, Open | Snapshot | Part):
        return event.text or ""
    if isinstance(event, Edit):
        return "".join(change.text for change in event.changes)
    return ""
