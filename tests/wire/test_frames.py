"""Frame heads and digests; `protocol/vectors/frames.json` has the cases with known bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.vocabulary import INTEGER_MAX, DigestAlgorithm, Encoding
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import HEAD_BYTES, KIND_MESSAGE, Frame, pack_frame, parse_frame

__all__: list[str] = []

BODIES = {Encoding.JSON: b'{"type":"close","document":1}', Encoding.MSGPACK: b"\x81\xa4type\xa5close"}
FORMS = [
    pytest.param(encoding, algorithm, id=f"{encoding} {algorithm}")
    for encoding in Encoding
    for algorithm in DigestAlgorithm
]
every_form = pytest.mark.parametrize(("encoding", "algorithm"), FORMS)


def pack(encoding: Encoding, algorithm: DigestAlgorithm, *, sequence: int = 5, stream: int = 0) -> bytes:
    return pack_frame(
        BODIES[encoding], encoding=encoding, digest=DIGESTS[algorithm], sequence=sequence, stream=stream
    )


def parse(data: bytes, encoding: Encoding, algorithm: DigestAlgorithm) -> Frame | None:
    return parse_frame(data, encoding=encoding, digest=DIGESTS[algorithm])


def sign(covered: bytes, encoding: Encoding, algorithm: DigestAlgorithm) -> bytes:
    """Put a good digest before bytes of any kind."""
    digest = DIGESTS[algorithm](covered)
    return digest + covered if encoding is Encoding.MSGPACK else digest.hex().encode() + b" " + covered


@every_form
@given(sequence=st.integers(0, INTEGER_MAX), stream=st.integers(0, 2**31 - 1), content=st.binary(max_size=50))
def test_a_packed_frame_parses_to_what_was_packed(
    encoding: Encoding, algorithm: DigestAlgorithm, sequence: int, stream: int, content: bytes
) -> None:
    body = b"{" + content
    data = pack_frame(body, encoding=encoding, digest=DIGESTS[algorithm], sequence=sequence, stream=stream)
    frame = parse(data, encoding, algorithm)
    assert frame is not None
    assert (frame.kind, frame.sequence, frame.stream) == (KIND_MESSAGE, sequence, stream)
    assert bytes(frame.body) == body


@every_form
def test_every_flipped_bit_makes_a_frame_corrupt(encoding: Encoding, algorithm: DigestAlgorithm) -> None:
    good = pack(encoding, algorithm, sequence=41, stream=7)
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        assert parse(bytes(flipped), encoding, algorithm) is None, bit


@every_form
def test_every_frame_that_is_cut_is_corrupt(encoding: Encoding, algorithm: DigestAlgorithm) -> None:
    good = pack(encoding, algorithm)
    assert [size for size in range(len(good)) if parse(good[:size], encoding, algorithm) is not None] == []


@every_form
def test_the_other_digest_is_corrupt(encoding: Encoding, algorithm: DigestAlgorithm) -> None:
    (other,) = set(DigestAlgorithm) - {algorithm}
    assert parse(pack(encoding, other), encoding, algorithm) is None


@every_form
@given(data=st.binary(max_size=60))
def test_random_bytes_are_corrupt(encoding: Encoding, algorithm: DigestAlgorithm, data: bytes) -> None:
    assert parse(data, encoding, algorithm) is None


@every_form
@given(covered=st.binary(max_size=60))
def test_random_bytes_with_a_good_digest_raise_nothing_but_remote_errors(
    encoding: Encoding, algorithm: DigestAlgorithm, covered: bytes
) -> None:
    try:
        parse(sign(covered, encoding, algorithm), encoding, algorithm)
    except RemoteProtocolError as error:
        assert error.close_code in (CloseCode.VERSION, CloseCode.BAD_FRAME)


@pytest.mark.parametrize("algorithm", DigestAlgorithm)
@given(head=st.from_regex(rb"\A[0-9+\- ]{0,30}\{\}\Z"))
def test_a_text_head_is_taken_only_in_its_one_form(algorithm: DigestAlgorithm, head: bytes) -> None:
    try:
        frame = parse(sign(head, Encoding.JSON, algorithm), Encoding.JSON, algorithm)
    except RemoteProtocolError:
        return
    assert frame is not None
    assert head == b"%d %d {}" % (frame.sequence, frame.stream)


@given(
    version=st.sampled_from([0, 1, 2, 255]),
    kind=st.integers(0, 255),
    reserved=st.sampled_from([0, 1, 256, 65535]),
    stream=st.integers(0, 2**32 - 1),
    sequence=st.sampled_from([0, 1, INTEGER_MAX, INTEGER_MAX + 1, 2**64 - 1]),
)
def test_each_fault_of_a_binary_head_has_its_error(
    version: int, kind: int, reserved: int, stream: int, sequence: int
) -> None:
    allowed: set[ErrorCode] = set()
    if version != 1:
        allowed.add(ErrorCode.UNSUPPORTED)
    if reserved or kind not in (1, 2):
        allowed.add(ErrorCode.BAD_FRAME)
    if sequence > INTEGER_MAX:
        allowed.add(ErrorCode.BAD_SEQUENCE)
    covered = struct.pack(">BBHIQ", version, kind, reserved, stream, sequence) + b"\x80"
    data = sign(covered, Encoding.MSGPACK, DigestAlgorithm.CRC32)
    try:
        frame = parse(data, Encoding.MSGPACK, DigestAlgorithm.CRC32)
    except RemoteProtocolError as error:
        assert error.code in allowed
        is_version = error.code is ErrorCode.UNSUPPORTED
        assert error.close_code is (CloseCode.VERSION if is_version else CloseCode.BAD_FRAME)
    else:
        assert not allowed
        assert frame is not None
        assert (frame.kind, frame.stream, frame.sequence) == (kind, stream, sequence)


def test_a_text_stream_above_32_bits_is_a_bad_frame() -> None:
    for stream, is_good in ((2**32 - 1, True), (2**32, False), (9_999_999_999, False)):
        data = sign(b"1 %d {}" % stream, Encoding.JSON, DigestAlgorithm.CRC32)
        if is_good:
            assert parse(data, Encoding.JSON, DigestAlgorithm.CRC32) is not None
            continue
        with pytest.raises(RemoteProtocolError) as error:
            parse(data, Encoding.JSON, DigestAlgorithm.CRC32)
        assert error.value.code is ErrorCode.BAD_FRAME


@every_form
def test_equal_frames_have_equal_digests_and_others_do_not(
    encoding: Encoding, algorithm: DigestAlgorithm
) -> None:
    first, again, other = (
        parse(pack(encoding, algorithm, stream=stream), encoding, algorithm) for stream in (0, 0, 1)
    )
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.digest == again.digest != other.digest


def test_the_binary_head_has_24_bytes() -> None:
    assert HEAD_BYTES == 24
    assert len(pack(Encoding.MSGPACK, DigestAlgorithm.CRC32)) == 24 + len(BODIES[Encoding.MSGPACK])


def test_a_binary_frame_shorter_than_its_head_is_corrupt_whatever_its_digest() -> None:
    for size in range(16):
        data = sign(bytes(size), Encoding.MSGPACK, DigestAlgorithm.CRC32)
        assert parse(data, Encoding.MSGPACK, DigestAlgorithm.CRC32) is None
