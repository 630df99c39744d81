"""Frames that break the rules of section 4, one at a time and by the thousand."""

from __future__ import annotations

import msgspec
import pytest

from streamctx.limits import KIB, MIB
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import Focus, Nack
from tests.hostile.arena import Arena
from tests.hostile.raw import HELLO, Raw, binary_frame, body_of, opening, text_frame
from tests.server.raw_client import frame

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_FOCUS = body_of(Encoding.MSGPACK, type="focus")


async def _refused(raw: Raw, data: bytes, code: int, error: str) -> None:
    await raw.send_frames(data)
    closed = await raw.closed()
    assert (closed.code, closed.last_error) == (code, error)


async def test_bad_head_is_answered_with_its_code(arena: Arena) -> None:
    heads: list[tuple[dict[str, int], int, str]] = [
        ({"version": 0}, 4004, "unsupported"),
        ({"version": 2}, 4004, "unsupported"),
        ({"version": 255, "kind": 9, "reserved": 9}, 4004, "unsupported"),
        ({"kind": 0}, 4102, "bad_frame"),
        ({"kind": 3}, 4102, "bad_frame"),
        ({"kind": 255}, 4102, "bad_frame"),
        ({"reserved": 1}, 4102, "bad_frame"),
        ({"reserved": 0x8000}, 4102, "bad_frame"),
        ({"sequence": 2**53}, 4102, "bad_sequence"),
        ({"sequence": 2**64 - 1}, 4102, "bad_sequence"),
    ]
    for head, code, error in heads:
        async with arena.greeted() as raw:
            await _refused(raw, binary_frame(_FOCUS, **({"sequence": 1} | head)), code, error)
        # Before HELLO likewise.
        async with arena.raw() as raw:
            await _refused(raw, binary_frame(_FOCUS, **head), code, error)


@pytest.mark.parametrize(
    "rest",
    [
        "",
        " ",
        "1",
        "1 0",
        "1 0 ",
        '01 0 {"type":"focus"}',
        '1 00 {"type":"focus"}',
        '-1 0 {"type":"focus"}',
        '+1 0 {"type":"focus"}',
        '1.0 0 {"type":"focus"}',
        '1  0 {"type":"focus"}',
        '1 0  {"type":"focus"}',
        '1\t0 {"type":"focus"}',
        '٣ 0 {"type":"focus"}',
        '1 4294967296 {"type":"focus"}',
        '1 99999999999 {"type":"focus"}',
        "1 0 []",
        "1 0 null",
    ],
)
async def test_bad_text_head_is_answered_with_bad_frame(arena: Arena, rest: str) -> None:
    async with arena.greeted(Encoding.JSON) as raw:
        await _refused(raw, text_frame(rest), 4102, "bad_frame")


async def test_text_number_above_the_limit_is_answered_with_bad_sequence(arena: Arena) -> None:
    for number in (2**53, 2**64, 10**19):
        async with arena.greeted(Encoding.JSON) as raw:
            await _refused(raw, text_frame(f'{number} 0 {{"type":"focus"}}'), 4102, "bad_sequence")


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_corrupt_frame_is_counted_and_asked_for_again(arena: Arena, encoding: Encoding) -> None:
    async with arena.greeted(encoding) as raw:
        good = raw.frame_of(Focus(), sequence=1)
        digit = b"0" if good[:1] != b"0" else b"1"
        await raw.send_frames(digit + good[1:])
        nack = await raw.find(Nack)
        assert (nack.ranges, nack.reason) == (((1, 2),), "corrupt")
        await raw.send_frames(good)
        await raw.applied(1)
        assert (await arena.session(raw))["counters"]["frames_corrupt"] == 1


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_mostly_corrupt_frames_are_answered_with_4110(arena: Arena, encoding: Encoding) -> None:
    async with arena.greeted(encoding) as raw:
        await raw.send_frames(*[b"\0" * 64 if encoding is Encoding.MSGPACK else b"z" * 64] * 32)
        await raw.push(Focus())
        await raw.applied(1)
        await _refused(raw, b"", 4110, "corruption")


async def test_truncated_frames_are_corrupt_at_every_length(arena: Arena) -> None:
    for encoding in Encoding:
        async with arena.greeted(encoding) as raw:
            good = raw.frame_of(opening(1, "text"), sequence=1)
            for length in range(0, len(good), max(1, len(good) // 25)):
                await raw.send_frames(good[:length])
            await raw.send_frames(good)
            await raw.applied(1)
            assert not raw.errors


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_frame_over_256_kib_fails_alone(arena: Arena, encoding: Encoding) -> None:
    async with arena.greeted(encoding) as raw:
        empty = len(raw.frame_of(body_of(encoding, type="focus", x="a" * 70_000), sequence=1)) - 70_000
        for excess, error in ((0, None), (1, "too_large"), (700 * KIB, "too_large")):
            body = body_of(encoding, type="focus", x="a" * (256 * KIB - empty + excess))
            number = await raw.push(body)
            if error is not None:
                assert (await raw.error(number)).code == error
        # One without a number is answered without reference.
        await raw.send(body_of(encoding, type="ack", x="a" * (257 * KIB)))
        assert (await raw.error()).reference is None
        await raw.applied(await raw.push(Focus()))


async def test_message_over_1_mib_is_closed_with_1009(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(body_of(Encoding.MSGPACK, type="focus", x="a" * (MIB - 100)))
        assert (await raw.error()).code == "too_large"
        await raw.send_frames(b"\0" * (MIB + 1))
        assert (await raw.closed()).code == 1009
    async with arena.greeted() as raw:
        # Announced only: nothing is waited for.
        await raw.client.send(b"\x82\xff" + (2**62).to_bytes(8, "big") + bytes(4))
        assert (await raw.closed()).code == 1009
    async with arena.greeted() as raw:
        await raw.client.send(b"".join([frame(0x02, bytes(600 * KIB)), frame(0x80, bytes(600 * KIB))]))
        assert (await raw.closed()).code == 1009


async def test_fragment_flood_is_closed_with_1009(arena: Arena) -> None:
    for payload in (b"", b"x"):
        async with arena.greeted() as raw:
            fragment = frame(0x00, payload)
            try:
                await raw.client.send(frame(0x02, payload) + fragment * 50_000)
            except ConnectionError:
                continue
            assert (await raw.closed()).code == 1009


async def test_broken_websocket_frames_are_closed_with_1002(arena: Arena) -> None:
    for data in (
        frame(0x82, b"x", is_masked=False),
        b"\xc2\x80" + bytes(4),
        b"\x83\x80" + bytes(4),
        frame(0x80, b"x"),
        frame(0x09, b"x"),
        b"\x88\xfe\x00\x7e" + bytes(130),
        frame(0x88, b"\x03"),
        frame(0x88, b"\x00\x01"),
        frame(0x02, b"x") + frame(0x82, b"y"),
    ):
        async with arena.greeted() as raw:
            await raw.client.send(data)
            assert (await raw.closed()).code == 1002


async def test_ping_flood_is_answered_in_bounds(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.client.send(frame(0x89, b"p" * 125) * 20_000)
        await raw.push(Focus())
        for _ in range(20_000):
            first, payload = await raw.client.frame()
            while first != 0x8A:
                first, payload = await raw.client.frame()
            assert payload == b"p" * 125


async def test_invalid_utf8_in_a_text_message_is_closed_with_1007(arena: Arena) -> None:
    for data in (frame(0x81, b"\xff\xfe"), frame(0x01, b"\xed\xa0") + frame(0x80, b"\x80")):
        async with arena.greeted(Encoding.JSON) as raw:
            await raw.client.send(data)
            assert (await raw.closed()).code == 1007


async def test_other_kind_of_message_is_answered_with_bad_frame(arena: Arena) -> None:
    for encoding, first in ((Encoding.MSGPACK, 0x81), (Encoding.JSON, 0x82)):
        async with arena.raw(encoding) as raw:
            await raw.client.send(frame(first, b"hello"))
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4102, "bad_frame")
        async with arena.greeted(encoding) as raw:
            await raw.client.send(frame(first, b"0000000000000000 1 0 {}"))
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4102, "bad_frame")


async def test_chunk_frames_are_ignored(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.send_frames(*[binary_frame(b"\xc1" * 1000, kind=2, stream=7, sequence=9)] * 500)
        await raw.applied(await raw.push(Focus()))
        assert not raw.errors


async def test_stream_number_of_a_client_says_nothing(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.send_frames(binary_frame(_FOCUS, stream=2**32 - 1, sequence=next(raw.numbers)))
        await raw.applied(1)
        assert not raw.errors
        await _refused(
            raw, binary_frame(body_of(Encoding.MSGPACK, type="focus"), stream=1), 4102, "bad_sequence"
        )


async def test_handshake_digest_is_no_way_around_the_session_digest(arena: Arena) -> None:
    hello = msgspec.structs.replace(HELLO, digests=("xxh3-64",))
    async with arena.raw() as raw:
        await raw.send(hello)
        await raw.next()
        # Good by crc32, corrupt by the digest in force.
        await raw.send_frames(binary_frame(_FOCUS, sequence=1))
        await raw.send_frames(*[binary_frame(_FOCUS, sequence=1)] * 40)
        closes: list[int] = []
        while not closes:
            first, payload = await raw.client.frame()
            if first == 0x88:
                closes.append(int.from_bytes(payload[:2], "big"))
        assert closes == [4110]
