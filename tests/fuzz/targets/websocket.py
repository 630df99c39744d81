"""The fast path for WebSocket frames against the library's parser, on any bytes and under any split.

Source: RFC 6455 section 5.2.
"""

from __future__ import annotations

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from streamctx.server.frames import BINARY, TEXT, is_between_messages, take_messages
from tests.fuzz.program import Program, Violation

__all__ = ["fuzz"]

_MESSAGE_BYTES_MAX = 300
_FIRST = (BINARY, TEXT, BINARY, TEXT, 0x01, 0x02, 0x00, 0x80, 0x88, 0x89, 0x8A, 0x83, 0xC2, 0x92)


def fuzz(data: bytes) -> None:
    """Parse some bytes twice."""
    program = Program(data)
    cut = 1 + program.below(40)
    stream = program.rest() if program.flag() else b"".join(_frames(program))
    pieces = [stream[start : start + cut] for start in range(0, len(stream), cut)]
    if _fast(pieces) != _full(pieces):
        raise Violation("the two parsers do not see the same")


def _frames(program: Program) -> list[bytes]:
    return [_frame(program) for _ in range(program.below(8))]


def _frame(program: Program) -> bytes:
    first = program.choose(_FIRST)
    kind = program.byte()
    payload = program.choose((b"a", b"\xc3\xa9", b"\xff", b"\xed\xa0\x80"))
    payload *= program.choose((0, 1, 2, 62, 125, 126, 150, 299, 300, 301))
    mask = program.take(4).ljust(4, b"\0")
    is_masked = kind & 15 != 15
    length = len(payload)
    if length < 126 and kind & 48 != 48:
        head = bytes((first, length | 0x80 * is_masked))
    elif kind & 192 != 192:
        head = bytes((first, 126 | 0x80 * is_masked)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, 127 | 0x80 * is_masked)) + length.to_bytes(8, "big")
    if not is_masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def _seen(protocol: ServerProtocol) -> list[bytes]:
    return [
        bytes((event.opcode,)) + bytes(event.data)
        for event in protocol.events_received()
        if isinstance(event, Frame)
    ]


def _full(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    protocol = ServerProtocol(state=State.OPEN, max_size=_MESSAGE_BYTES_MAX)
    payloads = []
    for piece in pieces:
        protocol.receive_data(piece)
        payloads += _seen(protocol)
        if protocol.state is not State.OPEN:
            break
    return payloads, protocol.parser_exc is not None


def _fast(pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """By the fast path while a frame may begin, then by the library."""
    protocol = ServerProtocol(state=State.OPEN, max_size=_MESSAGE_BYTES_MAX)
    payloads: list[bytes] = []
    tail = b""
    is_fast = True
    for piece in pieces:
        data, tail = tail + piece, b""
        if is_fast:
            messages: list[bytes | str] = []
            offset, is_incomplete = take_messages(data, _MESSAGE_BYTES_MAX, messages)
            for message in messages:
                is_text = isinstance(message, str)
                opcode = Opcode.TEXT if is_text else Opcode.BINARY
                payloads.append(
                    bytes((opcode,)) + (message.encode() if isinstance(message, str) else message)
                )
            data = data[offset:]
            if is_incomplete:
                tail, data = data, b""
        if data:
            protocol.receive_data(data)
            payloads += _seen(protocol)
            if protocol.state is not State.OPEN:
                break
            is_fast = is_between_messages(protocol)
    return payloads, protocol.parser_exc is not None
