"""Feeds a debug log to a fresh hub, and compares what it sends with what the recorded one sent."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Principal
from streamctx.hub.recorder import (
    DebugLog,
    DebugLogError,
    LogEntry,
    LogHeader,
    OutputHash,
    PeerOutput,
    SeededIds,
    token_hash,
)
from streamctx.limits import Limits
from streamctx.vocabulary import Encoding
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import Frame, parse_frame

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["Difference", "Rerun", "TracedFrame"]


@dataclass(frozen=True, slots=True)
class TracedFrame:
    """One WebSocket message that went in or out during the rerun."""

    now: float
    connection: int
    is_input: bool
    encoding: Encoding
    message: bytes | str

    def describe(self) -> str:
        """The frame for people: sequence, stream and body, or why it cannot be read."""
        data = self.message.encode() if isinstance(self.message, str) else self.message
        frame = _parse(data, self.encoding)
        if frame is None:
            return f"corrupt frame of {len(data)} bytes"
        try:
            body = (
                msgspec.json.decode(frame.body)
                if self.encoding is Encoding.JSON
                else msgspec.msgpack.decode(frame.body)
            )
        except (msgspec.DecodeError, RecursionError):
            return f"sequence {frame.sequence}, a body that cannot be decoded"
        stream = f" stream {frame.stream}" if frame.stream else ""
        sequence = f"#{frame.sequence} " if frame.sequence else ""
        return f"{sequence}{json.dumps(body, ensure_ascii=False, default=repr)}{stream}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the fresh hub first sent something else."""

    input_index: int
    """From 1."""
    entry: LogEntry
    connection: int
    recorded: PeerOutput
    repeated: PeerOutput
    frames: tuple[TracedFrame, ...]
    """What the fresh hub sent to that connection on that input."""


class _RerunHub(Hub):
    """A hub that knows tokens by their hashes alone."""

    def __init__(self, header: LogHeader) -> None:
        seed = bytes.fromhex(header.seed)
        super().__init__(
            tokens={},
            version=header.version,
            limits=Limits(**header.limits),  # type: ignore[arg-type]
            new_id=SeededIds(seed),
            jitter=random.Random(seed).random,
        )
        self._by_hash = {
            principal.token_sha256: Principal(principal.name, frozenset(principal.scopes))
            for principal in header.principals
        }

    @override
    def authenticate(self, token: str) -> Principal | None:
        return self._by_hash.get(token_hash(token))


class _RerunPeer:
    """A peer that answers as the recorded one did, and keeps what it is told."""

    def __init__(self) -> None:
        self.output = OutputHash()
        self.answers: list[bool] = []
        self.messages: list[bytes | str] = []

    @property
    def is_writable(self) -> bool:
        return self.answers.pop(0) if self.answers else True

    def send(self, messages: Sequence[bytes | str]) -> None:
        self.messages += messages
        for message in messages:
            self.output.add_message(message)

    def close(self, code: int, reason: str) -> None:
        del reason
        self.output.add_close(code)

    def abort(self) -> None:
        self.output.add_close(0)

    def set_timer(self, at: float | None) -> None:
        """Timeouts are inputs, and in the log."""


@dataclass(slots=True)
class _Connection:
    peer: _RerunPeer
    handler: ConnectionHandler
    encoding: Encoding
    recorded: PeerOutput


class Rerun:
    """One run of a log through a fresh hub."""

    def __init__(self, log: DebugLog, *, on_frame: Callable[[TracedFrame], None] | None = None) -> None:
        """Prepare; `run` does it.

        Raises:
            DebugLogError: If the header makes no hub.
        """
        self.input_count = 0
        self.frame_count = 0
        """Messages that the fresh hub sent."""
        self._log = log
        self._on_frame = on_frame
        self._connections: dict[int, _Connection] = {}
        try:
            self._hub = _RerunHub(log.header)
        except (TypeError, ValueError) as error:
            raise DebugLogError(f"the log's header does not fit this version: {error}") from error

    def run(self) -> Difference | None:
        """Feed all inputs, up to the first difference.

        Raises:
            DebugLogError: If the log is broken.
        """
        for entry, outcome in self._log.entries:
            self.input_count += 1
            sent = self._feed(entry, outcome or {})
            self.frame_count += len(sent)
            if outcome is None:
                continue  # The log ends before it says what came of this one.
            difference = self._compare(entry, outcome, sent)
            if difference is not None:
                return difference
        return None

    def _feed(self, entry: LogEntry, outcome: Mapping[int, PeerOutput]) -> list[TracedFrame]:
        for number, output in outcome.items():
            if number in self._connections:
                self._connections[number].peer.answers = [digit == "1" for digit in output.writable]
        if entry.what == "message" and self._on_frame is not None:
            connection = self._connection(entry)
            self._on_frame(
                TracedFrame(entry.now, entry.connection or 0, True, connection.encoding, _message_of(entry))
            )
        self._call(entry)
        sent = [
            TracedFrame(entry.now, number, False, connection.encoding, message)
            for number, connection in self._connections.items()
            for message in connection.peer.messages
        ]
        for connection in self._connections.values():
            connection.peer.messages.clear()
            connection.peer.answers.clear()
        if self._on_frame is not None:
            for frame in sent:
                self._on_frame(frame)
        return sent

    def _call(self, entry: LogEntry) -> None:
        now = entry.now
        match entry.what:
            case "connect":
                self._connect(entry)
            case "sweep":
                self._hub.sweep(now)
            case "message":
                self._connection(entry).handler.receive(_message_of(entry), now)
            case "read_done":
                self._connection(entry).handler.read_done(now)
            case "writable":
                self._connection(entry).handler.writable(now)
            case "timeout":
                self._connection(entry).handler.handle_timeout(now)
            case "closed":
                self._connection(entry).handler.closed(now, entry.code)
            case "drain":
                self._connection(entry).handler.drain(now)

    def _connect(self, entry: LogEntry) -> None:
        info, number = entry.info, entry.connection
        if info is None or number is None:
            raise DebugLogError("a connection without its info")
        principal = None if info.principal is None else Principal(info.principal, frozenset(info.scopes))
        peer = _RerunPeer()
        handler = self._hub.connect(
            peer, ConnectionInfo(info.encoding, principal, info.address, number), entry.now
        )
        self._connections[number] = _Connection(peer, handler, info.encoding, peer.output.to_record())

    def _connection(self, entry: LogEntry) -> _Connection:
        connection = self._connections.get(entry.connection or 0)
        if connection is None:
            raise DebugLogError(f"{entry.what} of connection {entry.connection}, which was never made")
        return connection

    def _compare(
        self, entry: LogEntry, outcome: Mapping[int, PeerOutput], sent: list[TracedFrame]
    ) -> Difference | None:
        for number in outcome.keys() | {frame.connection for frame in sent}:
            connection = self._connections.get(number)
            if connection is None:
                raise DebugLogError(f"an outcome of connection {number}, which was never made")
            recorded = outcome.get(number, connection.recorded)
            repeated = connection.peer.output.to_record()
            if (recorded.sent, recorded.hash) != (repeated.sent, repeated.hash):
                frames = tuple(frame for frame in sent if frame.connection == number)
                return Difference(self.input_count, entry, number, recorded, repeated, frames)
            connection.recorded = recorded
        if entry.what == "closed":
            self._connections.pop(entry.connection or 0, None)
        return None


def _message_of(entry: LogEntry) -> bytes | str:
    if entry.text is not None:
        return entry.text
    return entry.data or b""


def _parse(data: bytes, encoding: Encoding) -> Frame | None:
    """The frame, by whichever digest fits."""
    from streamctx.errors import RemoteProtocolError

    for digest in DIGESTS.values():
        try:
            frame = parse_frame(data, encoding=encoding, digest=digest)
        except RemoteProtocolError:
            return None
        if frame is not None:
            return frame
    return None
