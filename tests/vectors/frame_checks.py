"""What holds at every frame of a server; `protocol/vectors/sessions/README.md` lists it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from streamctx.vocabulary import DigestAlgorithm, Encoding
from streamctx.wire.codec import Malformed, UnknownType, server_decoder
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import parse_frame

__all__ = ["Arrival", "Direction", "Receiver", "Violation", "demand"]

FEED = {"sync", "update", "synced", "ended"}
NUMBERED = FEED | {"snapshot_request", "subscribed"}
"""All others, but ERROR, have no number."""
WATERMARKS = ("received", "applied", "durable", "limit")


class Violation(AssertionError):
    """Something does not hold."""


def demand(holds: object, otherwise: str) -> None:
    """Raise a violation if something does not hold."""
    if not holds:
        raise Violation(otherwise)


@dataclass(frozen=True)
class Arrival:
    """One frame of the server, decoded."""

    time: float
    data: bytes
    sequence: int
    stream: int
    body: dict[str, Any]

    @property
    def type(self) -> str:
        """That of its message."""
        return str(self.body["type"])


@dataclass
class Feed:
    """How far one subscription has shown one session."""

    offset: int
    is_complete: bool = False


@dataclass
class Direction:
    """All that a server sends in one session and epoch, over all its connections."""

    window_events: int
    next_sequence: int = 1
    _frames: dict[int, bytes] = field(default_factory=dict)
    _watermarks: dict[str, int] = field(default_factory=dict)
    _feeds: dict[tuple[int, str], Feed] = field(default_factory=dict)

    def take(self, frame: Arrival) -> None:
        """Check a frame of the session."""
        if frame.type in ("ack", "heartbeat"):
            self._take_ack(frame.body)
        if frame.sequence and self._is_new(frame) and frame.type in FEED:
            self._take_feed(frame)

    def _is_new(self, frame: Arrival) -> bool:
        sequence = frame.sequence
        known = self._frames.setdefault(sequence, frame.data)
        if sequence < self.next_sequence:
            demand(known == frame.data, f"number {sequence} came again with other bytes")
            return False
        demand(sequence == self.next_sequence, f"number {sequence} came, expected {self.next_sequence}")
        self.next_sequence += 1
        return True

    def _take_ack(self, ack: dict[str, Any]) -> None:
        received, applied, durable, limit = (ack[name] for name in WATERMARKS)
        demand(durable <= applied <= received, "not durable ≤ applied ≤ received")
        demand(limit >= received + self.window_events, f"limit {limit} is below received + window_events")
        for name in WATERMARKS:
            before = self._watermarks.get(name, 1)
            demand(ack[name] >= before, f"{name} falls from {before} to {ack[name]}")
            self._watermarks[name] = ack[name]

    def _take_feed(self, frame: Arrival) -> None:
        key, body = (frame.stream, frame.body["session"]), frame.body
        if frame.type == "sync":
            self._feeds[key] = Feed(body["offset"])
            return
        feed = self._feeds.get(key)
        if feed is None:
            raise Violation("it belongs to no feed that began with sync")
        if frame.type == "ended":
            del self._feeds[key]
        elif frame.type == "synced":
            demand(not feed.is_complete, "synced without sync")
            demand(body["offset"] == feed.offset, f"synced at {body['offset']}, sync at {feed.offset}")
            feed.is_complete = True
        else:
            demand(body["from"] == feed.offset, f"from is {body['from']}, the feed is at {feed.offset}")
            demand(feed.is_complete or body["to"] == feed.offset, "to rises before synced")
            demand(body["to"] >= feed.offset, "to is below from")
            feed.offset = body["to"]


class Receiver:
    """The client's end of one connection: checks what comes, and keeps it for the script to read."""

    def __init__(self, encoding: Encoding, directions: dict[tuple[str, str], Direction]) -> None:
        """Begin before WELCOME.

        Args:
            directions: Those of all sessions and epochs, shared by all connections.
        """
        self.session: str | None = None
        self.direction: Direction | None = None
        self.digest = DigestAlgorithm.CRC32
        self.unread: deque[Arrival] = deque()
        self.acks: list[Arrival] = []
        """Each ACK and HEARTBEAT."""
        self.log: list[Arrival] = []
        """Everything."""
        self.is_over = False
        """Whether an ERROR has come that a close must follow."""
        self._encoding = encoding
        self._directions = directions
        self._decoder = server_decoder(encoding)

    def take(self, data: bytes, time: float) -> None:
        """Check a frame, and keep it."""
        algorithm, frame = self._parse(data, time)
        self.log.append(frame)
        kind = frame.type
        is_crc32_due = kind == "welcome" or self.direction is None
        expected = DigestAlgorithm.CRC32 if is_crc32_due else self.digest
        demand(algorithm is expected, f"the digest is {algorithm}, expected {expected}")
        is_ack = kind in ("ack", "heartbeat")
        demand(is_ack or not self.is_over, "it follows an ERROR without a number")
        if kind != "error":
            demand((frame.sequence > 0) is (kind in NUMBERED), f"its number is {frame.sequence}")
        demand((frame.stream > 0) is (kind in FEED), f"its stream is {frame.stream}")
        if kind == "welcome":
            self._take_welcome(frame.body)
        elif self.direction is not None:
            self.direction.take(frame)
        else:
            demand(kind == "error" and not frame.sequence, "it comes before WELCOME")
        self.is_over |= kind == "error" and not frame.sequence
        if is_ack:
            self.acks.append(frame)
        else:
            self.unread.append(frame)

    def _parse(self, data: bytes, time: float) -> tuple[DigestAlgorithm, Arrival]:
        for algorithm in DigestAlgorithm:
            frame = parse_frame(data, encoding=self._encoding, digest=DIGESTS[algorithm])
            if frame is not None:
                message = self._decoder.decode(frame.body)
                demand(not isinstance(message, Malformed | UnknownType), f"no valid body: {message}")
                module = msgspec.json if self._encoding is Encoding.JSON else msgspec.msgpack
                body = module.decode(frame.body)
                return algorithm, Arrival(time, data, frame.sequence, frame.stream, body)
        raise Violation(f"a corrupt frame came: {data[:200]!r}")

    def _take_welcome(self, welcome: dict[str, Any]) -> None:
        self.session = welcome["session"]
        self.digest = DigestAlgorithm(welcome["digest"])
        key = welcome["session"], welcome["epoch"]
        window_events = welcome["limits"]["window_events"]
        self.direction = self._directions.setdefault(key, Direction(window_events))
