"""The live sessions, who owns each, and the secrets that resume them (RSM-2, RSM-4)."""

from __future__ import annotations

import copy
import hashlib
import hmac
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import SessionRecord
from streamctx.hub.redaction import Redaction
from streamctx.wire.messages import Workspace

if TYPE_CHECKING:
    from streamctx.hub.connection import Connection

__all__ = ["Held", "Registry", "Secrets", "folders_of"]

_FOLDERS_MAX = 256
_RETIRED_MAX = 8
"""Old secrets that are still recognised, in order to tell a late HELLO that it is superseded."""


class Secrets:
    """The hashes of a session's secrets.

    `confirmed` is the newest that the client has shown to have; `pending` is that of the last WELCOME, which
    may not have arrived; `retired` were valid once.
    """

    __slots__ = ("confirmed", "pending", "retired")

    def __init__(self, record: SessionRecord) -> None:
        self.confirmed = record.confirmed
        self.pending = record.pending
        self.retired: deque[bytes] = deque(record.retired, maxlen=_RETIRED_MAX)

    def issue(self, secret: str) -> None:
        """Take over the secret of a WELCOME that is being sent."""
        if self.pending is not None:
            self.retired.append(self.pending)
        self.pending = _hash(secret)

    def with_issued(self, secret: str) -> Secrets:
        """What they will be after `issue`: to be stored before that."""
        after = copy.copy(self)
        after.retired = self.retired.copy()
        after.issue(secret)
        return after

    def confirm(self) -> bool:
        """The client has the last WELCOME: the secret before it is no longer valid; whether that is news."""
        if self.pending is None:
            return False
        if self.confirmed is not None:
            self.retired.append(self.confirmed)
        self.confirmed, self.pending = self.pending, None
        return True

    def accepts(self, secret: str) -> bool:
        """Whether the secret is valid; the pending one becomes the confirmed one by being used."""
        hashed = _hash(secret)
        is_pending = self.pending is not None and hmac.compare_digest(self.pending, hashed)
        is_confirmed = self.confirmed is not None and hmac.compare_digest(self.confirmed, hashed)
        if is_pending:
            self.confirm()
        return is_pending or is_confirmed

    def knew(self, secret: str) -> bool:
        """Whether the secret was valid once."""
        hashed = _hash(secret)
        # All are compared, so that time does not tell which one it was.
        found = [hmac.compare_digest(retired, hashed) for retired in self.retired]
        return any(found)


class Held:
    """One session, the connection that owns it, and what resumes it.

    `claimant` is the connection that will own it as soon as that is stored; until then `owner` does.
    """

    __slots__ = ("_folders", "_record", "claimant", "owner", "secrets", "session")

    def __init__(self, session: ServerSession, record: SessionRecord) -> None:
        self.session = session
        self.owner: Connection | None = None
        self.claimant: Connection | None = None
        self.secrets = Secrets(record)
        self._record = record
        self._folders = dict.fromkeys(folders_of(record.workspace))

    def redaction(self) -> Redaction:
        """What is excluded now, by the `.streamctxignore` of every folder of the session's workspaces."""
        return Redaction(tuple(self._folders))

    def add_folders(self, folders: Sequence[str]) -> None:
        """Take over the folders of another workspace.

        Those of earlier connections stay, lest somebody changes the workspace to show what was excluded; of
        more than `_FOLDERS_MAX` the oldest go.
        """
        for folder in folders:
            self._folders.pop(folder, None)
            self._folders[folder] = None
        while len(self._folders) > _FOLDERS_MAX:
            del self._folders[next(iter(self._folders))]

    def record(self, secrets: Secrets, *, lease: int) -> SessionRecord:
        """What is to be stored: before an attachment, with the secrets and the lease that it will have."""
        session = self.session
        return msgspec.structs.replace(
            self._record,
            workspace=session.workspace,
            attempt=session.attempt,
            lease=lease,
            confirmed=secrets.confirmed,
            pending=secrets.pending,
            retired=tuple(secrets.retired),
        )


class Registry:
    """All sessions by id; also the directory in which sessions find what they may observe."""

    __slots__ = ("_has_stored", "_held")

    def __init__(
        self, has_stored: Callable[[str, str], bool] = lambda _session_id, _principal: False
    ) -> None:
        """Start empty.

        Args:
            has_stored: Whether a session that is not live is stored: given its id, and whose it has to be.
        """
        self._held: dict[str, Held] = {}
        self._has_stored = has_stored

    def __len__(self) -> int:
        """Return how many sessions there are."""
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        """Iterate over a copy, so that sessions may end meanwhile."""
        return iter(list(self._held.values()))

    def add(self, held: Held) -> None:
        """Hold a session, of which no other is held."""
        assert held.session.session_id not in self._held
        self._held[held.session.session_id] = held

    def get(self, session_id: str) -> Held | None:
        """The session of that id."""
        return self._held.get(session_id)

    def remove(self, held: Held) -> bool:
        """Forget a session; `False` if it was no longer held."""
        if self._held.get(held.session.session_id) is not held:
            return False
        del self._held[held.session.session_id]
        return True

    def find(self, observer: ServerSession, session_id: str) -> ServerSession | None:
        """A producer's session by id; `None` if it is unknown or another principal's."""
        held = self._held.get(session_id)
        if held is None or held.session.principal != observer.principal or not held.session.produces:
            return None
        return held.session

    def is_stored(self, observer: ServerSession, session_id: str) -> bool:
        """Whether a session of that id is stored that the observer may see."""
        return self._has_stored(session_id, observer.principal)

    def visible(self, observer: ServerSession) -> Iterable[ServerSession]:
        """All producers' sessions of the observer's principal, without its own."""
        return [
            held.session
            for held in self._held.values()
            if held.session is not observer
            and held.session.produces
            and held.session.principal == observer.principal
        ]


def folders_of(workspace: Workspace | None) -> tuple[str, ...]:
    """The folders of a workspace; none of none."""
    return () if workspace is None else workspace.folders


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
