"""What one end of a session has sent, and whether it might: credit, window, order after a resume.

Like the rest of the ledger it is kept from outside: from the frames that go to the network, and from the
acknowledgements that the end has been given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from streamctx.vocabulary import Encoding
from streamctx.wire.codec import client_decoder
from streamctx.wire.messages import (
    SUPERSEDABLE_TYPES,
    Ack,
    Close,
    Cursor,
    Diagnostics,
    Edit,
    Heartbeat,
    Mention,
    NegotiatedLimits,
    Open,
    Save,
    Selection,
    Skip,
    Snapshot,
    Version,
    Viewport,
)

if TYPE_CHECKING:
    from streamctx.core.session.delivery import Delivery

__all__ = ["Fail", "Sender"]

_SUPERSEDABLE: frozenset[type[object]] = frozenset(SUPERSEDABLE_TYPES)
_TEXTS = (Open, Edit, Snapshot, Version)
_OF_A_TEXT = (Cursor, Selection, Viewport, Diagnostics, Mention, Save)

Fail: TypeAlias = Callable[[str, str], None]
"""Takes the name of a checker, and what is wrong."""


class Sender:
    """One direction of an epoch: what is under way, and how much more may be.

    `owed` are the numbers that a resume has to repeat before anything new leaves.
    """

    __slots__ = (
        "_aliases_closed",
        "_applied",
        "_fail",
        "_given_up",
        "_keeps_until_durable",
        "_limit",
        "_limits",
        "_owed",
        "_repeated",
        "_safe",
        "_supersedable",
        "_under_way",
        "_under_way_bytes",
        "_versions",
    )

    def __init__(self, fail: Fail, limits: NegotiatedLimits, *, keeps_until_durable: bool) -> None:
        self._fail = fail
        self._limits = limits
        self._keeps_until_durable = keeps_until_durable
        self._limit = 1 + limits.window_events
        self._safe = self._applied = 1
        self._under_way: dict[int, int] = {}
        self._under_way_bytes = 0
        self._owed: set[int] = set()
        self._repeated = 0
        self._supersedable: set[int] = set()
        self._given_up: set[int] = set()
        self._versions: dict[int, int] = {}
        self._aliases_closed: dict[int, int] = {}

    def fork(self) -> Sender:
        """That of a copied process."""
        other = Sender(self._fail, self._limits, keeps_until_durable=self._keeps_until_durable)
        for name in ("_limit", "_safe", "_applied", "_under_way_bytes", "_repeated"):
            setattr(other, name, getattr(self, name))
        for name in ("_under_way", "_owed", "_supersedable", "_given_up", "_versions", "_aliases_closed"):
            setattr(other, name, getattr(self, name).copy())
        return other

    # What leaves.

    def sends(self, sequence: int, size_bytes: int) -> None:
        """A number leaves for the first time."""
        if self._owed:
            self._fail("ResumeFirst", f"number {sequence} is new, and {sorted(self._owed)} are not repeated")
        if sequence >= self._limit:
            self._fail("Credit", f"number {sequence} is sent, the limit is {self._limit}")
        self._under_way[sequence] = size_bytes
        self._under_way_bytes += size_bytes
        limits = self._limits
        if len(self._under_way) > limits.window_events or self._under_way_bytes > limits.window_bytes:
            self._fail("Credit", f"{len(self._under_way)} under way, {self._under_way_bytes} bytes")
        if size_bytes > limits.frame_bytes:
            self._fail("Credit", f"a frame of {size_bytes} bytes")

    def repeats(self, sequence: int) -> None:
        """A number leaves again."""
        if sequence in self._owed:
            self._owed.remove(sequence)
            if sequence < self._repeated:
                self._fail("ResumeFirst", f"number {sequence} is repeated after {self._repeated}")
            self._repeated = sequence

    def says(self, body: bytes, encoding: Encoding) -> None:
        """A frame without a number leaves; only what it skips matters here."""
        if not self._owed:
            return
        message = client_decoder(encoding).decode(body)
        if isinstance(message, Skip):
            for start, stop in message.ranges:
                self._owed.difference_update(range(start, stop))

    def tells(self, sequence: int, message: object) -> None:
        """A client sends a message under a new number."""
        kind = type(message)
        if kind in _SUPERSEDABLE:
            self._supersedable.add(sequence)
        if isinstance(message, Open):
            closed = self._aliases_closed.pop(message.document, 0)
            if closed >= self._applied:
                self._fail("AliasSettled", f"{message!r:.100}, but the close {closed} is not applied")
        if isinstance(message, Close):
            self._aliases_closed[message.document] = sequence
        elif isinstance(message, _TEXTS):
            self._versions[message.document] = message.version
        elif isinstance(message, _OF_A_TEXT):
            known = self._versions.get(message.document, -1)
            if message.version > known:
                self._fail("EditsFirst", f"{message!r:.200}, the text was sent at {known}")

    def is_under_way(self, sequence: int) -> bool:
        """Whether it may have to be sent again."""
        return sequence >= self._safe

    # What comes back.

    def acknowledged(self, ack: Ack | Heartbeat) -> None:
        """It is told what has arrived."""
        self._limit = max(self._limit, ack.limit)
        self._applied = max(self._applied, ack.applied)
        self._safe = max(self._safe, ack.durable if self._keeps_until_durable else ack.applied)
        self._arrived(ack.received, ack.ranges)

    def _arrived(self, received: int, ranges: Iterable[tuple[int, int]]) -> None:
        under_way = self._under_way
        gone = []
        for number in under_way:  # They rise.
            if number >= received:
                break
            gone.append(number)
        for start, stop in ranges:
            gone += [number for number in range(start, stop) if number in under_way]
        for number in gone:
            self._under_way_bytes -= under_way.pop(number, 0)

    def gave_up(self, numbers: Iterable[int]) -> None:
        """It holds these no longer, on purpose: a snapshot takes their place."""
        self._given_up.update(numbers)

    @property
    def given_up(self) -> frozenset[int]:
        """What it has let go of on purpose."""
        return frozenset(self._given_up)

    def has_given_up(self, number: int) -> bool:
        """Whether it has let go of a number on purpose."""
        return number in self._given_up

    def may_be_lost(self, number: int) -> bool:
        """Whether nobody promised to keep a number."""
        return number in self._supersedable or number in self._given_up

    def holds(self, delivery: Delivery, ack: Ack | Heartbeat) -> None:
        """After an acknowledgement: nothing was forgotten that may have to be sent again."""
        if delivery.released > self._safe:
            self._fail("Kept", f"forgotten below {delivery.released}, safe below {self._safe}")
        for start, _ in ack.ranges:
            if start < self._safe or start in self._supersedable or start in self._given_up:
                continue
            entry = delivery._ring._entries.get(start)
            if entry is None or entry[0] is None:
                self._fail("Kept", f"number {start} is forgotten, safe below {self._safe}")

    def restarted(self, next_: int) -> None:
        """It numbers from `next_` on, whatever it had sent from there."""
        self._limit = next_ + self._limits.window_events
        self._safe = self._applied = next_
        self._under_way.clear()
        self._under_way_bytes = 0
        self._owed.clear()

    def resumed(
        self, expects: int, ranges: Iterable[tuple[int, int]], next_: int, sizes: Mapping[int, int]
    ) -> None:
        """A new connection goes on: the other end has all below `expects`, and `ranges`.

        Args:
            sizes: Bytes of the frames from `expects` on that the other end may have lost again.
        """
        self._limit = max(self._limit, expects + self._limits.window_events)
        for number, size_bytes in sizes.items():
            if number not in self._under_way and not self.may_be_lost(number):
                self._under_way[number] = size_bytes
                self._under_way_bytes += size_bytes
        self._under_way = dict(sorted(self._under_way.items()))
        self._arrived(expects, ranges)
        self._owed = set(range(expects, next_))
        for start, stop in ranges:
            self._owed.difference_update(range(start, stop))
        self._repeated = 0
