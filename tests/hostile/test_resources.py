"""Peers that take without giving: what they can make the server do, hold and send is bounded."""

from __future__ import annotations

import asyncio
import gc
import socket

import msgspec
import pytest

from streamctx.core.documents.document import Document
from streamctx.core.documents.presence import Slot
from streamctx.core.session.delivery import Delivery
from streamctx.core.session.server_session import ServerSession
from streamctx.limits import KIB, MIB
from streamctx.vocabulary import Encoding
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Ack,
    Close,
    Edit,
    Focus,
    Heartbeat,
    Mention,
    Nack,
    Skip,
    Snapshot,
    Subscribe,
    Subscribed,
    Sync,
    Synced,
    Update,
)
from tests.hostile.arena import Arena, until
from tests.hostile.raw import HELLO, Raw, hash_of, opening
from tests.server.raw_client import RawClient, frame, upgrade_head

__all__: list[str] = []

pytestmark = pytest.mark.asyncio


async def test_client_that_never_acknowledges_is_closed_with_4103(arena: Arena) -> None:
    async with arena.greeted() as raw:
        raw.acknowledges = False
        await raw.push(*(Close(document=alias) for alias in range(1, 300)))
        started = asyncio.get_running_loop().time()
        heard = asyncio.create_task(raw.closed())
        while not heard.done():
            # It is not silent; it just does not acknowledge.
            await raw.send(Ack(received=1, applied=1, durable=1, limit=1025))
            await asyncio.sleep(0.1)
        closed = heard.result()
        assert (closed.code, closed.last_error) == (4103, "slow")
        assert asyncio.get_running_loop().time() - started < 4


async def test_silent_client_is_closed_with_4204(arena: Arena) -> None:
    async with arena.greeted() as raw:
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4204, "slow")


async def test_observer_that_never_reads_is_cut_off_and_costs_little(arena: Arena) -> None:
    async with arena.greeted() as producer, RawClient.open(arena.port) as client:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw = Raw(client)
        assert (await client.upgrade(f"Authorization: Bearer {arena.token}")).status == 101
        await raw.greet()
        await raw.push(Subscribe(subscription=1, session=producer.session))
        await raw.find(Synced)
        await producer.push(opening(1, ""))
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]

        async def is_cut_off() -> bool:
            return await arena.metric("websockets_open") == 3

        text = "x" * (60 * KIB)
        version = 1
        async with asyncio.timeout(8):
            while not await is_cut_off():
                for _ in range(4):
                    change = Change(0, 0, 0, len(text) if version > 1 else 0, text)
                    edit = Edit(document=1, base=version, version=version + 1, changes=(change,))
                    version += 1
                    number = await producer.push(edit)
                await producer.applied(number)
                await asyncio.sleep(0.05)
        assert version * len(text) > MIB


async def test_client_that_never_reads_its_answers_is_cut_off(arena: Arena) -> None:
    async with RawClient.open(arena.port) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.send(upgrade_head(f"Authorization: Bearer {arena.token}"))
        raw = Raw(client)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(HELLO)
        heartbeat = raw.frame_of(Heartbeat(next=1, received=1, applied=1, durable=1, limit=1025))
        flood = frame(0x82, heartbeat) * 500 + frame(0x89, b"p" * 125) * 2000
        sent = 0
        async with asyncio.timeout(12):
            try:
                while True:
                    await asyncio.wait_for(client.send(flood), 6)
                    sent += len(flood)
            except (ConnectionError, TimeoutError):
                pass

        async def is_cut_off() -> bool:
            return await arena.metric("websockets_open") == 2

        await until(is_cut_off)


async def test_http_client_that_never_reads_is_cut_off(arena: Arena) -> None:
    async with arena.greeted() as producer:
        text = "x\n" * (30 * KIB)
        for alias in range(1, 9):
            await producer.push(opening(alias, text))
        await producer.applied(8)
        async with RawClient.open(arena.port) as client:
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            request = (
                f"GET /v1/sessions/{producer.session}/documents/1 HTTP/1.1\r\n"
                f"Host: localhost\r\nAuthorization: Bearer {arena.token}\r\n\r\n"
            ).encode()
            for _ in range(200):
                try:
                    await asyncio.wait_for(client.send(request), 1)
                except (ConnectionError, TimeoutError):
                    break

            async def is_cut_off() -> bool:
                return await arena.metric("connections_open") == 4

            await until(is_cut_off)


async def test_flood_of_refused_events_is_answered_in_bounds(arena: Arena) -> None:
    async with arena.greeted() as raw:
        raw.acknowledges = False
        for _ in range(40):
            await raw.push(*(Close(document=7) for _ in range(100)))
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4103, "slow")
        assert len(closed.errors) <= 2100
        assert raw.received_bytes < 2 * MIB
    async with arena.greeted() as raw:
        # Who acknowledges is told of every one.
        for start in range(0, 3000, 300):
            await raw.push(*(Close(document=7) for _ in range(300)))
            await raw.error(start + 300)
        assert len(raw.errors) == 3000


async def test_flood_of_nacks_is_not_amplified(arena: Arena) -> None:
    async with arena.greeted() as observer, arena.greeted() as producer:
        await producer.push(opening(1, "x" * (60 * KIB)))
        await producer.applied(1)
        await observer.push(Subscribe(subscription=1, session=producer.session))
        observer.acknowledges = False
        await observer.find(Synced)
        before = observer.received_bytes
        loop = asyncio.get_running_loop()
        started = loop.time()
        nacks = [observer.frame_of(Nack(ranges=((1, 2000),) * 64))] * 50
        for _ in range(20):
            await observer.send_frames(*nacks)
            await asyncio.sleep(0)
        await observer.push(Focus())
        ack = Ack(received=1, applied=1, durable=1, limit=1025)
        await observer.send(ack)
        await observer.find(Ack | Heartbeat, lambda ack: ack.received > 2)
        rounds = (loop.time() - started) / 0.01 + 2
        # The same frames at most once per 10 ms, for a thousand requests.
        assert observer.received_bytes - before < rounds * 128 * KIB


async def test_flood_of_heartbeats_is_answered_once_a_read(arena: Arena) -> None:
    async with arena.greeted() as raw:
        beat = raw.frame_of(Heartbeat(next=1, received=1, applied=1, durable=1, limit=1025))
        await raw.send_frames(*[beat] * 20_000)
        await raw.applied(await raw.push(Focus()))
        assert raw.received_bytes < 200 * KIB


async def test_flood_of_skips_is_bounded(arena: Arena) -> None:
    async with arena.greeted() as raw:
        await raw.push(opening(1, "text"))
        skip = raw.frame_of(Skip(ranges=((1, 2),) * 64, reason="evicted", documents=tuple(range(1, 1025))))
        await raw.send_frames(*[skip] * 500)
        first = 2
        for _ in range(50):
            spread = tuple((first + 2 * index, first + 2 * index + 1) for index in range(64))
            await raw.send(Skip(ranges=spread, reason="superseded"))
            await raw.send(Skip(ranges=((first, first + 128),), reason="superseded"))
            first += 128
        await raw.find(Ack | Heartbeat, lambda ack: ack.received == first)
        assert not raw.errors


async def test_large_events_do_not_pile_up_for_observers(arena: Arena) -> None:
    async with arena.greeted() as raw, arena.greeted() as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session, min_interval_ms=60_000))
        await observer.find(Sync)
        await raw.push(opening(1, "x"))
        mention = Mention(document=1, version=1, range=(0, 0, 0, 1), text="m" * (16 * KIB), note="n" * 2000)
        for _ in range(100):
            await raw.applied(await raw.push(*[mention] * 20))
        snapshot = Snapshot(
            document=1, version=1, length=60_000, hash=hash_of("y" * 60_000), text="y" * 60_000
        )
        for _ in range(50):
            await raw.applied(await raw.push(*[snapshot] * 10))
        await raw.applied(await raw.push(Focus(document=1)))
        assert not raw.errors


async def test_observer_of_much_is_resynchronised_and_not_ahead_of_others(arena: Arena) -> None:
    async with arena.greeted() as raw, arena.greeted(Encoding.JSON) as observer:
        for subscription in range(1, 65):
            await observer.push(Subscribe(subscription=subscription, session=raw.session))
        await observer.find(Subscribed, lambda answer: answer.subscription == 64)
        await raw.push(opening(1, "0123456789" * 1000))
        for version in range(1, 300):
            change = Change(0, 0, 0, 1, str(version % 10))
            await raw.push(Edit(document=1, base=version, version=version + 1, changes=(change,)))
        await raw.applied(300)
        await observer.find(Update, lambda update: update.to >= 300)


async def test_edit_of_10_000_changes_is_applied_or_refused_whole(arena: Arena) -> None:
    text = "\n".join("line" for _ in range(10_000))
    async with arena.greeted() as raw, arena.greeted() as observer:
        await observer.push(Subscribe(subscription=1, session=raw.session))
        await raw.push(opening(1, text))
        changes = tuple(Change(line, 0, line, 4, "é") for line in range(9_999, -1, -1))
        await raw.push(Edit(document=1, base=1, version=2, changes=changes))
        await raw.push(Edit(document=1, base=2, version=3, changes=tuple(changes[:1] * 10_000)))
        error = await raw.error(3)
        assert (error.code, error.change) == ("bad_position", 0) or error.change is not None
        await observer.find(Update, lambda update: update.to >= 4)


async def test_hello_flood_of_one_session_is_a_chain_of_takeovers(arena: Arena) -> None:
    async with arena.raw() as raw:
        welcome = await raw.greet()
        await raw.push(Focus())
        for attempt in range(2, 60):
            async with arena.raw() as next_raw:
                resume = {
                    "session": welcome.session,
                    "secret": welcome.secret,
                    "epoch": welcome.epoch,
                    "expects": 1,
                    "next": 2,
                }
                hello = msgspec.convert(
                    msgspec.to_builtins(HELLO) | {"attempt": attempt, "resume": resume}, type(HELLO)
                )
                welcome = await next_raw.greet(hello)
                assert welcome.lease == attempt
        assert (await raw.closed()).code == 4010
    await arena.has_connected(0)


async def test_ended_session_is_freed_at_once(arena: Arena) -> None:
    def live(kind: type) -> int:
        return sum(type(found) is kind for found in gc.get_objects())

    # Events are not counted by the collector, so a cycle with a session in it may live for hours.
    gc.collect()
    gc.disable()
    try:
        for code in (1000, 3000):
            for _ in range(10):
                async with arena.greeted() as raw:
                    await raw.push(Subscribe(subscription=1, session="*"), opening(1, "text"))
                    await raw.applied(await raw.push(Focus(document=1)))
                    await raw.client.send(b"\x88\x82" + bytes(4) + code.to_bytes(2, "big"))
                    await raw.closed()

        async def are_gone() -> bool:
            return await arena.metric("sessions") == 2

        await until(are_gone)
        assert live(ServerSession) <= 2
        assert live(Document) <= 4
        assert live(Slot) <= 2
        assert live(Delivery) <= 2
    finally:
        gc.enable()
