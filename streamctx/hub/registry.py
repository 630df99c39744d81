"""The live sessions, who owns each, and the secrets that resume them (RSM-2, RSM-4)."""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from streamctx.core.session.server_session import ServerSession

if TYPE_CHECKING:
    from streamctx.hub.connection import Connection

__all__ = ["Held", "Registry"]

_RETIRED_MAX = 8
"""Old secrets that are still recognised, in order to tell a late HELLO that it is superseded."""


class Held:
    """One session, the connection that owns it, and the hashes of its secrets.

    `_confirmed` is the newest secret that the client has shown to have; `_pending` is that of
    the last WELCOME, which may not have arrived.
    """

    __slots__ = ("_confirmed", "_pending", "_retired", "owner", "session")

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.owner: Connection | None = None
        self._confirmed: bytes | None = None
        self._pending: bytes | None = None
        self._retired: deque[bytes] = deque(maxlen=_RETIRED_MAX)

    def issue(self, secret: str) -> None:
        """Take over the secret of a WELCOME that is being sent."""
        if self._pending is not None:
            self._retired.append(self._pending)
        self._pending = _hash(secret)

    def confirm(self) -> None:
        """The client has the last WELCOME: the secret before it is no longer valid."""
        if self._pending is not None:
            if self._confirmed is not None:
                self._retired.append(self._confirmed)
            self._confirmed, self._pending = self._pending, None

    def accepts(self, secret: str) -> bool:
        """Whether the secret is valid; the pending one becomes the confirmed one by being used."""
        hashed = _hash(secret)
        is_pending = self._pending is not None and hmac.compare_digest(self._pending, hashed)
        is_confirmed = self._confirmed is not None and hmac.compare_digest(self._confirmed, hashed)
        if is_pending:
            self.confirm()
        return is_pending or is_confirmed

    def knew(self, secret: str) -> bool:
        """Whether the secret was valid once."""
        hashed = _hash(secret)
        # All are compared, so that time does not tell which one it was.
        found = [hmac.compare_digest(retired, hashed) for retired in self._retired]
        return any(found)


class Registry:
    """All sessions by id; also the directory in which sessions find what they may observe."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        """Iterate over a copy, so that sessions may end meanwhile."""
        return iter(list(self._held.values()))

    def add(self, session: ServerSession) -> Held:
        """Hold a new session."""
        held = self._held[session.session_id] = Held(session)
        return held

    def get(self, session_id: str) -> Held | None:
        """The session of that id."""
        return self._held.get(session_id)

    def remove(self, session_id: str) -> None:
        """Forget a session."""
        del self._held[session_id]

    def find(self, observer: ServerSession, session_id: str) -> ServerSession | None:
        """A producer's session by id; `None` if it is unknown or another principal's."""
        held = self._held.get(session_id)
        if held is None or held.session.principal != observer.principal or not held.session.produces:
            return None
        return held.session

    def visible(self, observer: ServerSession) -> Iterable[ServerSession]:
        """All producers' sessions of the observer's principal, without its own."""
        return [
            held.session
            for held in self._held.values()
            if held.session is not observer
            and held.session.produces
            and held.session.principal == observer.principal
        ]


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
