"""What all connections of one server share: the hub, the limits, the counts, and the joined writes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from streamctx.hub.ports import HubPort
from streamctx.limits import KIB, Limits
from streamctx.server.running_store import RunningStore
from streamctx.server.security import UNIX, Policy

if TYPE_CHECKING:
    from streamctx.server.websocket import WebSocketConnection

__all__ = ["Counters", "Shell"]

_READ_BYTES_MAX = 256 * KIB

# How late a timer of the near future can be.
_LOOK_S = 0.004


@dataclasses.dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    connections_accepted: int = 0
    connections_refused: int = 0
    """Over a limit of connections."""
    requests_refused: int = 0
    """By policy: Host, Origin, token in the URL, wrong token."""
    heads_refused: int = 0
    """Request heads that were too long or too slow."""
    bodies_refused: int = 0
    resources_opened: int = 0
    resources_refused: int = 0
    """Since too many were being read."""
    resources_cut: int = 0
    """Not sent to their end, since they changed or could not be read."""
    websockets_accepted: int = 0
    websockets_refused: int = 0
    websockets_failed: int = 0
    """Ended since the peer broke RFC 6455 or a limit on messages."""
    websockets_dead: int = 0
    """Aborted after no byte came for `dead_s`."""
    websockets_stalled: int = 0
    """Aborted after no byte was taken for `send_deadline_s`."""
    websockets_flooded: int = 0
    """Aborted since more waited for the peer than may wait."""
    handler_failures: int = 0
    """Exceptions that escaped from the hub."""


class Shell:
    """The shared state of one server's connections; it belongs to the thread of the event loop."""

    def __init__(
        self, hub: HubPort, limits: Limits, policy: Policy, *, store: RunningStore | None = None
    ) -> None:
        self.hub = hub
        self.store = store
        self.limits = limits
        self.policy = policy
        self.counters = Counters()
        self.is_draining = False
        self.read_buffer = memoryview(bytearray(_READ_BYTES_MAX))
        """Where every connection reads into. Nothing keeps a view of it: what came is copied at once."""
        self.websockets: set[WebSocketConnection] = set()
        self.connection_count = 0
        self.unauthenticated_count = 0
        self._address_counts: Counter[str] = Counter()
        self._next_connection_id = 0
        self._loop = asyncio.get_running_loop()
        self._batch_depth = 0
        self._unflushed: list[WebSocketConnection] = []
        self._flush_handle: asyncio.Handle | None = None
        self._watched: list[WebSocketConnection] = []
        self._is_look_soon = False
        self._look_handle: asyncio.TimerHandle | None = None

    def next_connection_id(self) -> int:
        """A number that no connection of this server had before."""
        self._next_connection_id += 1
        return self._next_connection_id

    # Admission. A socket is counted from accept to loss, whichever protocol it speaks in between.

    def admit(self, address: str) -> bool:
        """Count a new socket; `False` if it is one too many. `release` it in either case."""
        self.connection_count += 1
        is_admitted = self.connection_count <= self.limits.connections_max
        # The clients behind a proxy are counted by their own addresses, see `admit_client`.
        if not self.policy.is_trusted_proxy(address):
            is_admitted = self.admit_client(address) and is_admitted
        if is_admitted:
            self.counters.connections_accepted += 1
        else:
            self.counters.connections_refused += 1
        return is_admitted

    def release(self, address: str) -> None:
        """The socket is gone."""
        self.connection_count -= 1
        if not self.policy.is_trusted_proxy(address):
            self.release_client(address)

    def admit_client(self, address: str) -> bool:
        """Count a client of an address; `release_client` it whatever the answer is."""
        self._address_counts[address] += 1
        return address == UNIX or self._address_counts[address] <= self.limits.connections_per_address_max

    def release_client(self, address: str) -> None:
        """One client less at that address."""
        if self._address_counts[address] <= 1:
            del self._address_counts[address]
        else:
            self._address_counts[address] -= 1

    # Joined writes: whatever is sent to a peer while one read is handled goes out in one write after it.

    def begin_batch(self) -> None:
        """Hold writes back until the matching `end_batch`."""
        self._batch_depth += 1

    def end_batch(self) -> None:
        """Write what the batch has queued."""
        self._batch_depth -= 1
        if self._batch_depth == 0 and self._unflushed:
            self._flush()

    def schedule_flush(self, connection: WebSocketConnection) -> None:
        """Write this connection's queue at the end of the batch, or of the loop's turn outside of one."""
        self._unflushed.append(connection)
        if self._batch_depth == 0 and self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_handle = None
        self._flush()

    def _flush(self) -> None:
        connections, self._unflushed = self._unflushed, []
        for connection in connections:
            connection.flush()

    # Timers of the near future: one for all.

    def watch(self, connection: WebSocketConnection) -> None:
        """Let the connection look for what is due, once, in a moment."""
        self._watched.append(connection)
        if self._look_handle is None:
            self._look_handle = self._loop.call_later(_LOOK_S, self._look_later)

    def look_soon(self) -> None:
        """Let all that are watched look in the next turn of the loop."""
        if not self._is_look_soon:
            self._is_look_soon = True
            self._loop.call_soon(self._look)

    def _look_later(self) -> None:
        self._look_handle = None
        self._look()

    def _look(self) -> None:
        self._is_look_soon = False
        connections, self._watched = self._watched, []
        now = self._loop.time()
        self.begin_batch()
        try:
            for connection in connections:
                connection.look(now)
        finally:
            self.end_batch()

    def measurements(self) -> dict[str, int]:
        """Counters and present values of connections by name."""
        return dataclasses.asdict(self.counters) | {
            "connections_open": self.connection_count,
            "websockets_open": len(self.websockets),
            "websockets_unauthenticated": self.unauthenticated_count,
        }
