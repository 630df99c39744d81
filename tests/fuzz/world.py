"""A hub in memory with a virtual clock, peers that check all they are sent, and an honest principal.

Real frames go both ways. Nothing here sleeps, and everything follows from the calls.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from streamctx.core.session.client_session import ClientSession, ClientSettings
from streamctx.core.session.state import ClientState
from streamctx.core.session.stored import JournalBatch
from streamctx.engine.base import Done
from streamctx.engine.memory import MemoryEngine
from streamctx.errors import CloseCode, ErrorCode
from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Principal
from streamctx.limits import KIB, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding
from streamctx.wire.codec import server_decoder
from streamctx.wire.digests import DIGESTS, Digest, crc32_digest
from streamctx.wire.frames import parse_frame
from streamctx.wire.messages import Ack, ErrorMessage, Heartbeat, Message, Welcome
from tests.fuzz.program import Violation

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["ROOMY", "TIGHT", "Client", "LateEngine", "Line", "World", "watched_log"]

_COMMON = {"detached_session_s": 50.0, "sessions_max": 10}

TIGHT = Limits(
    frame_bytes_max=2 * KIB,
    websocket_message_bytes_max=4 * KIB,
    before_welcome_bytes_max=4 * KIB,
    reorder_events_max=8,
    reorder_bytes_max=4 * KIB,
    reorder_span_max=64,
    digest_history=16,
    window_events_max=8,
    window_bytes_max=4 * KIB,
    ring_events_max=24,
    ring_bytes_max=8 * KIB,
    server_ring_bytes_max=8 * KIB,
    retransmit_bytes_max=2 * KIB,
    corrupt_window_frames=16,
    part_text_bytes_max=512,
    document_bytes_max=8 * KIB,
    documents_per_session_max=3,
    documents_bytes_max=16 * KIB,
    changes_per_edit_max=6,
    supersedable_keys_max=4,
    feed_log_events_max=16,
    feed_log_bytes_max=4 * KIB,
    subscriptions_per_session_max=3,
    **_COMMON,  # type: ignore[arg-type]
)
"""Every bound is a few messages away."""

ROOMY = Limits(**_COMMON)  # type: ignore[arg-type]
"""The default ones, but for what would only take time."""

_FIRES_MAX = 3000
"""Timers that may fire in one stretch of time: far more than all repeats and backoffs of all ends need."""


class _Alarm(logging.Handler):
    """Fails with the exception that somebody caught and logged: nothing is to be caught like that."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            return
        cause = record.exc_info[1] if record.exc_info else None
        raise Violation(f"logged as an error: {record.getMessage()}: {cause!r}") from cause


@contextmanager
def watched_log() -> Iterator[None]:
    """Whatever the server logs as an error fails at once, and the rest goes nowhere."""
    logger = logging.getLogger("streamctx.server")
    alarm = _Alarm()
    propagates, level, logger.propagate = logger.propagate, logger.level, False
    logger.setLevel(logging.WARNING)
    logger.addHandler(alarm)
    try:
        yield
    finally:
        logger.removeHandler(alarm)
        logger.propagate = propagates
        logger.setLevel(level)


class LateEngine(MemoryEngine):
    """Storage that takes its time: a batch is safe when somebody says so."""

    def __init__(self) -> None:
        super().__init__(durability="full")
        self._waiting: deque[Done] = deque()

    @override
    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        """Let a batch wait."""
        # A batch without entries says how far numbers were used of which nothing is kept.
        numbers = [sequence for sequence, _ in batch.entries] or [batch.first]
        events = [sequence for sequence, item in batch.entries if isinstance(item, Message)]
        is_in_order = numbers == sorted(numbers) and events == sorted(set(events))
        if not is_in_order or not numbers[0] == batch.first <= numbers[-1] <= batch.stop:
            raise Violation(f"a batch from {batch.first} to {batch.stop} holds {numbers}")
        self._waiting.append(done)

    def finish(self, count: int) -> None:
        """The oldest batches are safe."""
        for _ in range(min(count, len(self._waiting))):
            self._waiting.popleft()(None)

    def finish_all(self) -> None:
        """All batches are safe."""
        self.finish(len(self._waiting))


class World:
    """The clock, one hub, and all connections to it."""

    def __init__(
        self, limits: Limits, principals: dict[str, Principal], *, engine: LateEngine | None = None
    ) -> None:
        self.now = 0.0
        self.limits = limits
        ids = itertools.count(1)
        self._connection_ids = itertools.count(1)
        self.hub = Hub(
            tokens=principals,
            version="1",
            limits=limits,
            engine=engine,
            new_id=lambda: f"id-{next(ids)}",
            jitter=lambda: 0.5,
        )
        self.lines: list[Line] = []
        self.clients: list[Client] = []

    def connect(self, encoding: Encoding, principal: Principal | None = None) -> Line:
        """Open a WebSocket."""
        return Line(self, encoding, principal, next(self._connection_ids))

    def settle(self) -> None:
        """Let the honest clients and the hub talk until both have said all."""
        for _ in range(_FIRES_MAX):
            # All of them, not only the first that has something to say.
            if not sum([client.exchange() for client in self.clients]):
                return
        raise Violation(f"honest clients and the hub still talk after {_FIRES_MAX} turns")

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything be done that is due."""
        stop = self.now + seconds
        for _ in range(_FIRES_MAX):
            timers = [(line.timer, index) for index, line in enumerate(self.lines) if line.timer is not None]
            wishes = [
                (due, -1 - index) for index, c in enumerate(self.clients) if (due := c.due()) is not None
            ]
            due, index = min([*timers, *wishes], default=(stop + 1, 0))
            if due > stop:
                self.now = stop
                return
            self.now = max(self.now, due)
            if index < 0:
                self.clients[-1 - index].fire()
            else:
                self.lines[index].fire()
            self.settle()
        raise Violation(f"timers still fire after {_FIRES_MAX} times within {seconds:g} s")


class Line:
    """One connection, from the client's side; the hub's `Peer`. It checks what it is sent.

    `heard` are the frames since the owner last took them.
    """

    def __init__(
        self, world: World, encoding: Encoding, principal: Principal | None, connection_id: int
    ) -> None:
        self.world = world
        self.encoding = encoding
        self.digest: Digest = crc32_digest
        self.is_writable = True
        self.timer: float | None = None
        self.closed_with: int | None = None
        self.welcome: Welcome | None = None
        self.heard: list[tuple[bytes, int, Message]] = []
        self._error: ErrorMessage | None = None
        self._is_over = False
        world.lines.append(self)
        self.handler: ConnectionHandler = world.hub.connect(
            self,
            ConnectionInfo(
                encoding=encoding, principal=principal, address="test", connection_id=connection_id
            ),
            world.now,
        )

    # Peer

    def send(self, messages: Sequence[bytes | str]) -> None:
        if self.closed_with is not None or self._is_over:
            raise Violation("sent after the close")
        self._error = None
        for message in messages:
            if isinstance(message, str) is not (self.encoding is Encoding.JSON):
                raise Violation(f"a {type(message).__name__} was sent on a connection of {self.encoding}")
            self._arrive(message.encode() if isinstance(message, str) else message)

    def close(self, code: int, reason: str) -> None:
        if self.closed_with is not None or self._is_over:
            raise Violation("closed twice")
        error = self._error
        if code not in set(CloseCode) or code == CloseCode.INTERNAL:
            raise Violation(f"closed with {code}")
        if error is None or error.code != reason:
            raise Violation(f"closed with {code} ({reason}) after {error}, and not after its ERROR")
        if error.temporary is CloseCode(code).is_terminal:
            raise Violation(f"closed with {code} after an ERROR that says temporary={error.temporary}")
        self.closed_with = code
        self.timer = None

    def abort(self) -> None:
        raise Violation("aborted by the hub")

    def set_timer(self, at: float | None) -> None:
        if not self._is_over and self.closed_with is None:
            self.timer = at

    # What a client and its network do.

    @property
    def is_open(self) -> bool:
        return not self._is_over and self.closed_with is None

    def give(self, data: bytes, *, is_text: bool | None = None) -> None:
        """Let a WebSocket message arrive."""
        if is_text is None:
            is_text = self.encoding is Encoding.JSON
        # The shell has checked that text is UTF-8.
        self.handler.receive(data.decode("utf-8", "replace") if is_text else data, self.world.now)

    def read_done(self) -> None:
        self.handler.read_done(self.world.now)

    def fire(self) -> None:
        self.timer = None
        self.handler.handle_timeout(self.world.now)
        self.reap()

    def reap(self) -> None:
        """Tell the hub of the end of a connection that it closed itself."""
        if self.closed_with is not None and not self._is_over:
            self.drop(None)

    def drop(self, code: int | None) -> None:
        """The connection is gone; what it was closed with, if the peer said so."""
        if self._is_over:
            return
        self._is_over = True
        self.timer = None
        self.world.lines.remove(self)
        self.handler.closed(self.world.now, code)

    def _arrive(self, data: bytes) -> None:
        limits = self.world.limits
        if len(data) > limits.frame_bytes_max:
            raise Violation(f"a frame of {len(data)} bytes was sent, limit {limits.frame_bytes_max}")
        frame = parse_frame(data, encoding=self.encoding, digest=self.digest)
        if frame is None:
            # Handshakes, and their failure, always have this one.
            frame = parse_frame(data, encoding=self.encoding, digest=crc32_digest)
        if frame is None:
            raise Violation("a corrupt frame was sent")
        message = server_decoder(self.encoding).decode(frame.body)
        if not isinstance(message, Message):
            raise Violation(f"what was sent cannot be read: {message}")
        if isinstance(message, Welcome):
            self.welcome = message
            self.digest = DIGESTS[DigestAlgorithm(message.digest)]
        if isinstance(message, ErrorMessage) and (
            message.code not in set(ErrorCode) or message.code == ErrorCode.INTERNAL
        ):
            raise Violation(f"sent the error {message.code}: {message.message}")
        if isinstance(message, Ack | Heartbeat) and not (
            message.durable <= message.applied <= message.received <= message.limit
        ):
            raise Violation(f"the watermarks of {message} do not rise")
        # A close follows an ERROR without a number; an ACK may stand between them.
        if isinstance(message, ErrorMessage) and not frame.sequence:
            self._error = message
        self.heard.append((data, frame.sequence, message))


class Client:
    """An honest client: the real session of one, over a perfect network."""

    def __init__(self, world: World, settings: ClientSettings, session: ClientSession | None = None) -> None:
        self.world = world
        self.session = ClientSession(settings, jitter=lambda: 0.5) if session is None else session
        self.line: Line | None = None
        world.clients.append(self)

    def connect(self) -> None:
        self.line = self.world.connect(self.session.settings.encoding)
        self.session.connected(self.world.now)

    def due(self) -> float | None:
        return self.session.next_timeout()

    def fire(self) -> None:
        self.session.handle_timeout(self.world.now)

    def exchange(self) -> bool:
        """One turn: hear what came and say what there is; whether anything went either way."""
        line, session, now = self.line, self.session, self.world.now
        if line is None:
            return False
        heard, line.heard = line.heard, []
        for data, _, _ in heard:
            session.receive(data, now)
        while session.next_event() is not None:
            pass
        if line.closed_with is not None:
            self.line = None
            session.disconnected(now, line.closed_with)
            line.reap()
            return True
        frames = session.data_to_send(now)
        for frame in frames:
            line.give(frame)
        if frames:
            line.read_done()
        return bool(heard or frames)

    @property
    def has_ended(self) -> bool:
        return self.session.state is ClientState.CLOSED

    @property
    def is_settled(self) -> bool:
        return self.session.state is ClientState.ESTABLISHED and self.session.is_settled
