"""A hub under a virtual clock, with as much of a shell around it as session scripts need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Principal
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import Encoding

__all__ = ["ScriptedServer", "Socket"]

ALL = frozenset({"produce", "observe", "resource", "admin"})
TOKENS = {
    "token": Principal("owner", ALL),
    "observer": Principal("owner", frozenset({"observe"})),
    "other": Principal("somebody else", ALL),
}
MESSAGE_TOO_BIG = 1009
LATE_S = 1e-6
"""Timers act a little late, as in any event loop: what is due has then certainly passed."""


class Socket:
    """One WebSocket: the hub's `Peer`, and what its client sends and does."""

    def __init__(self, server: ScriptedServer, encoding: Encoding, principal: Principal | None) -> None:
        self.encoding = encoding
        self.is_open = True
        self.close_code: int | None = None
        """With what the server closed."""
        self.timer: float | None = None
        self._server = server
        self._arrivals: list[tuple[float, bytes]] = []
        info = ConnectionInfo(encoding, principal, "script", next(server.connection_ids))
        self.handler: ConnectionHandler = server.hub.connect(self, info, server.now)

    # Peer, for the hub.

    @property
    def is_writable(self) -> bool:
        return self.is_open

    def send(self, messages: Sequence[bytes | str]) -> None:
        if self.is_open:
            for message in messages:
                data = message.encode() if isinstance(message, str) else message
                self._arrivals.append((self._server.now, data))

    def close(self, code: int, reason: str) -> None:
        if self.is_open:
            self.close_code = code
            self._end(code)

    def abort(self) -> None:
        self._end(None)

    def set_timer(self, at: float | None) -> None:
        self.timer = at

    # The client's end.

    def arrivals(self) -> list[tuple[float, bytes]]:
        """What has come since the last call, and when."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def deliver(self, data: bytes) -> None:
        """Send one message to the server; each is a read of its own."""
        if not self.is_open:
            return
        if len(data) > DEFAULT_LIMITS.websocket_message_bytes_max:
            self.close(MESSAGE_TOO_BIG, "")
            return
        now = self._server.now
        self.handler.receive(data.decode() if self.encoding is Encoding.JSON else data, now)
        self.handler.read_done(now)

    def end(self, code: int | None) -> None:
        """The client closes with a code, or the connection is lost."""
        if self.is_open:
            self._end(code)

    def _end(self, code: int | None) -> None:
        self.is_open = False
        self.timer = None
        self._server.ended.append((self, code))


class ScriptedServer:
    """The server, its clock, and its connections."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connection_ids = itertools.count(1)
        self.ended: list[tuple[Socket, int | None]] = []
        """Connections whose end the hub has not been told yet."""
        self._sockets: list[Socket] = []
        self._sweep_at = 1.0
        self._ids = itertools.count(1)
        self.hub = self._new_hub()

    def _new_hub(self) -> Hub:
        return Hub(
            tokens=TOKENS, version="script", new_id=lambda: f"id-{next(self._ids)}", jitter=lambda: 0.5
        )

    def connect(self, encoding: Encoding, token: str | None) -> Socket | None:
        """Open a WebSocket; `None` if the token in the request is wrong."""
        principal = None if token is None else self.hub.authenticate(token)
        if token is not None and principal is None:
            return None
        socket = Socket(self, encoding, principal)
        self._sockets.append(socket)
        return socket

    def restart(self) -> None:
        """Put a server without state in the place of this one."""
        for socket in self._sockets:
            socket.end(None)
        self.ended.clear()
        self.hub = self._new_hub()

    def advance(self, to: float) -> None:
        """Let time pass; what is due until then happens in its order."""
        self._tell_ends()
        while True:
            timers = [(socket.timer, socket) for socket in self._sockets if socket.timer is not None]
            due, socket = min(timers, key=lambda timer: timer[0], default=(self._sweep_at, None))
            at = max(self.now, min(due, self._sweep_at) + LATE_S)
            if at > to:
                break
            self.now = at
            if socket is None or self._sweep_at < due:
                self._sweep_at += 1.0
                self.hub.sweep(at)
            else:
                socket.timer = None
                socket.handler.handle_timeout(at)
            self._tell_ends()
        self.now = max(self.now, to)

    def _tell_ends(self) -> None:
        while self.ended:
            socket, code = self.ended.pop(0)
            socket.handler.closed(self.now, code)

    def document(self, session: str, alias: int) -> dict[str, object] | None:
        """What the server has of a document; `None` if nothing."""
        views = (self.hub.document(principal, session, str(alias)) for principal in TOKENS.values())
        return next((view for view in views if view is not None), None)
