"""A real server in a thread of its own, which a test of any event loop can start, kill and look into."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from streamctx.hub.hub import Hub
from streamctx.server.config import ServerConfig
from streamctx.server.embedding import OWNER, hub_for
from streamctx.server.serve import Server

__all__ = ["TOKEN", "ThreadedServer", "threaded_server"]

T = TypeVar("T")

TOKEN = "a-token-for-tests-only"
_TIMEOUT_S = 10.0


class ThreadedServer:
    def __init__(self, settings: dict[str, object]) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: Server | None = None
        self._hub: Hub | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, again on the same port if it ran before; it knows nothing of the past."""
        settings = {"port": self.port, "token": TOKEN, "discovery": False, **self._settings}
        config = ServerConfig(**settings)  # type: ignore[arg-type]
        self._hub = hub_for(config)
        self._server = Server(self._hub, config)
        self._run(self._server.start())
        if config.port is not None:
            self.port = self._server.port

    def drain(self) -> None:
        assert self._server is not None
        self._run(self._server.stop())

    def kill(self) -> None:
        """Drop all connections and stop listening."""
        assert self._server is not None
        self.call(self._server.close)

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self._run(called())

    def sessions(self) -> list[dict[str, object]]:
        hub = self._hub
        assert hub is not None
        return self.call(lambda: hub.sessions(OWNER))

    def document(self, session_id: str | None, uri: str) -> dict[str, object] | None:
        hub = self._hub
        assert hub is not None and session_id is not None
        return self.call(lambda: hub.document(OWNER, session_id, uri))

    def text(self, session_id: str | None, uri: str) -> object:
        document = self.document(session_id, uri)
        return None if document is None else document["text"]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.kill()
        self._run(asyncio.sleep(0.01))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_S)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_TIMEOUT_S)


@contextlib.contextmanager
def threaded_server(**settings: object) -> Iterator[ThreadedServer]:
    """Run one with these settings of `ServerConfig` for the length of the block."""
    server = ThreadedServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.close()
