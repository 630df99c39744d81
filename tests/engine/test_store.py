from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from streamctx.core.session.stored import StoredSession
from streamctx.engine.base import StoreError
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.codec import encode_batch
from streamctx.engine.sqlite.library import FULL, DatabaseError, Row, StandardDatabase, Value
from streamctx.engine.sqlite.upkeep import Thresholds
from streamctx.engine.sqlite.writer import Append, Fence, Forget, Snapshot
from tests.engine.clock import Clock
from tests.engine.model import content
from tests.engine.samples import batch, document, record, state

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqliteStore]:
    store = SqliteStore.open(tmp_path / "data", clock=clock, history_s=100.0)
    yield store
    store.close()


def _append(session_id: str, number: int, text: str = "typed") -> Append:
    return Append(session_id, "e1", encode_batch(batch(number, text)))


def _keep_up(store: SqliteStore) -> None:
    while store.upkeep(is_idle=True):
        pass


def _rows(path: Path, sql: str) -> list[tuple[int, ...]]:
    with contextlib.closing(sqlite3.connect(path / "store.db")) as connection:
        return connection.execute(sql).fetchall()


def test_many_operations_are_one_commit(store: SqliteStore) -> None:
    operations = [Fence(record("s1")), Fence(record("s2"))]
    assert store.write(operations) == [None, None]
    appends = [_append("s1", number) for number in range(1, 2001, 2)]
    assert store.write(appends) == [None] * 1000
    assert store.counters.commits == 2
    assert store.counters.rows == 1000
    assert store.counters.row_bytes == sum(len(append.payload) for append in appends)
    assert len(content(store)["s1"].batches) == 1000


@pytest.mark.parametrize("count", [1, 255, 256, 257, 512, 513])
def test_any_number_of_batches_comes_back(store: SqliteStore, count: int) -> None:
    store.fence(record())
    store.write([_append("s1", number) for number in range(1, 2 * count, 2)])
    assert content(store)["s1"].batches == tuple(batch(number) for number in range(1, 2 * count, 2))


def test_an_operation_that_fails_alone_leaves_the_others_of_its_commit(store: SqliteStore) -> None:
    results = store.write(
        [
            Fence(record("s1")),
            _append("s2", 1),
            _append("s1", 1),
            Append("s1", "e2", encode_batch(batch(3))),
            _append("s1", 5),
        ]
    )
    assert [result is None for result in results] == [True, False, True, False, False]
    assert content(store) == {"s1": StoredSession(record("s1"), None, (batch(1),))}
    assert store.counters.refused == 3


def test_within_a_commit_a_session_may_begin_grow_and_end(store: SqliteStore) -> None:
    store.write(
        [
            Fence(record("s1")),
            _append("s1", 1),
            Forget("s1"),
            Fence(record("s1", lease=2)),
            _append("s1", 3),
            Snapshot("s1", "e1", state(5)),
            _append("s1", 5),
        ]
    )
    assert content(store) == {"s1": StoredSession(record("s1", lease=2), state(5), (batch(5),))}


def test_long_chains_come_back_whole(store: SqliteStore) -> None:
    store.fence(record("s1"))
    store.fence(record("s2"))
    text = "x" * 100_000
    for number in range(1, 101, 2):
        store.write([_append("s1", number, text), _append("s2", number, text)])
    assert content(store)["s1"].batches == tuple(batch(number, text) for number in range(1, 101, 2))


def test_equal_documents_are_stored_once(tmp_path: Path, store: SqliteStore) -> None:
    same, changing = document(1, "same"), document(2, "a")
    store.fence(record())
    store.snapshot("s1", "e1", state(1, same, changing))
    store.snapshot("s1", "e1", state(2, same, document(2, "b")))
    newest = state(3, document(2, "b"), same, document(3, "c"))
    store.snapshot("s1", "e1", newest)
    assert content(store)["s1"].state == newest
    store.close()
    assert _rows(tmp_path / "data", "SELECT count(*) FROM documents") == [(4,)]


def test_a_document_goes_with_the_last_snapshot_that_lists_it(
    tmp_path: Path, store: SqliteStore, clock: Clock
) -> None:
    store.fence(record())
    for number in range(4):
        store.snapshot("s1", "e1", state(number, document(1, "same"), document(2, f"{number}")))
        clock.now += 1
    clock.now += 200
    store.snapshot("s1", "e1", state(9, document(1, "same"), document(2, "last")))
    _keep_up(store)
    (summary,) = store.summaries()
    store.close()
    assert _rows(tmp_path / "data", "SELECT count(*) FROM snapshots") == [(2,)]
    assert _rows(tmp_path / "data", "SELECT count(*) FROM documents") == [(3,)]
    # What is counted for the owner is what is there.
    ((held,),) = _rows(
        tmp_path / "data",
        "SELECT (SELECT sum(length(payload)) FROM documents) + (SELECT sum(length(record)) FROM sessions)"
        " + (SELECT sum(length(documents) + length(state)) FROM snapshots)",
    )
    assert summary.stored_bytes == held


def test_rows_that_nothing_can_reach_are_swept_once_they_are_half_of_all(
    tmp_path: Path, clock: Clock
) -> None:
    thresholds = Thresholds(sweep_rows_min=20, flush_rows=10)
    store = SqliteStore.open(tmp_path, clock=clock, history_s=100.0, thresholds=thresholds)
    for name in ("s1", "s2"):
        store.fence(record(name))
    for number in range(1, 101, 2):
        store.write([_append("s1", number), _append("s1", number), _append("s2", number)])
    _keep_up(store)
    store.snapshot("s1", "e1", state(101))
    clock.now += 200
    store.snapshot("s1", "e1", state(101))
    store.write([_append("s1", 101), _append("s2", 101)])
    _keep_up(store)
    held = content(store)
    assert store.counters.rows_swept > 0
    store.close()
    assert _rows(tmp_path, "SELECT session, count(*) FROM journal GROUP BY session") == [(1, 1), (2, 51)]
    store = SqliteStore.open(tmp_path)
    assert content(store) == held
    store.close()


def test_a_snapshot_is_due_by_rows_or_by_bytes(store: SqliteStore) -> None:
    store.fence(record("s1"))
    store.write([_append("s1", 1)] * 4095)
    assert not store.is_snapshot_due("s1")
    store.write([_append("s1", 1)])
    assert store.is_snapshot_due("s1")
    # Small rows behind a large state ask for it once they are a fourth of it, or very many.
    store.snapshot("s1", "e1", state(6, document(1, "x" * (2 << 20))))
    store.write([_append("s1", 1)] * 4096)
    assert not store.is_snapshot_due("s1")
    store.append("s1", "e1", batch(4, "x" * (1 << 19)))
    assert store.is_snapshot_due("s1")
    store.snapshot("s1", "e1", state(6, document(1, "x" * (32 << 20))))
    for _ in range(16):
        assert not store.is_snapshot_due("s1")
        store.write([_append("s1", 3)] * 4096)
    assert store.is_snapshot_due("s1")
    store.fence(record("s2"))
    store.append("s2", "e1", batch(4, "x" * (1 << 20)))
    assert store.is_snapshot_due("s2")
    # Behind a large state as much again has to come.
    store.snapshot("s2", "e1", state(6, document(1, "x" * (2 << 20))))
    store.append("s2", "e1", batch(4, "x" * (1 << 20)))
    assert not store.is_snapshot_due("s2")
    store.append("s2", "e1", batch(4, "x" * (1 << 20) + "x" * 1000))
    assert store.is_snapshot_due("s2")


def test_a_snapshot_stays_due_after_a_restart(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    store.fence(record("s1"))
    store.write([_append("s1", 1)] * 4096)
    store.close()
    store = SqliteStore.open(tmp_path)
    assert store.is_snapshot_due("s1")
    store.close()


def test_ten_thousand_sessions_do_not_slow_the_start(ram_path: Path) -> None:
    store = SqliteStore.open(ram_path / "data")
    for start in range(0, 10_000, 500):
        names = [f"s{number}" for number in range(start, start + 500)]
        store.write([Fence(record(name)) for name in names])
        store.write([_append(name, 1) for name in names])
    store.close()
    began = time.perf_counter()
    store = SqliteStore.open(ram_path / "data")
    took_s = time.perf_counter() - began
    assert len(store.summaries()) == 10_000
    assert store.load("s9999") == StoredSession(record("s9999"), None, (batch(1),))
    store.close()
    assert took_s < 2


def test_an_owner_may_store_up_to_the_quota(tmp_path: Path) -> None:
    size = len(msgspec.msgpack.encode(record("s1")))
    row = len(encode_batch(batch(1)))
    store = SqliteStore.open(tmp_path, principal_bytes_max=size + row)
    store.fence(record("s1"))
    store.append("s1", "e1", batch(1))
    with pytest.raises(StoreError, match="sessions of this principal hold") as caught:
        store.append("s1", "e1", batch(3))
    assert not caught.value.is_fatal
    assert caught.value.retry_after_s > 0
    store.fence(record("s2", principal="ben"))
    with pytest.raises(StoreError, match="quota"):
        store.fence(record("s3"))
    # What is deleted counts no more.
    store.forget("s1")
    store.fence(record("s3"))
    store.close()


def _filled_by_snapshots(path: Path, clock: Clock) -> SqliteStore:
    """A store whose owner is at the quota, by snapshots that are as old as one another."""
    store = SqliteStore.open(path, clock=clock, history_s=100.0, principal_bytes_max=100_000)
    store.fence(record())
    with pytest.raises(StoreError, match="quota"):
        for number in range(1, 1000, 2):
            store.append("s1", "e1", batch(4, f"{number}" + "x" * 10_000))
            store.snapshot("s1", "e1", state(number, document(1, f"{number}" + "x" * 10_000)))
    return store


def test_an_owner_at_the_quota_has_room_again_when_the_history_has_passed(
    tmp_path: Path, clock: Clock
) -> None:
    store = _filled_by_snapshots(tmp_path, clock)
    _keep_up(store)
    clock.now += 99
    _keep_up(store)
    assert store.summaries()[0].stored_bytes > 80_000
    clock.now += 2
    _keep_up(store)
    assert store.summaries()[0].stored_bytes < 30_000
    content(store)
    store.append("s1", "e1", batch(1))
    store.close()


def test_what_has_become_old_while_no_server_ran_goes_at_the_start(tmp_path: Path, clock: Clock) -> None:
    _filled_by_snapshots(tmp_path, clock).close()
    clock.now += 101
    store = SqliteStore.open(tmp_path, clock=clock, history_s=100.0, principal_bytes_max=100_000)
    _keep_up(store)
    assert store.summaries()[0].stored_bytes < 30_000
    store.append("s1", "e1", batch(1))
    store.close()


def test_a_stored_session_can_be_attached_to_at_the_quota(tmp_path: Path, clock: Clock) -> None:
    store = _filled_by_snapshots(tmp_path, clock)
    content(store)
    store.fence(record(attempt=1 << 40, lease=1 << 40))
    store.fence(record(epoch="e2"))
    store.append("s1", "e2", batch(1))
    store.close()


def test_a_snapshot_is_charged_before_it_is_stored_unless_as_much_goes_for_it(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, principal_bytes_max=100_000)
    store.fence(record())
    store.append("s1", "e1", batch(1))
    with pytest.raises(StoreError, match="quota"):
        store.snapshot("s1", "e1", state(3, document(1, "x" * 100_000)))
    store.load("s1")
    store.append("s1", "e1", batch(4, "x" * 90_000))
    store.snapshot("s1", "e1", state(6, document(1, "x" * 90_000)))
    store.close()


def test_all_together_may_store_up_to_the_quota(tmp_path: Path) -> None:
    size = len(msgspec.msgpack.encode(record("s1")))
    store = SqliteStore.open(tmp_path, store_bytes_max=size + 10)
    store.fence(record("s1"))
    with pytest.raises(StoreError, match="all sessions hold"):
        store.fence(record("s2", principal="ben"))
    store.close()


def test_what_is_counted_for_an_owner_is_counted_again_after_a_crash_or_a_failure(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "data")
    store.fence(record("s1"))
    store.append("s1", "e1", batch(1))
    store.snapshot("s1", "e1", state(3, document()))
    store.append("s1", "e1", batch(3))
    (before,) = store.summaries()
    target = tmp_path / "crashed"
    target.mkdir(mode=0o700)
    for name in ("store.db", "store.db-wal"):
        (target / name).write_bytes((tmp_path / "data" / name).read_bytes())
        (target / name).chmod(0o600)
    store.close()
    store = SqliteStore.open(target)
    assert store.summaries() == [before]
    store.close()


class SmallDatabase(StandardDatabase):
    """SQLite itself says that the disk is full, beyond so many pages."""

    page_count = 100

    def limit(self, page_count: int) -> None:
        self.execute(f"PRAGMA max_page_count = {page_count}")


def test_a_full_disk_stops_writes_only_until_there_is_room(tmp_path: Path) -> None:
    databases: list[SmallDatabase] = []

    def factory(path: Path) -> SmallDatabase:
        databases.append(SmallDatabase(path))
        return databases[0]

    clock = Clock()
    store = SqliteStore.open(tmp_path, database=factory, monotonic=clock)
    store.fence(record())
    databases[0].limit(60)
    stored = []
    with pytest.raises(StoreError, match="is full") as caught:
        for number in range(1, 1000, 2):
            store.append("s1", "e1", batch(number, "x" * 10_000))
            stored.append(batch(number, "x" * 10_000))
    assert not caught.value.is_fatal
    assert store.counters.full_errors == 1
    databases[0].limit(1000)
    assert content(store)["s1"].batches == tuple(stored)
    # It is not even tried before its time.
    with pytest.raises(StoreError, match="is full"):
        store.append("s1", "e1", batch(1))
    assert store.counters.full_errors == 1
    assert content(store)["s1"].batches == tuple(stored)
    clock.now += caught.value.retry_after_s
    store.append("s1", "e1", batch(1))
    assert content(store)["s1"].batches == (*stored, batch(1))
    store.close()


class FullDatabase(StandardDatabase):
    """Finds the disk full at each statement that begins so."""

    fails_at = ""

    @override
    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        if self.fails_at and sql.startswith(self.fails_at):
            raise DatabaseError(FULL, "database or disk is full")
        return super().execute(sql, parameters)


@pytest.mark.parametrize(
    "fails_at", ["DELETE FROM documents", "UPDATE sessions", "INSERT OR REPLACE INTO meta"]
)
def test_upkeep_that_finds_the_disk_full_is_done_later(tmp_path: Path, clock: Clock, fails_at: str) -> None:
    databases: list[FullDatabase] = []

    def factory(path: Path) -> FullDatabase:
        databases.append(FullDatabase(path))
        return databases[0]

    store = SqliteStore.open(tmp_path, database=factory, clock=clock, monotonic=clock, history_s=1.0)
    store.fence(record())
    store.append("s1", "e1", batch(1))
    for text in ("one", "two", "three"):
        store.snapshot("s1", "e1", state(3, document(1, text)))
        clock.now += 10
    (before,) = store.summaries()
    databases[0].fails_at = fails_at
    with pytest.raises(StoreError, match="is full"):
        _keep_up(store)
    assert store.summaries() == [before]
    databases[0].fails_at = ""
    clock.now += 10
    store.append("s1", "e1", batch(3))
    _keep_up(store)
    (after,) = store.summaries()
    assert after.stored_bytes < before.stored_bytes
    assert content(store)["s1"] == StoredSession(record(), state(3, document(1, "three")), (batch(3),))
    store.close()


def _full(tmp_path: Path, clock: Clock) -> tuple[SqliteStore, FullDatabase]:
    """A store with two sessions; the disk is full for what begins with `fails_at`."""
    databases: list[FullDatabase] = []

    def factory(path: Path) -> FullDatabase:
        databases.append(FullDatabase(path))
        return databases[0]

    store = SqliteStore.open(tmp_path, database=factory, clock=clock, monotonic=clock)
    store.write([Fence(record("s1")), Fence(record("s2"))])
    return store, databases[0]


def test_a_session_is_deleted_though_what_is_to_be_stored_beside_it_finds_no_room(
    tmp_path: Path, clock: Clock
) -> None:
    store, database = _full(tmp_path, clock)
    database.fails_at = "INSERT INTO journal"
    first, second = store.write([Forget("s1"), _append("s2", 1)])
    assert first is None
    assert second is not None
    assert content(store).keys() == {"s2"}
    # Nor when it is not even tried, and what begins anew under its id comes after.
    with pytest.raises(StoreError, match="is full"):
        store.append("s2", "e1", batch(1))
    results = store.write([_append("s2", 1), Forget("s2"), Fence(record("s2", "e2"))])
    assert [result is None for result in results] == [False, True, False]
    assert store.summaries() == []
    database.fails_at = ""
    clock.now += 10
    store.write([Fence(record("s2", "e2")), Append("s2", "e2", encode_batch(batch(1)))])
    assert content(store)["s2"].batches == (batch(1),)
    store.close()


def test_a_deletion_that_found_no_room_is_done_when_there_is_some(tmp_path: Path, clock: Clock) -> None:
    store, database = _full(tmp_path, clock)
    database.fails_at = "DELETE FROM sessions"
    assert None not in store.write([Forget("s1")])
    assert None not in store.write([Forget("s2"), Fence(record("s3"))])
    clock.now += 10
    with pytest.raises(StoreError, match="is full"):
        _keep_up(store)
    assert {summary.session_id for summary in store.summaries()} == {"s1", "s2"}
    database.fails_at = ""
    clock.now += 10
    _keep_up(store)
    assert store.summaries() == []
    store.close()


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_deletion_that_found_no_room_is_not_done_to_who_goes_on_with_the_session(
    tmp_path: Path, clock: Clock, is_fenced: bool
) -> None:
    store, database = _full(tmp_path, clock)
    database.fails_at = "DELETE FROM sessions"
    assert store.write([Forget("s1")]) != [None]
    database.fails_at = ""
    clock.now += 10
    if is_fenced:
        assert store.write([Fence(record("s1", "e2"))]) == [None]
    else:
        store.load("s1")
    _keep_up(store)
    assert content(store).keys() == {"s1", "s2"}
    store.close()


def test_a_full_disk_can_be_cleaned_up(tmp_path: Path) -> None:
    databases: list[SmallDatabase] = []

    def factory(path: Path) -> SmallDatabase:
        databases.append(SmallDatabase(path))
        return databases[0]

    store = SqliteStore.open(tmp_path, database=factory, monotonic=Clock())
    store.fence(record("s1"))
    store.fence(record("s2"))
    databases[0].limit(60)
    with pytest.raises(StoreError, match="is full"):
        for _ in range(1000):
            store.append("s1", "e1", batch(4, "x" * 10_000))
    assert (tmp_path / "ballast").exists()
    store.forget("s1")
    # What was kept for this is used, and taken anew once there is room.
    assert not (tmp_path / "ballast").exists()
    store.append("s2", "e1", batch(1))
    assert content(store).keys() == {"s2"}
    _keep_up(store)
    assert (tmp_path / "ballast").stat().st_size == 8 << 20
    store.close()


@pytest.mark.parametrize("log", [None, b""])
def test_a_file_that_lost_all_is_not_taken_for_a_new_one_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, log: bytes | None
) -> None:
    SqliteStore.open(tmp_path).close()
    assert caplog.messages == []
    (tmp_path / "store.db").write_bytes(b"")
    if log is not None:
        (tmp_path / "store.db-wal").write_bytes(log)
    SqliteStore.open(tmp_path).close()
    assert caplog.messages == ["store.db was empty: a new store is begun"]


def test_a_store_that_is_all_in_its_log_is_none_that_lost_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = SqliteStore.open(tmp_path / "first")
    first.fence(record())
    (tmp_path / "killed").mkdir(mode=0o700)
    for name in ("store.db", "store.db-wal"):
        (tmp_path / "killed" / name).write_bytes((tmp_path / "first" / name).read_bytes())
        (tmp_path / "killed" / name).chmod(0o600)
    first.close()
    killed = SqliteStore.open(tmp_path / "killed")
    assert [summary.session_id for summary in killed.summaries()] == ["s1"]
    assert caplog.messages == []
    killed.close()


def test_a_store_tells_why_it_cannot_store(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    assert store.fault is None
    error = store.give_up("a test")
    assert store.fault is error
