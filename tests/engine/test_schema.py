from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from streamctx.engine.base import StoreError
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from streamctx.errors import ConfigurationError
from tests.engine.apsw_database import ApswDatabase
from tests.engine.disk import Disk
from tests.engine.model import Model, content
from tests.engine.power_cut import Cut, judge
from tests.engine.samples import batch, record, state

__all__: list[str] = []


def _sql(directory: Path, *statements: str) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    with contextlib.closing(sqlite3.connect(directory / "store.db")) as connection, connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


def _old_store(directory: Path) -> Model:
    """A store as version 1 left it, and what it holds."""
    store = SqliteStore.open(directory)
    store.fence(record())
    store.append("s1", "e1", batch(1))
    store.snapshot("s1", "e1", state(3))
    store.append("s1", "e1", batch(3))
    held = content(store)
    store.close()
    _sql(
        directory,
        "ALTER TABLE sessions DROP COLUMN damage",
        "DROP TABLE quarantine",
        "PRAGMA user_version = 1",
    )
    return held


def test_a_store_of_the_first_version_is_brought_to_the_present_one(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path / "new").close()
    held = _old_store(tmp_path / "old")
    store = SqliteStore.open(tmp_path / "old")
    assert content(store) == held
    store.append("s1", "e1", batch(5))
    store.close()
    assert _sql(tmp_path / "old", "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    tables = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    assert _sql(tmp_path / "old", tables) == _sql(tmp_path / "new", tables)


def test_each_version_has_its_step() -> None:
    assert len(MIGRATIONS) == SCHEMA_VERSION == 2


@pytest.mark.slow
def test_a_migration_can_be_interrupted_anywhere(ram_path: Path) -> None:
    held = _old_store(ram_path / "old")
    image = {str(ram_path / "old" / "store.db"): (ram_path / "old" / "store.db").read_bytes()}
    chance = random.Random(1)
    cuts: list[Cut] = []

    def on_call(what: str) -> None:
        cuts.extend(Cut(disk.cut(chance), 0, what) for _ in range(3))

    disk = Disk("migration", on_call)
    try:
        disk.put(image)
        SqliteStore.open(ram_path / "old", database=lambda path: ApswDatabase(path, vfs="migration"))
    finally:
        disk.unregister()
    assert len(cuts) > 30
    for cut in cuts:
        assert judge(cut, [held], ram_path / "old", ram_path / "found") == "kept"


def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    SqliteStore.open(tmp_path).close()
    _sql(tmp_path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = (tmp_path / "store.db").read_bytes()
    with pytest.raises(ConfigurationError, match="schema version 3, and this streamctx knows 2"):
        SqliteStore.open(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == before


def test_the_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(mode=0o600)
    _sql(tmp_path, "CREATE TABLE notes (text)")
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="another program"):
        SqliteStore.open(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [100, 5000])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, size: int) -> None:
    path = tmp_path / "store.db"
    path.touch(mode=0o600)
    path.write_bytes(b"?" * size)
    with pytest.raises(ConfigurationError, match="no store of streamctx"):
        SqliteStore.open(tmp_path)
    assert path.read_bytes() == b"?" * size


@pytest.mark.parametrize(
    "harm", ["DELETE FROM meta WHERE name = 'run'", "UPDATE meta SET value = 'x' WHERE name = 'scanned'"]
)
def test_a_store_that_does_not_know_what_it_is_is_refused_and_let_go(tmp_path: Path, harm: str) -> None:
    SqliteStore.open(tmp_path).close()
    _sql(tmp_path, harm)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="damaged where it says what it is"):
            SqliteStore.open(tmp_path)


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch(mode=0o600)
    SqliteStore.open(tmp_path).close()
    assert _sql(tmp_path, "PRAGMA application_id") == [(APPLICATION_ID,)]


def test_a_store_that_is_open_is_refused_to_others(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    with pytest.raises(ConfigurationError, match="in use by another server"):
        SqliteStore.open(tmp_path)
    # The refusal has not taken the lock away.
    with pytest.raises(ConfigurationError, match="in use by another server"):
        SqliteStore.open(tmp_path)
    store.fence(record())
    store.close()
    SqliteStore.open(tmp_path).close()


class OldDatabase(ApswDatabase):
    version = (3, 36, 9)


def test_an_old_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"SQLite 3\.36\.9, and a store needs 3\.37\.0"):
        SqliteStore.open(tmp_path, database=lambda path: OldDatabase(path, vfs="unix"))


def test_nobody_but_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "data")
    store.fence(record())
    found = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    # There is no shared memory, since there is one connection only.
    assert found == {"store.db": 0o600, "store.db-wal": 0o600, "ballast": 0o600}
    store.close()


def test_each_store_has_an_id_of_its_own_that_it_keeps(tmp_path: Path) -> None:
    first = SqliteStore.open(tmp_path / "one")
    second = SqliteStore.open(tmp_path / "two")
    assert first.store_id != second.store_id
    first.close()
    second.close()
    again = SqliteStore.open(tmp_path / "one")
    assert again.store_id == first.store_id
    again.close()


def test_a_closed_store_does_nothing(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed") as caught:
        store.fence(record())
    assert caught.value.is_fatal
    with pytest.raises(StoreError, match="closed"):
        store.load("s1")
