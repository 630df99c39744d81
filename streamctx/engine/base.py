"""What the hub needs of storage: to make what it is given safe, in order, and to give it back later.

The core emits batches and waits for their completion; an engine decides what safe means. What it keeps
are the values of `streamctx.core.session.stored`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState, StoredSession
from streamctx.errors import StreamctxError

__all__ = [
    "Damaged",
    "Done",
    "Durability",
    "Engine",
    "History",
    "Loaded",
    "Past",
    "SetAside",
    "StoreError",
    "Summary",
]

Durability: TypeAlias = Literal["none", "relaxed", "full"]
"""What a completion means.

- `full`: it survives the death of the server, and of the machine (fsynced).
- `relaxed`: it survives the death of the server; a power cut may take the last moments.
- `none`: nothing survives the server.
"""


class StoreError(StreamctxError):
    """The store could not do what it was asked, and has not done it.

    Args:
        message: What happened and what to do about it, for an operator.
        is_fatal: Whether the store can no longer be trusted with anything: the process has to end, and what
            it stored before is found again by the next one. Otherwise there is no room at present.
        retry_after_s: When it is worth trying again.
    """

    def __init__(self, message: str, *, is_fatal: bool, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.message = message
        self.is_fatal = is_fatal
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Damaged:
    """What is stored of a session is not what was written: it has been set aside (quarantine).

    `record` is there where that much can still be read and proved; the session then goes on in a new epoch.
    """

    reason: str
    record: SessionRecord | None


@dataclass(frozen=True, slots=True)
class Summary:
    """A stored session, as lists show it. Times are seconds since 1970."""

    session_id: str
    epoch: str
    principal: str
    client: str
    opened: float
    changed: float
    """When anything of it was last written."""
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """What is left of a session that was damaged. Its id may be that of a session again, or of several."""

    key: int
    """Tells it from all others of its store, for ever."""
    session_id: str
    principal: str
    reason: str
    at: float
    """When it was set aside, in seconds since 1970."""
    stored_bytes: int
    """As much as can be found of it."""


@dataclass(frozen=True, slots=True)
class History:
    """The past of a session: a state, and the batches after it, each with when it was written."""

    unit: str
    hash: str
    state: SessionState | None
    batches: tuple[tuple[float, JournalBatch], ...]


Done: TypeAlias = Callable[[StoreError | None], None]
Loaded: TypeAlias = StoredSession | Damaged | StoreError | None
"""`None`: there is no such session."""
Past: TypeAlias = History | StoreError | None
"""As `Loaded`."""


class Engine(Protocol):
    """Storage of sessions.

    Methods are called on the event loop's thread and do not block. Each calls its `done` exactly once, on
    that thread, at once or later, with `None` if it is safe. What concerns one session takes effect in the
    order of the calls, and completes in it; after a failed call for a session every later one that writes
    fails too, until it is loaded again, forgotten, or begins anew in another epoch: nothing is stored behind
    what is missing. A failed `snapshot` has no such effect, since nothing depends on it: the batches that it
    covers are there still. An engine that is closed completes nothing any more.
    """

    @property
    def durability(self) -> Durability:
        """What a completion means. With `none` the hub stores nothing, and calls nothing below."""

    def fence(self, record: SessionRecord, done: Done) -> None:
        """Store a session's record, in place of the one before: a new session, an attachment, a new epoch.

        A record with another epoch than the stored one begins anew: what was stored of that session before
        is forgotten with the same stroke.
        """

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        """Add a batch to the journal of a session whose record was stored."""

    def is_snapshot_due(self, session_id: str) -> bool:
        """Whether so much was appended since the last snapshot that a new one would pay.

        Not while one waits to be stored, and not for a while after one has failed.
        """

    def snapshot(
        self, session_id: str, epoch: str, state: SessionState, done: Done, *, purge: bool = False
    ) -> None:
        """Store the state after all batches appended so far; then what it replaces may be deleted.

        Args:
            purge: For a state from which something was taken that nobody may find any more. With the same
                stroke all that is older than it is deleted: batches, states, and what was set aside of a
                session with that id. `tail` then begins with it. Nothing of that is left in files shortly
                after the completion. No quota refuses it. Otherwise what `tail` may still be asked for is
                kept, and the rest may go at any time after.
        """

    def load(self, session_id: str, done: Callable[[Loaded], None]) -> None:
        """Read a session, verified: record, newest state, and all batches after it."""

    def tail(self, session_id: str, since: float, done: Callable[[Past], None]) -> None:
        """Read the past of a session: the newest state before `since` and all batches after that state.

        Args:
            since: In seconds since 1970. If nothing that old is kept, the oldest that is.
            done: Called with `None` if there is no such session.
        """

    def forget(self, session_id: str, done: Done) -> None:
        """Delete all that is stored of a session; not an error if there is nothing.

        One that fails for lack of room is done once there is some, unless the session was loaded or fenced
        since, or the server has ended.
        """

    def summary(self, session_id: str) -> Summary | None:
        """One stored session, from memory; `None` if there is no such session."""

    def summaries(self) -> Sequence[Summary]:
        """All stored sessions, from memory."""
