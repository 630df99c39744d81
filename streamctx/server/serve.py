"""Start and stop a server: inside another asyncio program, or as the process itself with signals."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from email.utils import formatdate
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.routing import BaseRoute
from uvicorn.server import ServerState

from streamctx import __version__
from streamctx.discovery import PROTOCOL_VERSION, ServerRecord
from streamctx.engine.base import StoreError
from streamctx.errors import CloseCode, ConfigurationError
from streamctx.hub.ports import HubPort
from streamctx.limits import Limits
from streamctx.resources.catalogue import Catalogue
from streamctx.server.announcement import announce, write_record
from streamctx.server.app import create_app
from streamctx.server.config import ServerConfig
from streamctx.server.handshake import STREAM_PATH
from streamctx.server.http import HttpConnection
from streamctx.server.logs import logger
from streamctx.server.resources import resources_of
from streamctx.server.running_store import RunningStore
from streamctx.server.security import policy_of
from streamctx.server.shell import Shell
from streamctx.server.sockets import listen_tcp, listen_unix, unlink_socket
from streamctx.server.tokens import resolve_token, token_file_of

__all__ = ["Server", "run", "serve", "serve_until_signal"]

_BACKLOG = 2048
_TICK_S = 1.0
_PRUNE_TICKS = 60

# Between GOAWAY and the close, for what is under way already. A client may also leave by itself in it.
_GOAWAY_S = 0.25

# How often the drain looks whether the connections are gone.
_DRAIN_POLL_S = 0.01

_FAILED = 1011
"""The close code of RFC 6455 for a server that met what it did not expect: clients come back later."""

# Of Python's garbage collector: young objects are looked through after so many new ones, older ones after so
# many rounds, all of them after so many rounds of that.
# A connection that is over leaves some hundred objects that only the collector finds, mostly in the middle.
_COLLECTOR_THRESHOLDS = (10_000, 5, 20)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server:
    """A server around a hub; use `serve`, which starts and stops it.

    It owns no task: connections live in protocol callbacks, and the housekeeping is a loop timer. So it can
    be started in one task and stopped in another.
    """

    def __init__(
        self,
        hub: HubPort,
        config: ServerConfig,
        *,
        routes: Sequence[BaseRoute] = (),
        store: RunningStore | None = None,
    ) -> None:
        """Prepare; nothing is opened before `start`.

        Args:
            hub: As for `serve`.
            config: As for `serve`.
            routes: See `create_app`.
            store: What the hub stores in; started and closed with the server.
        """
        self.failure: StoreError | None = None
        """Why it cannot go on: the store has failed for good."""
        self.on_failure: Callable[[], None] | None = None
        """Called when it cannot go on."""
        self._hub = hub
        self._store = store
        self._config = config
        self._routes = routes
        self._token = resolve_token(config)
        self._state = ServerState()
        self._listeners: list[asyncio.Server] = []
        self._cleanups = contextlib.ExitStack()
        self._tick_handle: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._shell: Shell | None = None
        self._resources: Catalogue | None = None
        self._port: int | None = None

    @property
    def token(self) -> str:
        """The access token of this server."""
        return self._token

    @property
    def port(self) -> int:
        """The TCP port.

        Raises:
            LookupError: If it does not listen on one.
        """
        if self._port is None:
            raise LookupError("the server listens on no TCP port")
        return self._port

    @property
    def uds(self) -> Path | None:
        """The Unix socket, if it listens on one."""
        return self._config.uds

    @property
    def url(self) -> str:
        """Where the WebSocket is; with a Unix socket alone, as if it were on localhost."""
        return f"ws{'s' * self._config.is_tls}://{self._authority}{STREAM_PATH.decode()}"

    @property
    def http_url(self) -> str:
        """Where the HTTP side is, without a path and a final slash."""
        return f"http{'s' * self._config.is_tls}://{self._authority}"

    @property
    def is_draining(self) -> bool:
        """Whether the stop has begun."""
        return self._shell is not None and self._shell.is_draining

    def measurements(self) -> dict[str, int]:
        """The shell's own counters and present values, by name."""
        return {} if self._shell is None else self._shell.measurements()

    async def start(self) -> None:
        """Listen, and let others know.

        Raises:
            ConfigurationError: If the address, the certificate or a file cannot be had; nothing is left open.
        """
        loop = asyncio.get_running_loop()
        shell = Shell(self._hub, self._config.limits, policy_of(self._config), store=self._store)
        self._shell = shell
        self._hub.on_failure = self._fail
        async with contextlib.AsyncExitStack() as undo:
            if self._store is not None:
                self._store.start(loop)
                undo.push_async_callback(self._store.close)
            undo.callback(self.close)
            self._resources = resources_of(self._config)
            factory = self._protocol_factory(shell, loop)
            for sock in self._open_sockets():
                # Before the first request, which may come at once.
                self._listeners.append(
                    await loop.create_server(
                        factory.make, sock=sock, backlog=_BACKLOG, **factory.tls_options(self._config.limits)
                    )
                )
            self._announce()
            undo.pop_all()
        self._tick()
        logger.info("listening on %s", self.http_url if self._port is not None else "a Unix socket")

    async def stop(self) -> None:
        """Drain and close: GOAWAY, a moment, close 4200; what is left after `drain_s` is aborted.

        New WebSockets are refused and `/readyz` answers 503 from the first moment. If this is cancelled,
        everything is aborted at once.
        """
        try:
            if self._shell is not None and self._listeners:
                await self._drain(self._shell)
        finally:
            self.close()
            if self._store is not None:
                await self._store.close()
        # Let the loop report the losses to the connections.
        await self._wait(self._is_empty, deadline=asyncio.get_running_loop().time() + 1.0)
        logger.info("stopped")

    def close(self) -> None:
        """Close everything now: listeners, connections, files. Safe to call again."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None
        if self._shell is not None:
            for connection in list(self._shell.websockets):
                connection.abort()
        for http_connection in list(self._state.connections):
            http_connection.transport.abort()
        for task in self._state.tasks:
            task.cancel()
        if self._resources is not None:
            self._resources.close()
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the discovery and ready files and the Unix socket, which a sudden end must do too."""
        self._cleanups.close()

    # Starting

    @property
    def _authority(self) -> str:
        if self._port is None:
            return "localhost"
        host = self._config.host
        # An address that means all of them is no address to connect to.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    def _open_sockets(self) -> Iterator[socket.socket]:
        config = self._config
        if config.port is not None:
            sock = listen_tcp(config.host, config.port)
            self._port = sock.getsockname()[1]
            yield sock
        if config.uds is not None:
            sock = listen_unix(config.uds)
            self._cleanups.callback(unlink_socket, config.uds, config.uds.stat().st_ino)
            yield sock

    def _protocol_factory(self, shell: Shell, loop: asyncio.AbstractEventLoop) -> _Factory:
        config = self._config
        uvicorn_config = uvicorn.Config(
            create_app(shell, self._routes, resources=self._resources),
            interface="asgi3",
            # Only tells uvicorn that upgrades are served; `HttpConnection` makes the connection itself.
            ws=asyncio.Protocol,
            http=HttpConnection,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            ssl_certfile=None if config.tls_cert is None else str(config.tls_cert),
            ssl_keyfile=None if config.tls_key is None else str(config.tls_key),
        )
        try:
            uvicorn_config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"tls_cert: {config.tls_cert} cannot be used ({error}); a PEM chain and its key are needed"
            ) from error
        return _Factory(uvicorn_config, self._state, loop, shell)

    def _announce(self) -> None:
        config = self._config
        token_file = token_file_of(config)
        record = ServerRecord(
            protocol=PROTOCOL_VERSION,
            url=self.url,
            http_url=self.http_url,
            token_file=None if token_file is None else str(token_file.absolute()),
            pid=os.getpid(),
            started=time.time(),
            version=__version__,
            uds=None if config.uds is None else str(config.uds.absolute()),
        )
        if config.discovery:
            self._cleanups.callback(_unlink, announce(record))
        if config.ready_file is not None:
            write_record(config.ready_file, record)
            self._cleanups.callback(_unlink, config.ready_file)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_handle = loop.call_later(_TICK_S, self._tick)
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        try:
            self._hub.sweep(loop.time())
            if self._ticks % _PRUNE_TICKS == 0:
                self._hub.prune(time.time() - self._config.limits.retention_s)
            self._ticks += 1
        except Exception:
            logger.exception("the hub's housekeeping failed")

    # Stopping

    def _fail(self, error: StoreError) -> None:
        """Let go of everybody: what is not stored by now will not be, and no client may think otherwise."""
        if self.failure is not None:
            return
        self.failure = error
        for connection in [] if self._shell is None else list(self._shell.websockets):
            connection.close(_FAILED, "the store has failed")
        if self.on_failure is not None:
            self.on_failure()

    async def _drain(self, shell: Shell) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + shell.limits.drain_s
        shell.is_draining = True
        for connection in list(shell.websockets):
            connection.drain()
        await self._wait(lambda: not shell.websockets, deadline=min(deadline, loop.time() + _GOAWAY_S))
        for connection in list(shell.websockets):
            connection.close(CloseCode.DRAINING, "the server is shutting down")
        await self._wait(lambda: not shell.websockets, deadline=deadline)
        for listener in self._listeners:
            listener.close()
        for http_connection in list(self._state.connections):
            http_connection.shutdown()
        await self._wait(self._is_empty, deadline=deadline)

    def _is_empty(self) -> bool:
        is_shell_empty = self._shell is None or not self._shell.websockets
        return is_shell_empty and not self._state.connections and not self._state.tasks

    async def _wait(self, is_over: Callable[[], bool], *, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        # uvicorn's sets of connections and tasks have no event to wait for.
        while not is_over() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)


class _Factory:
    """Makes the protocol of each accepted socket."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, loop: asyncio.AbstractEventLoop, shell: Shell
    ) -> None:
        self._config = config
        self._state = state
        self._loop = loop
        self._shell = shell

    def tls_options(self, limits: Limits) -> dict[str, Any]:
        """For `create_server`, which accepts the two deadlines with TLS only."""
        if self._config.ssl is None:
            return {}
        return {
            "ssl": self._config.ssl,
            "ssl_handshake_timeout": limits.request_head_timeout_s,
            "ssl_shutdown_timeout": limits.close_wait_s,
        }

    def make(self) -> HttpConnection:
        return HttpConnection(self._config, self._state, {}, self._loop, shell=self._shell)


@contextlib.asynccontextmanager
async def serve(
    hub: HubPort,
    config: ServerConfig,
    *,
    routes: Sequence[BaseRoute] = (),
    store: RunningStore | None = None,
) -> AsyncIterator[Server]:
    """Run a server inside this program; leaving the block drains it.

    Args:
        hub: What the connections talk to. It authenticates the token that `resolve_token(config)` returns.
        config: Its settings.
        routes: More HTTP endpoints, see `create_app`.
        store: What the hub stores in, if it does.

    Raises:
        ConfigurationError: If it cannot start.
    """
    server = Server(hub, config, routes=routes, store=store)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def serve_until_signal(
    hub: HubPort,
    config: ServerConfig,
    *,
    routes: Sequence[BaseRoute] = (),
    store: RunningStore | None = None,
    on_ready: Callable[[Server], None] | None = None,
) -> StoreError | None:
    """Serve until SIGINT or SIGTERM, then drain; a second one ends the process with status 1 at once.

    Only for the main thread of a program whose signals are the server's.

    Args:
        hub: As for `serve`.
        config: As for `serve`.
        routes: As for `serve`.
        store: As for `serve`.
        on_ready: Called once the server listens, for instance to print its address.

    Returns:
        Why it stopped by itself; `None` if a signal stopped it.

    Raises:
        ConfigurationError: If it cannot start.
    """
    server = Server(hub, config, routes=routes, store=store)
    stopping = asyncio.Event()
    server.on_failure = stopping.set
    with _signals(functools.partial(_handle_signal, server, stopping, asyncio.get_running_loop())):
        await server.start()
        try:
            if on_ready is not None:
                on_ready(server)
            await stopping.wait()
            logger.info("draining")
        finally:
            await server.stop()
    return server.failure


def run(
    hub: HubPort,
    config: ServerConfig,
    *,
    routes: Sequence[BaseRoute] = (),
    store: RunningStore | None = None,
    on_ready: Callable[[Server], None] | None = None,
) -> int:
    """Be the server process: own loop (uvloop where it is installed), own signals.

    Returns:
        The exit status, 0. A second signal does not return.

    Raises:
        ConfigurationError: If it cannot start.
        StoreError: If the store has failed meanwhile, for good.
    """
    # Events live until they are stored. The collector took them for what stays, and looked once a second
    # through all that 1,000 sessions hold, for 90 ms. What was imported by now is not looked through at all.
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        failure = runner.run(serve_until_signal(hub, config, routes=routes, store=store, on_ready=on_ready))
    if failure is not None:
        raise failure
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _handle_signal(
    server: Server, stopping: asyncio.Event, loop: asyncio.AbstractEventLoop, _: int, __: FrameType | None
) -> None:
    if not stopping.is_set():
        stopping.set()
        # A handler of `signal.signal` runs between two bytecodes; the loop has to be woken from its wait.
        loop.call_soon_threadsafe(lambda: None)
        return
    # At once, whatever the loop is doing: no exception, no exit handler, no flush that could hang.
    server.remove_files()
    os._exit(1)


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    # Not `loop.add_signal_handler`, which waits for a loop that may be the very thing that hangs.
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
