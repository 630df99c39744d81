"""A real server on a loopback port, in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading

from streamctx.server.embedding import serve

__all__ = ["RunningServer"]


class RunningServer:
    """Call `run` in a thread of its own; `stop` ends it from any other."""

    def __init__(self) -> None:
        self.url = ""
        self.token = ""
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            asyncio.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with serve(port=0) as server:
            self.url, self.token = server.url, server.token
            self._ready.set()
            await self._stopping.wait()

    def wait_until_ready(self) -> None:
        """Return once connections are accepted."""
        assert self._ready.wait(20) and self.url, "the server did not start"

    def stop(self) -> None:
        """Have `run` return."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
