"""What the hub stores of its sessions, and how what was stored comes back.

Between the hub, which decides, and an engine, which keeps. Every completion comes on the event loop's
thread; what it leads to is the hub's business.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from typing import TypeAlias

from streamctx.core.session.live_context import TextBudget
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import SessionRecord, StoredSession
from streamctx.engine.base import Damaged, Done, Durability, Engine, Loaded, Past, StoreError, Summary
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.hub.redaction import Redaction
from streamctx.hub.registry import Held, Registry, folders_of
from streamctx.limits import Limits

__all__ = ["Recalled", "Storage", "unavailable"]

logger = logging.getLogger("streamctx.server")

_TOLD_EVERY_S = 60.0
"""A store that is full stays that for a while, and every session and every attempt to come back finds out."""

Recalled: TypeAlias = Held | Damaged | StoreError | None
"""A session that is live now; or why it is not: damaged, not at present, or not there at all."""


def unavailable(error: StoreError) -> RemoteProtocolError:
    """What to tell a client for which nothing can be stored now; details are for the operator."""
    return RemoteProtocolError(
        ErrorCode.UNAVAILABLE,
        CloseCode.UNAVAILABLE,
        f"the server cannot store anything now; try again in {error.retry_after_s:g} s",
        retry_after_s=error.retry_after_s,
    )


class Storage:
    """Saves and recalls sessions. Nothing is stored of sessions that only observe."""

    def __init__(
        self,
        engine: Engine,
        registry: Registry,
        *,
        limits: Limits,
        budget: TextBudget,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        on_failed: Callable[[StoreError], None],
        on_unsaved: Callable[[Held, StoreError], None],
        on_recalled: Callable[[ServerSession, float], None],
        make_room: Callable[[], bool],
    ) -> None:
        """Store in `engine` what is in `registry`.

        Args:
            clock: Monotonic seconds.
            on_failed: Told that the store has failed for good, perhaps more than once.
            on_unsaved: Told of a session whose events could not be stored: it is ahead of the store.
            on_recalled: Told of a session that is live again, and the time.
            make_room: Lets one live session go, if that can be.
        """
        self._engine = engine
        self._registry = registry
        self._limits = limits
        self._budget = budget
        self._clock = clock
        self._jitter = jitter
        self._on_failed = on_failed
        self._on_unsaved = on_unsaved
        self._on_recalled = on_recalled
        self._make_room = make_room
        self._recalls: dict[str, list[Callable[[Recalled], None]]] = {}
        self._told_at = -math.inf
        self._is_refusing = False

    @property
    def is_on(self) -> bool:
        """Whether anything is stored at all."""
        return self._engine.durability != "none"

    @property
    def durability(self) -> Durability:
        """What `durable` means for a session that is stored."""
        return self._engine.durability

    def keeps_role(self, role: str) -> bool:
        """Whether sessions of that role are stored."""
        return self.is_on and role != "observe"

    def keeps(self, session: ServerSession) -> bool:
        """Whether a session is stored."""
        return self.keeps_role(session.role)

    def fence(self, held: Held, secret: str, done: Done) -> None:
        """Store who may resume a session, before its next attachment, which will be told a secret."""
        if self.keeps(held.session):
            record = held.record(held.secrets.with_issued(secret), lease=held.session.lease + 1)
            self._store_record(held, record, done)
        else:
            done(None)

    def note_confirmed(self, held: Held) -> None:
        """Store that a secret has ended; nothing waits for it."""
        if self.keeps(held.session):
            record = held.record(held.secrets, lease=held.session.lease)
            self._store_record(held, record, lambda error: None)

    def _store_record(self, held: Held, record: SessionRecord, done: Done) -> None:
        def stored(error: StoreError | None) -> None:
            self._note(error)
            if error is not None and not error.is_fatal:
                # Nothing more of it can be stored until it is loaded again.
                self._on_unsaved(held, error)
            done(error)

        self._engine.fence(record, stored)

    def save(self, held: Held, saved: Callable[[], None]) -> None:
        """Store what was applied since the last call.

        Args:
            saved: Called when it is safe, if that is not before this call returns.
        """
        session = held.session
        batch = session.take_journal()
        if batch is None:
            return
        is_appending = True

        def done(error: StoreError | None) -> None:
            if error is not None:
                self._note(error)
                if not error.is_fatal:
                    self._on_unsaved(held, error)
                return
            if self._is_refusing:
                self._note(None)
            session.journal_done()
            if not is_appending:
                saved()

        engine, session_id, epoch = self._engine, session.session_id, session.epoch
        engine.append(session_id, epoch, batch, done)
        is_appending = False
        if session.take_purge():
            self._purge(session)
        elif engine.is_snapshot_due(session_id):
            engine.snapshot(session_id, epoch, session.stored_state(), self._snapshot_done)

    def _purge(self, session: ServerSession) -> None:
        """Keep nothing that is older than the present state: something of it is excluded by now (SEC-3)."""

        def purged(error: StoreError | None) -> None:
            if error is not None:
                session.purge_failed()
            self._snapshot_done(error)

        state = session.stored_state()
        self._engine.snapshot(session.session_id, session.epoch, state, purged, purge=True)

    def forget(self, session: ServerSession) -> None:
        """Delete what is stored of a session that has ended."""
        if self.keeps(session):
            self._engine.forget(session.session_id, self._snapshot_done)

    def prune(self, before: float) -> int:
        """Delete what was not changed since `before`, in seconds since 1970, and is not live."""
        if not self.is_on:
            return 0
        stale = [
            summary.session_id
            for summary in self._engine.summaries()
            if summary.changed < before
            and self._registry.get(summary.session_id) is None
            and summary.session_id not in self._recalls
        ]
        for session_id in stale:
            self._engine.forget(session_id, self._snapshot_done)
        return len(stale)

    def has(self, session_id: str, principal: str) -> bool:
        """Whether a session of that principal is stored."""
        summary = self._engine.summary(session_id) if self.is_on else None
        return summary is not None and summary.principal == principal

    def summaries(self, principal: str) -> list[Summary]:
        """What is stored of a principal's sessions."""
        if not self.is_on:
            return []
        return [summary for summary in self._engine.summaries() if summary.principal == principal]

    def is_recalling(self, session_id: str) -> bool:
        """Whether somebody waits for a session to be live."""
        return session_id in self._recalls

    def delete(self, session_id: str, done: Done) -> None:
        """Delete what is stored of a session that is not live."""

        def deleted(error: StoreError | None) -> None:
            self._note_if_fatal(error)
            done(error)

        self._engine.forget(session_id, deleted)

    def tail(self, session_id: str, done: Callable[[Past], None]) -> None:
        """Read all that is kept of the past of a session."""

        def read(past: Past) -> None:
            self._note_if_fatal(past)
            done(past)

        self._engine.tail(session_id, 0.0, read)

    def recall(self, session_id: str, principal: str, now: float, done: Callable[[Recalled], None]) -> None:
        """Make a stored session live again, detached; one that is live is given as it is.

        Args:
            principal: Whose it has to be; of another's nothing is given, or even read.
        """
        held = self._registry.get(session_id)
        if held is not None:
            done(held if held.session.principal == principal else None)
        elif not self.has(session_id, principal):
            done(None)
        else:
            waiting = self._recalls.setdefault(session_id, [])
            waiting.append(done)
            if len(waiting) == 1:
                self._engine.load(session_id, lambda loaded: self._loaded(session_id, loaded, now))

    def _loaded(self, session_id: str, loaded: Loaded, now: float) -> None:
        if isinstance(loaded, StoreError):
            self._note(loaded)
        recalled: Recalled = self._registry.get(session_id)
        if recalled is None:
            recalled = self._restored(loaded, now) if isinstance(loaded, StoredSession) else loaded
        for done in self._recalls.pop(session_id):
            done(recalled)

    def _restored(self, stored: StoredSession, now: float) -> Recalled:
        record = stored.record
        if len(self._registry) >= self._limits.sessions_max and not self._make_room():
            return StoreError(
                f"{self._limits.sessions_max} sessions are live, which is the limit", is_fatal=False
            )
        try:
            session = ServerSession.restore(
                stored,
                limits=self._limits,
                jitter=self._jitter,
                is_excluded=Redaction(folders_of(record.workspace)).is_excluded,
                budget=self._budget,
                directory=self._registry,
                now=now,
            )
        except ValueError as error:
            logger.exception("session %s cannot be restored", record.session_id)
            return Damaged(f"what is stored makes no session: {error}", record)
        while self._budget.used_bytes > self._budget.limit_bytes and self._make_room():
            pass
        if self._budget.used_bytes > self._budget.limit_bytes:
            session.end("expired")
            return StoreError("there is no room for the texts of one more session", is_fatal=False)
        if session.take_purge():
            self._purge(session)
        held = Held(session, record)
        self._registry.add(held)
        logger.info("session %s recalled", record.session_id)
        self._on_recalled(session, now)
        return held

    def _note_if_fatal(self, result: Past) -> None:
        """What one session alone cannot have done says nothing of the store; its end does."""
        if isinstance(result, StoreError) and result.is_fatal:
            self._note(result)

    def _note(self, error: StoreError | None) -> None:
        """Let the log tell that the store takes nothing, now and then, and that it takes something again.

        A failure for good is told to the hub.
        """
        if error is not None and error.is_fatal:
            self._on_failed(error)
        elif error is None:
            if self._is_refusing:
                self._is_refusing = False
                logger.warning("the store takes sessions again")
        elif self._clock() >= self._told_at + _TOLD_EVERY_S:
            self._told_at = self._clock()
            self._is_refusing = True
            logger.error("sessions cannot be stored, and their clients have to wait: %s", error)

    def _snapshot_done(self, error: StoreError | None) -> None:
        # Nothing depends on it: the journal is there still.
        if error is not None and error.is_fatal:
            self._on_failed(error)
        elif error is not None:
            logger.warning("the store could not be tidied: %s", error)
