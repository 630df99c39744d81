"""The proxy makes the faults that its plan says, at the bytes that it says, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator

import pytest

from streamctx.limits import MIB
from tests.chaos.faults import Fault, Plan, Planned, Way, no_faults, random_plan
from tests.chaos.proxy import FaultProxy, fault_proxy

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_HEAD = b"GET / HTTP/1.1\r\n\r\n"


@contextlib.asynccontextmanager
async def _link(plan: Plan = no_faults) -> AsyncIterator[tuple[FaultProxy, Streams, Streams]]:
    """A connection through a proxy: the client's end and the server's. A head has passed."""
    accepted: asyncio.Queue[Streams] = asyncio.Queue()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait((reader, writer))

    async with (
        await asyncio.start_server(accept, "127.0.0.1", 0) as server,
        fault_proxy(server.sockets[0].getsockname()[1], plan) as proxy,
    ):
        client = await asyncio.open_connection("127.0.0.1", proxy.port)
        peer = await accepted.get()
        client[1].write(_HEAD)
        assert await peer[0].readexactly(len(_HEAD)) == _HEAD
        try:
            yield proxy, client, peer
        finally:
            for _, writer in (client, peer):
                writer.transport.abort()


def _at(offset: int, fault: Fault, amount: float = 0.5, way: Way = Way.UP) -> Plan:
    """One fault, so many bytes after the head."""

    def plan(_: int, of: Way) -> Iterator[Planned]:
        return iter((Planned(len(_HEAD) + offset, fault, amount),) if of is way else ())

    return plan


async def test_all_passes_without_faults() -> None:
    content = bytes(range(256)) * 4000
    async with _link() as (proxy, (reader, writer), (peer_reader, peer_writer)):
        writer.write(content)
        assert await peer_reader.readexactly(len(content)) == content
        peer_writer.write(content)
        assert await reader.readexactly(len(content)) == content
        writer.write_eof()
        assert await peer_reader.read() == b""
        peer_writer.write(content)
        peer_writer.close()
        assert await reader.read() == content
        assert not proxy.counts
        assert proxy.passed == 3 * len(content) + len(_HEAD)


async def test_flip_is_of_one_bit() -> None:
    async with _link(_at(3, Fault.FLIP)) as (proxy, (_, writer), (peer_reader, _)):
        writer.write(bytes(10))
        assert await peer_reader.readexactly(10) == bytes(3) + b"\x10" + bytes(6)
        assert proxy.counts == {Fault.FLIP: 1}


async def test_flip_spares_the_head() -> None:
    async with _link(_at(-3, Fault.FLIP)) as (proxy, (_, writer), (peer_reader, _)):
        writer.write(bytes(10))
        assert await peer_reader.readexactly(10) == bytes(10)
        assert not proxy.counts


async def test_slices_are_the_same_bytes() -> None:
    content = bytes(range(200))
    async with _link(_at(0, Fault.SLICES)) as (_, (_, writer), (peer_reader, _)):
        writer.write(content)
        first = await peer_reader.read(200)
        assert len(first) < len(content)
        assert first + await peer_reader.readexactly(len(content) - len(first)) == content


async def test_cut_ends_both_ways_after_its_byte() -> None:
    async with _link(_at(3, Fault.CUT)) as (_, (reader, writer), (peer_reader, _)):
        writer.write(b"abcdef")
        assert await peer_reader.read() == b"abcd"
        assert await reader.read() == b""


async def test_reset_is_a_reset() -> None:
    async with _link(_at(3, Fault.RESET)) as (_, (reader, writer), (peer_reader, _)):
        writer.write(b"abcdef")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        with pytest.raises(ConnectionResetError):
            await peer_reader.read(100)
            await peer_reader.read(100)


async def test_half_close_leaves_the_other_way() -> None:
    async with _link(_at(3, Fault.HALF_CLOSE)) as (_, (reader, writer), (peer_reader, peer_writer)):
        writer.write(b"abcdef")
        assert await peer_reader.read() == b"abc"
        peer_writer.write(b"answer")
        assert await reader.readexactly(6) == b"answer"


@pytest.mark.parametrize(
    ("fault", "is_other_held"), [(Fault.LATENCY, False), (Fault.BLOCK, False), (Fault.STALL, True)]
)
async def test_what_is_held_back_comes_later_or_when_all_is_well(fault: Fault, is_other_held: bool) -> None:
    loop = asyncio.get_running_loop()
    is_heal_needed = fault is Fault.BLOCK
    async with _link(_at(0, fault, 0.9)) as (proxy, (reader, writer), (peer_reader, peer_writer)):
        started = loop.time()
        writer.write(b"a")
        while not proxy.counts:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        peer_writer.write(b"b")
        assert await reader.readexactly(1) == b"b"
        assert (loop.time() - started > 0.8) is is_other_held
        if is_heal_needed:
            proxy.heal()
        assert await peer_reader.readexactly(1) == b"a"
        assert is_heal_needed or loop.time() - started > 0.08


async def test_silence_holds_a_bounded_amount_and_ends_no_connection() -> None:
    async with _link() as (proxy, (_, writer), (peer_reader, _)):
        proxy.silence()
        before = proxy.passed
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    writer.write(bytes(MIB))
                    await writer.drain()
        assert proxy.passed == before
        proxy.resume()
        assert await peer_reader.readexactly(MIB) == bytes(MIB)


async def test_slow_link_is_as_slow_as_it_says() -> None:
    loop = asyncio.get_running_loop()
    async with _link() as (proxy, (_, writer), (peer_reader, _)):
        proxy.bytes_per_s = 50_000.0
        started = loop.time()
        writer.write(bytes(30_000))
        assert await peer_reader.readexactly(30_000) == bytes(30_000)
        # What is read at once when the limit comes is not slowed down.
        assert loop.time() - started > 0.2


async def test_reader_that_takes_nothing_stops_the_proxy() -> None:
    async with _link() as (proxy, (_, writer), _):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    writer.write(bytes(MIB))
                    await writer.drain()
        before = proxy.passed
        await asyncio.sleep(0.1)
        assert proxy.passed == before < 32 * MIB


async def test_end_of_the_proxy_ends_all_connections() -> None:
    async with _link(_at(0, Fault.BLOCK, 0.9)) as (proxy, (reader, writer), (peer_reader, _)):
        writer.write(b"a")
        await asyncio.sleep(0.01)
        assert proxy.open_connections == 1
        await proxy.close()
        assert proxy.open_connections == 0
        for each in (reader, peer_reader):
            with contextlib.suppress(ConnectionError):
                assert await each.read() == b""


async def test_plan_is_that_of_its_seed() -> None:
    def drawn(seed: int, connection: int, way: Way) -> list[Planned]:
        plan = random_plan(seed, {Fault.FLIP: 100, Fault.CUT: 1000})
        return list(itertools.islice(plan(connection, way), 1000))

    assert drawn(1, 2, Way.UP) == drawn(1, 2, Way.UP)
    others = [drawn(2, 2, Way.UP), drawn(1, 3, Way.UP), drawn(1, 2, Way.DOWN)]
    assert drawn(1, 2, Way.UP) not in others
    # Faults of the two kinds are 10 : 1, and 91 bytes apart on average.
    faults = drawn(1, 2, Way.UP)
    assert 50 < sum(planned.fault is Fault.CUT for planned in faults) < 150
    assert 70_000 < faults[-1].offset < 110_000
