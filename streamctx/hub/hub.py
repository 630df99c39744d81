"""The live sessions of a server: handshakes, ownership, feeds, housekeeping.

Everything that speaks for the server (WebSocket, REST, later MCP) goes through one hub.
It does no I/O but reading `.streamctxignore`; time is an argument.
"""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from streamctx.core.session.live_context import TextBudget
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.state import ServerState
from streamctx.engine.base import Damaged, Done, Engine, History, Past, StoreError, Summary
from streamctx.engine.memory import MemoryEngine
from streamctx.hub.connection import Connection
from streamctx.hub.handshakes import Handshakes
from streamctx.hub.history import SessionPast
from streamctx.hub.ports import ConnectionInfo, Peer, Principal
from streamctx.hub.registry import Held, Registry
from streamctx.hub.storage import Recalled, Storage, unavailable
from streamctx.hub.views import document_view, session_view, stored_facts, stored_view
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.wire.messages import Hello

__all__ = ["Hub", "HubCounts"]

logger = logging.getLogger("streamctx.server")

_BUDGET_FULL = 0.8
"""Of the texts that may be in memory; beyond it those that nobody works on go first."""
_FAILED_MAX = 1024
"""Sessions in which we have failed once; of more the oldest are forgotten."""

Verdict = Literal["new", "resumed", "resynced", "rejected"]


@dataclass(slots=True)
class HubCounts:
    """What happened to connections and frames that no session has counted."""

    accepted: int = 0
    failed: int = 0
    late: int = 0
    """Messages on connections that no longer own their session."""
    early: int = 0
    """Frames before HELLO."""
    corrupt_before_hello: int = 0
    sessions_opened: int = 0
    sessions_resumed: int = 0
    sessions_ended: int = 0
    takeovers: int = 0


class Hub:
    """All sessions of one server."""

    def __init__(
        self,
        *,
        tokens: Mapping[str, Principal],
        version: str,
        limits: Limits = DEFAULT_LIMITS,
        engine: Engine | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_urlsafe(32),
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Start without live sessions; those that `engine` has are recalled when they are asked for.

        Args:
            tokens: Who each token speaks for; only hashes are kept.
            version: Of the server, for people.
            new_id: Makes ids, epochs and secrets: at least 256 bits that nobody can guess.
            jitter: Returns a number in [0, 1).
        """
        self.limits = limits
        self.counts = HubCounts()
        self.new_id = new_id
        self.jitter = jitter
        self.registry = Registry(lambda session_id, principal: self.storage.has(session_id, principal))
        self.budget = TextBudget(limits.documents_bytes_max)
        self.now = 0.0
        self.storage = Storage(
            MemoryEngine() if engine is None else engine,
            self.registry,
            limits=limits,
            budget=self.budget,
            clock=lambda: self.now,
            jitter=jitter,
            on_failed=self._failed,
            on_unsaved=self._unsaved,
            on_recalled=self.announce,
            make_room=self.make_room,
        )
        self._failed_in: dict[str, None] = {}
        self._handshakes = Handshakes(self, version)
        self.on_failure: Callable[[StoreError], None] | None = None
        self._principals = {_hash(token): principal for token, principal in tokens.items()}

    # What the shell calls: HubPort.

    def connect(self, peer: Peer, info: ConnectionInfo, now: float) -> Connection:
        """Take over an upgraded WebSocket."""
        self.now = now
        self.counts.accepted += 1
        return Connection(self, peer, info, now)

    def authenticate(self, token: str) -> Principal | None:
        """Whom a token speaks for. The hash is what is looked up, so time tells nothing of the token."""
        return self._principals.get(_hash(token))

    def sweep(self, now: float) -> None:
        """End the sessions that were detached for too long (SES-1)."""
        self.now = now
        for held in self.registry:
            if _is_away(held) and now - held.session.detached_at >= self.limits.detached_session_s:
                self._expire(held, now)
        while self.budget.used_bytes > self.budget.limit_bytes * _BUDGET_FULL and self.make_room():
            pass

    def let_go(self, session_id: str) -> None:
        """Let a session leave memory that was recalled while it was about to begin anew."""
        held = self.registry.get(session_id)
        if held is not None:
            self._expire(held, self.now)

    def make_room(self) -> bool:
        """Let the stored session that was detached for longest leave memory; `False` if there is none."""
        away = [held for held in self.registry if _is_away(held) and self.storage.keeps(held.session)]
        if not away:
            return False
        self._expire(min(away, key=lambda held: held.session.detached_at), self.now)
        return True

    def prune(self, before: float) -> int:
        """Delete the stored sessions that are not live and were not changed since."""
        return self.storage.prune(before)

    def sessions(self, principal: Principal, *, stored: bool = False) -> list[dict[str, object]]:
        """The principal's sessions, ready for JSON."""
        views = {
            held.session.session_id: session_view(held.session, self.now)
            for held in self.registry
            if held.session.principal == principal.name
        }
        for summary in self.storage.summaries(principal.name) if stored else ():
            view = views.setdefault(summary.session_id, stored_view(summary))
            view.update(stored_facts(summary))
        return list(views.values())

    def recall(
        self,
        principal: Principal,
        session_id: str,
        now: float,
        done: Callable[[Damaged | StoreError | None], None],
    ) -> None:
        """Let a stored session be live, so that it can be looked at."""
        self.now = now
        self.storage.recall(
            session_id,
            principal.name,
            now,
            lambda recalled: done(None if isinstance(recalled, Held) else recalled),
        )

    def past(
        self,
        principal: Principal,
        session_id: str,
        done: Callable[[SessionPast | StoreError | None], None],
    ) -> None:
        """Read the past of a live session."""
        held = self._held(principal, session_id)
        if held is None or not self.storage.keeps(held.session):
            done(None)
            return

        def read(past: Past) -> None:
            if not isinstance(past, History):
                done(past)
                return
            # As `.streamctxignore` is now: what was not excluded then can be by now.
            done(SessionPast(past, is_excluded=held.redaction().is_excluded, limits=held.session.limits))

        self.storage.tail(session_id, read)

    def stored(self, principal: Principal) -> list[Summary]:
        """What is stored of the principal's sessions."""
        return self.storage.summaries(principal.name)

    def is_in_use(self, session_id: str) -> bool:
        """Whether a connection has a session, or is about to have it."""
        held = self.registry.get(session_id)
        if held is None:
            return self.storage.is_recalling(session_id)
        return held.claimant is not None or held.session.state is not ServerState.DETACHED

    def forget(self, session_id: str, done: Done) -> None:
        """Delete a stored session that nobody has."""
        assert not self.is_in_use(session_id)
        held = self.registry.get(session_id)
        if held is not None:
            self._remove(held, "closed", self.now)
        self.storage.delete(session_id, done)

    def session(self, principal: Principal, session_id: str) -> dict[str, object] | None:
        """One session, ready for JSON."""
        session = self._find(principal, session_id)
        return None if session is None else session_view(session, self.now)

    def document(self, principal: Principal, session_id: str, document: str) -> dict[str, object] | None:
        """One document by alias or URI, with its text, ready for JSON."""
        session = self._find(principal, session_id)
        return None if session is None else document_view(session, document)

    def counters(self) -> dict[str, int]:
        """Counts of the hub and, summed over present sessions, of their frames and events.

        `events_waiting` is how many wait now; every other name with `events_` counts since the session began.
        """
        counters = dict(asdict(self.counts))
        counters["sessions"] = len(self.registry)
        counters["document_bytes"] = self.budget.used_bytes
        for held in self.registry:
            delivery = held.session.delivery
            for name, value in asdict(delivery.counters).items():
                counters[f"frames_{name}"] = counters.get(f"frames_{name}", 0) + value
            for name, value in held.session.context.counts().items():
                counters[f"events_{name}"] = counters.get(f"events_{name}", 0) + value
        return counters

    def _held(self, principal: Principal, session_id: str) -> Held | None:
        held = self.registry.get(session_id)
        return held if held is not None and held.session.principal == principal.name else None

    def _find(self, principal: Principal, session_id: str) -> ServerSession | None:
        held = self._held(principal, session_id)
        return None if held is None else held.session

    # What connections call.

    def greet(self, connection: Connection, hello: Hello, now: float) -> None:
        """Answer a HELLO with WELCOME.

        Raises:
            RemoteProtocolError: The connection must end.
        """
        self.now = now
        self._handshakes.greet(connection, hello, now)

    def save(self, held: Held) -> None:
        """Store what was applied; the connection is woken if that takes its time."""

        def saved() -> None:
            if held.owner is not None:
                held.owner.wake(self.now)

        self.storage.save(held, saved)

    def show(self, source: ServerSession, now: float) -> None:
        """Let the observers of a session have what is new, each as its connection takes it."""
        if not source.observers:
            return
        for observer in list(source.observers):
            self._flush(observer, now)

    def detached(self, held: Held, now: float, *, ended: bool = False, by: Connection | None = None) -> None:
        """A connection has let go of its session; nothing happens if another one owns it."""
        if by is not None and held.owner is not by:
            return
        held.owner = None
        session = held.session
        if session.state is ServerState.ENDED:
            return
        self.save(held)
        if self.registry.get(session.session_id) is not held:
            return  # It could not be stored, and has left memory.
        session.detach(now)
        if ended or not session.is_confirmed:
            self._end(held, now)
        else:
            self.show(session, now)

    def failed(self, held: Held, now: float, *, by: Connection) -> None:
        """We have failed in a session: what is in memory may lack an event, what is stored does not (RSM-5).

        One in which we fail twice ends for good, lest it fail for ever.
        """
        if held.owner is not by:
            return
        held.owner = None
        session = held.session
        session.detach(now)
        if not self.storage.keeps(session) or session.session_id in self._failed_in:
            self._failed_in.pop(session.session_id, None)
            self._end(held, now)
            return
        while len(self._failed_in) >= _FAILED_MAX:
            del self._failed_in[next(iter(self._failed_in))]
        self._failed_in[session.session_id] = None
        self._expire(held, now)

    def _flush(self, session: ServerSession, now: float) -> None:
        held = self.registry.get(session.session_id)
        if held is not None and held.owner is not None:
            held.owner.flush(now)

    def recall_for(self, observer: ServerSession, session_id: str) -> None:
        """Make a stored session live for an observer, which is told if that cannot be."""

        def recalled(result: Recalled) -> None:
            if not isinstance(result, Held):
                observer.source_missing(session_id, is_temporary=isinstance(result, StoreError))
                self._flush(observer, self.now)

        self.storage.recall(session_id, observer.principal, self.now, recalled)

    def announce(self, session: ServerSession, now: float) -> None:
        """Tell a session that has come to those that observe it, or every one."""
        for held in self.registry:
            observer = held.session
            if (
                observer is not session
                and observer.principal == session.principal
                and observer.source_appeared(session)
            ):
                self._flush(observer, now)

    # How sessions end.

    def _end(self, held: Held, now: float) -> None:
        """The session is over, and nothing of it is kept."""
        self.storage.forget(held.session)
        self._remove(held, "closed", now)

    def _expire(self, held: Held, now: float) -> None:
        """The session has been detached for too long; what is stored of it can still be recalled."""
        self._remove(held, "expired", now)

    def _remove(self, held: Held, reason: Literal["closed", "expired"], now: float) -> None:
        session = held.session
        observers = list(session.observers)
        session.end(reason)
        self.registry.remove(held)
        self.counts.sessions_ended += 1
        logger.info("session %s %s: %s", session.session_id, reason, asdict(session.delivery.counters))
        for observer in observers:
            self._flush(observer, now)

    def _failed(self, error: StoreError) -> None:
        """The store has failed for good: the process has to end, and says why."""
        logger.info("the store has failed: %s", error)
        if self.on_failure is not None:
            self.on_failure(error)

    def _unsaved(self, held: Held, error: StoreError) -> None:
        """What a session has applied is not stored: only what is, is true, as after a restart."""
        if self.registry.get(held.session.session_id) is not held:
            return
        logger.info("session %s goes back to what is stored of it", held.session.session_id)
        owner, held.owner = held.owner, None
        if owner is not None:
            owner.fail(unavailable(error), self.now)
        if held.session.state is ServerState.ATTACHED:
            held.session.detach(self.now)
        self._expire(held, self.now)


def _is_away(held: Held) -> bool:
    return held.session.state is ServerState.DETACHED and held.claimant is None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
