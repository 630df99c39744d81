"""HTTP connections with the limits that uvicorn does not have, and the way out of them into a WebSocket."""

from __future__ import annotations

import asyncio
import socket
import sys
from http import HTTPStatus
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from streamctx.errors import ErrorCode
from streamctx.limits import KIB, MIB
from streamctx.server.handshake import accept_upgrade
from streamctx.server.logs import logger
from streamctx.server.security import UNIX, Refusal
from streamctx.server.shell import Shell
from streamctx.server.stored import IMPORT_BYTES_MAX, IMPORT_PATH
from streamctx.server.websocket import WebSocketConnection

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["BODY_BYTES_MAX", "HttpConnection"]

BODY_BYTES_MAX = 64 * KIB
"""Of all endpoints but those that take an upload."""

_UPLOADS = {(b"POST", IMPORT_PATH.encode()): IMPORT_BYTES_MAX}

# What a body may take on the wire: in chunks of one byte each, six times its size.
_WIRE_FACTOR = 8

# Of the smallest there is, 8,000 fields fit into a head of 32 KiB, and cost a hundred times that.
_HEADER_COUNT_MAX = 128

# A request that waits for the answer to the one before it is held whole. Hardly any client sends two at once.
_PIPELINED_COUNT_MAX = 16

# After a refusal the client is given so long, and so many bytes, to stop sending: a close with unread bytes
# would be answered by the kernel with a reset, which can overtake the refusal.
_LINGER_S = 0.5
_LINGER_BYTES_MAX = MIB

# Bytes that the kernel takes beyond what it can send now. They can no longer be overtaken by a keystroke.
_NOTSENT_LOWAT_BYTES = 128 * KIB
_TCP_NOTSENT_LOWAT = {"linux": 25, "darwin": 0x201}.get(sys.platform)


class HttpConnection(HttpToolsProtocol):
    """One accepted socket until it closes or becomes a WebSocket.

    A head is counted before the parser sees it, so that no more than `request_head_bytes_max` of it is ever
    held. `_is_in_head` is false from the end of a head to the end of its message. Head and body together have
    `request_head_timeout_s` to arrive, from the accept or, on a connection that was kept, from their first
    byte; an upload has as long from any of its bytes to the next.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        shell: Shell,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        # It would log the URL of every request.
        self.access_log = False
        self._shell = shell
        self._peer_address = UNIX
        self._head_bytes = 0
        self._header_count = 0
        self._body_bytes = 0
        self._body_wire_bytes = 0
        self._body_bytes_max = BODY_BYTES_MAX
        self._is_in_head = True
        self._is_refused = False
        self._linger_bytes = 0
        self._is_upgraded = False
        self._answering: RequestResponseCycle | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            self._peer_address = self.client[0]
        _set_socket_options(transport)
        self._arm_request_timer()
        if not self._shell.admit(self._peer_address):
            self._refuse(
                Refusal(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    ErrorCode.LIMIT,
                    "too many connections; retry later",
                    (("retry-after", "1"),),
                )
            )

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._shell.release(self._peer_address)
        # Nobody waits for the answers to those that wait.
        self.pipeline.clear()
        super().connection_lost(exc)
        # It told the request that came last, which need not be the one that is being answered.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._linger(len(data))
            return
        self._unset_keepalive_if_required()
        if self._request_timer is None and self._is_idle:
            self._arm_request_timer()
        while data and self._takes_requests:
            taken = len(data)
            if self._is_in_head:
                taken = min(taken, self._shell.limits.request_head_bytes_max - self._head_bytes)
                if not taken:
                    self._refuse_head(
                        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too long"
                    )
                    return
                self._head_bytes += taken
            else:
                self._body_wire_bytes += taken
                if self._body_wire_bytes > _WIRE_FACTOR * self._body_bytes_max:
                    self._refuse_body()
                    return
            if not self._feed(data[:taken], rest=data[taken:]):
                return
            data = data[taken:]

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_progress(self.transport.get_write_buffer_size())

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # httptools callbacks

    @override
    def on_message_begin(self) -> None:
        self._header_count = self._body_bytes = self._body_wire_bytes = 0
        if self._is_refused:
            return
        if len(self.pipeline) >= _PIPELINED_COUNT_MAX:
            self._refuse_head(HTTPStatus.TOO_MANY_REQUESTS, "too many requests wait for their answers")
            return
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_refused:
            return
        self._header_count += 1
        if self._header_count > _HEADER_COUNT_MAX:
            self._refuse_head(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {_HEADER_COUNT_MAX} header fields"
            )
        elif self._is_in_head:
            # What comes behind a body is of no use to anybody.
            super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_bytes = 0
        if self._is_refused:
            return
        self._body_bytes_max = _UPLOADS.get((self.parser.get_method(), self.url), BODY_BYTES_MAX)
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if lengths and int(lengths[0]) > self._body_bytes_max:
            self._refuse_body()
            return
        # In absolute form it names a host, and uvicorn passes on no more than its path.
        self.scope["state"]["target"] = self.url
        self.scope["state"]["abort"] = self.transport.abort
        super().on_headers_complete()
        if self.parser.should_upgrade() and not self._should_upgrade():
            # An upgrade that we do not offer is answered as if it had not been asked for; what may follow on
            # this connection is anybody's guess.
            self.cycle.keep_alive = False

    @override
    def on_body(self, body: bytes) -> None:
        if self._is_refused:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._refuse_body()
            return
        if self._body_bytes_max > BODY_BYTES_MAX and self._request_timer is not None:
            # An upload takes as long as it takes, but it has to go on.
            self._request_timer.cancel()
            self._arm_request_timer()
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._is_in_head = True
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        if not self._is_refused:
            super().on_message_complete()

    # uvicorn

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_in_head and self._is_idle and not self.transport.is_closing():
            # Answered before the body was in: what follows is of no use.
            self.transport.close()

    # Requests

    @property
    def _takes_requests(self) -> bool:
        return not (self._is_refused or self._is_upgraded or self.transport.is_closing())

    @property
    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _feed(self, data: bytes, *, rest: bytes) -> bool:
        """Parse; `False` if this connection takes no further HTTP."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if not self._is_refused and self._should_upgrade():
                self._upgrade(data[upgrade.args[0] :] + rest)
            return False
        except httptools.HttpParserError:
            if not self._is_refused:
                self._refuse_head(HTTPStatus.BAD_REQUEST, "the request is not HTTP")
            return False
        return True

    def _upgrade(self, first_bytes: bytes) -> None:
        shell = self._shell
        if not self._is_idle:
            # The answer to the request before would end up among the frames.
            self.transport.abort()
            return
        upgrade = accept_upgrade(
            shell,
            method=self.scope["method"],
            target=self.url,
            http_version=self.parser.get_http_version(),
            headers=self.headers,
            peer_address=self._peer_address,
            scheme=cast(str, self.scheme),
        )
        if isinstance(upgrade, Refusal):
            shell.counters.websockets_refused += 1
            self._refuse(upgrade)
            return
        connection = WebSocketConnection(shell, upgrade, self.transport, self._peer_address)
        self._is_upgraded = True
        self._cancel_timers()
        self.transport.set_protocol(connection)
        try:
            connection.start()
        except Exception:
            shell.counters.handler_failures += 1
            logger.exception("the hub did not take a connection")
            self.transport.set_protocol(self)
            self.transport.abort()
            return
        self.connections.discard(self)
        # A client that did not wait for our answer has frames in the same packet.
        if first_bytes:
            connection.receive_bytes(first_bytes)

    # Refusals

    def _refuse_head(self, status: HTTPStatus, message: str) -> None:
        self._shell.counters.heads_refused += 1
        self._refuse(Refusal(status, ErrorCode.MALFORMED, message))

    def _refuse_body(self) -> None:
        self._shell.counters.bodies_refused += 1
        self._refuse(
            Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                ErrorCode.TOO_LARGE,
                f"the body is over {self._body_bytes_max} bytes",
            )
        )

    def _refuse(self, refusal: Refusal) -> None:
        self._is_refused = True
        self._cancel_timers()
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if not self._is_idle:
            if self.pipeline or cycle.response_started:
                # A response is under way, and ours would end up inside of it.
                self.transport.abort()
                return
            # The application is told that nobody waits for its answer.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(refusal.to_bytes())
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self._request_timer = self.loop.call_later(_LINGER_S, self.transport.abort)

    def _linger(self, received_bytes: int) -> None:
        self._linger_bytes += received_bytes
        if self._linger_bytes > _LINGER_BYTES_MAX:
            self.transport.close()

    # Time

    def _arm_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(
            self._shell.limits.request_head_timeout_s, self._handle_request_timeout
        )

    def _handle_request_timeout(self) -> None:
        self._request_timer = None
        self._refuse_head(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")

    def _watch_progress(self, waiting_bytes: int) -> None:
        self._write_timer = self.loop.call_later(
            self._shell.limits.send_deadline_s, self._check_progress, waiting_bytes
        )

    def _check_progress(self, waiting_bytes_before: int) -> None:
        """Cut off a client that has read nothing of its response."""
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes >= waiting_bytes_before:
            self.transport.abort()
        else:
            self._watch_progress(waiting_bytes)

    def _cancel_timers(self) -> None:
        for timer in (self._request_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._request_timer = self._write_timer = None
        self._unset_keepalive_if_required()


def _set_socket_options(transport: asyncio.Transport) -> None:
    # asyncio has set TCP_NODELAY on every stream socket of TCP, on both kinds of loop.
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6) or _TCP_NOTSENT_LOWAT is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT_BYTES)
