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
from streamctx.engine.base import Engine, StoreError
from streamctx.engine.memory import MemoryEngine
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.hub.connection import Connection
from streamctx.hub.ports import ConnectionInfo, Peer, Principal
from streamctx.hub.redaction import Redaction
from streamctx.hub.registry import Held, Registry
from streamctx.hub.views import document_view, session_view
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.wire.capabilities import negotiate, negotiated_limits
from streamctx.wire.messages import Hello, ServerInfo, Welcome

__all__ = ["Hub", "HubCounts"]

logger = logging.getLogger("streamctx.server")

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
        """Start without sessions.

        Args:
            tokens: Who each token speaks for; only hashes are kept.
            version: Of the server, for people.
            new_id: Makes ids, epochs and secrets: at least 256 bits that nobody can guess.
            jitter: Returns a number in [0, 1).
        """
        self.limits = limits
        self.counts = HubCounts()
        self._principals = {_hash(token): principal for token, principal in tokens.items()}
        self._version = version
        self._engine: Engine = MemoryEngine() if engine is None else engine
        self._new_id = new_id
        self._jitter = jitter
        self._registry = Registry()
        self._budget = TextBudget(limits.documents_bytes_max)
        self._now = 0.0

    # What the shell calls: HubPort.

    def connect(self, peer: Peer, info: ConnectionInfo, now: float) -> Connection:
        """Take over an upgraded WebSocket."""
        self._now = now
        self.counts.accepted += 1
        return Connection(self, peer, info, now)

    def authenticate(self, token: str) -> Principal | None:
        """Whom a token speaks for. The hash is what is looked up, so time tells nothing of the token."""
        return self._principals.get(_hash(token))

    def sweep(self, now: float) -> None:
        """End the sessions that were detached for too long (SES-1)."""
        self._now = now
        for held in self._registry:
            session = held.session
            if (
                session.state is ServerState.DETACHED
                and now - session.detached_at >= self.limits.detached_session_s
            ):
                self._end(held, "expired", now)

    def sessions(self, principal: Principal) -> list[dict[str, object]]:
        """The principal's sessions, ready for JSON."""
        return [
            session_view(held.session, self._now)
            for held in self._registry
            if held.session.principal == principal.name
        ]

    def session(self, principal: Principal, session_id: str) -> dict[str, object] | None:
        """One session, ready for JSON."""
        session = self._find(principal, session_id)
        return None if session is None else session_view(session, self._now)

    def document(self, principal: Principal, session_id: str, document: str) -> dict[str, object] | None:
        """One document by alias or URI, with its text, ready for JSON."""
        session = self._find(principal, session_id)
        return None if session is None else document_view(session, document)

    def counters(self) -> dict[str, int]:
        """Counts of the hub and, summed over present sessions, of their frames and events.

        `events_waiting` is how many wait now; every other name with `events_` counts since the session began.
        """
        counters = dict(asdict(self.counts))
        counters["sessions"] = len(self._registry)
        counters["document_bytes"] = self._budget.used_bytes
        for held in self._registry:
            delivery = held.session.delivery
            for name, value in asdict(delivery.counters).items():
                counters[f"frames_{name}"] = counters.get(f"frames_{name}", 0) + value
            for name, value in held.session.context.counts().items():
                counters[f"events_{name}"] = counters.get(f"events_{name}", 0) + value
        return counters

    def _find(self, principal: Principal, session_id: str) -> ServerSession | None:
        held = self._registry.get(session_id)
        if held is None or held.session.principal != principal.name:
            return None
        return held.session

    # What connections call.

    def greet(self, connection: Connection, hello: Hello, now: float) -> None:
        """Answer a HELLO with WELCOME.

        Raises:
            RemoteProtocolError: The connection must end.
        """
        self._now = now
        principal = self._admit(connection, hello)
        held = self._resumable(connection, hello, principal)
        if held is None:
            self._open(connection, hello, principal, now)
        else:
            self._resume(connection, hello, held, now)

    def save(self, held: Held) -> None:
        """Hand the events that were applied to the engine."""
        session = held.session
        batch = session.take_journal()
        if batch is None:
            return
        is_appending = True

        def done(error: StoreError | None) -> None:
            assert error is None
            session.journal_done()
            if not is_appending and held.owner is not None:
                held.owner.wake(self._now)

        self._engine.append(session.session_id, session.epoch, batch, done)
        is_appending = False

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
        session.detach(now)
        if ended or not session.is_confirmed:
            self._end(held, "closed", now)
        else:
            self.show(session, now)

    def _flush(self, session: ServerSession, now: float) -> None:
        held = self._registry.get(session.session_id)
        if held is not None and held.owner is not None:
            held.owner.flush(now)

    # Handshakes.

    def _admit(self, connection: Connection, hello: Hello) -> Principal:
        principal = connection.info.principal
        if principal is None and hello.auth is not None:
            principal = self.authenticate(hello.auth)
        if principal is None:
            raise RemoteProtocolError(
                ErrorCode.UNAUTHORIZED,
                CloseCode.UNAUTHORIZED,
                "a token is needed, as Authorization: Bearer or in HELLO.auth",
            )
        needed = {"produce", "observe"} if hello.role == "both" else {hello.role}
        if not needed <= principal.scopes:
            raise RemoteProtocolError(
                ErrorCode.FORBIDDEN, CloseCode.ROLE, f"the token does not allow the role {hello.role}"
            )
        return principal

    def _resumable(self, connection: Connection, hello: Hello, principal: Principal) -> Held | None:
        """The session that a HELLO may resume; `None` for a new one, whatever the reason (SEC-4).

        Raises:
            RemoteProtocolError: `superseded`, if a higher attempt has the session.
        """
        resume = hello.resume
        if resume is None:
            return None
        held = self._registry.get(resume.session)
        if held is None or held.session.principal != principal.name:
            return None
        session = held.session
        if not held.accepts(resume.secret) and not (
            held.knew(resume.secret) and hello.attempt <= session.attempt
        ):
            return None
        if hello.attempt <= session.attempt:
            raise RemoteProtocolError(
                ErrorCode.SUPERSEDED,
                CloseCode.SUPERSEDED,
                f"attempt {hello.attempt}, but attempt {session.attempt} has the session",
            )
        if resume.epoch != session.epoch or connection.info.encoding is not session.encoding:
            return None
        if hello.role != session.role or not session.can_resume(resume):
            return None
        return held

    def _open(self, connection: Connection, hello: Hello, principal: Principal, now: float) -> None:
        capabilities = negotiate(hello)
        if len(self._registry) >= self.limits.sessions_max:
            raise RemoteProtocolError(
                ErrorCode.LIMIT, CloseCode.LIMIT, f"{self.limits.sessions_max} sessions, which is the limit"
            )
        folders = () if hello.workspace is None else hello.workspace.folders
        session = ServerSession(
            session_id=self._new_id(),
            epoch=self._new_id(),
            principal=principal.name,
            hello=hello,
            encoding=connection.info.encoding,
            capabilities=capabilities,
            limits=self.limits,
            jitter=self._jitter,
            is_excluded=Redaction(folders).is_excluded,
            budget=self._budget,
            directory=self._registry,
            journals=self._engine.durability != "none",
            now=now,
        )
        held = self._registry.add(session)
        session.attach(now)
        self.counts.sessions_opened += 1
        logger.info("session %s opened by %r", session.session_id, hello.client.name)
        verdict: Verdict = "new" if hello.resume is None else "rejected"
        connection.establish(held, self._welcome(held, verdict))
        connection.flush(now)
        if session.produces:
            self._announce(session, now)

    def _resume(self, connection: Connection, hello: Hello, held: Held, now: float) -> None:
        session = held.session
        loser = held.owner
        held.owner = None
        if loser is not None:
            self.counts.takeovers += 1
            loser.fail(
                RemoteProtocolError(
                    ErrorCode.SUPERSEDED,
                    CloseCode.SUPERSEDED,
                    f"attempt {hello.attempt} has taken the session over",
                ),
                now,
            )
        session.attempt = hello.attempt
        session.workspace = hello.workspace or session.workspace
        session.attach(now)
        assert hello.resume is not None
        resumption = session.resume(hello.resume, now)
        self.counts.sessions_resumed += 1
        logger.info("session %s %s at lease %d", session.session_id, resumption.verdict, session.lease)
        connection.establish(
            held,
            self._welcome(
                held,
                resumption.verdict,
                lost=resumption.lost,
                documents=resumption.documents,
            ),
        )
        connection.flush(now)
        self.show(session, now)

    def _welcome(self, held: Held, verdict: Verdict, **details: object) -> Welcome:
        session = held.session
        secret = self._new_id()
        held.issue(secret)
        reasons = {
            "rejected": "there is no such session, or it cannot be resumed like that",
            "resynced": "events were given up by the client",
        }
        return Welcome(
            attempt=session.attempt,
            session=session.session_id,
            secret=secret,
            epoch=session.epoch,
            lease=session.lease,
            verdict=verdict,
            reason=reasons.get(verdict),
            expects=session.delivery.expected,
            ranges=session.delivery.received_ranges(),
            next=session.delivery.next_sequence,
            digest=session.capabilities.digest,
            unit=session.capabilities.unit,
            hash=session.capabilities.hash,
            durability=self._engine.durability,
            limits=negotiated_limits(self.limits),
            server=ServerInfo(name="streamctx", version=self._version),
            **details,  # type: ignore[arg-type]
        )

    def _announce(self, session: ServerSession, now: float) -> None:
        """Tell a new session to those that observe every session."""
        for held in self._registry:
            observer = held.session
            if observer is not session and observer.principal == session.principal:
                observer.source_appeared(session)
                self._flush(observer, now)

    def _end(self, held: Held, reason: Literal["closed", "expired"], now: float) -> None:
        session = held.session
        observers = list(session.observers)
        session.end(reason)
        self._registry.remove(session.session_id)
        self.counts.sessions_ended += 1
        logger.info("session %s %s: %s", session.session_id, reason, asdict(session.delivery.counters))
        for observer in observers:
            self._flush(observer, now)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
