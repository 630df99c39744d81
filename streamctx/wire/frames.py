"""Frame heads and digests: bytes to frames and back, both encodings (SPEC section 4).

A frame is always `bytes` here; the text frame of the JSON twin is its UTF-8.
What the body says is none of this module's business.
"""

from __future__ import annotations

import re
import struct
from typing import Final

import msgspec

from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.digests import DIGEST_BYTES, Digest

__all__ = [
    "FRAME_VERSION",
    "HEAD_BYTES",
    "KIND_CHUNK",
    "KIND_MESSAGE",
    "Frame",
    "pack_frame",
    "parse_frame",
]

FRAME_VERSION: Final = 1
KIND_MESSAGE: Final = 1
KIND_CHUNK: Final = 2

_HEAD = struct.Struct(">BBHIQ")
"""Version, kind, reserved, stream, sequence: what follows the digest."""
HEAD_BYTES: Final = DIGEST_BYTES + _HEAD.size
STREAM_MAX: Final = 2**32 - 1

# Looking up a member through its class costs as much as the digest of a short frame.
_MSGPACK: Final = Encoding.MSGPACK

# Up to here two copies cost less than a view.
_COPIED_BYTES_MAX: Final = 1024

_TEXT_HEAD = re.compile(rb"(0|[1-9][0-9]{0,19}) (0|[1-9][0-9]{0,9}) (?=\{)")
_HEX_DIGITS: Final = 2 * DIGEST_BYTES


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame whose digest is good.

    `digest` identifies the content: two frames of one number are the same
    frame exactly if their digests are equal (SEQ-6).
    """

    digest: bytes
    kind: int
    stream: int
    sequence: int
    body: bytes | memoryview


def pack_frame(
    body: bytes, *, encoding: Encoding, digest: Digest, sequence: int = 0, stream: int = 0
) -> bytes:
    """Put head and digest before a message body."""
    if encoding is _MSGPACK:
        covered = _HEAD.pack(FRAME_VERSION, KIND_MESSAGE, 0, stream, sequence) + body
        return digest(covered) + covered
    covered = b"%d %d %b" % (sequence, stream, body)
    return b"%b %b" % (digest(covered).hex().encode(), covered)


def parse_frame(data: bytes, *, encoding: Encoding, digest: Digest) -> Frame | None:
    """Check a frame's digest and take its head apart.

    Returns:
        The frame, or `None` if it is corrupt (DIG-4).

    Raises:
        RemoteProtocolError: The digest is good and the head breaks FRM-1, FRM-2 or FRM-6.
    """
    if encoding is not _MSGPACK:
        return _parse_text(data, digest)
    if len(data) < HEAD_BYTES:
        return None
    covered = data[DIGEST_BYTES:] if len(data) <= _COPIED_BYTES_MAX else memoryview(data)[DIGEST_BYTES:]
    stated = data[:DIGEST_BYTES]
    if digest(covered) != stated:
        return None
    version, kind, reserved, stream, sequence = _HEAD.unpack_from(data, DIGEST_BYTES)
    if version != FRAME_VERSION or reserved or kind != KIND_MESSAGE or sequence > INTEGER_MAX:
        _check_head(version=version, kind=kind, reserved=reserved, sequence=sequence)
    return Frame(stated, kind, stream, sequence, covered[_HEAD.size :])


def _parse_text(data: bytes, digest: Digest) -> Frame | None:
    if data[_HEX_DIGITS : _HEX_DIGITS + 1] != b" ":
        return None
    covered = data[_HEX_DIGITS + 1 :]
    expected = digest(covered)
    if expected.hex().encode() != data[:_HEX_DIGITS]:
        return None
    head = _TEXT_HEAD.match(covered)
    if head is None:
        raise _bad_frame("the text frame does not begin with '<digest> <sequence> <stream> {'")
    sequence, stream = int(head[1]), int(head[2])
    if stream > STREAM_MAX:
        raise _bad_frame(f"stream {stream} is above {STREAM_MAX}")
    _check_head(version=FRAME_VERSION, kind=KIND_MESSAGE, reserved=0, sequence=sequence)
    return Frame(expected, KIND_MESSAGE, stream, sequence, covered[head.end() :])


def _check_head(*, version: int, kind: int, reserved: int, sequence: int) -> None:
    if version != FRAME_VERSION:
        raise RemoteProtocolError(
            ErrorCode.UNSUPPORTED,
            CloseCode.VERSION,
            f"frame version {version}, expected {FRAME_VERSION}",
        )
    if reserved:
        raise _bad_frame(f"reserved bytes are {reserved:#06x}, expected 0")
    if kind not in (KIND_MESSAGE, KIND_CHUNK):
        raise _bad_frame(f"frame kind {kind}, expected {KIND_MESSAGE} or {KIND_CHUNK}")
    if sequence > INTEGER_MAX:
        raise RemoteProtocolError(
            ErrorCode.BAD_SEQUENCE,
            CloseCode.BAD_FRAME,
            f"sequence {sequence} is above {INTEGER_MAX}",
        )


def _bad_frame(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.BAD_FRAME, CloseCode.BAD_FRAME, message)
