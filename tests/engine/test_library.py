from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from streamctx.engine.sqlite.library import INTERRUPT, Database, DatabaseError, StandardDatabase
from tests.engine.apsw_database import ApswDatabase

__all__: list[str] = []

Factory = Callable[[Path], Database]

both = pytest.mark.parametrize(
    "factory", [StandardDatabase, lambda path: ApswDatabase(path, vfs="unix")], ids=["sqlite3", "apsw"]
)


@both
def test_rows_come_back_and_failures_have_their_code(tmp_path: Path, factory: Factory) -> None:
    database = factory(tmp_path / "x.db")
    assert database.execute("CREATE TABLE t (a PRIMARY KEY, b)") == []
    assert database.execute("INSERT INTO t VALUES (?, ?), (?, ?)", (1, b"x", 2, None)) == []
    assert database.execute("SELECT a, b FROM t ORDER BY a") == [(1, b"x"), (2, None)]
    with pytest.raises(DatabaseError) as caught:
        database.execute("INSERT INTO t VALUES (1, NULL)")
    # SQLITE_CONSTRAINT, and that it is the primary key.
    assert (caught.value.primary, caught.value.code) == (19, 1555)
    with pytest.raises(DatabaseError):
        database.execute("no SQL")
    database.close()


@both
def test_it_knows_whether_a_transaction_is_open(tmp_path: Path, factory: Factory) -> None:
    database = factory(tmp_path / "x.db")
    states = [database.is_in_transaction]
    for statement in ("BEGIN IMMEDIATE", "COMMIT"):
        database.execute(statement)
        states.append(database.is_in_transaction)
    assert states == [False, True, False]
    database.close()


@both
def test_a_long_statement_can_be_interrupted(tmp_path: Path, factory: Factory) -> None:
    database = factory(tmp_path / "x.db")
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    asked = 0

    def is_wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    database.interrupt_when(is_wanted)
    with pytest.raises(DatabaseError) as caught:
        database.execute(endless)
    assert caught.value.primary == INTERRUPT
    assert asked == 3
    database.interrupt_when(None)
    assert database.execute("SELECT 1") == [(1,)]
    database.close()


@both
def test_what_cannot_be_opened_has_its_code(tmp_path: Path, factory: Factory) -> None:
    with pytest.raises(DatabaseError) as caught:
        factory(tmp_path / "nowhere" / "x.db").execute("CREATE TABLE t (a)")
    assert caught.value.primary == 14


def test_what_was_abandoned_is_never_closed(tmp_path: Path) -> None:
    for is_abandoned in (False, True):
        path = tmp_path / f"{is_abandoned}.db"
        database = StandardDatabase(path)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (a)")
        if is_abandoned:
            database.abandon()
        del database
        gc.collect()
        assert path.with_name(f"{path.name}-wal").exists() == is_abandoned
