"""The contract between the hub and the shell that carries its bytes.

The shell (`streamctx.server`) implements `Peer` and calls `ConnectionHandler` and `HubPort`; the hub
implements those two and calls `Peer`. Everything here runs on the event loop's thread, synchronously, and
`now` is always the loop's clock: monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamctx.engine.base import Damaged, Done, StoreError, Summary
from streamctx.hub.history import SessionPast
from streamctx.vocabulary import Encoding

__all__ = ["ConnectionHandler", "ConnectionInfo", "HubPort", "Peer", "Principal"]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a token speaks for.

    `scopes` is a subset of `produce`, `observe`, `resource` and `admin`.
    """

    name: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class ConnectionInfo:
    """What the WebSocket handshake has settled about a connection.

    `principal` is `None` if no token came in the request; `HELLO.auth` decides then. `address` is the address
    of the client, as a trusted proxy states it where there is one, or `unix`. `connection_id` is unique
    within one server's life.
    """

    encoding: Encoding
    principal: Principal | None
    address: str
    connection_id: int


class Peer(Protocol):
    """One WebSocket. No method blocks, and none raises or does anything after the connection has closed."""

    @property
    def is_writable(self) -> bool:
        """False while more than the high water mark waits for the peer to read, and once closing began."""

    def send(self, messages: Sequence[bytes | str]) -> None:
        """Send whole WebSocket messages, `bytes` as binary and `str` as text, in this order.

        They are joined into one transport write with all else that is sent to this peer during the same
        read. Sending while `is_writable` is false is allowed and bounded: a peer for which more than 8 MiB
        wait is aborted.
        """

    def close(self, code: int, reason: str) -> None:
        """Send what was queued, then the close frame; nothing more is received.

        The connection is aborted if the peer has not answered after `Limits.close_wait_s`. A reason that
        is over the 123 bytes of a close frame is cut.
        """

    def abort(self) -> None:
        """Drop the connection and what is queued; `ConnectionHandler.closed` follows in a later turn."""

    def set_timer(self, at: float | None) -> None:
        """Ask for one `ConnectionHandler.handle_timeout` at that loop time; replaces the earlier wish."""


class ConnectionHandler(Protocol):
    """The hub's side of one connection. No method raises."""

    def receive(self, message: bytes | str, now: float) -> None:
        """Take one whole message."""

    def read_done(self, now: float) -> None:
        """Acknowledge and flush: the last message that one read of the socket brought has been received."""

    def writable(self, now: float) -> None:
        """Go on sending: the peer has read most of what waited for it."""

    def handle_timeout(self, now: float) -> None:
        """Do what `Peer.set_timer` was asked for; it is never early."""

    def closed(self, now: float, code: int | None) -> None:
        """Let go of the peer. Called exactly once, however the connection ended.

        Args:
            code: The close code that the peer sent; `None` if the connection just broke.
        """

    def drain(self, now: float) -> None:
        """Say GOAWAY: the server is shutting down and will close with 4200 in a moment."""

    @property
    def is_established(self) -> bool:
        """Whether the handshake is complete; until then the connection counts as unauthenticated."""


class HubPort(Protocol):
    """What the shell asks of the hub."""

    on_failure: Callable[[StoreError], None] | None
    """Told that the store has failed for good, perhaps more than once: nothing is acknowledged any more, and
    the process has to end."""

    def connect(self, peer: Peer, info: ConnectionInfo, now: float) -> ConnectionHandler:
        """Take over a WebSocket whose upgrade has been accepted. It may already send."""

    def authenticate(self, token: str) -> Principal | None:
        """Whom the token speaks for, `None` if nobody; in constant time over hashes."""

    def sweep(self, now: float) -> None:
        """Do the housekeeping; called about once a second."""

    def prune(self, before: float) -> int:
        """Delete the stored sessions that are not live and were not changed since; returns how many.

        Args:
            before: Seconds since 1970.
        """

    def sessions(self, principal: Principal, *, stored: bool = False) -> list[dict[str, object]]:
        """The sessions that the principal may see, ready for JSON.

        Args:
            stored: Whether also those that are in the store and not live.
        """

    def recall(
        self,
        principal: Principal,
        session_id: str,
        now: float,
        done: Callable[[Damaged | StoreError | None], None],
    ) -> None:
        """Make a stored session live, detached, unless it is; then `session` and `document` tell of it.

        Args:
            done: Called at once or later; with `None` also if there is no such session of the principal.
        """

    def past(
        self,
        principal: Principal,
        session_id: str,
        done: Callable[[SessionPast | StoreError | None], None],
    ) -> None:
        """Read all that is kept of the past of a live session.

        Args:
            done: Called at once or later; with `None` if it is unknown, forbidden, or not stored.
        """

    def stored(self, principal: Principal) -> list[Summary]:
        """What is stored of the principal's sessions, live or not."""

    def is_in_use(self, session_id: str) -> bool:
        """Whether a connection has a session, or is about to have it."""

    def forget(self, session_id: str, done: Done) -> None:
        """Delete a stored session that is not in use."""

    def session(self, principal: Principal, session_id: str) -> dict[str, object] | None:
        """One session, ready for JSON; `None` if it is unknown or forbidden, which look the same."""

    def document(self, principal: Principal, session_id: str, document: str) -> dict[str, object] | None:
        """One document with its text, ready for JSON; `None` if it is unknown or forbidden."""

    def counters(self) -> dict[str, int]:
        """Counts and present values by name, for `/metrics`; names are lower-case words with underscores."""
