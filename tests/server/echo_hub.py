"""A hub that echoes, and remembers what the shell told it."""

from __future__ import annotations

import hmac
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from streamctx.engine.base import Damaged, Done, StoreError, Summary
from streamctx.hub.history import SessionPast
from streamctx.hub.ports import ConnectionHandler, ConnectionInfo, Peer, Principal

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["TOKEN", "BareHub", "EchoHandler", "EchoHub"]

TOKEN = "an-echo-token-of-enough-characters"


@dataclass
class EchoHandler:
    """Echoes each message at the end of the read; some text messages are commands."""

    hub: EchoHub
    peer: Peer
    info: ConnectionInfo
    is_established: bool = False
    calls: list[str] = field(default_factory=list)
    received: list[bytes | str] = field(default_factory=list)
    reply: list[bytes | str] = field(default_factory=list)

    def receive(self, message: bytes | str, now: float) -> None:
        self.is_established = True
        self.received.append(message)
        if message == "fail":
            raise RuntimeError("told to fail")
        if message == "close":
            self.peer.close(4101, "told to close " * 20)
        elif message == "abort":
            self.peer.abort()
        elif message == "timer":
            self.peer.set_timer(now + 60)
            self.peer.set_timer(now + 0.02)
        elif message == "flood":
            # A sender that keeps to the rules.
            while self.peer.is_writable:
                self.peer.send([bytes(16 * 1024)])
        elif message == "overrun":
            # One that does not.
            for _ in range(4096):
                self.peer.send([bytes(16 * 1024)])
        elif message == "large":
            self.peer.send([bytes(200 * 1024), "after"])
        else:
            self.reply.append(message)

    def read_done(self, now: float) -> None:
        self.calls.append("read_done")
        if self.reply:
            self.peer.send(self.reply)
            self.reply = []

    def writable(self, now: float) -> None:
        self.calls.append("writable")
        if self.received and self.received[-1] == "flood":
            while self.peer.is_writable:
                self.peer.send([bytes(16 * 1024)])

    def handle_timeout(self, now: float) -> None:
        self.calls.append("handle_timeout")
        self.peer.send(["timeout"])

    def closed(self, now: float, code: int | None) -> None:
        self.calls.append("closed")
        # None of these may do anything or raise.
        self.peer.send([b"late"])
        self.peer.close(1000, "")
        self.peer.abort()
        self.peer.set_timer(now)
        assert not self.peer.is_writable

    def drain(self, now: float) -> None:
        self.calls.append("drain")
        self.peer.send(["goaway"])


class BareHub:
    """A hub that has no session; what a test is about is added to it."""

    on_failure: Callable[[StoreError], None] | None = None

    def sweep(self, now: float) -> None:
        pass

    def prune(self, before: float) -> int:
        return 0

    def sessions(self, principal: Principal, *, stored: bool = False) -> list[dict[str, object]]:
        return []

    def recall(
        self,
        principal: Principal,
        session_id: str,
        now: float,
        done: Callable[[Damaged | StoreError | None], None],
    ) -> None:
        done(None)

    def past(
        self, principal: Principal, session_id: str, done: Callable[[SessionPast | StoreError | None], None]
    ) -> None:
        done(None)

    def stored(self, principal: Principal) -> list[Summary]:
        return []

    def is_in_use(self, session_id: str) -> bool:
        return False

    def forget(self, session_id: str, done: Done) -> None:
        done(None)

    def session(self, principal: Principal, session_id: str) -> dict[str, object] | None:
        return None

    def document(self, principal: Principal, session_id: str, document: str) -> dict[str, object] | None:
        return None

    def counters(self) -> dict[str, int]:
        return {}


@dataclass
class EchoHub(BareHub):
    """Knows one token, one session and one document."""

    handlers: list[EchoHandler] = field(default_factory=list)
    sweep_count: int = 0
    is_connect_failing: bool = False

    def connect(self, peer: Peer, info: ConnectionInfo, now: float) -> ConnectionHandler:
        if self.is_connect_failing:
            raise RuntimeError("told to fail")
        handler = EchoHandler(self, peer, info)
        self.handlers.append(handler)
        return handler

    def authenticate(self, token: str) -> Principal | None:
        if hmac.compare_digest(token.encode(), TOKEN.encode()):
            return Principal("me", frozenset({"produce", "observe"}))
        return None

    @override
    def sweep(self, now: float) -> None:
        self.sweep_count += 1

    @override
    def sessions(self, principal: Principal, *, stored: bool = False) -> list[dict[str, object]]:
        return [{"id": "s1", "owner": principal.name}]

    @override
    def session(self, principal: Principal, session_id: str) -> dict[str, object] | None:
        return {"id": "s1"} if session_id == "s1" else None

    @override
    def document(self, principal: Principal, session_id: str, document: str) -> dict[str, object] | None:
        return {"path": document, "text": "x"} if (session_id, document) == ("s1", "src/a.py") else None

    @override
    def counters(self) -> dict[str, int]:
        return {"sessions_open": 1}
