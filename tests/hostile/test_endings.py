"""Frames at the wrong time: before HELLO, behind a close, and messages of nothing."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from streamctx.limits import KIB
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import Focus, Heartbeat, Nack, Skip, Subscribe
from tests.hostile.arena import Arena, until
from tests.hostile.raw import HELLO, Raw, body_of, opening
from tests.server.raw_client import frame

__all__: list[str] = []

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"", 1005),
        ((1000).to_bytes(2, "big") + b"x" * 123, 1000),
        ((1000).to_bytes(2, "big") + b"\xff\xfe", 1007),
        ((1000).to_bytes(2, "big") + b"\xed\xa0\x80", 1007),
        ((3000).to_bytes(2, "big"), 3000),
        ((4009).to_bytes(2, "big"), 4009),
        ((4999).to_bytes(2, "big") + "é".encode() * 61, 4999),
        *(
            (code.to_bytes(2, "big"), 1002)
            for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
        ),
    ],
)
async def test_close_frame_is_answered_once_whatever_it_says(arena: Arena, body: bytes, answer: int) -> None:
    async with arena.greeted() as raw:
        await raw.client.send(frame(0x88, body) * 3 + frame(0x89, b"p") * 50)
        # What the server still had for its client comes first.
        first = 0
        while first != 0x88:
            first, payload = await raw.client.frame()
            assert first in (0x82, 0x88)
        assert payload[:2] == (b"" if answer == 1005 else answer.to_bytes(2, "big"))
        assert await raw.client.reader.read() == b""


async def test_event_behind_a_close_frame_is_not_taken(arena: Arena) -> None:
    async with arena.greeted() as raw, arena.greeted(Encoding.JSON) as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session))
        late = frame(0x82, raw.frame_of(opening(1, "late"), sequence=1))
        await raw.client.send(frame(0x88, (3000).to_bytes(2, "big")) + late * 100 + frame(0x02, b"x") * 100)
        assert (await raw.closed()).code == 3000
        assert (await arena.session(raw))["documents"] == []


async def test_event_behind_a_fatal_one_is_not_taken(arena: Arena) -> None:
    async with arena.greeted() as raw:
        good = frame(0x82, raw.frame_of(opening(1, "late"), sequence=1))
        await raw.client.send(frame(0x82, raw.frame_of(Focus())) + good * 10)
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4102, "bad_sequence")
        assert (await arena.session(raw))["documents"] == []


async def test_flood_behind_a_close_is_read_by_nobody_and_ends(arena: Arena) -> None:
    floods = (
        frame(0x82, b"x" * 60_000) * 5,
        frame(0x02, b"x") + frame(0x00, b"y" * 500) * 500,
        frame(0x89, b"p" * 125) * 2000,
        frame(0x88, b"\x03\xe8") * 2000,
        bytes(200_000),
    )
    for flood in floods:
        async with arena.raw() as raw:
            # A number in HELLO is fatal; the server has closed and waits for the answer.
            await raw.send(HELLO, sequence=1)
            assert (await raw.closed()).code == 4102
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    await raw.client.send(flood)
            assert await raw.client.is_closed()

    async def are_gone() -> bool:
        return await arena.metric("websockets_open") == 2

    await until(are_gone, 2 * arena.limits.close_wait_s)


async def test_close_that_is_never_answered_is_not_waited_for(arena: Arena) -> None:
    async with arena.raw() as raw:
        await raw.send(HELLO, sequence=1)
        started = asyncio.get_running_loop().time()
        assert (await raw.closed()).code == 4102
        assert await raw.client.is_closed()
        assert asyncio.get_running_loop().time() - started < 4 * arena.limits.close_wait_s


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_messages_of_nothing_are_corrupt_frames(arena: Arena, encoding: Encoding) -> None:
    first = 0x81 if encoding is Encoding.JSON else 0x82
    async with arena.raw(encoding, token=None) as raw:
        # Before HELLO they buy neither time nor memory.
        await raw.client.send(frame(first) * 50_000)
        assert (await raw.closed()).code == 4101
    async with arena.greeted(encoding) as raw:
        await raw.client.send(frame(first) * 30 + (frame(first & 0x0F) + frame(0x80)) * 30)
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4110, "corruption")


async def test_pings_and_pongs_before_hello_buy_no_time(arena: Arena) -> None:
    async with arena.raw(token=None) as raw:
        closing = asyncio.create_task(_pongs_until_closed(raw))
        started = asyncio.get_running_loop().time()
        with contextlib.suppress(ConnectionError):
            while not closing.done():
                await raw.client.send(frame(0x89, b"p") * 100 + frame(0x8A, b"q" * 125) * 100)
                await asyncio.sleep(0.02)
        assert await closing == 4101
        assert asyncio.get_running_loop().time() - started < 3 * arena.limits.hello_timeout_s


async def _pongs_until_closed(raw: Raw) -> int:
    while True:
        first, payload = await raw.client.frame()
        if first == 0x88:
            return int.from_bytes(payload[:2], "big")
        # The ERROR that says why comes just before.
        assert first == 0x82 or (first == 0x8A and payload == b"p")


async def test_control_messages_before_hello_are_dropped(arena: Arena) -> None:
    async with arena.raw(token=None) as raw:
        for message in (
            Nack(ranges=((1, 2**53 - 1),)),
            Skip(ranges=((1, 2),), reason="evicted"),
            Heartbeat(next=9, received=9, applied=9, durable=9, limit=9),
            Subscribe(subscription=1, session="*"),
            opening(1, "x"),
        ):
            await raw.send(message)
        closed = await raw.closed()
        assert (closed.code, [error.code for error in closed.errors]) == (4101, ["hello_timeout"])
        assert raw.received_bytes < 500


async def test_byte_order_mark_makes_a_frame_corrupt(arena: Arena) -> None:
    async with arena.raw(Encoding.JSON) as raw:
        hello = raw.frame_of(HELLO)
        await raw.client.send(frame(0x81, b"\xef\xbb\xbf" + hello))
        assert await arena.metric("corrupt_before_hello") >= 1
        await raw.greet()
        focus = raw.frame_of(Focus(), sequence=1)
        await raw.client.send(frame(0x81, b"\xef\xbb\xbf" + focus))
        await raw.client.send(frame(0x81, focus.replace(b"{", b"\xef\xbb\xbf{")))
        await raw.send_frames(focus)
        await raw.applied(1)
        assert not raw.errors
    async with arena.raw(Encoding.JSON) as raw:
        # In another encoding it is no text at all.
        await raw.client.send(frame(0x81, hello.decode().encode("utf-16")))
        assert (await raw.closed()).code == 1007


async def test_unfinished_message_is_dropped_with_its_connection(arena: Arena) -> None:
    for _ in range(10):
        async with arena.greeted() as raw:
            await raw.client.send(frame(0x02, b"x") + frame(0x00, b"x" * 1000) * 1000 + frame(0x89, b"p"))
            assert await _next_of(raw, 0x8A) == b"p"
    async with arena.greeted() as raw:
        # One that a control message interrupts is whole afterwards.
        focus = raw.frame_of(Focus(), sequence=1)
        pieces = [
            frame(0x02, focus[:5]),
            frame(0x8A, b""),
            frame(0x00),
            frame(0x89, b"p"),
            frame(0x80, focus[5:]),
        ]
        await raw.client.send(b"".join(pieces))
        assert await _next_of(raw, 0x8A) == b"p"
        await raw.applied(1)


async def _next_of(raw: Raw, wanted: int) -> bytes:
    first = 0
    while first != wanted:
        first, payload = await raw.client.frame()
    return payload


async def test_no_answer_names_the_versions_of_its_parts(arena: Arena) -> None:
    async with arena.tcp() as client:
        response = await client.upgrade(f"Authorization: Bearer {arena.token}")
        assert response.status == 101
        assert "server" not in response.headers
    for path in ("/healthz", "/nowhere", "/v1/sessions", "/v1/stream"):
        response = await arena.get(path)
        assert not {"server", "x-powered-by", "via"} & set(response.headers)
        assert b"uvicorn" not in response.body
    async with arena.tcp() as client:
        await client.send(b"?\r\n\r\n")
        assert "server" not in (await client.response()).headers


async def test_one_hot_producer_does_not_starve_the_others(arena: Arena) -> None:
    async with arena.greeted() as raw:
        loop = asyncio.get_running_loop()
        body = body_of(Encoding.MSGPACK, type="focus", x="a" * (60 * KIB))
        small = [raw.frame_of(Focus(), sequence=number) for number in range(1, 5001)]
        large = [raw.frame_of(body, sequence=number) for number in range(5001, 5501)]
        data = b"".join(frame(0x82, content) for content in (*small, *large))
        reading = asyncio.create_task(raw.applied(5500))
        sending = asyncio.create_task(raw.client.send(data))
        slowest = 0.0
        while not (reading.done() and sending.done()):
            started = loop.time()
            assert (await arena.get("/healthz")).status == 200
            slowest = max(slowest, loop.time() - started)
        await asyncio.gather(reading, sending)
        assert slowest < 0.5
