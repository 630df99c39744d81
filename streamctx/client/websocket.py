"""One WebSocket of a client: handshake, whole messages in and out, close. Over any anyio byte stream."""

from __future__ import annotations

import json
import logging
import socket
import ssl

import anyio
from anyio.abc import ByteStream, SocketAttribute
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol

from streamctx.client.target import Target
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError, SessionClosed
from streamctx.limits import Limits
from streamctx.vocabulary import Encoding

__all__ = ["CONNECTION_ERRORS", "WebSocket", "open_websocket"]

CONNECTION_ERRORS = (
    OSError,
    ssl.SSLError,
    anyio.BrokenResourceError,
    anyio.BusyResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
)
"""What a stream raises when a connection is lost. A TLS stream is also busy when it answers while we send."""

_SILENT = logging.getLogger("streamctx.client.websocket")
_SILENT.disabled = True  # The library would show the token and texts.

_SUBPROTOCOLS = {Encoding.MSGPACK: "streamctx.v1", Encoding.JSON: "streamctx.v1.json"}
_READ_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 10.0
_REASON_CHARACTERS_MAX = 200

_TERMINAL_STATUS = {
    400: (ErrorCode.UNSUPPORTED, "the server does not accept this request"),
    401: (ErrorCode.UNAUTHORIZED, "the token is missing or wrong"),
    403: (ErrorCode.FORBIDDEN, "the server does not allow this client"),
    404: (ErrorCode.NOT_FOUND, "no streamctx server is at this address"),
    421: (ErrorCode.FORBIDDEN, "the server does not answer to this host name"),
}
"""Refusals that connecting again does not change."""


class WebSocket:
    """Turns bytes into whole messages and back. Reading and writing may happen in two tasks.

    `close_code` is that of the peer's close frame, or `None`; `is_over` says that nothing more comes.
    """

    __slots__ = (
        "_fragments",
        "_is_text",
        "_limits",
        "_opcode",
        "_protocol",
        "_stream",
        "close_code",
        "is_over",
    )

    def __init__(
        self, stream: ByteStream, protocol: ClientProtocol, encoding: Encoding, limits: Limits
    ) -> None:
        self._stream = stream
        self._protocol = protocol
        self._limits = limits
        self._is_text = encoding is Encoding.JSON
        self._fragments: list[bytes | bytearray | memoryview] = []
        self._opcode = Opcode.CONT
        self.close_code: int | None = None
        self.is_over = False

    @property
    def is_text(self) -> bool:
        """Whether messages are text."""
        return self._is_text

    async def receive(self) -> list[bytes]:
        """Wait for bytes and return the messages that they complete, maybe none.

        Raises:
            RemoteProtocolError: If the peer does not speak WebSocket, or the wrong kind of message.
        """
        try:
            data = await self._stream.receive(_READ_BYTES)
        except anyio.EndOfStream:
            self.is_over = True
            return []
        self._protocol.receive_data(data)
        return self.take_messages()

    def take_messages(self) -> list[bytes]:
        """Take the messages that have been read."""
        messages = []
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                message = self._take_frame(event)
                if message is not None:
                    messages.append(message)
        if self._protocol.parser_exc is not None and self.close_code is None:
            self.is_over = True
        return messages

    def _take_frame(self, frame: Frame) -> bytes | None:
        if frame.opcode is Opcode.CLOSE:
            received = self._protocol.close_rcvd
            self.close_code = None if received is None else int(received.code)
            self.is_over = True
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return None
        if frame.opcode is not Opcode.CONT:
            if (frame.opcode is Opcode.TEXT) is not self._is_text:
                raise RemoteProtocolError(
                    ErrorCode.BAD_FRAME,
                    CloseCode.BAD_FRAME,
                    f"a {frame.opcode.name.lower()} message, which this subprotocol does not have",
                )
            if frame.fin:
                return bytes(frame.data)
        self._fragments.append(frame.data)
        if len(self._fragments) > self._limits.websocket_fragment_count_max:
            raise RemoteProtocolError(
                ErrorCode.BAD_FRAME,
                CloseCode.BAD_FRAME,
                f"more than {self._limits.websocket_fragment_count_max} fragments in a message",
            )
        if not frame.fin:
            return None
        message = b"".join(self._fragments)
        self._fragments.clear()
        return message

    def bytes_to_send(self, messages: list[bytes]) -> bytes:
        """The bytes of these messages, behind what the WebSocket itself has to say (pongs, close)."""
        protocol = self._protocol
        if messages and protocol.state is State.OPEN:
            put = protocol.send_text if self._is_text else protocol.send_binary
            for message in messages:
                put(message)
        return b"".join(protocol.data_to_send())

    async def send(self, data: bytes) -> None:
        """Write. Whoever cancels this has to end the connection: a part of it may have left."""
        await self._stream.send(data)

    def close(self, code: int, reason: str) -> None:
        """Let the next `bytes_to_send` end with a close frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)

    async def abort(self) -> None:
        """Drop the connection now."""
        await anyio.aclose_forcefully(self._stream)


async def open_websocket(
    target: Target, *, encoding: Encoding, limits: Limits, ssl_context: ssl.SSLContext | None
) -> WebSocket:
    """Connect and upgrade.

    Raises:
        ConnectionError: If there is no connection; another attempt may succeed.
        SessionClosed: If the server has refused this client for good.
    """
    try:
        with anyio.fail_after(_CONNECT_TIMEOUT_S):
            stream = await _connect(target, ssl_context)
            try:
                return await _upgrade(stream, target, encoding, limits)
            except BaseException:
                await anyio.aclose_forcefully(stream)
                raise
    except TimeoutError as error:
        raise ConnectionError(f"{target.place} did not answer within {_CONNECT_TIMEOUT_S:g} s") from error
    except CONNECTION_ERRORS as error:
        detail = str(error) or type(error).__name__
        raise ConnectionError(f"{target.place} could not be connected to: {detail}") from error


async def _connect(target: Target, ssl_context: ssl.SSLContext | None) -> ByteStream:
    if target.uds is not None:
        return await anyio.connect_unix(target.uds)
    uri = target.uri
    stream: ByteStream
    if uri.secure:
        stream = await anyio.connect_tcp(
            uri.host,
            uri.port,
            tls=True,
            ssl_context=ssl_context,
            tls_hostname=uri.host,
            # A WebSocket ends by its close frame; waiting for that of TLS would add nothing.
            tls_standard_compatible=False,
        )
    else:
        stream = await anyio.connect_tcp(uri.host, uri.port)
    raw_socket = stream.extra(SocketAttribute.raw_socket, None)
    if raw_socket is not None:
        raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


async def _upgrade(stream: ByteStream, target: Target, encoding: Encoding, limits: Limits) -> WebSocket:
    protocol = ClientProtocol(
        target.uri,
        subprotocols=[Subprotocol(_SUBPROTOCOLS[encoding])],
        max_size=limits.websocket_message_bytes_max,
        logger=_SILENT,
    )
    request = protocol.connect()
    if target.token is not None:
        request.headers["Authorization"] = f"Bearer {target.token}"
    protocol.send_request(request)
    await stream.send(b"".join(protocol.data_to_send()))
    while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
        try:
            protocol.receive_data(await stream.receive(_READ_BYTES))
        except anyio.EndOfStream:
            protocol.receive_eof()
            break
    if protocol.handshake_exc is not None:
        raise _refusal(target, protocol.handshake_exc)
    if protocol.state is not State.OPEN:
        raise ConnectionError(f"{target.place} closed the connection during the handshake")
    if protocol.subprotocol is None:
        raise SessionClosed(
            ErrorCode.UNSUPPORTED,
            f"{target.place} speaks WebSocket and not {_SUBPROTOCOLS[encoding]}",
        )
    return WebSocket(stream, protocol, encoding, limits)


def _refusal(target: Target, error: Exception) -> ConnectionError | SessionClosed:
    """What a failed upgrade means: for good, or worth another attempt."""
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        said = _said(error.response)
        terminal = _TERMINAL_STATUS.get(status)
        if terminal is not None:
            code, meaning = terminal
            return SessionClosed(code, f"{target.place} answered {status}: {meaning}{said}")
        return ConnectionError(f"{target.place} answered {status}{said}")
    if isinstance(error, InvalidHandshake | ProtocolError):
        return ConnectionError(f"{target.place} does not answer as a WebSocket server: {error}")
    return ConnectionError(f"{target.place} could not be connected to: {error}")


def _said(response: Response) -> str:
    """What the server wrote itself, if it is ours: one line of it."""
    try:
        message = json.loads(bytes(response.body))["error"]["message"]
    except (ValueError, TypeError, KeyError):
        return ""
    if not isinstance(message, str):
        return ""
    line = " ".join(message.split())[:_REASON_CHARACTERS_MAX]
    return f" ({line})" if line.isprintable() else ""
