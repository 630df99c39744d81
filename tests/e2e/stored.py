"""What is in the data directory of a server that is dead, read as the next one would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from streamctx.core.session.live_context import TextBudget
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.stored import JournalBatch, StoredSession
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.hub.registry import Registry
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import INTEGER_MAX
from streamctx.wire.messages import Edit, Event
from tests.chaos.editing import Copy

__all__ = ["Kept", "read_store"]


@dataclass(frozen=True)
class Kept:
    """One session as it is stored. `sequences` and `versions` are those of what is still in the journal."""

    epoch: str
    lease: int
    expected: int
    copies: Mapping[str, Copy]
    sequences: tuple[int, ...]
    versions: Mapping[int, tuple[int, ...]]


def read_store(data: Path) -> dict[str, Kept]:
    """Read all sessions of a data directory; a later server would not find it as it was."""
    store = SqliteStore.open(data)
    try:
        return {summary.session_id: _kept(store, summary.session_id) for summary in store.summaries()}
    finally:
        store.close()


def _kept(store: SqliteStore, session_id: str) -> Kept:
    stored, past = store.load(session_id), store.tail(session_id, 0.0)
    assert isinstance(stored, StoredSession), stored
    assert past is not None
    session = ServerSession.restore(
        stored,
        limits=DEFAULT_LIMITS,
        jitter=lambda: 0.5,
        is_excluded=lambda _: False,
        budget=TextBudget(INTEGER_MAX),
        directory=Registry(),
        now=0.0,
    )
    events = [event for _, batch in past.batches for event in _events_of(batch)]
    versions: dict[int, list[int]] = {}
    for _, event in events:
        if isinstance(event, Edit):
            versions.setdefault(event.document, []).append(event.version)
    return Kept(
        epoch=stored.record.epoch,
        lease=stored.record.lease,
        expected=session.delivery.expected,
        copies={
            document.uri: Copy(document.version, document.buffer.text())
            for document in session.context.documents.values()
            if document.buffer is not None and not document.is_stale
        },
        sequences=tuple(sequence for sequence, _ in events),
        versions={alias: tuple(found) for alias, found in versions.items()},
    )


def _events_of(batch: JournalBatch) -> list[tuple[int, Event]]:
    return [(sequence, item) for sequence, item in batch.entries if isinstance(item, Event)]
