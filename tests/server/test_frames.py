from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from streamctx.server.frames import BINARY, TEXT, frame_head, take_messages
from tests.server.two_parsers import by_fast_path, by_library

__all__: list[str] = []

_MESSAGE_BYTES_MAX = 70_000

_SIZES = st.one_of(st.integers(0, 130), st.sampled_from([125, 126, 127, 65535, 65536, 70_000, 70_001]))


_MASK = b"\x01\xfe\x55\xaa"


def _frame(
    first: int, payload: bytes, *, is_masked: bool = True, is_extended: bool = False, mask: bytes = _MASK
) -> bytes:
    length = len(payload)
    if length < 126 and not is_extended:
        head = bytes((first, length | 0x80 * is_masked))
    elif length < 0x10000:
        head = bytes((first, 126 | 0x80 * is_masked)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, 127 | 0x80 * is_masked)) + length.to_bytes(8, "big")
    if not is_masked:
        return head + payload
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


_frames = st.builds(
    lambda first, size, fill, is_masked, is_extended, mask: _frame(
        first, (fill * size)[:size], is_masked=is_masked, is_extended=is_extended, mask=mask
    ),
    st.one_of(
        st.sampled_from([TEXT, BINARY]), st.sampled_from([0x01, 0x02, 0x80, 0x88, 0x89, 0x8A, 0x83, 0xC2])
    ),
    _SIZES,
    st.sampled_from([b"a", b"\xff", "ä".encode()]),
    st.integers(0, 19).map(bool),
    st.booleans(),
    # The second one looks like a frame's head itself.
    st.sampled_from([_MASK, b"\x82\x90\x00\x00"]),
)
_heads = st.lists(st.tuples(st.integers(0, 11), st.sampled_from([2, 4, 6, 8, 10, 14])), max_size=8)
"""Where to cut besides: so many bytes into a frame, which is where its head, or a part of that, ends."""


@given(st.lists(_frames, max_size=12), st.lists(st.integers(0, 100_000), max_size=8), _heads)
@example([_frame(0x89, b"p" * 50, mask=b"\x82\x90\x00\x00")], [], [(0, 2)])
@example([_frame(0x02, b"p" * 50), _frame(0x80, b"q" * 50, mask=b"\x82\x90\x00\x00")], [], [(1, 2)])
def test_fast_path_sees_what_the_full_parser_sees_under_any_split(
    frames: list[bytes], cuts: list[int], heads: list[tuple[int, int]]
) -> None:
    data = b"".join(frames)
    starts = [0, *itertools.accumulate(map(len, frames))]
    cuts += [starts[index % len(starts)] + into for index, into in heads]
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[start:stop] for start, stop in itertools.pairwise(edges)]

    assert by_fast_path(pieces, _MESSAGE_BYTES_MAX) == by_library([data], _MESSAGE_BYTES_MAX)


@given(st.binary(max_size=64))
def test_any_bytes_are_seen_as_the_full_parser_sees_them(data: bytes) -> None:
    assert by_fast_path([data], _MESSAGE_BYTES_MAX) == by_library([data], _MESSAGE_BYTES_MAX)


def test_plain_frames_are_taken_and_the_start_of_the_next_is_left() -> None:
    messages: list[bytes | str] = []
    whole = _frame(BINARY, b"one") + _frame(TEXT, "zwö".encode())

    taken = take_messages(whole + _frame(BINARY, b"three")[:-1], 100, messages)

    assert taken == (len(whole), True)
    assert messages == [b"one", "zwö"]


@pytest.mark.parametrize(
    "data",
    [
        _frame(0x89, b"ping"),
        _frame(0x02, b"fragment"),
        _frame(BINARY, b"not masked", is_masked=False),
        _frame(BINARY, bytes(101)),
        _frame(BINARY, bytes(0x10000)),
        _frame(TEXT, b"\xff"),
        _frame(0xC2, b"reserved bit"),
    ],
)
def test_every_other_frame_is_left_to_the_full_parser(data: bytes) -> None:
    messages: list[bytes | str] = []

    assert take_messages(data, 100, messages) == (0, False)
    assert messages == []


def test_message_at_the_limit_is_taken() -> None:
    messages: list[bytes | str] = []

    assert take_messages(_frame(BINARY, bytes(100)), 100, messages) == (106, True)


@pytest.mark.parametrize("length", [0, 125, 126, 65535, 65536])
@pytest.mark.parametrize(("first", "opcode"), [(TEXT, Opcode.TEXT), (BINARY, Opcode.BINARY)])
def test_frame_head_is_what_the_library_writes(first: int, opcode: Opcode, length: int) -> None:
    payload = bytes(length)

    assert frame_head(first, length) + payload == Frame(opcode, payload).serialize(mask=False)
