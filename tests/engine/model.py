"""What a store holds after operations, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from streamctx.core.session.stored import StoredSession
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.codec import decode_batch
from streamctx.engine.sqlite.writer import Append, Fence, Snapshot, Write

__all__ = ["Model", "applied", "content"]

Model: TypeAlias = Mapping[str, StoredSession]
"""Sessions by their ids."""


def applied(model: Model, operations: Sequence[Write]) -> Model:
    """The model after operations that all succeed."""
    after = dict(model)
    for operation in operations:
        before = after.get(operation.session_id)
        if isinstance(operation, Fence):
            if before is None or before.record.epoch != operation.record.epoch:
                before = StoredSession(operation.record, None, ())
            after[operation.session_id] = StoredSession(operation.record, before.state, before.batches)
        elif isinstance(operation, Append):
            assert before is not None
            batches = (*before.batches, decode_batch(operation.payload))
            after[operation.session_id] = StoredSession(before.record, before.state, batches)
        elif isinstance(operation, Snapshot):
            assert before is not None
            after[operation.session_id] = StoredSession(before.record, operation.state, ())
        else:
            after.pop(operation.session_id, None)
    return after


def content(store: SqliteStore) -> Model:
    """What a store holds, all of which is whole."""
    found = {}
    for summary in store.summaries():
        loaded = store.load(summary.session_id)
        assert isinstance(loaded, StoredSession), loaded
        found[summary.session_id] = loaded
    return found
