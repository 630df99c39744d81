"""HELLO and WELCOME: who comes, which session that is, and from when on it is theirs (SPEC 5 and 9).

A session changes hands in one step. What has to be stored before that, so that a server which dies at any
moment finds out whose it was, is under way meanwhile, and the connection waits.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Literal

from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.state import ServerState
from streamctx.core.session.stored import SessionRecord
from streamctx.engine.base import Damaged, StoreError
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.hub.ports import Principal
from streamctx.hub.redaction import Redaction
from streamctx.hub.registry import Held, Secrets, folders_of
from streamctx.hub.storage import unavailable
from streamctx.wire.capabilities import negotiate, negotiated_limits
from streamctx.wire.messages import Hello, ServerInfo, Welcome

if TYPE_CHECKING:
    from streamctx.hub.connection import Connection
    from streamctx.hub.hub import Hub

__all__ = ["Handshakes"]

logger = logging.getLogger("streamctx.server")

Verdict = Literal["new", "resumed", "resynced", "rejected"]

_REASONS = {
    "rejected": "there is no such session, or it cannot be resumed like that",
    "resynced": "events were given up by the client",
}


class Handshakes:
    """Answers the HELLOs of a hub."""

    def __init__(self, hub: Hub, version: str) -> None:
        self._hub = hub
        self._version = version
        self._reopening: set[str] = set()
        """Damaged sessions that begin anew: the records of their new epochs are being stored."""

    def greet(self, connection: Connection, hello: Hello, now: float) -> None:
        """Answer a HELLO with WELCOME, now or as soon as the store allows it.

        Raises:
            RemoteProtocolError: The connection must end.
        """
        principal = self._admit(connection, hello)
        resume = hello.resume
        if resume is None:
            self._open(connection, hello, principal)
            return
        connection.wait_for(
            functools.partial(self._hub.storage.recall, resume.session, principal.name, now),
            lambda recalled, now: self._decide(connection, hello, principal, recalled, now),
            now,
        )

    def _admit(self, connection: Connection, hello: Hello) -> Principal:
        principal = connection.info.principal
        if principal is None and hello.auth is not None:
            principal = self._hub.authenticate(hello.auth)
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

    def _decide(
        self,
        connection: Connection,
        hello: Hello,
        principal: Principal,
        recalled: Held | Damaged | StoreError | None,
        now: float,
    ) -> None:
        assert hello.resume is not None
        live = self._hub.registry.get(hello.resume.session)
        if live is not None:
            recalled = live  # Another connection may have begun it anew meanwhile.
        if isinstance(recalled, StoreError):
            raise unavailable(recalled)
        if isinstance(recalled, Damaged):
            self._reopen(connection, hello, principal, recalled.record)
        elif recalled is not None and self._may_resume(connection, hello, recalled, principal):
            self._resume(connection, hello, recalled, principal)
        else:
            self._open(connection, hello, principal)

    def _may_resume(self, connection: Connection, hello: Hello, held: Held, principal: Principal) -> bool:
        """Whether a HELLO may resume a session; if not it gets a new one, whatever the reason (SEC-4).

        Raises:
            RemoteProtocolError: `superseded`, if a higher attempt has the session.
        """
        resume, session, secrets = hello.resume, held.session, held.secrets
        assert resume is not None
        if session.principal != principal.name:
            return False
        if not secrets.accepts(resume.secret) and not (
            secrets.knew(resume.secret) and hello.attempt <= session.attempt
        ):
            return False
        if hello.attempt <= session.attempt:
            raise _superseded(f"attempt {hello.attempt}, but attempt {session.attempt} has the session")
        return (
            resume.epoch == session.epoch
            and connection.info.encoding is session.encoding
            and hello.role == session.role
            and session.can_resume(resume)
        )

    # A new session.

    def _reopen(
        self, connection: Connection, hello: Hello, principal: Principal, record: SessionRecord | None
    ) -> None:
        """Begin a new epoch of a session that is damaged, if its owner asks and nobody else is about to.

        Raises:
            RemoteProtocolError: `superseded`, if a higher attempt had the session.
        """
        if record is None or not _is_owner(record, hello, principal):
            self._open(connection, hello, principal)
        elif hello.attempt <= record.attempt:
            raise _superseded(f"attempt {hello.attempt}, but attempt {record.attempt} had the session")
        elif record.session_id in self._reopening:
            self._open(connection, hello, principal)
        else:
            self._open(connection, hello, principal, damaged=record)

    def _open(
        self,
        connection: Connection,
        hello: Hello,
        principal: Principal,
        *,
        damaged: SessionRecord | None = None,
    ) -> None:
        """Begin a session; in place of one that is damaged, a new epoch of it."""
        hub = self._hub
        if len(hub.registry) >= hub.limits.sessions_max and not hub.make_room():
            raise RemoteProtocolError(
                ErrorCode.LIMIT, CloseCode.LIMIT, f"{hub.limits.sessions_max} sessions, which is the limit"
            )
        verdict: Verdict = "new" if hello.resume is None else "rejected"
        reason = _REASONS.get(verdict)
        session_id, lease = hub.new_id(), 0
        if damaged is not None:
            verdict, reason = "resynced", "the server has lost what it had stored of this session"
            session_id, lease = damaged.session_id, damaged.lease
            self._reopening.add(session_id)
        capabilities = negotiate(hello)
        is_stored = hub.storage.keeps_role(hello.role)
        record = SessionRecord(
            session_id=session_id,
            epoch=hub.new_id(),
            principal=principal.name,
            role=hello.role,
            client=hello.client,
            workspace=hello.workspace,
            encoding=connection.info.encoding,
            digest=capabilities.digest,
            unit=capabilities.unit,
            hash=capabilities.hash,
            limits=negotiated_limits(hub.limits, is_stored=is_stored),
            attempt=hello.attempt,
            lease=lease,
        )
        session = ServerSession(
            record,
            limits=hub.limits,
            jitter=hub.jitter,
            is_excluded=Redaction(folders_of(hello.workspace)).is_excluded,
            budget=hub.budget,
            directory=hub.registry,
            journals=is_stored,
            now=hub.now,
        )
        held = Held(session, record)
        secret = hub.new_id()
        connection.wait_for(
            functools.partial(hub.storage.fence, held, secret),
            lambda error, now: self._opened(connection, held, secret, verdict, reason, error, now),
            hub.now,
        )

    def _opened(
        self,
        connection: Connection,
        held: Held,
        secret: str,
        verdict: Verdict,
        reason: str | None,
        error: StoreError | None,
        now: float,
    ) -> None:
        hub, session = self._hub, held.session
        self._reopening.discard(session.session_id)
        if error is not None:
            raise unavailable(error)
        if connection.is_over:
            hub.storage.forget(session)
            return
        hub.let_go(session.session_id)
        hub.registry.add(held)
        session.attach(now)
        hub.counts.sessions_opened += 1
        logger.info("session %s opened by %r", session.session_id, session.client.name)
        connection.establish(held, self._welcome(held, secret, verdict, reason=reason))
        connection.flush(now)
        if session.produces:
            hub.announce(session, now)

    # A session that goes on.

    def _resume(self, connection: Connection, hello: Hello, held: Held, principal: Principal) -> None:
        """Claim a session; from now on no lower attempt can have it."""
        session = held.session
        session.attempt = hello.attempt
        if hello.workspace is not None:
            session.workspace = hello.workspace
            held.add_folders(hello.workspace.folders)
            session.exclude(held.redaction().is_excluded)
        held.claimant = connection
        secret = self._hub.new_id()
        connection.wait_for(
            functools.partial(self._hub.storage.fence, held, secret),
            lambda error, now: self._resumed(connection, hello, held, principal, secret, error, now),
            self._hub.now,
        )

    def _resumed(
        self,
        connection: Connection,
        hello: Hello,
        held: Held,
        principal: Principal,
        secret: str,
        error: StoreError | None,
        now: float,
    ) -> None:
        hub, session, resume = self._hub, held.session, hello.resume
        assert resume is not None
        if held.claimant is not connection:
            raise _superseded(f"attempt {hello.attempt}, but attempt {session.attempt} has the session")
        held.claimant = None
        if error is not None:
            raise unavailable(error)
        if connection.is_over:
            return
        if session.state is ServerState.ENDED and hub.storage.has(session.session_id, principal.name):
            raise unavailable(StoreError("it has gone back to what is stored of it", is_fatal=False))
        if session.state is ServerState.ENDED or not session.can_resume(resume):
            # It has changed while the claim was being stored.
            self._open(connection, hello, principal)
            return
        self._fence_off(held, hello.attempt, now)
        session.attach(now)
        resumption = session.resume(resume, now)
        hub.counts.sessions_resumed += 1
        logger.info("session %s %s at lease %d", session.session_id, resumption.verdict, session.lease)
        welcome = self._welcome(
            held,
            secret,
            resumption.verdict,
            reason=_REASONS.get(resumption.verdict),
            restored=resumption.restored,
            lost=resumption.lost,
            documents=resumption.documents,
        )
        hub.save(held)
        connection.establish(held, welcome)
        connection.flush(now)
        hub.show(session, now)

    def _fence_off(self, held: Held, attempt: int, now: float) -> None:
        loser, held.owner = held.owner, None
        if loser is not None:
            self._hub.counts.takeovers += 1
            loser.fail(_superseded(f"attempt {attempt} has taken the session over"), now)

    def _welcome(self, held: Held, secret: str, verdict: Verdict, **details: object) -> Welcome:
        session, storage = held.session, self._hub.storage
        # Not before it is told: a claim that comes to nothing leaves the owner's secret valid.
        held.secrets.issue(secret)
        return Welcome(
            attempt=session.attempt,
            session=session.session_id,
            secret=secret,
            epoch=session.epoch,
            lease=session.lease,
            verdict=verdict,
            expects=session.delivery.expected,
            ranges=session.delivery.received_ranges(),
            next=session.delivery.next_sequence,
            digest=session.capabilities.digest,
            unit=session.capabilities.unit,
            hash=session.capabilities.hash,
            durability=storage.durability if storage.keeps(session) else "none",
            limits=session.limits_told,
            server=ServerInfo(name="streamctx", version=self._version),
            **details,  # type: ignore[arg-type]
        )


def _is_owner(record: SessionRecord, hello: Hello, principal: Principal) -> bool:
    if hello.resume is None or hello.role != record.role:
        return False
    return record.principal == principal.name and Secrets(record).accepts(hello.resume.secret)


def _superseded(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(ErrorCode.SUPERSEDED, CloseCode.SUPERSEDED, message)
