"""What other sessions show: their documents and presence, always whole, and the changes as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

import anyio

from streamctx.core.session.client_events import FeedChanged
from streamctx.core.session.observed import ObservedSession
from streamctx.errors import ErrorCode, EventRefused
from streamctx.limits import MIB
from streamctx.wire.messages import Edit, ErrorMessage, FeedEvent, Open, Part, Snapshot

if TYPE_CHECKING:
    from streamctx.client.client import Client

__all__ = ["Observation", "ObservationChange"]

_WAITING_CHANGES_MAX = 4096
_WAITING_BYTES_MAX = MIB
_EVENT_WEIGHT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationChange:
    """Something happened in an observed session.

    `events` are what its producer did, in order, or its whole state while `is_synced` is false. `missed`
    counts changes that were dropped before this one because nobody took them; `Observation.sessions` has
    their effect.
    """

    session_id: str
    events: tuple[FeedEvent, ...] = ()
    is_synced: bool = True
    is_ended: bool = False
    missed: int = 0


class Observation:
    """A subscription; `Client.observe` makes it.

    `sessions` is the newest state, kept up to date whether or not anyone iterates. Iterating gives each
    change once; at most 4,096 changes or 1 MiB of text wait, beyond that the oldest are dropped and counted
    in `missed`.
    """

    def __init__(self, client: Client, subscription: int) -> None:
        """Made by the client."""
        self.subscription = subscription
        self.missed = 0
        """Changes dropped because nobody took them."""
        self.is_subscribed = False
        self.refusal: EventRefused | None = None
        """Why the server does not show it."""
        self._client = client
        self._waiting: deque[tuple[ObservationChange, int]] = deque()
        self._waiting_bytes = 0
        self._missed_before_next = 0
        self._known: set[str] = set()
        self._arrived = anyio.Event()
        self._is_closed = False

    @property
    def sessions(self) -> dict[str, ObservedSession]:
        """The observed sessions by id, as they are now. `is_synced` is false while one is being filled."""
        return {
            session_id: observed
            for (subscription, session_id), observed in self._client.session.observed.items()
            if subscription == self.subscription
        }

    def text(self, session: str | ObservedSession, uri: str) -> str | None:
        """The text of a document; `None` if it is not there, or not whole yet."""
        session_id = session if isinstance(session, str) else session.session_id
        observed = self._client.session.observed.get((self.subscription, session_id))
        document = None if observed is None else observed.document(uri)
        return None if document is None or document.buffer is None else document.buffer.text()

    def close(self) -> None:
        """Stop observing; iteration ends after what has come already."""
        if not self._is_closed:
            self._is_closed = True
            self._client.forget_observation(self)
            self._arrived.set()

    async def __aenter__(self) -> Observation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[ObservationChange]:
        return self

    async def __anext__(self) -> ObservationChange:
        """Wait for the next change.

        Raises:
            EventRefused: If the server no longer shows what was asked for.
            SessionClosed: If our own session was ended by the server.
        """
        while not self._waiting:
            if self.refusal is not None:
                raise EventRefused(self.refusal.code, self.refusal.message)
            if self._is_closed:
                raise StopAsyncIteration
            if self._client.status == "closed":
                self._client.open_session()
                raise StopAsyncIteration
            self._arrived = anyio.Event()
            await self._arrived.wait()
        change, weight = self._waiting.popleft()
        self._waiting_bytes -= weight
        return change

    # What the client tells.

    def take(self, changed: FeedChanged) -> None:
        """Take a change of one of the sessions."""
        is_ended = changed.observed is None
        (self._known.discard if is_ended else self._known.add)(changed.session_id)
        events = () if changed.update is None else changed.update.events
        self._put(
            ObservationChange(
                session_id=changed.session_id, events=events, is_synced=changed.is_synced, is_ended=is_ended
            )
        )

    def renewed(self) -> None:
        """The server has begun anew: what it no longer knows has ended for us."""
        for session_id in self._known - self.sessions.keys():
            self._known.discard(session_id)
            self._put(ObservationChange(session_id=session_id, is_synced=False, is_ended=True))

    def refuse(self, error: ErrorMessage) -> None:
        """Take the server's refusal."""
        code = ErrorCode(error.code) if error.code in set(ErrorCode) else ErrorCode.INTERNAL
        self.refusal = EventRefused(code, error.message)
        self._arrived.set()

    def wake(self) -> None:
        """Let whoever waits look again."""
        self._arrived.set()

    def _put(self, change: ObservationChange) -> None:
        weight = _weight(change.events)
        while self._waiting and (
            len(self._waiting) >= _WAITING_CHANGES_MAX or self._waiting_bytes + weight > _WAITING_BYTES_MAX
        ):
            dropped, dropped_weight = self._waiting.popleft()
            self._waiting_bytes -= dropped_weight
            self._missed_before_next += 1 + dropped.missed
            self.missed += 1
        if self._missed_before_next and self._waiting:
            first, first_weight = self._waiting.popleft()
            missed = first.missed + self._missed_before_next
            self._waiting.appendleft((replace(first, missed=missed), first_weight))
            self._missed_before_next = 0
        elif self._missed_before_next:
            change = replace(change, missed=self._missed_before_next)
            self._missed_before_next = 0
        self._waiting.append((change, weight))
        self._waiting_bytes += weight
        self._arrived.set()


def _weight(events: Iterable[FeedEvent]) -> int:
    weight = _EVENT_WEIGHT
    for event in events:
        weight += _EVENT_WEIGHT
        if isinstance(event, Edit):
            weight += sum(len(change.text) for change in event.changes)
        elif isinstance(event, Open | Snapshot | Part):
            weight += len(event.text or "")
    return weight
