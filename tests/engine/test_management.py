from __future__ import annotations

import contextlib
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from streamctx.core.session.stored import SessionRecord, StoredSession
from streamctx.engine.base import StoreError
from streamctx.engine.sqlite import ImportRefused, SqliteStore
from streamctx.errors import ConfigurationError
from tests.engine.clock import Clock
from tests.engine.model import content
from tests.engine.samples import batch, document, record, state

__all__: list[str] = []


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqliteStore]:
    store = SqliteStore.open(tmp_path / "data", clock=clock)
    yield store
    store.close()


@pytest.fixture
def other(tmp_path: Path, clock: Clock) -> Iterator[SqliteStore]:
    store = SqliteStore.open(tmp_path / "other", clock=clock)
    yield store
    store.close()


def _fill(store: SqliteStore, session_id: str = "s1", principal: str = "anna") -> None:
    store.fence(record(session_id, principal=principal))
    store.append(session_id, "e1", batch(1))
    store.snapshot(session_id, "e1", state(3, document(1, "one"), document(2, "two")))
    store.append(session_id, "e1", batch(3))


def _without_secrets(given: SessionRecord, principal: str = "anna") -> SessionRecord:
    return msgspec.structs.replace(given, confirmed=None, pending=None, retired=(), principal=principal)


def _exported(store: SqliteStore, session_id: str = "s1") -> bytes:
    data = store.export(session_id)
    assert data is not None
    return data


def _rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path / "store.db")) as connection:
        return connection.execute(sql).fetchall()


def test_pruning_deletes_what_was_not_written_to_since(store: SqliteStore, clock: Clock) -> None:
    _fill(store, "s1")
    clock.now += 10
    _fill(store, "s2")
    assert store.prune(clock.now) == 1
    assert content(store).keys() == {"s2"}
    assert store.prune(clock.now) == 0
    clock.now += 1
    assert store.prune(clock.now) == 1
    assert content(store) == {}


def test_pruning_leaves_what_is_live_or_of_another_owner(store: SqliteStore, clock: Clock) -> None:
    _fill(store, "s1")
    _fill(store, "s2")
    _fill(store, "s3", "ben")
    clock.now += 1
    assert store.prune(clock.now, principal="anna", is_live={"s1"}) == 1
    assert content(store).keys() == {"s1", "s3"}


def test_of_what_is_deleted_no_byte_stays_in_the_file(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore.open(tmp_path / "data", clock=clock)
    for number in range(40):
        name = f"s{number % 4}"
        if number < 4:
            store.fence(record(name))
        store.append(name, "e1", batch(4, f"canary-{name} " * 100))
        if number % 8 < 4:
            store.snapshot(name, "e1", state(6, document(1, f"canary-{name} " * 50)))
    store.forget("s1")
    clock.now += 1
    store.append("s2", "e1", batch(4))
    store.prune(clock.now, is_live={"s3"})
    store.close()
    found = (tmp_path / "data" / "store.db").read_bytes()
    assert b"canary-s3" in found
    assert b"canary-s2" in found
    assert b"canary-s0" not in found
    assert b"canary-s1" not in found


def test_pruning_deletes_what_was_set_aside_before(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore.open(tmp_path / "data", clock=clock)
    _fill(store)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "store.db")) as connection, connection:
        connection.execute("UPDATE journal SET digest = 0 WHERE row = 2")
    store = SqliteStore.open(tmp_path / "data", clock=clock)
    store.load("s1")
    assert store.prune(clock.now) == 0
    clock.now += 1
    assert store.prune(clock.now) == 0
    store.close()
    for table in ("quarantine", "journal", "snapshots", "documents", "sessions"):
        assert _rows(tmp_path / "data", f"SELECT * FROM {table}") == []


def test_what_was_set_aside_is_told_and_deleted_one_by_one(tmp_path: Path, clock: Clock) -> None:
    store = SqliteStore.open(tmp_path / "data", clock=clock)
    sizes = []
    for owner in ("anna", "ben"):
        _fill(store, owner, owner)
        sizes.append(store.summaries()[-1].stored_bytes)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "store.db")) as connection, connection:
        connection.execute("UPDATE sessions SET digest = digest + 1")
    store = SqliteStore.open(tmp_path / "data", clock=clock)
    assert store.set_aside() == []
    for owner in ("anna", "ben"):
        store.load(owner)
    anna, ben = store.set_aside()
    assert (anna.session_id, anna.principal, anna.at) == ("anna", "anna", clock.now)
    assert anna.reason == "the record does not fit its check"
    assert 0 < anna.stored_bytes <= sizes[0]
    assert store.set_aside("ben") == [ben]
    store.forget_set_aside([ben.key, 99])
    assert store.set_aside() == [anna]
    store.forget_set_aside([anna.key])
    store.close()
    for table in ("quarantine", "journal", "snapshots", "documents", "sessions"):
        assert _rows(tmp_path / "data", f"SELECT * FROM {table}") == []


def test_an_exported_session_can_be_imported_elsewhere(store: SqliteStore, other: SqliteStore) -> None:
    _fill(store)
    assert other.import_session(_exported(store)) == "s1"
    loaded = store.load("s1")
    assert isinstance(loaded, StoredSession)
    assert other.load("s1") == StoredSession(_without_secrets(record()), loaded.state, loaded.batches)
    past = other.tail("s1", 0.0)
    assert past is not None
    assert past.state == loaded.state
    assert [item for _, item in past.batches] == [batch(3)]


def test_an_import_outlives_a_restart(tmp_path: Path, store: SqliteStore, clock: Clock) -> None:
    _fill(store)
    other = SqliteStore.open(tmp_path / "other", clock=clock)
    other.import_session(_exported(store))
    before = content(other)
    other.close()
    other = SqliteStore.open(tmp_path / "other", clock=clock)
    assert content(other) == before
    other.close()


def test_an_export_holds_nothing_that_resumes_the_session(store: SqliteStore) -> None:
    _fill(store)
    data = _exported(store)
    for secret in (record().confirmed, record().pending, *record().retired):
        assert secret is not None
        assert secret not in data


def test_an_import_may_change_the_owner(store: SqliteStore, other: SqliteStore) -> None:
    _fill(store)
    other.import_session(_exported(store), principal="ben")
    (summary,) = other.summaries()
    assert summary.principal == "ben"


def test_the_same_session_may_be_imported_again_and_another_may_not(
    store: SqliteStore, other: SqliteStore
) -> None:
    _fill(store)
    data = _exported(store)
    assert store.import_session(data, principal="anna") == "s1"
    assert other.import_session(data) == "s1"
    assert other.import_session(data) == "s1"
    store.append("s1", "e1", batch(5))
    with pytest.raises(ImportRefused, match="stored as s1 already"):
        other.import_session(_exported(store))


def test_an_import_tells_nothing_of_another_owners_session(
    store: SqliteStore, tmp_path: Path, clock: Clock
) -> None:
    _fill(store)
    data = _exported(store)
    store.append("s1", "e1", batch(5))
    full = SqliteStore.open(tmp_path / "full", clock=clock, principal_bytes_max=1)
    told = []
    for place, exported in ((store, data), (store, _exported(store)), (full, data)):
        with pytest.raises(StoreError) as caught:
            place.import_session(exported, principal="ben")
        told.append((caught.value.is_fatal, caught.value.retry_after_s))
    full.close()
    assert told == [(False, 60.0)] * 3
    assert [summary.principal for summary in store.summaries()] == ["anna"]


def _changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _of_version(data: bytes, version: int) -> bytes:
    tag, _, digest, exported = msgspec.msgpack.decode(data)
    return msgspec.msgpack.encode((tag, version, digest, exported))


def test_what_is_no_good_export_is_refused(store: SqliteStore, other: SqliteStore) -> None:
    _fill(store)
    data = _exported(store)
    for bad, reason in (
        (b"", "no exported session"),
        (b"\x01", "no exported session"),
        (data[:-1], "no exported session"),
        (_changed(data), "damaged"),
        (_of_version(data, 2), "format 2"),
    ):
        with pytest.raises(ImportRefused, match=reason):
            other.import_session(bad)
    assert content(other) == {}


def test_an_unknown_session_has_no_export(store: SqliteStore) -> None:
    assert store.export("s1") is None


def test_a_backup_is_a_store_of_its_own(tmp_path: Path, store: SqliteStore) -> None:
    _fill(store)
    directory = tmp_path / "copy"
    directory.mkdir(mode=0o700)
    store.backup(directory / "store.db")
    assert stat.S_IMODE((directory / "store.db").stat().st_mode) == 0o600
    copy = SqliteStore.open(directory)
    assert content(copy) == content(store)
    assert copy.store_id == store.store_id
    copy.close()


def test_what_is_written_during_a_backup_is_in_it(tmp_path: Path, store: SqliteStore) -> None:
    _fill(store)
    store.append("s1", "e1", batch(4, "x" * 3_000_000))
    directory = tmp_path / "copy"
    directory.mkdir(mode=0o700)
    numbers = iter(range(1001, 2000, 2))
    store.backup(directory / "store.db", lambda: store.append("s1", "e1", batch(next(numbers))))
    assert next(numbers) > 1003
    copy = SqliteStore.open(directory)
    assert content(copy) == content(store)
    copy.close()


def test_a_backup_overwrites_nothing(tmp_path: Path, store: SqliteStore) -> None:
    path = tmp_path / "there"
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"):
        store.backup(path)
    assert path.read_text() == "mine"
    with pytest.raises(ConfigurationError, match="cannot be made"):
        store.backup(tmp_path / "nowhere" / "file")


def test_a_failed_backup_leaves_no_file(tmp_path: Path, store: SqliteStore) -> None:
    _fill(store)
    store.append("s1", "e1", batch(4, "x" * 3_000_000))

    def fail() -> None:
        raise StoreError("of the test", is_fatal=False)

    with pytest.raises(StoreError, match="of the test"):
        store.backup(tmp_path / "copy", fail)
    assert not (tmp_path / "copy").exists()
    store.append("s1", "e1", batch(5))
