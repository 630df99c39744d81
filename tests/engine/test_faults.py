"""The disk fails, or is full, at each of the calls that reach it."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import apsw
import pytest

from streamctx.engine.base import StoreError
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.codec import encode_batch
from streamctx.engine.sqlite.upkeep import Thresholds
from streamctx.engine.sqlite.writer import Append, Fence, Forget, Snapshot, Write
from tests.engine.apsw_database import ApswDatabase
from tests.engine.disk import Disk
from tests.engine.model import Model, applied, content
from tests.engine.power_cut import Cut, judge
from tests.engine.samples import batch, document, record, state

__all__: list[str] = []

Step: TypeAlias = list[Write] | str
Fault: TypeAlias = Callable[[int, str], BaseException | None]
"""What the disk answers to its n-th call, counted from 1; `None` if it does what it should."""


def _append(session_id: str, number: int, epoch: str = "e1", text: str = "typed") -> Append:
    return Append(session_id, epoch, encode_batch(batch(number, text)))


# Everything that a store does, once or twice; what it does later is done at `upkeep`.
_STEPS: tuple[Step, ...] = (
    [Fence(record("s1"))],
    [_append("s1", 1), _append("s1", 3)],
    [Fence(record("s2")), _append("s2", 1), _append("s1", 5)],
    [Snapshot("s1", "e1", state(7, document(), document(2, "y" * 5000)))],
    [_append("s1", 7, text="x" * 20_000)],
    "upkeep",
    [Snapshot("s1", "e1", state(9, document()))],
    [_append("s1", 9)],
    "upkeep",
    [Fence(record("s1", "e2"))],
    [_append("s1", 1, "e2"), _append("s2", 3)],
    "restart",
    [_append("s1", 3, "e2"), Snapshot("s2", "e1", state(5))],
    [Forget("s1")],
    [_append("s2", 5)],
    "upkeep",
    [_append("s2", 7)],
    [Snapshot("s2", "e1", state(9, document()), purge=True), _append("s2", 9)],
    "upkeep",
    [_append("s2", 11)],
)


@dataclass
class Life:
    """Runs the steps on a disk whose calls `fault` may let fail, and goes on as a server would."""

    directory: Path
    fault: Fault
    retries_max: int = 0
    history: list[Model] = field(default_factory=lambda: [{}])
    acknowledged: int = 0
    calls: list[str] = field(default_factory=list)
    fatal: StoreError | None = None
    quiet_since: int | None = None
    """How many calls had been made when the store gave up."""
    full_count: int = 0
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.disk = Disk("faults", self._on_call)

    def _on_call(self, what: str) -> None:
        self.calls.append(what)
        error = self.fault(len(self.calls), what)
        if error is not None:
            raise error

    def run(self) -> None:
        try:
            store = self._open()
            for step in _STEPS:
                self.now += 10
                if step == "restart":
                    if self.fatal is not None:
                        # The process has to end; what it left is looked at from outside.
                        return
                    self._close(store)
                    store = self._open()
                elif isinstance(step, str):
                    self._keep_up(store)
                else:
                    self._write(store, step)
            self._close(store)
        except StoreError as error:
            # A server whose store cannot be opened does not start.
            self._note(error)

    def _open(self) -> SqliteStore:
        return SqliteStore.open(
            self.directory,
            history_s=15.0,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
            database=lambda path: ApswDatabase(path, vfs=self.disk.name),
            thresholds=Thresholds(
                checkpoint_bytes=30_000, flush_rows=3, sweep_rows_min=2, ballast_bytes=4096
            ),
        )

    def _close(self, store: SqliteStore) -> None:
        try:
            store.close()
        except StoreError as error:
            if error.is_fatal:
                raise

    def _keep_up(self, store: SqliteStore) -> None:
        try:
            while store.upkeep(is_idle=True):
                pass
        except StoreError as error:
            self._note(error)

    def _note(self, error: StoreError) -> None:
        if error.is_fatal:
            self.fatal = self.fatal or error
            self.quiet_since = self.quiet_since or len(self.calls)
        else:
            self.full_count += 1

    def _write(self, store: SqliteStore, step: list[Write]) -> None:
        for _ in range(self.retries_max + 1):
            if self.fatal is None:
                self.history[self.acknowledged + 1 :] = [applied(self.history[self.acknowledged], step)]
            results = store.write(step)
            if self.fatal is not None:
                # Never again is anything acknowledged.
                assert all(result is not None and result.is_fatal for result in results)
                return
            if results == [None] * len(step):
                self.acknowledged += 1
                return
            (error,) = set(results)
            assert error is not None
            self._note(error)
            if error.is_fatal:
                return
            # While the disk is full nothing but a deletion is even tried, and all that is stored can be read.
            again = store.write(step)
            if again == [None] * len(step):
                self.acknowledged += 1
                return
            assert {item and item.is_fatal for item in again} == {False}
            assert content(store) == self.history[self.acknowledged]
            self.now += error.retry_after_s
        raise AssertionError("it did not recover")


def _count_calls(directory: Path) -> list[str]:
    life = Life(directory, lambda *_: None)
    try:
        life.run()
    finally:
        life.disk.unregister()
    assert life.fatal is None
    assert life.acknowledged == sum(not isinstance(step, str) for step in _STEPS)
    return life.calls


_CODES = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}


def _failing_at(first: int, error: Callable[[str], BaseException | None], count: int = 1) -> Fault:
    return lambda at, what: error(what) if first <= at < first + count else None


@pytest.mark.slow
def test_after_any_failed_write_or_sync_nothing_is_acknowledged_and_nothing_is_lost(ram_path: Path) -> None:
    source, found = ram_path / "source", ram_path / "found"
    calls = _count_calls(source)
    chance = random.Random(1)
    silent: list[str] = []
    for index, what in enumerate(calls, 1):
        life = Life(source, _failing_at(index, lambda what: apsw.exception_for(_CODES[what])))
        try:
            life.run()
        finally:
            life.disk.unregister()
        if life.fatal is None:
            silent.append(what)
        # Not even closing copies a log of which nobody knows what the disk has of it.
        gc.collect(1)
        assert life.quiet_since in {None, len(life.calls)}
        for _ in range(2):
            cut = Cut(life.disk.cut(chance), life.acknowledged, what)
            assert judge(cut, life.history, source, found) == "kept", (index, what)
    # What may fail unseen is only the removal of what is no longer needed.
    assert "write" not in silent
    assert "sync" not in silent


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_full_disk_is_survived_wherever_it_fills_up(ram_path: Path, count: int) -> None:
    source, found = ram_path / "source", ram_path / "found"
    calls = _count_calls(source)
    chance = random.Random(1)
    full_count = 0
    for index in range(1, len(calls) + 1, 2 if count == 1 else 5):
        full = _failing_at(
            index, lambda what: apsw.exception_for(apsw.SQLITE_FULL) if what == "write" else None, count
        )
        life = Life(source, full, retries_max=60)
        try:
            life.run()
        finally:
            life.disk.unregister()
        full_count += life.full_count
        if life.fatal is not None:
            # Only a start needs room without which there is nothing to be done.
            assert "cannot be opened" in life.fatal.message
        cut = Cut(life.disk.cut(chance), life.acknowledged, "full")
        assert judge(cut, life.history, source, found) == "kept", index
    assert full_count > 10
