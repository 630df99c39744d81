"""The same bytes by the library's parser alone, and by the fast path first, as the server reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from streamctx.server.frames import is_between_messages, take_messages

__all__ = ["by_fast_path", "by_library"]

Seen: TypeAlias = tuple[list[bytes], bool]
"""Opcode and payload of every frame, and whether the library's parser failed."""


def by_library(pieces: Iterable[bytes], message_bytes_max: int) -> Seen:
    """What the full parser makes of it."""
    protocol = ServerProtocol(state=State.OPEN, max_size=message_bytes_max)
    payloads: list[bytes] = []
    for piece in pieces:
        protocol.receive_data(piece)
        payloads += _frames_of(protocol)
        if protocol.state is not State.OPEN:
            break
    return payloads, protocol.parser_exc is not None


def by_fast_path(pieces: Iterable[bytes], message_bytes_max: int) -> Seen:
    """The same by the fast path as long as it wants, then by the full parser."""
    protocol = ServerProtocol(state=State.OPEN, max_size=message_bytes_max)
    payloads: list[bytes] = []
    tail = b""
    is_fast = True
    for piece in pieces:
        data, tail = tail + piece, b""
        if is_fast:
            messages: list[bytes | str] = []
            offset, is_incomplete = take_messages(data, message_bytes_max, messages)
            payloads += map(_as_seen, messages)
            data = data[offset:]
            if is_incomplete:
                tail, data = data, b""
        if data:
            protocol.receive_data(data)
            payloads += _frames_of(protocol)
            if protocol.state is not State.OPEN:
                break
            is_fast = is_between_messages(protocol)
    return payloads, protocol.parser_exc is not None


def _as_seen(message: bytes | str) -> bytes:
    if isinstance(message, str):
        return bytes((Opcode.TEXT,)) + message.encode()
    return bytes((Opcode.BINARY,)) + message


def _frames_of(protocol: ServerProtocol) -> Iterator[bytes]:
    for event in protocol.events_received():
        if isinstance(event, Frame):
            yield bytes((event.opcode,)) + bytes(event.data)
