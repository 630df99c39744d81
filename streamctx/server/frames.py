"""The fast path for WebSocket frames: what editors send and are sent nearly always, and nothing else.

Complete, masked, unfragmented data frames of less than 64 KiB are parsed here, and unmasked data frames are
written. Everything else (fragments, control frames, long frames, every error) is left to
`websockets.server.ServerProtocol`, byte for byte, so this module has no error to report. A test compares the
two on the same bytes under any split.

Source: RFC 6455 section 5.2.
"""

from __future__ import annotations

from types import GeneratorType

from websockets.server import ServerProtocol

try:
    from websockets.speedups import apply_mask
except ImportError:
    # A platform without the compiled part: correct and slow.
    from websockets.utils import apply_mask

__all__ = ["BINARY", "TEXT", "frame_head", "is_between_messages", "take_messages"]

TEXT = 0x81
"""First byte of an unfragmented text frame."""
BINARY = 0x82
"""First byte of an unfragmented binary frame."""

_MASKED = 0x80


def is_between_messages(protocol: ServerProtocol) -> bool:
    """Whether the next byte that the full parser waits for is the first one of a message.

    An empty buffer does not say so: the parser takes a frame's head out of it before the rest has come. That
    it waits in `at_eof` does. Where a later version of the library has no such place, the answer is no, and
    the fast path is not taken again.
    """
    if protocol.reader.buffer or protocol.current_size is not None or protocol.eof_sent:
        return False
    parser = protocol.parser
    waits_for = parser.gi_yieldfrom if isinstance(parser, GeneratorType) else None
    return isinstance(waits_for, GeneratorType) and waits_for.__name__ == "at_eof"


def take_messages(data: bytes, message_bytes_max: int, messages: list[bytes | str]) -> tuple[int, bool]:
    """Append the messages at the start of `data` whose frames are complete and plain.

    Returns:
        How many bytes were taken, and whether the frame that follows may be taken here too as soon as more
        of it arrives. If not, the rest is for the full parser.
    """
    offset = 0
    end = len(data)
    while end - offset >= 6:
        first = data[offset]
        if first != BINARY and first != TEXT:
            return offset, False
        length = data[offset + 1] - _MASKED
        if length < 126:
            # An unmasked frame has a negative length here.
            if length < 0:
                return offset, False
            mask = offset + 2
        elif length == 126:
            mask = offset + 4
            length = data[offset + 2] << 8 | data[offset + 3]
        else:
            return offset, False
        if length > message_bytes_max:
            return offset, False
        payload = mask + 4
        stop = payload + length
        if stop > end:
            return offset, True
        content = apply_mask(data[payload:stop], data[mask:payload])
        if first == BINARY:
            messages.append(content)
        else:
            try:
                messages.append(content.decode())
            except UnicodeDecodeError:
                return offset, False
        offset = stop
    return offset, _may_be_plain(data[offset : offset + 2])


def frame_head(first: int, length: int) -> bytes:
    """The head of an unmasked frame with a payload of `length` bytes."""
    if length < 126:
        return bytes((first, length))
    if length < 0x10000:
        return bytes((first, 126, length >> 8, length & 0xFF))
    return bytes((first, 127)) + length.to_bytes(8, "big")


def _may_be_plain(start: bytes) -> bool:
    """Whether a frame that starts like this can turn out to be one for the fast path."""
    if not start:
        return True
    is_data = start[0] in (BINARY, TEXT)
    # Masked, and not of a 64-bit length.
    return is_data and (len(start) < 2 or _MASKED <= start[1] < 0xFF)
