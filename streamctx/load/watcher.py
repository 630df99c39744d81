"""The observer of a replay: follows the producer, and times when its copy has each version."""

from __future__ import annotations

from collections import deque

import anyio

from streamctx.client.client import Client
from streamctx.client.observation import Observation
from streamctx.core.documents.document import Document
from streamctx.core.session.observed import ObservedSession
from streamctx.errors import ErrorCode, EventRefused
from streamctx.load.report import Latencies

__all__ = ["Watcher"]

_RETRY_S = 0.05


class Watcher:
    """Keeps one observation of the producer's present session.

    The producer's session gets another id only if the server has lost it, such as
    one that was cut off before it was confirmed; it is then observed anew.
    """

    def __init__(self, client: Client, producer: Client) -> None:
        self.latencies = Latencies()
        self._client = client
        self._producer = producer
        self._observation: Observation | None = None
        self._observed_id: str | None = None
        self._waiting: dict[int, deque[tuple[int, float]]] = {}

    @property
    def observed(self) -> ObservedSession | None:
        """The copy of the producer's session; `None` while there is none."""
        session_id = self._producer.session_id
        if self._observation is None or session_id is None:
            return None
        return self._observation.sessions.get(session_id)

    def edited(self, alias: int, version: int, made_at: float) -> None:
        """An edit was made, which leads to a version."""
        self._waiting.setdefault(alias, deque()).append((version, made_at))

    def document(self, alias: int) -> Document | None:
        """The copy of a document, if it is whole."""
        observed = self.observed
        if observed is None or not observed.is_synced:
            return None
        document = observed.documents.get(alias)
        return None if document is None or document.buffer is None else document

    def has(self, alias: int, version: int) -> bool:
        """Whether the copy of a document has exactly this version, and is trusted."""
        document = self.document(alias)
        return (
            document is not None
            and document.version == version
            and not document.is_stale
            and not document.is_receiving
        )

    def check_session(self) -> None:
        """Turn to the producer's new session, if it has one; called now and then."""
        if self._observation is not None and self._observed_id != self._producer.session_id:
            self._observation.close()

    async def run(self) -> None:
        """Observe until cancelled.

        Raises:
            EventRefused: If the server does not show the session.
            SessionClosed: If our own session ends.
        """
        while True:
            session_id = self._producer.session_id
            assert session_id is not None
            try:
                self._observation = await self._client.observe(session_id)
            except EventRefused as refusal:
                if refusal.code is not ErrorCode.NOT_FOUND:
                    raise
                await anyio.sleep(_RETRY_S)  # The producer is about to get another one.
                continue
            self._observed_id = session_id
            async with self._observation as observation:
                async for change in observation:
                    if change.is_ended:
                        break
                    self._settle(self._client.now())
            await anyio.sleep(_RETRY_S)

    def _settle(self, now: float) -> None:
        for alias, waiting in self._waiting.items():
            document = self.document(alias)
            if document is None:
                continue
            while waiting and waiting[0][0] <= document.version:
                self.latencies.add(now - waiting.popleft()[1])
