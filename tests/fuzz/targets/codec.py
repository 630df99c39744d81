"""Bytes as bodies and as frames, in both encodings and directions: only what is declared comes of them."""

from __future__ import annotations

import msgspec

from streamctx.errors import CloseCode, RemoteProtocolError
from streamctx.vocabulary import INTEGER_MAX, Encoding
from streamctx.wire.codec import (
    BodyDecoder,
    Malformed,
    UnknownType,
    client_decoder,
    encode_body,
    server_decoder,
)
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import KIND_CHUNK, KIND_MESSAGE, Frame, pack_frame, parse_frame
from streamctx.wire.messages import CLIENT_MESSAGES, SERVER_MESSAGES, Message
from streamctx.wire.relations import RELATIONS
from tests.fuzz.drawing import draw
from tests.fuzz.program import Program, Violation

__all__ = ["fuzz"]

_ENCODINGS = tuple(Encoding)
_DIGESTS = tuple(DIGESTS.values())
_ERROR_CHARACTERS_MAX = 500


def fuzz(data: bytes) -> None:
    """The first byte says what the others are."""
    program = Program(data)
    kind = program.byte()
    encoding = _ENCODINGS[kind & 1]
    is_client = bool(kind & 2)
    decoder = client_decoder(encoding) if is_client else server_decoder(encoding)
    match kind >> 2 & 7:
        case 1:
            _frame(program.rest(), encoding, kind >> 4 & 1, decoder)
        case 2:
            # With a digest that fits, the head and the body are looked at.
            digest = _DIGESTS[kind >> 4 & 1]
            covered = program.rest()
            stated = digest(covered)
            if encoding is Encoding.JSON:
                stated = stated.hex().encode() + b" "
            _frame(stated + covered, encoding, kind >> 4 & 1, decoder)
        case 3:
            _drawn(program, encoding, CLIENT_MESSAGES if is_client else SERVER_MESSAGES, decoder)
        case 4:
            _body(_deep(program), encoding, decoder)
        case _:
            _body(program.rest(), encoding, decoder)


def _body(body: bytes, encoding: Encoding, decoder: BodyDecoder[object]) -> None:
    found = decoder.decode(body)
    # A view and a copy are the same to it; large frames are read as views.
    if decoder.decode(memoryview(body)) != found:
        raise Violation("a view of a body is not what its copy is")
    if isinstance(found, Malformed):
        if not found.message or len(found.message) > _ERROR_CHARACTERS_MAX:
            raise Violation(f"a message of {len(found.message)} characters says what is malformed")
    elif isinstance(found, UnknownType):
        if len(found.type) > _ERROR_CHARACTERS_MAX:
            raise Violation(f"an unknown type of {len(found.type)} characters")
    elif isinstance(found, Message):
        _round_trip(found, encoding, decoder)
    else:
        raise Violation(f"a body became a {type(found).__name__}")


def _deep(program: Program) -> bytes:
    """Something nested, as deep as a frame can hold, perhaps where it is to be skipped."""
    unit = program.choose((b"[", b'{"":', b"\x91", b"\x81\xa0", b"\xdd\x00\x00\x00\x01"))
    start = program.choose(
        (b"", b'{"x":', b'{"type":"close","x":', b"\x81\xa1x", b"\x82\xa4type\xa5close\xa1x")
    )
    return start + unit * program.choose((10, 500, 5000, 50_000)) + program.rest()


def _round_trip(message: Message, encoding: Encoding, decoder: BodyDecoder[object]) -> None:
    """What was decoded is valid, so it is the same after another journey, in either encoding."""
    if not _is_valid(message):
        raise Violation(f"{message} was taken")
    if decoder.decode(encode_body(message, encoding)) != message:
        raise Violation(f"{message} is not what it was after a round trip")
    is_client = decoder is client_decoder(encoding)
    for other in _ENCODINGS:
        other_decoder: BodyDecoder[object] = client_decoder(other) if is_client else server_decoder(other)
        if other_decoder.decode(encode_body(message, other)) != message:
            raise Violation(f"{message} is another one in {other}")


def _frame(data: bytes, encoding: Encoding, digest_index: int, decoder: BodyDecoder[object]) -> None:
    digest = _DIGESTS[digest_index]
    try:
        frame = parse_frame(data, encoding=encoding, digest=digest)
    except RemoteProtocolError as error:
        if error.close_code not in (CloseCode.BAD_FRAME, CloseCode.VERSION):
            raise Violation(f"a head closes with {error.close_code}") from error
        if len(error.message) > _ERROR_CHARACTERS_MAX:
            raise Violation("the message of a bad head is too long") from error
        return
    if frame is None:
        return
    if not (0 <= frame.sequence <= INTEGER_MAX and 0 <= frame.stream < 2**32):
        raise Violation(f"sequence {frame.sequence}, stream {frame.stream}")
    body = bytes(frame.body)
    _body(body, encoding, decoder)
    if frame.kind == KIND_CHUNK:
        return
    packed = pack_frame(body, encoding=encoding, digest=digest, sequence=frame.sequence, stream=frame.stream)
    if packed != data:
        raise Violation("a frame that was taken has another form than the one that is sent")
    again = parse_frame(packed, encoding=encoding, digest=digest)
    if again is None or _parts(again) != _parts(frame) or frame.kind != KIND_MESSAGE:
        raise Violation("a frame is another one after a round trip")
    flipped = bytearray(data)
    flipped[frame.sequence % len(data)] ^= 1 << (frame.stream % 8)
    try:
        if parse_frame(bytes(flipped), encoding=encoding, digest=digest) is not None:
            raise Violation("a frame with a flipped bit was taken")
    except RemoteProtocolError as error:
        raise Violation("the head of a corrupt frame was believed") from error


def _parts(frame: Frame) -> tuple[bytes, int, int, int, bytes]:
    return frame.digest, frame.kind, frame.stream, frame.sequence, bytes(frame.body)


def _drawn(
    program: Program, encoding: Encoding, kinds: tuple[type[Message], ...], decoder: BodyDecoder[object]
) -> None:
    """A message whose fields may be out of range: it is decoded as what it is, or refused."""
    message = draw(program, kinds[program.below(len(kinds))])
    try:
        body = encode_body(message, encoding)
    except OverflowError:
        return  # An integer that msgpack has no form for.
    found = decoder.decode(body)
    if isinstance(found, UnknownType) or not isinstance(found, Malformed | type(message)):
        raise Violation(f"{message} became {found}")
    if isinstance(found, Message):
        if found != message:
            raise Violation(f"{message} became {found}")
        _round_trip(found, encoding, decoder)
    elif _is_valid(message):
        raise Violation(f"{message} was refused: {found}")


def _is_valid(message: Message) -> bool:
    """Whether the schema has nothing against it; what holds between fields is not in the schema."""
    try:
        msgspec.convert(msgspec.to_builtins(message), type(message))
    except msgspec.ValidationError:
        return False
    relation = RELATIONS.get(type(message))
    return relation is None or relation(message) is None
