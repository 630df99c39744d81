"""What was stored is not what is found: one session is set aside, and no other is touched."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from streamctx.core.session.stored import StoredSession
from streamctx.engine.base import Damaged, StoreError
from streamctx.engine.sqlite import SqliteStore
from tests.engine.samples import batch, document, record, state

__all__: list[str] = []

Harm: TypeAlias = Callable[[sqlite3.Connection], object]


def _harm(directory: Path, harm: Harm) -> None:
    with contextlib.closing(sqlite3.connect(directory / "store.db")) as connection, connection:
        harm(connection)


def _copied(directory: Path, target: Path) -> Path:
    """The files as a crash leaves them: copied while the store is open."""
    target.mkdir(mode=0o700)
    for name in ("store.db", "store.db-wal"):
        (target / name).write_bytes((directory / name).read_bytes())
        (target / name).chmod(0o600)
    return target


def _filled(directory: Path) -> SqliteStore:
    """Two sessions: a state, then batches, of which rows 1, 3, 5 and 7 are of s1."""
    store = SqliteStore.open(directory)
    for name in ("s1", "s2"):
        store.fence(record(name))
    for number in (1, 3):
        for name in ("s1", "s2"):
            store.append(name, "e1", batch(number))
    for name in ("s1", "s2"):
        store.snapshot(name, "e1", state(5, document(1, "one"), document(2, "two")))
    for number in (5, 7):
        for name in ("s1", "s2"):
            store.append(name, "e1", batch(number))
    return store


STORED = StoredSession(record("s2"), state(5, document(1, "one"), document(2, "two")), (batch(5), batch(7)))


def _sql(sql: str) -> Harm:
    return lambda connection: connection.execute(sql)


def _flip(table: str, column: str, where: str) -> Harm:
    """Flip one bit in the middle of a blob."""

    def harm(connection: sqlite3.Connection) -> None:
        ((content,),) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchall()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 4
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (bytes(changed),))

    return harm


HARMS = {
    "payload": _flip("journal", "payload", "row = 7"),
    "previous": _sql("UPDATE journal SET previous = previous - 2 WHERE row = 7"),
    "previous of the first": _sql("UPDATE journal SET previous = 1 WHERE row = 5"),
    "time": _sql("UPDATE journal SET at = at + 1 WHERE row = 7"),
    "digest": _sql("UPDATE journal SET digest = digest + 1 WHERE row = 5"),
    "session of a row": _sql("UPDATE journal SET session = 2 WHERE row = 7"),
    "number of a row": _sql("UPDATE journal SET row = 99 WHERE row = 7"),
    "row in the middle": _sql("DELETE FROM journal WHERE row = 5"),
    "last row": _sql("DELETE FROM journal WHERE row = 7"),
    "cut tail": _sql("DELETE FROM journal WHERE row >= 7 AND session = 1"),
    "head": _sql("UPDATE sessions SET head_row = 5 WHERE id = 's1'"),
    "count": _sql("UPDATE sessions SET head_count = head_count + 1 WHERE id = 's1'"),
    "state": _flip("snapshots", "state", "session = 1"),
    "list of documents": _flip("snapshots", "documents", "session = 1"),
    "place of a snapshot": _sql("UPDATE snapshots SET head_row = 1 WHERE session = 1"),
    "missing snapshot": _sql("DELETE FROM snapshots WHERE session = 1"),
    "document": _flip("documents", "payload", "document = 1"),
    "missing document": _sql("DELETE FROM documents WHERE document = 2"),
}
RECORD_HARMS = {
    "record": _flip("sessions", "record", "id = 's1'"),
    "time of a record": _sql("UPDATE sessions SET opened = opened + 1 WHERE id = 's1'"),
    "epoch": _sql("UPDATE sessions SET epoch = 'e2' WHERE id = 's1'"),
}


@pytest.mark.parametrize("harm", [*HARMS.values(), *RECORD_HARMS.values()], ids=[*HARMS, *RECORD_HARMS])
def test_a_damaged_session_is_set_aside_and_no_other_is_touched(
    tmp_path: Path, harm: Harm, caplog: pytest.LogCaptureFixture
) -> None:
    _filled(tmp_path / "data").close()
    _harm(tmp_path / "data", harm)
    store = SqliteStore.open(tmp_path / "data")
    damaged = store.load("s1")
    assert isinstance(damaged, Damaged)
    assert damaged.record == (None if harm in RECORD_HARMS.values() else record("s1"))
    assert damaged.reason
    assert store.load("s2") == STORED
    assert store.counters.quarantined == 1
    assert "s1" in caplog.text
    assert "typed" not in caplog.text
    # It is gone, and the id is free.
    assert store.load("s1") is None
    assert [summary.session_id for summary in store.summaries()] == ["s2"]
    store.fence(record("s1", "e2"))
    store.append("s1", "e2", batch(1))
    assert store.load("s1") == StoredSession(record("s1", "e2"), None, (batch(1),))
    store.close()
    # What was set aside is still there, for who wants to look, and is found by no later start.
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "store.db")) as connection:
        ((key, reason),) = connection.execute("SELECT key, reason FROM quarantine").fetchall()
        assert key == 1
        assert reason == damaged.reason
    store = SqliteStore.open(tmp_path / "data")
    assert store.counters.quarantined == 0
    assert store.load("s2") == STORED
    store.close()


def test_heads_are_found_again_after_a_crash(tmp_path: Path) -> None:
    live = _filled(tmp_path / "data")
    store = SqliteStore.open(_copied(tmp_path / "data", tmp_path / "crashed"))
    for name in ("s1", "s2"):
        loaded = store.load(name)
        assert loaded == StoredSession(record(name), STORED.state, STORED.batches)
        store.append(name, "e1", batch(9))
        assert store.load(name) == StoredSession(record(name), STORED.state, (*STORED.batches, batch(9)))
    store.close()
    live.close()


def _crashed(tmp_path: Path, harm: Harm) -> SqliteStore:
    """Crash before any head was written, and do harm to what the start has to read."""
    live = _filled(tmp_path / "data")
    live.fence(record("s3"))
    live.append("s3", "e1", batch(1))
    directory = _copied(tmp_path / "data", tmp_path / "crashed")
    live.close()
    _harm(directory, harm)
    return SqliteStore.open(directory)


@pytest.mark.parametrize(
    ("harm", "damaged"),
    [
        # Of s1, as the row behind it says.
        (_sql("DELETE FROM journal WHERE row = 5"), {"s1"}),
        # The last of s1; s2 and s3 have rows behind it that prove them whole.
        (_sql("DELETE FROM journal WHERE row = 7"), {"s1"}),
        # The last of s2, and s1 might have had it as well.
        (_sql("DELETE FROM journal WHERE row = 8"), {"s1", "s2"}),
        (_flip("journal", "payload", "row = 8"), {"s1", "s2"}),
        (_sql("UPDATE journal SET session = 1 WHERE row = 8"), {"s1", "s2"}),
        (_flip("journal", "payload", "row = 5"), {"s1"}),
        (_flip("journal", "payload", "row = 9"), {"s1", "s2", "s3"}),
    ],
)
def test_a_session_that_cannot_be_proved_whole_after_a_crash_is_set_aside(
    tmp_path: Path, harm: Harm, damaged: set[str]
) -> None:
    store = _crashed(tmp_path, harm)
    for name in ("s1", "s2", "s3"):
        loaded = store.load(name)
        assert isinstance(loaded, Damaged) == (name in damaged), name
        assert loaded is not None
        assert loaded.record == record(name)
    store.close()


def test_damage_found_at_a_start_is_still_known_at_the_next(tmp_path: Path) -> None:
    store = _crashed(tmp_path, _sql("DELETE FROM journal WHERE row = 8"))
    with pytest.raises(StoreError, match="no record"):
        store.append("s1", "e1", batch(9))
    with pytest.raises(StoreError):
        store.fence(record("s1", lease=2))
    store.close()
    store = SqliteStore.open(tmp_path / "crashed")
    assert isinstance(store.load("s1"), Damaged)
    assert isinstance(store.load("s3"), StoredSession)
    store.close()


def test_what_is_left_of_a_damaged_chain_goes_with_its_session(tmp_path: Path) -> None:
    _filled(tmp_path / "data").close()
    _harm(tmp_path / "data", _sql("DELETE FROM journal WHERE row = 5"))
    store = SqliteStore.open(tmp_path / "data")
    store.forget("s1")
    assert store.load("s2") == STORED
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "store.db")) as connection:
        assert connection.execute("SELECT DISTINCT session FROM journal").fetchall() == [(2,)]


def test_a_session_without_a_connection_since_the_start_is_not_suspected(tmp_path: Path) -> None:
    _filled(tmp_path / "data").close()
    live = SqliteStore.open(tmp_path / "data")
    live.fence(record("s2", lease=2))
    live.append("s2", "e1", batch(9))
    directory = _copied(tmp_path / "data", tmp_path / "crashed")
    live.close()
    _harm(directory, _flip("journal", "payload", "row = 9"))
    store = SqliteStore.open(directory)
    assert isinstance(store.load("s1"), StoredSession)
    assert isinstance(store.load("s2"), Damaged)
    store.close()


def test_a_page_that_cannot_be_read_takes_only_the_sessions_on_it(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "data")
    store.fence(record("s1"))
    store.append("s1", "e1", batch(4, "find me " * 2000))
    store.fence(record("s2"))
    store.append("s2", "e1", batch(1))
    store.close()
    path = tmp_path / "data" / "store.db"
    content = bytearray(path.read_bytes())
    # A page that the row continues on begins with the number of the next one.
    page = content.rindex(b"find me ") // 4096 * 4096
    content[page - 4096 : page - 4092] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    store = SqliteStore.open(tmp_path / "data")
    damaged = store.load("s1")
    assert isinstance(damaged, Damaged)
    assert damaged.record == record("s1")
    assert store.load("s2") == StoredSession(record("s2"), None, (batch(1),))
    store.close()


def test_a_damaged_past_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    _filled(tmp_path / "data").close()
    _harm(tmp_path / "data", _flip("journal", "payload", "row = 1"))
    store = SqliteStore.open(tmp_path / "data")
    with pytest.raises(StoreError, match="past of session s1") as caught:
        store.tail("s1", 0.0)
    assert not caught.value.is_fatal
    assert store.counters.damaged_histories == 1
    assert store.load("s1") == StoredSession(record("s1"), STORED.state, STORED.batches)
    store.close()


def _checked(store: SqliteStore, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.INFO, "streamctx.engine"):
        while store.upkeep(is_idle=True):
            pass
    return caplog.text


def test_after_an_unclean_stop_the_whole_file_is_checked_in_idle_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = _filled(tmp_path / "data")
    store = SqliteStore.open(_copied(tmp_path / "data", tmp_path / "crashed"))
    assert "is whole" in _checked(store, caplog)
    assert store.counters.checks_passed == 1
    store.close()
    live.close()
    caplog.clear()
    store = SqliteStore.open(tmp_path / "crashed")
    assert "checked" not in _checked(store, caplog)
    store.close()


def test_a_file_that_is_damaged_in_places_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = _filled(tmp_path / "data")
    directory = _copied(tmp_path / "data", tmp_path / "crashed")
    live.close()

    def harm(connection: sqlite3.Connection) -> None:
        # The index no longer lists what is in its table.
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = 'documents_of_session'")

    _harm(directory, harm)
    store = SqliteStore.open(directory)
    assert "damaged in places" in _checked(store, caplog)
    assert store.counters.checks_failed == 1
    assert store.load("s2") == STORED
    store.close()
