"""The checkers by name, and the ledger: what was sent, applied and settled, in each life of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamctx.core.documents.presence import Key
from streamctx.core.session.server_session import ServerSession
from streamctx.vocabulary import Encoding
from streamctx.wire.codec import client_decoder
from streamctx.wire.messages import Event
from tests.sim.asking import Asking
from tests.sim.sender import Sender

__all__ = ["CHECKERS", "SECRET", "Checker", "Epoch", "Lineage", "Violation", "body_of"]

SECRET: Final = "canary of a secret"
"""The text of every excluded document."""


@dataclass(frozen=True, slots=True)
class Checker:
    """What is demanded of every run, and which requirements of the specification that checks."""

    demand: str
    proves: tuple[str, ...] = ()


CHECKERS: Final[dict[str, Checker]] = {
    # Delivery.
    "NoInvention": Checker("what is applied under a number is what was sent under it", ("DIG-4",)),
    "InOrderOnce": Checker(
        "durable events are applied in the order of their numbers, each number once",
        ("SEQ-3", "SEQ-4", "SEQ-5"),
    ),
    "NoHole": Checker(
        "nothing durable is applied over a number that is neither applied, skipped nor lost",
        ("SEQ-3", "SKP-1"),
    ),
    "AckTruth": Checker(
        "an acknowledgement never covers what is not settled where it comes from", ("SEQ-3", "SKP-1")
    ),
    "Durable": Checker(
        "what is acknowledged as durable is in the store, and in every session restored from it, for ever",
        ("ACK-1", "RSM-11"),
    ),
    "Monotone": Checker(
        "watermarks, credit and leases never go back within an epoch, but where a session is restored",
        ("ACK-1",),
    ),
    "Bounded": Checker("windows, rings, logs and queues stay within their limits", ("SEQ-3",)),
    "Credit": Checker("no end has more under way than the other has allowed", ("ACK-5", "SEQ-7")),
    "Kept": Checker("a durable frame is kept until it is safe at the other end", ("ACK-3",)),
    "EditsFirst": Checker("what speaks of a text leaves behind that text", ("COA-2",)),
    "AliasSettled": Checker("an alias is used again once its close was applied", ("DOC-10",)),
    "SendOrder": Checker("first transmissions leave in the order of their numbers", ("SEQ-1", "SEQ-2")),
    "SameBytes": Checker("a retransmission is the original, byte for byte", ("EVT-1", "FRM-8", "NAK-3")),
    "AnsweredOnce": Checker("a frame is retransmitted at most once in its linger time", ("NAK-3", "RSM-10")),
    "SkipHonest": Checker(
        "a SKIP hides no durable event, but evicted ones whose documents it names", ("SKP-1", "SKP-2")
    ),
    "NackBound": Checker("a number is asked for ever less often, and not for ever", ("NAK-2",)),
    "ConflictFound": Checker("other content under a number that was taken ends the session", ("SEQ-6",)),
    "GapClosed": Checker("every gap ends in bounded time, by data, SKIP or an announced loss", ("NAK-4",)),
    "Asked": Checker(
        "a missing number is asked for at once, again in time, and long enough before it is given up",
        ("NAK-1", "NAK-2", "NAK-4"),
    ),
    "LossTold": Checker(
        "what is given up is told to its sender, and a mention or a save of it is sent again", ("ACK-6",)
    ),
    "Lossless": Checker("a lossless link shows no gap: no NACK, no retransmission", ("RSM-10",)),
    # Resume.
    "Greeting": Checker(
        "a client begins with HELLO and a higher attempt, repeats it unchanged, and then confirms WELCOME",
        ("HSK-1", "HSK-2", "HSK-9", "RSM-1"),
    ),
    "ResumeFirst": Checker(
        "after a resume all that the other end lacks leaves in order, before anything new", ("RSM-6",)
    ),
    "SingleWriter": Checker(
        "only the connection of the highest attempt changes a session", ("RSM-2", "RSM-3")
    ),
    "SecretHolds": Checker(
        "a session is resumed with its newest secret, or with the one before until that is confirmed",
        ("RSM-4",),
    ),
    "EpochHonest": Checker(
        "a server that lost what it had promised never goes on in the same epoch, nor does its client",
        ("RSM-5", "RSM-11"),
    ),
    "Resumes": Checker(
        "a server that dies is followed by one that goes on with its sessions", ("RSM-8", "RSM-11")
    ),
    "RestoredTold": Checker(
        "WELCOME says that a session was restored, until a client has shown that it knows", ("RSM-11",)
    ),
    "VerdictTruth": Checker(
        "WELCOME claims no more than is true, and its lost ranges are those that the client gave up",
        ("RSM-5",),
    ),
    "ErrorBeforeClose": Checker(
        "a close of the server has a declared code, and an ERROR goes before it", ("ERR-1",)
    ),
    "Isolation": Checker("nothing of a principal reaches another", ("HSK-7", "OBS-2", "RSM-4")),
    "NoAmplify": Checker("a stranger gets hardly more bytes than it sends"),
    # Documents.
    "TextAtVersion": Checker(
        "a text that is not stale is the editor's of that version, at the server and at observers",
        ("DOC-1", "EDT-1", "OBS-5", "POS-1"),
    ),
    "EditBase": Checker("an edit is applied to the version that it was made in", ("EDT-3",)),
    "Accepted": Checker("nothing is refused of what an honest client sends, while nothing is lost"),
    "HealedOnce": Checker("a text that is right is not sent again", ("DIV-4",)),
    "DivergenceFound": Checker("a copy that differs is found at the next hash", ("DIV-1", "DIV-2")),
    "PositionValid": Checker("a position shown is inside the text of its version", ("OBS-5", "PRS-2")),
    "Secret": Checker("nothing of an excluded document is kept or shown", ("SEC-3",)),
    "CrashOnly": Checker(
        "a restored session is as it was, and as a reader of the journal gets it who knows nothing else",
        ("RSM-11",),
    ),
    # Observers.
    "FeedContinuity": Checker(
        "updates join by their offsets, or a sync begins anew", ("OBS-3", "OBS-4", "OBS-8")
    ),
    "AskedSlowly": Checker("a feed that keeps breaking is asked for once in a while", ("OBS-4",)),
    "FeedOrder": Checker("a client takes the server's numbers one after the other, none twice", ("SEQ-3",)),
    "FilterHolds": Checker("an observer gets nothing that its filter leaves out"),
    # All of it.
    "Conserved": Checker("every event that is taken is counted as one thing that became of it"),
    "Converge": Checker(
        "once the network is well, all copies become equal, the newest presence included",
        ("COA-1", "DIV-2", "DIV-3", "DIV-4", "DOC-3", "OBS-3", "OBS-6", "OBS-7", "PRS-2", "PRS-5", "RSM-7"),
    ),
    "Calm": Checker("once all is equal, nothing but heartbeats is sent, and no timer storms", ("HBT-1",)),
    "Quiet": Checker("no exception comes out but the declared ones"),
}
"""Every checker. The requirements that a checker is said to prove are part of the specification's table."""


class Violation(BaseException):
    """A promise is broken. No handler of exceptions in the product may swallow it."""

    def __init__(self, checker: str, detail: str) -> None:
        assert checker in CHECKERS, checker
        super().__init__(f"{checker}: {detail}")
        self.checker = checker
        self.detail = detail


class Lineage:
    """What one client process has sent in an epoch. A copied process begins with a copy of it."""

    __slots__ = (
        "asking",
        "encoding",
        "evicted",
        "evicted_as_told",
        "life",
        "promised",
        "sender",
        "sent",
        "snapshots",
        "taken",
        "told",
    )

    def __init__(self, encoding: Encoding, sender: Sender, asking: Asking) -> None:
        self.encoding = encoding
        self.sender = sender
        self.asking = asking
        self.sent: dict[int, bytes] = {}
        self.taken = 1
        self.evicted: set[int] = set()
        self.evicted_as_told: set[int] = set()
        """Those of them that it gave up since the server had, and sent again under other numbers."""
        self.snapshots: dict[int, tuple[int, int]] = {}
        """By document: version and number of the last one."""
        self.told: set[int] = set()
        """Numbers of its own that it was told were given up."""
        self.promised = 1
        """It was told that all numbers below are durable."""
        self.life = 0
        """Of the session, when it was welcomed last: see `Epoch.past`."""

    def fork(self) -> Lineage:
        """The copy's own."""
        other = Lineage(self.encoding, self.sender.fork(), self.asking.fork())
        other.sent = dict(self.sent)
        other.taken = self.taken
        other.evicted, other.told = set(self.evicted), set(self.told)
        other.evicted_as_told = set(self.evicted_as_told)
        other.snapshots = dict(self.snapshots)
        other.promised, other.life = self.promised, self.life
        return other

    @property
    def next(self) -> int:
        """The number that has to be sent next: there are no holes."""
        return len(self.sent) + 1

    def message(self, sequence: int) -> object:
        """What was sent under a number."""
        frame = self.sent[sequence]
        return client_decoder(self.encoding).decode(body_of(frame, self.encoding))


class Epoch:
    """One life of a session's numbers: all that was sent and settled."""

    def __init__(self, session: ServerSession, incarnation: int, sender: Sender, asking: Asking) -> None:
        self.sender = sender
        self.asking = asking
        self.session_id = session.session_id
        self.epoch = session.epoch
        self.principal = session.principal
        self.encoding = session.encoding
        self.incarnation = incarnation
        self.lineages: list[Lineage] = []
        self.sent: dict[int, bytes] = {}
        """By the server; what clients have sent is in `lineages`."""
        self.settled = 1
        """All numbers of the client below were applied, refused, skipped or lost."""
        self.settled_ahead: set[int] = set()
        self.durable_numbers: list[int] = []
        """Of the durable events that were applied."""
        self.newest_of_key: dict[Key, int] = {}
        self.events = 0
        self.taken = 1
        """All numbers of the server below were taken by some client."""
        self.lease = 0
        self.refused = 0
        self.refused_at: dict[int, int] = {}
        """By document: the number of the last event that was refused."""
        self.rotted: set[str] = set()
        """Documents whose text was changed at the server behind its back."""
        self.unsynced: dict[int, None] = {}
        """Durable events that were applied and are not in the store."""
        self.journal: list[Event] = []
        self.lost: set[int] = set()
        self.next = 1
        """The number that the server has to send next."""
        self.past: list[tuple[int, int | None]] = []
        """What was settled, and what was not in the store first, each time before it was restored."""

    @property
    def life(self) -> int:
        """How often it was restored."""
        return len(self.past)

    @property
    def last_durable(self) -> int:
        """The highest number of a durable event that was applied."""
        return self.durable_numbers[-1] if self.durable_numbers else 0

    def restore(self, session: ServerSession, incarnation: int, settled: int, journal_length: int) -> None:
        """Go back to what was stored: the rest died with the server, and comes again."""
        self.past.append((self.settled, next(iter(self.unsynced), None)))
        self.incarnation = incarnation
        self.settled = settled
        self.settled_ahead.clear()
        while self.durable_numbers and self.durable_numbers[-1] >= settled:
            self.durable_numbers.pop()
        self.unsynced.clear()
        del self.journal[journal_length:]
        self.lost = {number for number in self.lost if number < settled}
        self.newest_of_key.clear()
        # The counters of the session begin anew.
        self.events = self.refused = 0
        self.refused_at = {alias: at for alias, at in self.refused_at.items() if at < settled}
        self.lease = max(self.lease, session.lease)

    def restart_sending(self, next_: int) -> None:
        """The server numbers from what its client expects on, whatever it had sent there."""
        for number in [number for number in self.sent if number >= next_]:
            del self.sent[number]
        self.next = self.taken = next_
        self.sender.restarted(next_)

    @property
    def given_up(self) -> set[int]:
        """Numbers that clients gave up; of those that had arrived the server may have died."""
        given_up: set[int] = set()
        for lineage in self.lineages:
            given_up |= lineage.evicted | lineage.sender.given_up
        return given_up

    @property
    def is_undisturbed(self) -> bool:
        """Whether one honest client sent all of it, and nothing is missing."""
        return len(self.lineages) == 1 and not self.lost and not self.lineages[0].evicted

    def settle(self, sequence: int) -> None:
        """A number of the client is done with."""
        if sequence == self.settled:
            self.settled += 1
            while self.settled in self.settled_ahead:
                self.settled_ahead.remove(self.settled)
                self.settled += 1
        elif sequence > self.settled:
            self.settled_ahead.add(sequence)

    def is_settled(self, sequence: int) -> bool:
        """Whether it was done with before."""
        return sequence < self.settled or sequence in self.settled_ahead


def body_of(frame: bytes, encoding: Encoding) -> bytes:
    """The body of a frame, whose head is believed."""
    if encoding is Encoding.MSGPACK:
        return frame[24:]
    return frame[frame.index(b"{") :]
