"""One WebSocket as the hub sees it: handshake, fencing, flushing, and the one way to fail."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from streamctx.engine.base import StoreError
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.hub.ports import ConnectionInfo, Peer
from streamctx.hub.registry import Held
from streamctx.hub.storage import unavailable
from streamctx.vocabulary import Encoding
from streamctx.wire.codec import Malformed, client_decoder, encode_body
from streamctx.wire.digests import crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import ErrorMessage, Hello, Message

if TYPE_CHECKING:
    from streamctx.hub.hub import Hub

__all__ = ["Connection"]

logger = logging.getLogger("streamctx.server")

Result = TypeVar("Result")

_RETURN_S = 0.002
"""For so long each client that comes back keeps the next server busy: it is told to spread (GAW-1)."""

_ENDS_SESSION = frozenset(code for code in CloseCode if code.is_terminal and code != CloseCode.SUPERSEDED)


class Connection:
    """Carries a session's frames while it owns the session.

    `_held` is set by the handshake, and until this connection is over. Once another connection owns
    the session, or this one has failed, whatever comes here has no effect (RSM-2).
    """

    __slots__ = (
        "_bytes_before_hello",
        "_deadline",
        "_held",
        "_hub",
        "_is_binary",
        "_is_over",
        "_is_waiting",
        "_next",
        "_welcome",
        "info",
        "peer",
    )

    def __init__(self, hub: Hub, peer: Peer, info: ConnectionInfo, now: float) -> None:
        self.peer = peer
        self.info = info
        self._hub = hub
        self._held: Held | None = None
        self._is_over = False
        self._is_waiting = False
        self._next: Callable[[float], None] | None = None
        self._welcome = b""
        self._bytes_before_hello = 0
        self._is_binary = info.encoding is Encoding.MSGPACK
        self._deadline = now + hub.limits.hello_timeout_s
        peer.set_timer(self._deadline)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, from either side."""
        return self._is_over

    @property
    def is_established(self) -> bool:
        """Whether the handshake is complete."""
        return self._held is not None

    # What the shell calls.

    def receive(self, message: bytes | str, now: float) -> None:
        """Take one WebSocket message."""
        if self._is_over:
            self._hub.counts.late += 1
            return
        try:
            # The exact type, as nearly every message of the binary encoding has it.
            data = message if type(message) is bytes and self._is_binary else self._data_of(message)
            held = self._held
            if held is None:
                self._greet(data, now)
                return
            repeated = held.session.receive(data, now)
            if repeated is not None and repeated.attempt == held.session.attempt:
                self._send([self._welcome])
        except RemoteProtocolError as error:
            self.fail(error, now)
        except Exception:
            self._fail_internally(now)

    def read_done(self, now: float) -> None:
        """Acknowledge and flush, and show what is new to observers."""
        held = self._held
        if held is None or self._is_over:
            return
        if held.session.is_heard and held.claimant is None and held.secrets.confirm():
            # A server that starts again is not to take the older secret.
            self._hub.storage.note_confirmed(held)
            if self.is_over:
                return
        self._follow_up(held, now)

    def writable(self, now: float) -> None:
        """Go on sending."""
        self.flush(now)

    def handle_timeout(self, now: float) -> None:
        """Do what is due: the handshake's deadline, or the session's timers."""
        if self._is_over:
            return
        held = self._held
        if held is None:
            self._go_on(now)
            return
        try:
            held.session.handle_timeout(now)
        except RemoteProtocolError as error:
            self.fail(error, now)
        except Exception:
            self._fail_internally(now)
        else:
            self._follow_up(held, now)

    def _follow_up(self, held: Held, now: float) -> None:
        """All that came is applied: store it, answer, show it, and recall what was asked for."""
        self._hub.save(held)
        self.flush(now)
        self._hub.show(held.session, now)
        for session_id in held.session.take_wanted():
            self._hub.recall_for(held.session, session_id)

    def closed(self, now: float, code: int | None) -> None:
        """Let go of the peer; the session is detached if this connection still owns it."""
        if self._is_over:
            return
        self._is_over = True
        self._abandon(now)
        held, self._held = self._held, None
        if held is not None:
            self._hub.detached(held, now, ended=code == CloseCode.NORMAL or code in _ENDS_SESSION)

    def drain(self, now: float) -> None:
        """Say GOAWAY, if there is a session to say it to."""
        if self._held is not None and not self._is_over:
            spread_s = min(self._hub.limits.reconnect_delay_max_s, len(self._hub.registry) * _RETURN_S)
            self._held.session.drain(round(spread_s * 1000))
            self.flush(now)

    # What the hub calls.

    def wait_for(
        self,
        start: Callable[[Callable[[Result], None]], None],
        then: Callable[[Result, float], None],
        now: float,
    ) -> None:
        """Go on with the handshake when something is done; meanwhile a HELLO that is repeated has no effect.

        Args:
            start: Given what to call, once, with the result: before it returns, or later.
            then: Called with the result and the time, after the connection has ended too.

        Raises:
            RemoteProtocolError: As `then`, if the result is there at once.
        """
        results: list[Result] = []
        is_starting = True
        self._is_waiting = True

        def done(result: Result) -> None:
            if is_starting:
                results.append(result)
            elif self._is_over:
                with contextlib.suppress(RemoteProtocolError):
                    then(result, self._hub.now)
            else:
                self._next = functools.partial(then, result)
                self.peer.set_timer(self._hub.now)

        start(done)
        is_starting = False
        if results:
            self._is_waiting = False
            then(results[0], now)

    def _go_on(self, now: float) -> None:
        """Go on with the handshake, or give it up."""
        limit_s = self._hub.limits.hello_timeout_s
        step, self._next = self._next, None
        try:
            if step is not None:
                self._is_waiting = False
                step(now)
            if self._held is None and not self._is_over:
                if now < self._deadline:
                    self.peer.set_timer(self._deadline)
                elif self._is_waiting:
                    raise unavailable(StoreError(f"no answer within {limit_s:g} s", is_fatal=False))
                else:
                    message = f"no valid HELLO came within {limit_s:g} s"
                    raise RemoteProtocolError(ErrorCode.HELLO_TIMEOUT, CloseCode.HELLO_TIMEOUT, message)
        except RemoteProtocolError as error:
            self.fail(error, now)
        except Exception:
            self._fail_internally(now)

    def flush(self, now: float) -> None:
        """Send all that the session has for its client, and ask for the next timeout."""
        held = self._held
        if held is None or self._is_over:
            return
        peer, session = self.peer, held.session
        is_writable = peer.is_writable
        try:
            frames = session.flush(now, is_writable=is_writable)
        except Exception:
            self._fail_internally(now)
            return
        if frames:
            self._send(frames)
            is_writable = peer.is_writable
        peer.set_timer(session.next_timeout(is_writable=is_writable))

    def establish(self, held: Held, welcome: Message) -> None:
        """Own a session from now on, and welcome its client."""
        self._held = held
        held.owner = self
        self._welcome = self._pack(welcome)
        self._send([self._welcome])

    def wake(self, now: float) -> None:
        """Flush soon: an event was made durable after its read was done."""
        if not self._is_over:
            self.peer.set_timer(now)

    def fail(self, error: RemoteProtocolError, now: float) -> None:
        """Say what is wrong, close, and give the session up: the one funnel of all failures (ERR-1)."""
        if self._is_over:
            return
        self._is_over = True
        self._abandon(now)
        self._hub.counts.failed += 1
        # That the store takes nothing is told once, and not for each who finds out.
        is_ours = error.close_code is CloseCode.UNAVAILABLE
        logger.log(
            logging.INFO if is_ours else logging.WARNING,
            "connection %d of %s closed with %d: %s",
            self.info.connection_id,
            "nobody" if self._held is None else self._held.session.session_id,
            error.close_code,
            error,
        )
        message = ErrorMessage(
            code=error.code,
            message=error.message[:500],
            temporary=not error.close_code.is_terminal,
            retry_after_ms=round(error.retry_after_s * 1000),
        )
        held, self._held = self._held, None
        has_failed = error.close_code is CloseCode.INTERNAL
        if held is None:
            self._send([self._pack(message)])
        elif has_failed:
            # An ACK might speak of the very event that was not applied.
            self._send([held.session.delivery.last_words(message)])
        else:
            held.session.delivery.send_unnumbered(message)
            self._send(held.session.delivery.flush(now))
        self.peer.close(error.close_code, error.code)
        if held is not None and has_failed:
            self._hub.failed(held, now, by=self)
        elif held is not None:
            self._hub.detached(held, now, ended=error.close_code in _ENDS_SESSION, by=self)

    def _abandon(self, now: float) -> None:
        """Let a step of the handshake that was to come see that it is too late."""
        step, self._next = self._next, None
        if step is not None:
            with contextlib.suppress(RemoteProtocolError):
                step(now)

    def _fail_internally(self, now: float) -> None:
        logger.exception("connection %d failed", self.info.connection_id)
        self.fail(
            RemoteProtocolError(ErrorCode.INTERNAL, CloseCode.INTERNAL, "the server failed; see its log"), now
        )

    def _greet(self, data: bytes, now: float) -> None:
        """Wait for HELLO; whatever else comes is dropped (HSK-1, HSK-3, HSK-6)."""
        if self._is_waiting:
            self._hub.counts.early += 1
            return
        self._bytes_before_hello += len(data)
        limit = self._hub.limits.before_welcome_bytes_max
        if self._bytes_before_hello > limit:
            raise RemoteProtocolError(
                ErrorCode.TOO_LARGE, CloseCode.BAD_HELLO, f"more than {limit} bytes before WELCOME"
            )
        frame = parse_frame(data, encoding=self.info.encoding, digest=crc32_digest)
        if frame is None:
            self._hub.counts.corrupt_before_hello += 1
            return
        hello = client_decoder(self.info.encoding).decode(frame.body)
        if isinstance(hello, Malformed) and not frame.sequence:
            raise RemoteProtocolError(ErrorCode.MALFORMED, CloseCode.BAD_HELLO, hello.message)
        if not isinstance(hello, Hello):
            self._hub.counts.early += 1
            return
        if frame.sequence:
            raise RemoteProtocolError(
                ErrorCode.BAD_SEQUENCE, CloseCode.BAD_FRAME, f"hello carries the number {frame.sequence}"
            )
        self._hub.greet(self, hello, now)

    def _data_of(self, message: bytes | str) -> bytes:
        is_text = isinstance(message, str)
        if is_text is self._is_binary:
            kind, subprotocol = ("text", "binary frames") if is_text else ("binary", "text frames")
            raise RemoteProtocolError(
                ErrorCode.BAD_FRAME,
                CloseCode.BAD_FRAME,
                f"a {kind} message; this subprotocol has {subprotocol}",
            )
        return message.encode() if isinstance(message, str) else message

    def _pack(self, message: Message) -> bytes:
        encoding = self.info.encoding
        return pack_frame(encode_body(message, encoding), encoding=encoding, digest=crc32_digest)

    def _send(self, frames: list[bytes]) -> None:
        self.peer.send(frames if self._is_binary else [frame.decode() for frame in frames])
