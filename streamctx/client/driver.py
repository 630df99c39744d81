"""Keeps a client's session connected: connects, carries frames and timers, reconnects, closes."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Literal, TypeAlias

import anyio
import anyio.to_thread

from streamctx.client.faults import MessageFaults
from streamctx.client.outbox import Outbox
from streamctx.client.reconnect import ReconnectPolicy
from streamctx.client.target import Target
from streamctx.client.websocket import CONNECTION_ERRORS, WebSocket, open_websocket
from streamctx.core.session.client_events import ClientEvent, Draining, SessionEnd, Welcomed
from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.state import ClientState
from streamctx.errors import (
    CloseCode,
    ConfigurationError,
    ErrorCode,
    RemoteProtocolError,
    SessionClosed,
)
from streamctx.limits import Limits

__all__ = ["Driver", "Status"]

logger = logging.getLogger("streamctx.client")

Status: TypeAlias = Literal["connecting", "connected", "reconnecting", "closed"]

_GOING_AWAY = 1001
"""Leaves the session as it is; 1000 would end it (SES-2)."""
_SERVER_AT_FAULT = 3000
"""The one code of a client for whatever a server did wrong; what it was, only the log says (ERR-6)."""


class Driver:
    """Runs one session over as many connections as it takes.

    Everything happens in the tasks of `run`, one that reads and one that writes; the application's calls
    change the session and `wake` the writer. `_leaving` is the close frame that the writer is to send, and
    from then on the session takes and gives nothing.
    """

    def __init__(
        self,
        session: ClientSession,
        *,
        find: Callable[[], Target],
        limits: Limits,
        ssl_context: ssl.SSLContext | None,
        faults: MessageFaults | None,
        outbox: Outbox | None,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        on_event: Callable[[ClientEvent], None],
    ) -> None:
        """Prepare; `run` connects.

        Args:
            session: What to drive; its events go to `on_event`.
            find: Says where to connect, before each attempt.
            limits: Of this client.
            ssl_context: For `wss`; `None` is the default one.
            faults: Made between session and socket, for tests.
            outbox: Has on disk whatever is sent, before it is.
            clock: Monotonic seconds.
            jitter: Returns a number in [0, 1).
            on_event: Called for each event of the session.
        """
        self.session = session
        self.connections = 0
        self.failures = 0
        """Attempts that brought no connection."""
        self.last_failure: Exception | None = None
        self.end: SessionClosed | None = None
        """Why it is over for good; `None` while it is not."""
        self.is_welcomed = False
        """Whether any WELCOME has come."""
        self._find = find
        self._limits = limits
        self._ssl_context = ssl_context
        self._faults = faults
        self._outbox = outbox
        self._clock = clock
        self._jitter = jitter
        self._on_event = on_event
        self._policy = ReconnectPolicy(jitter, limits)
        self._scope: anyio.CancelScope | None = None
        self._wake = anyio.Event()
        self._changed: anyio.Event | None = None
        self._finished = anyio.Event()
        self._leaving: tuple[int, str] | None = None
        self._failed_with: int | None = None
        self._retry_ms: int | None = None
        self._is_cut = False
        self._is_closing = False
        self._farewell: int = CloseCode.NORMAL

    # What the client asks and tells.

    @property
    def status(self) -> Status:
        """Where it stands."""
        if self.end is not None or self._finished.is_set():
            return "closed"
        if self.session.state is ClientState.ESTABLISHED:
            return "connected"
        return "reconnecting" if self.is_welcomed else "connecting"

    def wake(self) -> None:
        """There is something to send. Calls within one turn of the loop leave in one write.

        What was to be kept on disk is there from here on.
        """
        if self._outbox is not None:
            self._outbox.save()
        self._wake.set()

    async def wait_changed(self) -> None:
        """Wait until something has come from the server, or the connection has changed."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def abort(self) -> None:
        """Drop the present connection without a close; the session goes on with the next one."""
        if self._scope is not None:
            self._scope.cancel()

    async def close(self, *, ends: bool = True) -> None:
        """Leave for good with a close that the server answers, or after `close_wait_s` without.

        Args:
            ends: Whether that ends the session, with 1000, or leaves it to another process.
        """
        self._is_closing = True
        self._farewell = CloseCode.NORMAL if ends else _GOING_AWAY
        if self.session.state in (ClientState.GREETING, ClientState.ESTABLISHED):
            self._leave(self._farewell, "")
            with anyio.move_on_after(self._limits.close_wait_s):
                await self._finished.wait()

    def finish(self) -> None:
        """Say that the session is over; `run` has ended or is being cancelled."""
        self.session.close()
        self._finished.set()
        self._notify()

    # The life of all connections.

    async def run(self) -> None:
        """Connect and reconnect until the session ends or this is cancelled."""
        try:
            while True:
                delay_s = await self._connect_once()
                if delay_s is None:
                    return
                self._notify()
                await anyio.sleep(delay_s)
        finally:
            self.finish()

    async def _connect_once(self) -> float | None:
        """Be connected once; returns the delay before the next time, `None` if there is none."""
        try:
            target = await anyio.to_thread.run_sync(self._find)
            websocket = await open_websocket(
                target,
                encoding=self.session.settings.encoding,
                limits=self._limits,
                ssl_context=self._ssl_context,
            )
        except SessionClosed as closed:
            self._end(closed.code, closed.message)
            return None
        except (ConnectionError, ConfigurationError) as error:
            self.failures += 1
            self.last_failure = error
            logger.debug("= no connection: %s", error)
            return None if self._is_closing else self._policy.failed(self._clock())
        self.connections += 1
        close_code = await self._attend(websocket, target.address)
        if self._is_closing or self.end is not None:
            return None
        delay_s = self._policy.lost(
            close_code, self._clock(), retry_ms=self._retry_ms, wait_ms=self.session.retry_after_ms
        )
        if delay_s is None:
            self._end(None, f"the server closed with {close_code}")
        return delay_s

    async def _attend(self, websocket: WebSocket, server: str) -> int | None:
        """Carry the session over one connection; returns the code that it was closed with."""
        self._begin(server)
        try:
            async with anyio.create_task_group() as group:
                self._scope = group.cancel_scope
                if self._is_closing:
                    self._leave(self._farewell, "")
                group.start_soon(self._read, websocket, group.cancel_scope)
                await self._write(websocket)
                group.cancel_scope.cancel()
        finally:
            self._scope = None
            with anyio.CancelScope(shield=True):
                await websocket.abort()
            if self._faults is not None:
                self._faults.disconnected()
            close_code = self._failed_with if self._leaving is not None else websocket.close_code
            self.session.disconnected(self._clock(), close_code)
            if self._outbox is not None:
                self._outbox.save()
            logger.debug("= session %s lost its connection, code %s", self.session.session_id, close_code)
            self._dispatch()
            self._notify()
        return close_code

    def _begin(self, server: str) -> None:
        self._leaving = self._failed_with = self._retry_ms = None
        self._is_cut = False
        self.session.connected(self._clock(), server=server)

    # Reading.

    async def _read(self, websocket: WebSocket, scope: anyio.CancelScope) -> None:
        try:
            self._receive(websocket, websocket.take_messages())
            while not websocket.is_over:
                try:
                    self._receive(websocket, await websocket.receive())
                except RemoteProtocolError as error:
                    self._fail(error)
        except CONNECTION_ERRORS:
            scope.cancel()
        # The writer has to answer or to send a close frame, and may be waiting for a peer that does not read.
        await anyio.sleep(self._limits.close_wait_s)
        scope.cancel()

    def _receive(self, websocket: WebSocket, messages: list[bytes]) -> None:
        """Take all that one read brought; the writer answers it with one write."""
        self._wake.set()
        if self._leaving is not None:
            return
        now = self._clock()
        for message in messages:
            if self._faults is None:
                self.session.receive(message, now)
                continue
            faulted = self._faults.incoming(message, now, is_text=websocket.is_text)
            for passed in faulted.messages:
                self.session.receive(passed, now)
            if faulted.is_cut:
                raise ConnectionResetError("cut on purpose")
        self._dispatch()
        self._notify()

    # Writing.

    async def _write(self, websocket: WebSocket) -> None:
        """Send whatever there is, as soon as the socket takes it, until the connection is over."""
        try:
            while self._leaving is None and not websocket.is_over:
                if self._wake.is_set():
                    self._wake = anyio.Event()
                try:
                    data = self._next_bytes(websocket)
                except RemoteProtocolError as error:
                    self._fail(error)
                    break
                if data and self._outbox is not None:
                    await self._outbox.sync()
                if data and not await self._send(websocket, data, self._limits.send_deadline_s):
                    return
                if self._is_cut:
                    return
                if not data:
                    await self._wait()
            await self._part(websocket)
        except CONNECTION_ERRORS:
            return

    async def _part(self, websocket: WebSocket) -> None:
        """Send our close frame, or the answer to the peer's, and wait for the peer to be done."""
        if self._leaving is not None:
            websocket.close(*self._leaving)
        data = websocket.bytes_to_send([])
        with anyio.move_on_after(self._limits.close_wait_s):
            if data:
                await websocket.send(data)
            while not websocket.is_over:
                self._wake = anyio.Event()
                await self._wake.wait()

    async def _send(self, websocket: WebSocket, data: bytes, deadline_s: float) -> bool:
        with anyio.move_on_after(deadline_s):
            await websocket.send(data)
            return True
        # A part of it may have left: nothing can follow on this connection.
        logger.debug("= the socket took nothing for %g s", deadline_s)
        return False

    def _next_bytes(self, websocket: WebSocket) -> bytes:
        """Do what is due and return everything that is to be sent now, as one write."""
        now = self._clock()
        session = self.session
        if self._faults is not None and (late := self._faults.due_incoming(now)):
            for message in late:
                session.receive(message, now)
            self._notify()
        due = session.next_timeout()
        if due is not None and due <= now:
            session.handle_timeout(now)
        frames = session.data_to_send(now)
        if self._outbox is not None:
            self._outbox.save()
        if self._faults is not None:
            frames = self._faulted(self._faults, frames, now, is_text=websocket.is_text)
        self._dispatch()
        return websocket.bytes_to_send(frames)

    def _faulted(
        self, faults: MessageFaults, frames: list[bytes], now: float, *, is_text: bool
    ) -> list[bytes]:
        passed = faults.due_outgoing(now)
        for frame in frames:
            faulted = faults.outgoing(frame, now, is_text=is_text)
            passed += faulted.messages
            if faulted.is_cut:
                # What went before it still leaves; then the connection is dropped.
                self._is_cut = True
                break
        return passed

    async def _wait(self) -> None:
        """Wait for a wish of the application, for bytes, or for a timer."""
        due = self.session.next_timeout()
        if self._faults is not None:
            held_until = self._faults.next_timeout()
            if held_until is not None:
                due = held_until if due is None else min(due, held_until)
        delay_s = None if due is None else max(0.0, due - self._clock())
        with anyio.move_on_after(delay_s):
            await self._wake.wait()

    # What happened.

    def _dispatch(self) -> None:
        while (event := self.session.next_event()) is not None:
            if isinstance(event, Welcomed):
                self.is_welcomed = True
                self._policy.welcomed()
                self._tell_welcome(event)
            elif isinstance(event, Draining):
                # Nothing new is sent to it. Leaving now rather than on its close is what it hopes for.
                self._retry_ms = event.retry_ms
                self._leave(_GOING_AWAY, "draining")
            elif isinstance(event, SessionEnd):
                self._end(_error_code(event.code), event.message)
            self._on_event(event)

    def _tell_welcome(self, event: Welcomed) -> None:
        if event.verdict == "resumed":
            logger.debug("= session %s resumed", event.session_id)
        elif event.verdict == "new":
            logger.info("session %s opened", event.session_id)
        else:
            # What observers and history had of it may be gone, though every text is there again.
            logger.warning("session %s %s: %s", event.session_id, event.verdict, event.reason)

    def _end(self, code: ErrorCode | None, message: str) -> None:
        if self.end is None:
            self.end = SessionClosed(code, message)
            self.session.close()
            logger.info("session %s closed: %s", self.session.session_id, self.end)
        self._notify()

    def _leave(self, code: int, reason: str) -> None:
        if self._leaving is None:
            self._leaving = (code, reason)
        self._wake.set()

    def _fail(self, error: RemoteProtocolError) -> None:
        # A network that is slow or gone is nobody's fault.
        level = logging.DEBUG if error.code is ErrorCode.SLOW else logging.WARNING
        logger.log(level, "session %s: the connection is left: %s", self.session.session_id, error)
        self._failed_with = error.close_code
        self._leave(_SERVER_AT_FAULT, error.code)

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def _error_code(code: str | None) -> ErrorCode | None:
    if code is None:
        return None
    return ErrorCode(code) if code in set(ErrorCode) else ErrorCode.INTERNAL
