"""A TCP proxy that breaks its first connection after so many bytes, and carries all later ones whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

__all__ = ["CuttingProxy", "cutting_proxy"]


class CuttingProxy:
    """Where to connect, and what passed.

    `cut_after` counts the bytes of both directions together, in the order in which they pass; the
    connection that carries the byte of that number is reset right after it.
    """

    def __init__(self, port: int, cut_after: int) -> None:
        self.url = ""
        self.passed = 0
        self.cuts = 0
        self._port = port
        self._cut_after = cut_after

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        writers = (writer, upstream_writer)
        tasks = [
            asyncio.ensure_future(self._pump(reader, upstream_writer, writers)),
            asyncio.ensure_future(self._pump(upstream_reader, writer, writers)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in writers:
                each.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        while data := await reader.read(65536):
            left = self._cut_after - self.passed
            self.passed += len(data)
            if not self.cuts and left <= len(data):
                writer.write(data[:left])
                # Let the kernel have what may pass; a reset then ends both sides at once.
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                await asyncio.sleep(0)
                self.cuts += 1
                for each in writers:
                    each.close()
                return
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def cutting_proxy(port: int, *, cut_after: int) -> AsyncIterator[CuttingProxy]:
    """Stand before a server on that loopback port."""
    proxy = CuttingProxy(port, cut_after)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/stream"
    try:
        yield proxy
    finally:
        server.close()
        await server.wait_closed()
