"""What has to be on disk of a client's session, so that another process can go on with it.

A session adds records to its `OutboxJournal` as its state changes; the shell takes them and has them on disk
before it hands any frame of that moment to the socket. `outbox_state` reads them back. A record says what
became of the state, and never why: decisions are not made again when it is read.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.messages import NegotiatedLimits

__all__ = [
    "AttemptMade",
    "Bound",
    "DocumentGone",
    "DocumentNoted",
    "DocumentOpened",
    "EventWaits",
    "EventsGone",
    "FrameSent",
    "FramesEvicted",
    "Marks",
    "OutboxRecord",
    "ProcessStarted",
    "SessionFacts",
    "SessionForgotten",
    "SnapshotDone",
    "SnapshotDue",
    "TextReplaced",
]


class _Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the records; their tags and the order of their fields are the format of the file."""


class ProcessStarted(_Record, frozen=True, tag=0):
    """A process has begun, whose clock says `now` at `wall_s` seconds since 1970.

    `boot` identifies the start of the machine that the records outlive, empty if they outlive any or none is
    known; `unit` is what positions count.
    """

    now: float
    wall_s: float
    boot: str
    unit: Unit


class AttemptMade(_Record, frozen=True, tag=1):
    """That attempt is used from now on (RSM-1)."""

    attempt: int


class SessionFacts(_Record, frozen=True, tag=2):
    """What WELCOME has settled; with another session or epoch than before, numbers begin anew."""

    server: str
    """Where the session lives: the secret is for nobody else."""
    session: str
    secret: str
    epoch: str
    encoding: Encoding
    digest: DigestAlgorithm
    unit: Unit
    hash: HashAlgorithm
    role: Literal["produce", "observe", "both"]
    durability: Literal["none", "relaxed", "full"]
    limits: NegotiatedLimits


class SessionForgotten(_Record, frozen=True, tag=3):
    """The next WELCOME begins a new session."""


class Marks(_Record, frozen=True, tag=4):
    """Numbers below `next` are used, `expected` is the server's lowest that has not come.

    Of ours below `released` nothing is kept, and the last durable one of these is below `safe_stop`. Aliases
    and subscriptions up to the last ones are used.
    """

    next: int
    expected: int
    released: int
    safe_stop: int
    last_alias: int
    last_subscription: int


class FrameSent(_Record, frozen=True, tag=5):
    """A durable frame was numbered; `document` is what it belongs to, if anything."""

    sequence: int
    frame: bytes
    document: int | None


class FramesEvicted(_Record, frozen=True, tag=6):
    """Frames were given up; each is its number and its document."""

    numbers: tuple[tuple[int, int], ...]


class DocumentOpened(_Record, frozen=True, tag=7):
    """A document has this text; its `open` waits under `ticket`, unless that is 0.

    `body` is the `open` without its text, in MessagePack, like all bodies here.
    """

    alias: int
    body: bytes
    text: str
    ticket: int
    made_at: float


class TextReplaced(_Record, frozen=True, tag=8):
    """A document has another text."""

    alias: int
    version: int
    text: str


class EventWaits(_Record, frozen=True, tag=9):
    """An event waits under `ticket`, unless that is 0. One that `edits` is an edit that changes the text."""

    ticket: int
    made_at: float
    alias: int
    body: bytes
    edits: bool


class EventsGone(_Record, frozen=True, tag=10):
    """These wait no longer: they were sent, or something took their place."""

    tickets: tuple[int, ...]


class SnapshotDue(_Record, frozen=True, tag=11):
    """The server lacks a text that no event that waits holds; one that is going out in parts counts too."""

    alias: int


class SnapshotDone(_Record, frozen=True, tag=12):
    """It has been sent."""

    alias: int


class DocumentNoted(_Record, frozen=True, tag=13):
    """What `ClientDocument` knows of what was sent."""

    alias: int
    is_announced: bool
    open_sequence: int
    text_sequence: int
    refused_sequence: int
    saved_version: int | None


class DocumentGone(_Record, frozen=True, tag=14):
    """A document was closed, or refused: nothing of it is kept."""

    alias: int


class Bound(_Record, frozen=True, tag=15):
    """A design document or a subscription, which ends with its process, is open or no longer."""

    kind: Literal["design", "subscription"]
    number: int
    is_open: bool


OutboxRecord: TypeAlias = (
    ProcessStarted
    | AttemptMade
    | SessionFacts
    | SessionForgotten
    | Marks
    | FrameSent
    | FramesEvicted
    | DocumentOpened
    | TextReplaced
    | EventWaits
    | EventsGone
    | SnapshotDue
    | SnapshotDone
    | DocumentNoted
    | DocumentGone
    | Bound
)
