"""A TCP proxy that makes faults on the way between a client and a server, by a seed, and counts them.

What happens to a connection is a plan: at which byte of which direction comes which fault. A plan is drawn
from the seed, the number of the connection and the direction, and from nothing that depends on timing.
Instead of a plan, one fault can be set to strike at a byte counted over everything that passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from streamctx.limits import KIB
from tests.chaos.faults import SECONDS_MAX, Fault, Plan, Planned, Way, no_faults

__all__ = ["FaultProxy", "fault_proxy"]

_READ_BYTES = 16 * KIB
_BUFFER_BYTES_MAX = 64 * KIB
_CONNECTIONS_MAX = 2048
_HEAD_BYTES_MAX = 32 * KIB
_SLICE_BYTES = 3
_SLICED_BYTES_MAX = 120

# How long a connection of which one half has ended may go on.
_LINGER_S = 5.0
_FLUSH_S = 0.5

# With a linger time of zero the kernel answers a close with a reset.
_NO_LINGER = struct.pack("ii", 1, 0)


class _Over(Exception):
    """The connection has been ended on purpose."""


class _Link:
    """One connection through the proxy."""

    def __init__(self, number: int, *writers: asyncio.StreamWriter) -> None:
        self.number = number
        self.writers = writers
        self.stalled_until = 0.0
        self.limit = asyncio.timeout(None)

    def reset(self) -> None:
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            writer.transport.abort()

    def cut(self) -> None:
        for writer in self.writers:
            writer.close()

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class FaultProxy:
    """Where to connect, what is to go wrong, and what has.

    It holds at most about 400 KiB for a connection: with nobody to take what it holds, it stops reading.
    """

    def __init__(self, port: int, plan: Plan, strike: tuple[int, Fault] | None) -> None:
        """Made by `fault_proxy`."""
        self.port = 0
        """Ours."""
        self.passed = 0
        """Bytes of both ways and all connections, in the order in which they passed."""
        self.head_bytes = 0
        """Those of HTTP heads, and what came in one read with them."""
        self.connections = 0
        self.bytes_per_s: float | None = None
        """How fast each way of each connection is; `None` is as fast as it goes."""
        self.counts: Counter[Fault] = Counter()
        self._upstream_port = port
        self._plan = plan
        self._strike = strike
        self._links: set[_Link] = set()
        self._has_links = asyncio.Condition()
        self._healed = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_over = False

    @property
    def url(self) -> str:
        """Of the WebSocket behind the proxy."""
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    @property
    def open_connections(self) -> int:
        """Those that have not ended."""
        return len(self._links)

    def heal(self) -> None:
        """Make no fault any more; what is held back goes on."""
        self._healed.set()

    def harm(self) -> None:
        """Make faults again."""
        self._healed.clear()

    def silence(self) -> None:
        """Carry nothing, and end no connection: a peer behind it is gone and nobody is told."""
        self._flowing.clear()

    def resume(self) -> None:
        """End the silence."""
        self._flowing.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection to its end."""
        if len(self._links) >= _CONNECTIONS_MAX:
            writer.transport.abort()
            return
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(
                "127.0.0.1", self._upstream_port, limit=_BUFFER_BYTES_MAX
            )
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self.connections, writer, upstream_writer)
        if self._is_over:
            link.abort()
        self.connections += 1
        self._links.add(link)
        for each in link.writers:
            each.transport.set_write_buffer_limits(high=_BUFFER_BYTES_MAX)
        try:
            async with link.limit, asyncio.TaskGroup() as group:
                group.create_task(self._carry(link, Way.UP, reader, upstream_writer))
                group.create_task(self._carry(link, Way.DOWN, upstream_reader, writer))
        except* (_Over, TimeoutError):
            pass
        except* OSError:
            # One side is gone with a reset; so is the other one then.
            link.reset()
        finally:
            await self._part(link)

    async def close(self) -> None:
        """End every connection, and wait until that is done."""
        self._is_over = True
        self.heal()
        self.resume()
        for link in self._links:
            link.abort()
        async with self._has_links:
            await self._has_links.wait_for(lambda: not self._links)

    # What the two ways of a connection ask.

    @property
    def is_healed(self) -> bool:
        """Whether no faults are made any more."""
        return self._healed.is_set()

    def strike_within(self, length: int, position: int) -> Planned | None:
        """The one fault that is set to a byte of all that passes, if it is among the next ones."""
        if self._strike is None or not self.passed <= self._strike[0] < self.passed + length:
            return None
        (offset, fault), self._strike = self._strike, None
        # Neighbouring bytes are flipped in different bits.
        return Planned(position + offset - self.passed, fault, offset % 8 / 8)

    async def hold(self, seconds: float) -> None:
        """Wait so long, or until all is well."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._healed.wait()

    async def wait_to_flow(self, link: _Link) -> None:
        """Wait until that connection may carry something."""
        await self.hold(link.stalled_until - asyncio.get_running_loop().time())
        await self._flowing.wait()

    async def _carry(
        self, link: _Link, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        plan = self._plan(link.number, way)
        await _Pump(self, link, plan, reader=reader, writer=writer).run()
        # The other half may take its time, and not for ever.
        link.limit.reschedule(asyncio.get_running_loop().time() + _LINGER_S)

    async def _part(self, link: _Link) -> None:
        # What is left to be written goes out, if it is taken soon.
        link.cut()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(_FLUSH_S):
                for writer in link.writers:
                    await writer.wait_closed()
        link.abort()
        self._links.discard(link)
        async with self._has_links:
            self._has_links.notify_all()


class _Pump:
    """Carries one way of a connection."""

    def __init__(
        self,
        proxy: FaultProxy,
        link: _Link,
        plan: Iterator[Planned],
        *,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._link = link
        self._plan = plan
        self._planned = next(plan, None)
        self._reader = reader
        self._writer = writer
        self._position = 0
        self._sliced_until = 0
        self._head: bytes | None = b""
        self._spared_until = 0

    async def run(self) -> None:
        """Carry until the sender ends its half, or a fault ends this one."""
        while data := await self._reader.read(_READ_BYTES if self._proxy.bytes_per_s is None else KIB):
            if self._proxy.bytes_per_s is not None:
                await asyncio.sleep(len(data) / self._proxy.bytes_per_s)
            await self._proxy.wait_to_flow(self._link)
            self._look_for_head(data)
            while data:
                planned = self._due_within(len(data))
                if planned is None:
                    await self._forward(data)
                    break
                taken = planned.offset - self._position + 1
                await self._make(planned, data[:taken])
                if planned.fault is Fault.HALF_CLOSE:
                    self._writer.write_eof()
                    return
                data = data[taken:]
        self._writer.write_eof()

    def _look_for_head(self, data: bytes) -> None:
        """Find where the head of HTTP ends; a read that holds any of it is spared."""
        if self._head is not None:
            self._head += data
            self._spared_until = self._position + len(data)
            self._proxy.head_bytes += len(data)
            if b"\r\n\r\n" in self._head or len(self._head) > _HEAD_BYTES_MAX:
                self._head = None

    def _due_within(self, length: int) -> Planned | None:
        """The first fault of so many bytes from here."""
        while self._planned is not None and self._planned.offset < self._position + length:
            planned, self._planned = self._planned, next(self._plan, None)
            is_spared = planned.fault is Fault.FLIP and planned.offset < self._spared_until
            if planned.offset >= self._position and not is_spared and not self._proxy.is_healed:
                return planned
        return self._proxy.strike_within(length, self._position)

    async def _make(self, planned: Planned, data: bytes) -> None:
        """Make a fault at the last byte of `data`."""
        proxy, link, amount = self._proxy, self._link, planned.amount
        proxy.counts[planned.fault] += 1
        match planned.fault:
            case Fault.LATENCY | Fault.BLOCK:
                await proxy.hold(amount * SECONDS_MAX[planned.fault])
            case Fault.STALL:
                link.stalled_until = asyncio.get_running_loop().time() + amount * SECONDS_MAX[Fault.STALL]
                await proxy.wait_to_flow(link)
            case Fault.SLICES:
                self._sliced_until = self._position + len(data) + int(amount * _SLICED_BYTES_MAX)
            case Fault.FLIP:
                data = data[:-1] + bytes((data[-1] ^ 1 << int(amount * 8),))
            case Fault.HALF_CLOSE:
                data = data[:-1]
        await self._forward(data)
        if planned.fault is Fault.CUT:
            link.cut()
            raise _Over
        if planned.fault is Fault.RESET:
            link.reset()
            raise _Over

    async def _forward(self, data: bytes) -> None:
        self._proxy.passed += len(data)
        sliced = max(0, min(len(data), self._sliced_until - self._position))
        self._position += len(data)
        for start in range(0, sliced, _SLICE_BYTES):
            self._writer.write(data[start : min(start + _SLICE_BYTES, sliced)])
            await self._writer.drain()
            await asyncio.sleep(0)
        if data[sliced:]:
            self._writer.write(data[sliced:])
            await self._writer.drain()


@contextlib.asynccontextmanager
async def fault_proxy(
    port: int,
    plan: Plan = no_faults,
    *,
    strike: tuple[int, Fault] | None = None,
) -> AsyncIterator[FaultProxy]:
    """Stand before a server on that loopback port, and end all connections afterwards.

    Args:
        port: Of the server.
        plan: The faults of each connection. Its flips spare the head of HTTP, since a token with a flipped
            bit is a wrong token, and a server is right to refuse it for good.
        strike: A fault at one byte, counted from 0 over everything that passes; instead of a plan.
    """
    proxy = FaultProxy(port, plan, strike)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_BUFFER_BYTES_MAX)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
