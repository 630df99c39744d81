"""The engine that keeps everything in the process: for `--ephemeral`, and the model of a store in tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState, StoredSession
from streamctx.engine.base import Done, Durability, History, Loaded, Past, StoreError, Summary

__all__ = ["MemoryEngine"]


@dataclass(slots=True)
class _Stored:
    """`states` are the snapshots, each with how many batches it covers, counted from the first ever."""

    record: SessionRecord
    opened: float
    changed: float
    states: list[tuple[float, int, SessionState]] = field(default_factory=list)
    batches: list[tuple[float, JournalBatch]] = field(default_factory=list)
    dropped: int = 0
    """Batches deleted."""


class MemoryEngine:
    """Completes at once. With `durability="none"`, the default, the hub gives it nothing to keep."""

    def __init__(
        self,
        *,
        durability: Durability = "none",
        history_s: float = 900.0,
        snapshot_batches: int = 256,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start empty.

        Args:
            history_s: How far back `tail` reaches, at least.
            snapshot_batches: After how many of them a snapshot is due.
            clock: Seconds since 1970.
        """
        self.durability = durability
        self._history_s = history_s
        self._snapshot_batches = snapshot_batches
        self._clock = clock
        self._sessions: dict[str, _Stored] = {}
        self._failed: set[str] = set()
        """Sessions that have to be loaded before they go on."""

    def fence(self, record: SessionRecord, done: Done) -> None:
        """Store a record."""
        now = self._clock()
        stored = self._sessions.get(record.session_id)
        if stored is None or stored.record.epoch != record.epoch:
            self._sessions[record.session_id] = _Stored(record, now, now)
            self._failed.discard(record.session_id)
        elif record.session_id in self._failed:
            done(_refusal(record.session_id, record.epoch))
            return
        else:
            stored.record, stored.changed = record, now
        done(None)

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        """Add a batch."""
        stored = self._writable(session_id, epoch)
        if stored is None:
            if session_id in self._sessions:
                self._failed.add(session_id)
            done(_refusal(session_id, epoch))
            return
        stored.changed = self._clock()
        stored.batches.append((stored.changed, batch))
        done(None)

    def is_snapshot_due(self, session_id: str) -> bool:
        """Whether enough batches have come since the last one."""
        stored = self._sessions.get(session_id)
        if stored is None:
            return False
        covered = stored.states[-1][1] if stored.states else 0
        return stored.dropped + len(stored.batches) - covered >= self._snapshot_batches

    def snapshot(
        self, session_id: str, epoch: str, state: SessionState, done: Done, *, purge: bool = False
    ) -> None:
        """Store a state, and drop what is older than the history, or all that is older."""
        stored = self._writable(session_id, epoch)
        if stored is None:
            done(_refusal(session_id, epoch))
            return
        stored.changed = self._clock()
        if purge:
            stored.dropped += len(stored.batches)
            stored.states, stored.batches = [], []
        stored.states.append((stored.changed, stored.dropped + len(stored.batches), state))
        self._trim(stored)
        done(None)

    def load(self, session_id: str, done: Callable[[Loaded], None]) -> None:
        """Give back what was stored."""
        self._failed.discard(session_id)
        stored = self._sessions.get(session_id)
        if stored is None:
            done(None)
            return
        _, covered, state = stored.states[-1] if stored.states else (0.0, 0, None)
        batches = tuple(batch for _, batch in stored.batches[covered - stored.dropped :])
        done(StoredSession(stored.record, state, batches))

    def tail(self, session_id: str, since: float, done: Callable[[Past], None]) -> None:
        """Give back the past."""
        stored = self._sessions.get(session_id)
        if stored is None:
            done(None)
            return
        self._trim(stored)
        covered, state = stored.dropped, None
        for at, state_covered, candidate in stored.states:
            if at <= since or (state is None and state_covered <= stored.dropped):
                covered, state = state_covered, candidate
        batches = tuple(stored.batches[covered - stored.dropped :])
        done(History(stored.record.unit, stored.record.hash, state, batches))

    def forget(self, session_id: str, done: Done) -> None:
        """Delete a session."""
        self._sessions.pop(session_id, None)
        self._failed.discard(session_id)
        done(None)

    def summary(self, session_id: str) -> Summary | None:
        """One session."""
        stored = self._sessions.get(session_id)
        if stored is None:
            return None
        return Summary(
            session_id=session_id,
            epoch=stored.record.epoch,
            principal=stored.record.principal,
            client=stored.record.client.name,
            opened=stored.opened,
            changed=stored.changed,
            stored_bytes=sum(len(msgspec.msgpack.encode(batch)) for _, batch in stored.batches),
        )

    def summaries(self) -> Sequence[Summary]:
        """All sessions."""
        return [summary for session_id in self._sessions if (summary := self.summary(session_id))]

    def _trim(self, stored: _Stored) -> None:
        now = self._clock()
        while len(stored.states) > 1 and stored.states[1][0] <= now - self._history_s:
            del stored.states[0]
        if not stored.states:
            return
        # What comes before the oldest state can be reached from nowhere, once the history begins with it.
        first_at, covered, _ = stored.states[0]
        if first_at <= now - self._history_s:
            del stored.batches[: covered - stored.dropped]
            stored.dropped = covered

    def _writable(self, session_id: str, epoch: str) -> _Stored | None:
        stored = self._sessions.get(session_id)
        if stored is None or session_id in self._failed or stored.record.epoch != epoch:
            return None
        return stored


def _refusal(session_id: str, epoch: str) -> StoreError:
    return StoreError(
        f"session {session_id} has no record in epoch {epoch}, or is to be loaded first", is_fatal=False
    )
