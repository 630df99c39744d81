"""Whatever is done, a store in a file and the one in memory hold the same."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamctx.engine.base import Loaded, Past, StoreError
from streamctx.engine.memory import MemoryEngine
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.codec import decode_batch, encode_batch
from streamctx.engine.sqlite.upkeep import Thresholds
from streamctx.engine.sqlite.writer import Append, Fence, Forget, Snapshot, Write
from tests.engine.samples import batch, document, record, state

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

HISTORY_S = 50.0

names = st.sampled_from(["s1", "s2", "s3"])
epochs = st.sampled_from(["e1", "e2"])


class Stores(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.number = 0
        self.place = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.store = self._open()
        self.model = MemoryEngine(durability="full", history_s=HISTORY_S, clock=lambda: self.now)
        self.waiting: list[Write] = []

    def _open(self) -> SqliteStore:
        return SqliteStore.open(
            Path(self.place.name) / "data",
            history_s=HISTORY_S,
            clock=lambda: self.now,
            thresholds=Thresholds(
                checkpoint_bytes=50_000, flush_rows=7, sweep_rows_min=3, ballast_bytes=4096
            ),
        )

    @rule(name=names, epoch=epochs)
    def fence(self, name: str, epoch: str) -> None:
        self.number += 1
        self.waiting.append(Fence(record(name, epoch, lease=self.number)))

    @rule(name=names, epoch=epochs, count=st.integers(1, 5))
    def append(self, name: str, epoch: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.waiting.append(Append(name, epoch, encode_batch(batch(self.number))))

    @rule(
        name=names,
        epoch=epochs,
        texts=st.lists(st.sampled_from(["a", "b"]), max_size=3),
        purge=st.sampled_from([False, False, True]),
    )
    def snapshot(self, name: str, epoch: str, texts: list[str], purge: bool) -> None:
        self.number += 1
        documents = [document(alias, text) for alias, text in enumerate(texts, 1)]
        self.waiting.append(Snapshot(name, epoch, state(self.number, *documents), purge))

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.waiting.append(Forget(name))

    @rule()
    def commit(self) -> None:
        operations, self.waiting = self.waiting, []
        results = self.store.write(operations)
        assert [result is None for result in results] == [self._to_model(item) for item in operations]

    def _to_model(self, operation: Write) -> bool:
        results: list[StoreError | None] = []
        if isinstance(operation, Fence):
            self.model.fence(operation.record, results.append)
        elif isinstance(operation, Append):
            item = decode_batch(operation.payload)
            self.model.append(operation.session_id, operation.epoch, item, results.append)
        elif isinstance(operation, Snapshot):
            self.model.snapshot(
                operation.session_id,
                operation.epoch,
                operation.state,
                results.append,
                purge=operation.purge,
            )
        else:
            self.model.forget(operation.session_id, results.append)
        return results == [None]

    @rule(seconds=st.sampled_from([1.0, 10.0, 60.0]))
    def wait(self, seconds: float) -> None:
        # All operations of a commit have one time.
        self.commit()
        self.now += seconds

    @rule(is_idle=st.booleans(), count=st.integers(1, 9))
    def keep_up(self, is_idle: bool, count: int) -> None:
        for _ in range(count):
            self.store.upkeep(is_idle=is_idle)

    @rule()
    def restart(self) -> None:
        self.commit()
        self.load_all()
        self.store.close()
        self.store = self._open()

    @precondition(lambda self: not self.waiting)
    @rule(name=names, ago=st.sampled_from([0.0, 5.0, 30.0, 100.0]))
    def tail(self, name: str, ago: float) -> None:
        # The newest snapshot's time decides what may be deleted, and when that is done is the store's affair.
        while self.store.upkeep(is_idle=True):
            pass
        found: list[Past] = []
        self.model.tail(name, self.now - ago, found.append)
        assert self.store.tail(name, self.now - ago) == found[0]

    @rule()
    def load_all(self) -> None:
        for name in ("s1", "s2", "s3"):
            found: list[Loaded] = []
            self.model.load(name, found.append)
            assert self.store.load(name) == found[0]

    @invariant()
    def lists_are_equal(self) -> None:
        if not self.waiting:
            found = {
                (item.session_id, item.epoch, item.opened, item.changed) for item in self.store.summaries()
            }
            assert found == {
                (item.session_id, item.epoch, item.opened, item.changed) for item in self.model.summaries()
            }

    @override
    def teardown(self) -> None:
        self.store.close()
        self.place.cleanup()


Stores.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestStores = Stores.TestCase
