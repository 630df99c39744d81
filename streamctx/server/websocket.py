"""One WebSocket after its upgrade: bytes to whole messages and back, with every limit and deadline.

All frames of one read are handled in one go and answered by one write. There is no task, queue or future per
message; one loop timer serves the connection's four deadlines.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections.abc import Callable, Sequence

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode as WebSocketCloseCode
from websockets.frames import Frame, Opcode
from websockets.protocol import State as LibraryState

from streamctx.errors import CloseCode
from streamctx.hub.ports import ConnectionInfo
from streamctx.limits import KIB, MIB
from streamctx.server.deadlines import Deadlines, Due
from streamctx.server.frames import BINARY, TEXT, frame_head, is_between_messages, take_messages
from streamctx.server.handshake import Upgrade
from streamctx.server.logs import logger
from streamctx.server.shell import Shell

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["WRITE_BUFFER_BYTES_HIGH", "WebSocketConnection"]

NEAR_S = 0.1
"""Wishes within this time have no timer of their own."""

WRITE_BUFFER_BYTES_HIGH = 64 * KIB
"""Above it the peer is not writable: bulk waits."""

_UNREAD_OUTPUT_BYTES_MAX = 256 * KIB
"""Above it the peer is not read from either, since answers to a peer that does not read them pile up.

It is the larger one, so that bulk, which stops at the first, never keeps a keystroke from being read.
"""

_WRITE_BUFFER_BYTES_MAX = 8 * MIB
"""Above it the peer is aborted: twice the largest credit that a reader of resources can have granted."""

# A payload from here on is not copied behind its head: a copy costs more than a second buffer in the write.
_JOINED_PAYLOAD_BYTES_MAX = 16 * KIB

# An incomplete frame up to this size waits for its rest outside of the full parser, so that the next read
# begins on the fast path again. A larger one would be copied once per read.
_TAIL_BYTES_MAX = 4 * KIB

# The full parser makes an object per frame before we count one. So many bytes hold 2,730 empty fragments.
_PARSED_BYTES_MAX = 16 * KIB

_CLOSE_REASON_BYTES_MAX = 123


class _State(enum.Enum):
    OPEN = enum.auto()
    CLOSING = enum.auto()
    """Our close frame is queued or sent; what arrives is read for the answer to it alone."""
    LOST = enum.auto()


# Looking up a member through its class, for each message, would cost as much as to unmask it.
_OPEN = _State.OPEN


class WebSocketConnection(asyncio.BufferedProtocol):
    """An accepted WebSocket; implements `streamctx.hub.ports.Peer`.

    `_is_fast` is true while the full parser holds no part of a frame or message, so that the next byte is the
    first of a frame; only then is `_tail` used.
    """

    __slots__ = (
        "_address",
        "_counted_address",
        "_deadlines",
        "_fragment_count",
        "_fragments",
        "_handler",
        "_has_delivered",
        "_has_large",
        "_is_dirty",
        "_is_ending",
        "_is_fast",
        "_is_paused",
        "_is_text",
        "_is_unauthenticated",
        "_is_watched",
        "_limits",
        "_loop",
        "_message_bytes_max",
        "_output",
        "_output_bytes",
        "_protocol",
        "_shell",
        "_state",
        "_tail",
        "_transport",
        "_upgrade",
    )

    def __init__(self, shell: Shell, upgrade: Upgrade, transport: asyncio.Transport, address: str) -> None:
        """Take over the transport; `address` is the one under which the socket is counted."""
        loop = asyncio.get_running_loop()
        self._shell = shell
        self._limits = shell.limits
        self._loop = loop
        self._transport = transport
        self._address = address
        self._upgrade = upgrade
        self._protocol = upgrade.protocol
        self._state = _OPEN

        self._tail = b""
        self._is_fast = True
        self._fragments: list[bytes] = []
        self._fragment_count = 0
        self._is_text = False
        self._has_delivered = False
        self._message_bytes_max = upgrade.protocol.max_message_size or 0

        self._output: list[bytes] = [upgrade.response]
        self._output_bytes = len(upgrade.response)
        self._has_large = False
        self._is_dirty = False
        self._is_ending = False
        self._is_paused = False
        self._is_watched = False
        self._deadlines = Deadlines(loop, shell.limits, transport, self._handle_due)

        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)

    def start(self) -> None:
        """Answer the upgrade and have the hub take over; the transport calls this object from now on.

        Raises:
            Exception: Whatever the hub raised. The connection is then not ours, and was not counted.
        """
        shell, upgrade, client = self._shell, self._upgrade, self._upgrade.client
        info = ConnectionInfo(upgrade.encoding, upgrade.principal, client.address, shell.next_connection_id())
        shell.begin_batch()
        try:
            self._handler = shell.hub.connect(self, info, self._loop.time())
        except Exception:
            self._deadlines.cancel()
            raise
        finally:
            shell.end_batch()
        self._is_unauthenticated = upgrade.principal is None
        shell.unauthenticated_count += self._is_unauthenticated
        shell.counters.websockets_accepted += 1
        shell.websockets.add(self)
        # Behind a proxy the client has an address of its own to be counted under.
        self._counted_address = None if client.address == self._address else client.address
        if self._counted_address is not None and not shell.admit_client(self._counted_address):
            self.close(CloseCode.LIMIT, "too many connections from this address")
        self.flush()

    # Peer

    @property
    def is_writable(self) -> bool:
        """See `Peer.is_writable`."""
        return self._state is _OPEN and not self._is_paused and self._output_bytes < WRITE_BUFFER_BYTES_HIGH

    def send(self, messages: Sequence[bytes | str]) -> None:
        """See `Peer.send`."""
        if self._state is not _OPEN:
            return
        output = self._output
        for message in messages:
            if isinstance(message, str):
                first = TEXT
                payload = message.encode("utf-8", "replace")
            else:
                first = BINARY
                payload = message
            length = len(payload)
            if length < _JOINED_PAYLOAD_BYTES_MAX:
                output.append(frame_head(first, length) + payload)
            else:
                output.append(frame_head(first, length))
                output.append(payload)
                self._has_large = True
            self._output_bytes += length + 4
        if self._output_bytes >= WRITE_BUFFER_BYTES_HIGH:
            self.flush()
            if self._transport.get_write_buffer_size() > _WRITE_BUFFER_BYTES_MAX:
                self._shell.counters.websockets_flooded += 1
                self.abort()
        elif not self._is_dirty:
            self._is_dirty = True
            self._shell.schedule_flush(self)

    def close(self, code: int, reason: str) -> None:
        """See `Peer.close`."""
        if self._state is not _OPEN:
            return
        # The reason is cut between characters.
        reason = reason.encode("utf-8", "replace")[:_CLOSE_REASON_BYTES_MAX].decode("utf-8", "ignore")
        try:
            self._protocol.send_close(code, reason)
        except InvalidState:
            # The peer's close frame is in the read that is being handled, and has been answered.
            return
        self._begin_closing()

    def abort(self) -> None:
        """See `Peer.abort`."""
        if self._state is _State.LOST:
            return
        self._state = _State.CLOSING
        self._output.clear()
        self._output_bytes = 0
        self._transport.abort()

    def set_timer(self, at: float | None) -> None:
        """See `Peer.set_timer`."""
        # A timer of its own for what is due in a moment would cost as much as all that is done then, and is
        # nearly always put off before: so one timer looks after all of them.
        now = self._loop.time()
        if at is None or at - now > NEAR_S:
            self._deadlines.wish(at)
            return
        self._deadlines.wish_at = at
        if not self._is_watched:
            self._is_watched = True
            self._shell.watch(self)
        if at <= now:
            self._shell.look_soon()

    # Called by the server

    def drain(self) -> None:
        """Let the hub say that the server is shutting down."""
        if self._state is _OPEN:
            self._run(self._handler.drain, self._loop.time())

    def look(self, now: float) -> None:
        """See whether what the hub wished for in a moment is due."""
        self._is_watched = False
        at = self._deadlines.wish_at
        if at is None or self._state is not _OPEN:
            return
        if at <= now:
            self._deadlines.wish_at = None
            self._run(self._handler.handle_timeout, now)
        else:
            self.set_timer(at)

    def flush(self) -> None:
        """Write what is queued."""
        self._is_dirty = False
        output = self._output
        if output and not self._transport.is_closing():
            self._output = []
            self._output_bytes = 0
            size = sum(map(len, output))
            if self._has_large:
                self._has_large = False
                self._transport.writelines(output)
                # After `writelines`, asyncio of Python 3.12.1 and 3.13.0 does not look whether we must
                # pause; this makes it look.
                self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
            else:
                self._transport.write(output[0] if len(output) == 1 else b"".join(output))
            if self._deadlines.wrote(size) > _UNREAD_OUTPUT_BYTES_MAX and self._is_paused:
                self._pause_reading()
        if self._is_ending:
            self._end()

    def receive_bytes(self, data: bytes) -> None:
        """Take what one read brought."""
        now = self._deadlines.heard_at = self._loop.time()
        self._shell.begin_batch()
        try:
            self._receive(data, now)
        except Exception:
            self._fail_internally()
        finally:
            self._shell.end_batch()
        if self._is_unauthenticated and self._handler.is_established:
            self._authenticated()

    # asyncio.BufferedProtocol. Reading into one buffer that stays spares the 256 KiB which asyncio would have
    # the kernel map and unmap for each read otherwise: five times the cost of the read itself.

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shell.read_buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.receive_bytes(bytes(self._shell.read_buffer[:nbytes]))

    @override
    def eof_received(self) -> None:
        # The transport writes what it holds and closes.
        return None

    @override
    def pause_writing(self) -> None:
        self._is_paused = True

    @override
    def resume_writing(self) -> None:
        self._is_paused = False
        now = self._loop.time()
        if self._transport.is_closing():
            return
        if not self._deadlines.is_hearing:
            self._deadlines.resume_hearing(now)
            self._transport.resume_reading()
        if self._state is _OPEN:
            self._run(self._handler.writable, now)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._state = _State.LOST
        self._output.clear()
        self._deadlines.cancel()
        if self._is_unauthenticated:
            self._authenticated()
        if self._counted_address is not None:
            self._shell.release_client(self._counted_address)
        self._shell.release(self._address)
        received = self._protocol.close_rcvd
        code = None if received is None else received.code
        self._run(lambda now: self._handler.closed(now, code), self._loop.time())
        # Last, since the server waits for this set to become empty.
        self._shell.websockets.discard(self)

    # Receiving

    def _receive(self, data: bytes, now: float) -> None:
        rest = data
        if self._is_fast:
            if self._tail:
                rest = data = self._tail + data
                self._tail = b""
            if self._state is _OPEN:
                messages: list[bytes | str] = []
                offset, is_incomplete = take_messages(data, self._message_bytes_max, messages)
                self._deliver(messages, now)
                rest = data[offset:] if offset else data
                if is_incomplete and len(rest) <= _TAIL_BYTES_MAX:
                    self._tail = rest
                    rest = b""
        for start in range(0, len(rest), _PARSED_BYTES_MAX):
            self._parse(rest[start : start + _PARSED_BYTES_MAX], now)
        self._finish_read(now)

    def _parse(self, data: bytes, now: float) -> None:
        """Give bytes to the full parser, the messages to the hub, and the answers to the peer."""
        protocol = self._protocol
        protocol.receive_data(data)
        messages: list[bytes | str] = []
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) and not self._join(event, messages):
                break
        if protocol.state is LibraryState.OPEN:
            # A pong goes first: its ping came among the frames of the messages, a close comes after them.
            self._take_library_output()
        self._deliver(messages, now)
        if protocol.state is not LibraryState.OPEN and self._state is _OPEN:
            self._finish_read(now)
            if protocol.close_rcvd is None:
                self._shell.counters.websockets_failed += 1
            self._begin_closing()
        else:
            self._take_library_output()
        self._is_fast = is_between_messages(protocol)

    def _join(self, frame: Frame, messages: list[bytes | str]) -> bool:
        """Add a frame to its message; `False` if that failed the connection."""
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
            self._fragment_count = 0
        self._fragment_count += 1
        if self._fragment_count > self._limits.websocket_fragment_count_max:
            self._fragments.clear()
            self._protocol.fail(
                WebSocketCloseCode.MESSAGE_TOO_BIG,
                f"over {self._limits.websocket_fragment_count_max} fragments in one message",
            )
            return False
        # Empty fragments are counted and not kept.
        if frame.data:
            self._fragments.append(bytes(frame.data))
        if not frame.fin:
            return True
        content = b"".join(self._fragments)
        self._fragments.clear()
        if not self._is_text:
            messages.append(content)
            return True
        try:
            messages.append(content.decode())
        except UnicodeDecodeError as error:
            self._protocol.fail(WebSocketCloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
            return False
        return True

    def _deliver(self, messages: list[bytes | str], now: float) -> None:
        receive = self._handler.receive
        for message in messages:
            if self._state is not _OPEN:
                return
            self._has_delivered = True
            receive(message, now)

    def _finish_read(self, now: float) -> None:
        if self._has_delivered and self._state is _OPEN:
            self._handler.read_done(now)
        self._has_delivered = False

    def _authenticated(self) -> None:
        self._is_unauthenticated = False
        self._shell.unauthenticated_count -= 1
        self._message_bytes_max = self._limits.websocket_message_bytes_max
        self._protocol.max_message_size = self._limits.websocket_message_bytes_max

    # Sending and closing

    def _begin_closing(self) -> None:
        self._take_library_output()
        self._state = _State.CLOSING
        self._fragments.clear()
        self._deadlines.expect_close(self._loop.time())
        if not self._is_dirty:
            self._is_dirty = True
            self._shell.schedule_flush(self)

    def _take_library_output(self) -> None:
        """Queue the pongs and close frames of the full parser behind what the hub has queued."""
        for written in self._protocol.data_to_send():
            if written:
                self._output.append(written)
                self._output_bytes += len(written)
            else:
                self._is_ending = True
            if not self._is_dirty:
                self._is_dirty = True
                self._shell.schedule_flush(self)

    def _pause_reading(self) -> None:
        if self._deadlines.is_hearing and not self._transport.is_closing():
            self._deadlines.stop_hearing()
            self._transport.pause_reading()

    def _end(self) -> None:
        """Close the TCP connection after the last byte of ours has been handed over."""
        self._is_ending = False
        transport = self._transport
        if transport.is_closing():
            return
        if self._protocol.close_rcvd is not None or not transport.can_write_eof():
            transport.close()
            return
        # The peer is still sending. Closing now would have the kernel answer that with a reset, which can
        # overtake our close frame; so only our half is closed, and what comes is discarded until `Due.CLOSE`.
        transport.write_eof()

    def _run(self, call: Callable[[float], None], now: float) -> None:
        """Call into the hub: its writes are joined, and an exception ends this connection only."""
        self._shell.begin_batch()
        try:
            call(now)
        except Exception:
            self._fail_internally()
        finally:
            self._shell.end_batch()

    def _fail_internally(self) -> None:
        self._shell.counters.handler_failures += 1
        logger.exception("connection handler failed; the connection is closed")
        self.close(CloseCode.INTERNAL, "internal error")

    def _handle_due(self, due: Due, now: float) -> None:
        counters = self._shell.counters
        if due is Due.WISH:
            if self._state is _OPEN:
                self._run(self._handler.handle_timeout, now)
            return
        if due is Due.DEAD:
            counters.websockets_dead += 1
        elif due is Due.STALLED:
            counters.websockets_stalled += 1
        self.abort()
