"""After a purge nothing older is left of a session, in no file of the store."""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamctx.core.session.stored import StoredSession
from streamctx.engine.base import Damaged, StoreError
from streamctx.engine.sqlite import SqliteStore
from streamctx.engine.sqlite.library import CORRUPT, DatabaseError, Row, StandardDatabase, Value
from streamctx.engine.sqlite.upkeep import Thresholds
from tests.engine.model import content
from tests.engine.samples import batch, document, record, state

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

SECRET = "TOPSECRET"


def _keep_up(store: SqliteStore) -> None:
    while store.upkeep(is_idle=True):
        pass


def _is_anywhere(directory: Path) -> bool:
    return any(SECRET.encode() in path.read_bytes() for path in directory.iterdir())


def _with_secrets(directory: Path) -> SqliteStore:
    """A session with secrets in rows and documents, small and large, among those of others."""
    store = SqliteStore.open(directory)
    for name in ("s1", "s2"):
        store.fence(record(name))
    for index in range(20):
        text = SECRET + "x" * (30 if index % 2 else 20_000)
        store.append("s1", "e1", batch(4, text))
        store.append("s2", "e1", batch(4, "typed"))
        if index % 5 == 0:
            store.snapshot("s1", "e1", state(index, document(1, text), document(2, f"{SECRET}{index}")))
            store.snapshot("s2", "e1", state(index, document(1, f"{index}")))
    return store


def test_nothing_that_was_purged_is_in_any_file_after_the_next_step_of_upkeep(tmp_path: Path) -> None:
    store = _with_secrets(tmp_path)
    assert _is_anywhere(tmp_path)
    store.snapshot("s1", "e1", state(99, document(2, "clean")), purge=True)
    assert store.upkeep(is_idle=False)
    assert not _is_anywhere(tmp_path)
    store.append("s1", "e1", batch(101))
    assert content(store)["s1"] == StoredSession(record(), state(99, document(2, "clean")), (batch(101),))
    store.close()
    store = SqliteStore.open(tmp_path)
    assert content(store)["s1"].batches == (batch(101),)
    store.close()


def test_a_purge_is_whole_after_a_crash_and_its_log_is_emptied_by_the_next_run(tmp_path: Path) -> None:
    store = _with_secrets(tmp_path / "data")
    store.snapshot("s1", "e1", state(99), purge=True)
    store.append("s1", "e1", batch(101))
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "data", crashed)
    store.close()
    store = SqliteStore.open(crashed)
    assert store.counters.quarantined == 0
    assert content(store)["s1"] == StoredSession(record(), state(99), (batch(101),))
    _keep_up(store)
    assert not _is_anywhere(crashed)
    store.close()


def test_a_purge_during_a_backup_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    store = _with_secrets(tmp_path / "data")
    steps = 0

    def step() -> None:
        nonlocal steps
        if not steps:
            store.snapshot("s1", "e1", state(99), purge=True)
        steps += 1
        store.upkeep(is_idle=False)

    store.snapshot("s2", "e1", state(7, document(1, "y" * 9_000_000)))
    store.backup(tmp_path / "copy.db", step)
    assert steps
    _keep_up(store)
    assert not _is_anywhere(tmp_path / "data")
    assert SECRET.encode() not in (tmp_path / "copy.db").read_bytes()
    store.close()


def test_what_is_counted_for_the_owner_is_what_is_left(tmp_path: Path) -> None:
    store = _with_secrets(tmp_path)
    store.snapshot("s1", "e1", state(1), purge=True)
    left = store.summary("s1")
    store.fence(record("s3"))
    store.snapshot("s3", "e1", state(1))
    assert left is not None
    alike = store.summary("s3")
    assert alike is not None
    assert left.stored_bytes == alike.stored_bytes
    store.close()


def test_no_quota_refuses_a_purge(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path, principal_bytes_max=10_000)
    store.fence(record())
    store.append("s1", "e1", batch(4, "x" * 4000))
    store.snapshot("s1", "e1", state(5, document(1, "x" * 20_000)), purge=True)
    store.close()


def test_what_was_set_aside_of_the_session_goes_with_a_purge(tmp_path: Path) -> None:
    databases: list[StandardDatabase] = []

    def factory(path: Path) -> StandardDatabase:
        databases.append(StandardDatabase(path))
        return databases[0]

    store = SqliteStore.open(tmp_path, database=factory)
    store.fence(record())
    store.append("s1", "e1", batch(4, SECRET))
    store.append("s1", "e1", batch(1))
    databases[0].execute("UPDATE journal SET digest = 0 WHERE row = 2")
    assert isinstance(store.load("s1"), Damaged)
    store.fence(record(epoch="e2"))
    store.snapshot("s1", "e2", state(1), purge=True)
    _keep_up(store)
    assert store.set_aside() == []
    assert not _is_anywhere(tmp_path)
    store.close()


class DamagedDatabase(StandardDatabase):
    """Cannot read the pages that each statement needs which begins so."""

    fails_at = ""

    @override
    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]:
        if self.fails_at and sql.lstrip().startswith(self.fails_at):
            raise DatabaseError(CORRUPT, "database disk image is malformed")
        return super().execute(sql, parameters)


def test_a_purge_that_meets_damage_fails_alone_and_changes_nothing(tmp_path: Path) -> None:
    databases: list[DamagedDatabase] = []

    def factory(path: Path) -> DamagedDatabase:
        databases.append(DamagedDatabase(path))
        return databases[0]

    store = SqliteStore.open(tmp_path, database=factory)
    store.fence(record())
    store.append("s1", "e1", batch(1))
    before = content(store)
    databases[0].fails_at = "DELETE FROM documents"
    with pytest.raises(StoreError, match="is damaged") as caught:
        store.snapshot("s1", "e1", state(1), purge=True)
    assert not caught.value.is_fatal
    assert content(store) == before
    databases[0].fails_at = ""
    store.append("s1", "e1", batch(3))
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_move_between_pages_leave_nothing_behind(ram_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    now = 1000.0
    thresholds = Thresholds(checkpoint_bytes=100_000, sweep_rows_min=10, ballast_bytes=4096)
    directory = ram_path / "data"
    store = SqliteStore.open(
        directory, history_s=20.0, clock=lambda: now, thresholds=thresholds, durability="relaxed"
    )
    names = [f"s{index}" for index in range(6)]
    for _ in range(400):
        now += 1
        name = chance.choice(names)
        store.fence(record(name))
        for _ in range(chance.randrange(6)):
            text = "x" * chance.choice((10, 100, 1000, 3000, 9000))
            store.append(name, "e1", batch(4, (SECRET if name == "s0" else "") + text))
        if chance.random() < 0.3:
            text = "y" * chance.choice((10, 1000, 9000))
            store.snapshot(name, "e1", state(1, document(1, (SECRET if name == "s0" else "") + text)))
        if chance.random() < 0.1 and name != "s0":
            store.forget(name)
        store.upkeep(is_idle=chance.random() < 0.5)
    store.fence(record("s0"))
    store.snapshot("s0", "e1", state(1), purge=True)
    _keep_up(store)
    assert not _is_anywhere(directory), seed
    store.close()
