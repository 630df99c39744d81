"""The fast path for WebSocket frames against the library's parser, on any bytes and under any split.

Source: RFC 6455 section 5.2.
"""

from __future__ import annotations

from streamctx.server.frames import BINARY, TEXT
from tests.fuzz.program import Program, Violation
from tests.server.two_parsers import by_fast_path, by_library

__all__ = ["fuzz"]

_MESSAGE_BYTES_MAX = 300
_FIRST = (BINARY, TEXT, BINARY, TEXT, 0x01, 0x02, 0x00, 0x80, 0x88, 0x89, 0x8A, 0x83, 0xC2, 0x92)


def fuzz(data: bytes) -> None:
    """Parse some bytes twice."""
    program = Program(data)
    cut = 1 + program.below(40)
    stream = program.rest() if program.flag() else b"".join(_frames(program))
    pieces = [stream[start : start + cut] for start in range(0, len(stream), cut)]
    if by_fast_path(pieces, _MESSAGE_BYTES_MAX) != by_library(pieces, _MESSAGE_BYTES_MAX):
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
