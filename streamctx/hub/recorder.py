"""A hub that writes down every input it gets, so that a fresh one can be fed the same and be compared.

The log is JSON Lines: a `LogHeader`, then one `LogEntry` for each call that can change the hub's state. One
that made the hub tell a peer something is followed by a `LogOutcome`, with running hashes of what went to
each connection. What the hub draws (ids, jitter) comes from the header's seed. What it reads of the outside
world besides its inputs is `.streamctxignore` files, which are not in the log.

The log holds document texts, resume secrets, and the tokens of clients that sent them in HELLO.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self, TypeVar

import msgspec
import xxhash

from streamctx.engine.base import StoreError
from streamctx.errors import ConfigurationError, StreamctxError
from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Peer, Principal
from streamctx.limits import DEFAULT_LIMITS, MIB, Limits
from streamctx.vocabulary import Encoding

__all__ = [
    "DebugLog",
    "DebugLogError",
    "LogConnect",
    "LogEntry",
    "LogHeader",
    "LogOutcome",
    "LogPrincipal",
    "OutputHash",
    "PeerOutput",
    "RecordingHub",
    "SeededIds",
    "read_debug_log",
    "token_hash",
]

logger = logging.getLogger("streamctx.server")

T = TypeVar("T")

# A message of 1 MiB whose every byte JSON writes as six, and the rest of the line.
_LINE_BYTES_MAX = 8 * MIB


class DebugLogError(StreamctxError):
    """A file is no debug log, or a line of it is broken; the message says which, without its content."""


class LogPrincipal(msgspec.Struct, frozen=True):
    """Whom a token speaks for; of the token only a hash is kept."""

    token_sha256: str
    name: str
    scopes: tuple[str, ...]


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """First line: all that the hub was made from."""

    streamctx_debug_log: Literal[1] = 1
    created: str
    version: str
    seed: str
    """Hexadecimal; ids and jitter are drawn from it."""
    limits: dict[str, float | int]
    principals: tuple[LogPrincipal, ...]


class LogConnect(msgspec.Struct, frozen=True, omit_defaults=True):
    """`ConnectionInfo` as it is logged."""

    encoding: Encoding
    address: str
    principal: str | None = None
    scopes: tuple[str, ...] = ()


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One input: a call of `HubPort` or `ConnectionHandler` that can change the hub's state."""

    now: float
    what: Literal["connect", "message", "read_done", "writable", "timeout", "closed", "drain", "sweep"]
    connection: int | None = None
    info: LogConnect | None = None
    text: str | None = None
    data: bytes | None = None
    code: int | None = None


class PeerOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one input made of one peer.

    `sent` counts messages, closes and aborts since the connection began, and `hash` is the running
    xxh3-64 of them. `writable` has one digit for each time the hub asked whether the peer takes
    more; it is left out if all were 1.
    """

    sent: int
    hash: str
    writable: str = ""


class LogOutcome(msgspec.Struct, frozen=True):
    """What the entry before it led to, by connection."""

    outputs: dict[str, PeerOutput]


@dataclass(frozen=True, slots=True)
class DebugLog:
    """A log that is being read."""

    header: LogHeader
    entries: Iterator[tuple[LogEntry, Mapping[int, PeerOutput] | None]]
    """Each input with its outcome, `None` where the log ends before it. Going on raises `DebugLogError`
    at a broken line."""


class SeededIds:
    """Ids that follow from a 256-bit seed, and that nobody can guess who does not have it."""

    __slots__ = ("_count", "_seed")

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._count = 0

    def __call__(self) -> str:
        """The next id: 256 bits, safe in a URL."""
        self._count += 1
        digest = hmac.digest(self._seed, self._count.to_bytes(8, "big"), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class OutputHash:
    """Running hash of what one peer was told; each item is hashed with its kind and length."""

    __slots__ = ("_hash", "count")

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()
        self.count = 0

    def add_message(self, message: bytes | str) -> None:
        """A WebSocket message was sent."""
        kind, content = (b"t", message.encode()) if isinstance(message, str) else (b"b", message)
        self._add(kind, content)

    def add_close(self, code: int) -> None:
        """The connection was closed, or aborted where the code is 0. The reason is for people."""
        self._add(b"c", code.to_bytes(2, "big"))

    def to_record(self, writable: str = "") -> PeerOutput:
        """All so far; `writable` are the answers that the hub got while it made the last of it."""
        return PeerOutput(self.count, self._hash.hexdigest(), writable if "0" in writable else "")

    def _add(self, kind: bytes, content: bytes) -> None:
        self.count += 1
        self._hash.update(kind + len(content).to_bytes(4, "big"))
        self._hash.update(content)


def token_hash(token: str) -> str:
    """How a debug log knows a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


_HEADER = msgspec.json.Decoder(LogHeader)
_ENTRY = msgspec.json.Decoder(LogEntry)
_OUTCOME = msgspec.json.Decoder(LogOutcome)
_ENCODER = msgspec.json.Encoder()
_OUTCOME_START = b'{"outputs":'


class RecordingHub:
    """A hub, with a log of its inputs. It is a `HubPort`."""

    def __init__(self, hub: Hub, file: IO[bytes], *, bytes_max: int) -> None:
        """Record into a file that begins with the header; use `create`."""
        self._hub = hub
        self._file = file
        self._bytes_max = bytes_max
        self._bytes = 0
        self._is_recording = True
        self._touched: dict[int, _RecordingPeer] = {}
        self.on_failure: Callable[[StoreError], None] | None = None
        """Never called: what is recorded is not stored."""
        # As the inner hub's where nothing is to be recorded.
        self.authenticate = hub.authenticate
        self.prune = hub.prune
        self.sessions = hub.sessions
        # None of these changes a hub that stores nothing.
        self.recall = hub.recall
        self.past = hub.past
        self.stored = hub.stored
        self.is_in_use = hub.is_in_use
        self.forget = hub.forget
        self.session = hub.session
        self.document = hub.document
        self.counters = hub.counters

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        tokens: Mapping[str, Principal],
        version: str,
        limits: Limits = DEFAULT_LIMITS,
        bytes_max: int,
    ) -> Self:
        """Make a hub that records into a new file, which only its owner can read.

        Args:
            path: Where the log is to be.
            tokens: As for `Hub`.
            version: As for `Hub`.
            limits: As for `Hub`.
            bytes_max: The log ends, with a warning, before it gets larger.

        Raises:
            ConfigurationError: If the file is there already or cannot be made.
        """
        seed = secrets.token_bytes(32)
        hub = Hub(
            tokens=tokens,
            version=version,
            limits=limits,
            new_id=SeededIds(seed),
            jitter=random.Random(seed).random,
        )
        header = LogHeader(
            created=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            version=version,
            seed=seed.hex(),
            limits=asdict(limits),
            principals=tuple(
                LogPrincipal(token_hash(token), principal.name, tuple(sorted(principal.scopes)))
                for token, principal in tokens.items()
            ),
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"debug_log: {path}: {error.strerror}; a new file is needed") from error
        recording = cls(hub, open(descriptor, "wb"), bytes_max=bytes_max)  # noqa: SIM115
        recording._write(_ENCODER.encode(header))
        return recording

    @property
    def is_recording(self) -> bool:
        """False once the log has reached its bound or could not be written."""
        return self._is_recording

    def close(self) -> None:
        """End the log; the hub works on."""
        self._stop(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # HubPort

    def connect(self, peer: Peer, info: ConnectionInfo, now: float) -> ConnectionHandler:
        """See `HubPort.connect`."""
        principal = info.principal
        logged = LogConnect(
            encoding=info.encoding,
            address=info.address,
            principal=None if principal is None else principal.name,
            scopes=() if principal is None else tuple(sorted(principal.scopes)),
        )
        recording_peer = _RecordingPeer(peer, info.connection_id, self)
        entry = LogEntry(now=now, what="connect", connection=info.connection_id, info=logged)
        handler = self.run(entry, lambda: self._hub.connect(recording_peer, info, now))
        return _RecordingConnection(handler, info.connection_id, self)

    def sweep(self, now: float) -> None:
        """See `HubPort.sweep`."""
        self.run(LogEntry(now=now, what="sweep"), lambda: self._hub.sweep(now))

    # What connections and peers call.

    def run(self, entry: LogEntry, call: Callable[[], T]) -> T:
        """Log an input, have the hub take it, and log what came of it."""
        if not self._is_recording:
            return call()
        # Before the call, so that the input which ended the process is the last one in the log.
        self._write(_ENCODER.encode(entry), is_urgent=entry.what != "message")
        self._touched.clear()
        try:
            return call()
        finally:
            if self._touched:
                outputs = {str(number): peer.take_output() for number, peer in self._touched.items()}
                self._write(_ENCODER.encode(LogOutcome(outputs)))

    def touch(self, peer: _RecordingPeer) -> None:
        """The hub told a peer something, or asked whether it may."""
        self._touched[peer.connection_id] = peer

    def _write(self, line: bytes, *, is_urgent: bool = False) -> None:
        if not self._is_recording:
            return
        self._bytes += len(line) + 1
        if self._bytes > self._bytes_max:
            self._stop(f"it has reached {self._bytes_max / 1_000_000:g} MB")
            return
        try:
            self._file.write(line + b"\n")
            if is_urgent:
                self._file.flush()
        except OSError as error:
            self._stop(error.strerror or str(error))

    def _stop(self, reason: str | None) -> None:
        if not self._is_recording:
            return
        self._is_recording = False
        try:
            self._file.close()
        except OSError as error:
            reason = reason or error.strerror
        if reason is not None:
            logger.warning("the debug log ends here: %s", reason)


class _RecordingPeer:
    """A peer, with a running hash of what it was told.

    `_answers` are those to `is_writable` since the last `take_output`.
    """

    __slots__ = ("_answers", "_output", "_peer", "_recorder", "connection_id")

    def __init__(self, peer: Peer, connection_id: int, recorder: RecordingHub) -> None:
        self.connection_id = connection_id
        self._peer = peer
        self._recorder = recorder
        self._output = OutputHash()
        self._answers = ""

    @property
    def is_writable(self) -> bool:
        is_writable = self._peer.is_writable
        if self._recorder.is_recording:
            self._answers += "1" if is_writable else "0"
            self._recorder.touch(self)
        return is_writable

    def send(self, messages: Sequence[bytes | str]) -> None:
        if self._recorder.is_recording:
            for message in messages:
                self._output.add_message(message)
            self._recorder.touch(self)
        self._peer.send(messages)

    def close(self, code: int, reason: str) -> None:
        self._output.add_close(code)
        self._recorder.touch(self)
        self._peer.close(code, reason)

    def abort(self) -> None:
        self._output.add_close(0)
        self._recorder.touch(self)
        self._peer.abort()

    def set_timer(self, at: float | None) -> None:
        self._peer.set_timer(at)

    def take_output(self) -> PeerOutput:
        answers, self._answers = self._answers, ""
        return self._output.to_record(answers)


class _RecordingConnection:
    """A connection's handler, with a log of its calls."""

    __slots__ = ("_connection_id", "_handler", "_recorder")

    def __init__(self, handler: ConnectionHandler, connection_id: int, recorder: RecordingHub) -> None:
        self._handler = handler
        self._connection_id = connection_id
        self._recorder = recorder

    @property
    def is_established(self) -> bool:
        return self._handler.is_established

    def receive(self, message: bytes | str, now: float) -> None:
        text, data = (message, None) if isinstance(message, str) else (None, message)
        entry = LogEntry(now=now, what="message", connection=self._connection_id, text=text, data=data)
        self._recorder.run(entry, lambda: self._handler.receive(message, now))

    def read_done(self, now: float) -> None:
        self._recorder.run(self._entry("read_done", now), lambda: self._handler.read_done(now))

    def writable(self, now: float) -> None:
        self._recorder.run(self._entry("writable", now), lambda: self._handler.writable(now))

    def handle_timeout(self, now: float) -> None:
        self._recorder.run(self._entry("timeout", now), lambda: self._handler.handle_timeout(now))

    def closed(self, now: float, code: int | None) -> None:
        entry = LogEntry(now=now, what="closed", connection=self._connection_id, code=code)
        self._recorder.run(entry, lambda: self._handler.closed(now, code))

    def drain(self, now: float) -> None:
        self._recorder.run(self._entry("drain", now), lambda: self._handler.drain(now))

    def _entry(self, what: Literal["read_done", "writable", "timeout", "drain"], now: float) -> LogEntry:
        return LogEntry(now=now, what=what, connection=self._connection_id)


def read_debug_log(path: Path) -> DebugLog:
    """Open a debug log.

    Raises:
        DebugLogError: If the file is none.
        OSError: If it cannot be read.
    """
    file = path.open("rb")
    try:
        header = _HEADER.decode(file.readline(_LINE_BYTES_MAX))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        file.close()
        raise DebugLogError(f"{path} is not a debug log of version 1: {error}") from error
    return DebugLog(header, _read_entries(file, path))


def _read_entries(file: IO[bytes], path: Path) -> Iterator[tuple[LogEntry, Mapping[int, PeerOutput] | None]]:
    """Join each entry with the outcome that may stand in the next line."""
    with file:
        entry: LogEntry | None = None
        for number, line in enumerate(iter(lambda: file.readline(_LINE_BYTES_MAX), b""), start=2):
            if not line.endswith(b"\n"):
                # The process ended in the middle of it; the call that it was written for never came.
                break
            try:
                if line.startswith(_OUTCOME_START):
                    outputs = {int(key): value for key, value in _OUTCOME.decode(line).outputs.items()}
                    if entry is None:
                        raise DebugLogError(f"{path} line {number}: an outcome without its input")
                    yield entry, outputs
                    entry = None
                    continue
                following = _ENTRY.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError) as error:
                raise DebugLogError(f"{path} line {number}: {error}") from error
            if entry is not None:
                yield entry, {}
            entry = following
        if entry is not None:
            yield entry, None
