"""How connections begin: what a client says first, and whom the server lets have which session."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import TYPE_CHECKING

from streamctx.wire.codec import client_decoder
from streamctx.wire.digests import crc32_digest
from streamctx.wire.frames import parse_frame
from streamctx.wire.messages import Heartbeat, Hello, Welcome
from tests.sim.sender import Fail

if TYPE_CHECKING:
    from streamctx.core.session.server_session import ServerSession
    from streamctx.core.session.stored import SessionRecord
    from streamctx.hub.registry import Held
    from tests.sim.network import Link

__all__ = ["Doors", "Greetings"]

_REPEAT_S = 0.25


class Greetings:
    """How clients begin their connections."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._attempts: dict[object, int] = {}

    def before_welcome(self, link: Link, frame: bytes, now: float) -> None:
        """A client that was not welcomed sends."""
        encoding = link.actor.plan.encoding
        if link.hello is not None:
            if frame == link.hello:
                if now - link.hello_at < _REPEAT_S - 1e-9:
                    self._fail("Greeting", f"HELLO again after {now - link.hello_at:.6f} s")
                link.hello_at = now
            elif parse_frame(frame, encoding=encoding, digest=crc32_digest) is not None:
                self._fail("Greeting", f"{frame[24:200]!r} before WELCOME")
            return
        parsed = parse_frame(frame, encoding=encoding, digest=crc32_digest)
        hello = None if parsed is None else client_decoder(encoding).decode(parsed.body)
        if not isinstance(hello, Hello):
            self._fail("Greeting", f"a connection begins with {hello!r:.100}")
            return
        link.hello, link.hello_at = frame, now
        last = self._attempts.get(link.actor, 0)
        if hello.attempt <= last:
            self._fail("Greeting", f"attempt {hello.attempt} after {last}")
        self._attempts[link.actor] = hello.attempt

    def after_welcome(self, link: Link, body: bytes) -> None:
        """A client that was welcomed sends its first frame."""
        link.is_confirmed = True
        message = client_decoder(link.actor.plan.encoding).decode(body)
        if not isinstance(message, Heartbeat):
            self._fail("Greeting", f"the first frame after WELCOME is {message!r:.100}")


class Doors:
    """Who may have which session."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._attempts: dict[str, int] = {}
        self._secrets: dict[str, list[str]] = {}
        self._issued: dict[str, list[str]] = {}
        self._ending: dict[str, list[str]] = {}
        self._ended: dict[str, set[str]] = {}
        """Secrets of which the store knows that they have ended."""
        self._claimed: dict[str, tuple[int, list[str]]] = {}
        """An attempt that waits for the store, and secrets that have ended since it showed one."""

    def opened(self, session: ServerSession, name: str | None, hello: Hello, welcome: Welcome) -> None:
        """The server welcomes somebody who has shown a token for `name`."""
        key = session.session_id
        if name != session.principal:
            self._fail("Isolation", f"{name} is welcomed to {key} of {session.principal}")
        if welcome.verdict in ("resumed", "resynced"):
            last = self._attempts[key]
            if hello.attempt <= last:
                self._fail("SingleWriter", f"attempt {hello.attempt} has {key} after attempt {last}")
            known = self._secrets[key]
            secret = None if hello.resume is None else hello.resume.secret
            attempt, ended_since = self._claimed.pop(key, (0, []))
            if secret not in known and not (attempt == hello.attempt and secret in ended_since):
                self._fail(
                    "SecretHolds", f"{key} is resumed with a secret that was never its own, or replaced"
                )
            self._secrets[key] = [] if secret is None else [secret]  # The others are no longer valid.
        self._attempts[key] = hello.attempt
        self._secrets.setdefault(key, []).append(welcome.secret)
        self._issued.setdefault(key, []).append(welcome.secret)

    def restored(self, record: SessionRecord) -> None:
        """A server goes by what was stored: that an older secret had ended may not have been."""
        key = record.session_id
        valid = (record.confirmed, record.pending)
        self._secrets[key] = [secret for secret in self._issued[key] if _hash(secret) in valid]

        ended = self._ended.get(key, set()).intersection(self._secrets[key])
        if ended:
            self._fail("SecretHolds", f"{ended} of {key} had ended, and the store knows it")

    def forget_attempts(self) -> None:
        """The store may have lost who came last."""
        self._attempts = dict.fromkeys(self._attempts, 0)
        self._ended.clear()

    def server_dies(self) -> None:
        """What was to be stored is not."""
        self._ending.clear()

    def not_stored(self, session_id: str) -> None:
        """Nothing of what waits of a session will be stored."""
        self._ending.pop(session_id, None)

    def all_stored(self, failed: Container[str]) -> None:
        """Nothing waits to be stored; of the `failed` sessions nothing was."""
        for key, secrets in self._ending.items():
            if key not in failed:
                self._ended.setdefault(key, set()).update(secrets)
        self._ending.clear()

    def heard(self, held: Held) -> None:
        """The server has handled input: a client that speaks has the last WELCOME, and its secret."""
        session = held.session
        if session.is_heard:
            *ended, _ = self._secrets[session.session_id]
            if ended:
                del self._secrets[session.session_id][:-1]
                if held.claimant is not None:
                    self._claimed[session.session_id] = (session.attempt, ended)
                if held.secrets.pending is None and session.produces:
                    self._ending.setdefault(session.session_id, []).extend(ended)

    def old_secret(self, session_id: str, stored: SessionRecord | None) -> str | None:
        """One that is no longer valid, nor will be if the server dies now, for those that try it."""
        valid = self._secrets.get(session_id, [])
        still = () if stored is None else (stored.confirmed, stored.pending)
        for secret in reversed(self._issued.get(session_id, [])):
            if secret not in valid and _hash(secret) not in still:
                return secret
        return None


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
