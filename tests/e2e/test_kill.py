"""A server that is killed at any moment and started again: nothing that it called durable is lost or doubled.

`make kill-rounds ROUNDS=60` kills it more often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from streamctx.engine.sqlite.library import StandardDatabase
from streamctx.engine.sqlite.schema import MIGRATIONS
from streamctx.limits import DEFAULT_LIMITS
from tests.chaos.editing import converge
from tests.chaos.process import EarlyExit
from tests.chaos.report import report
from tests.e2e.site import EDITORS, Site, load, resumed, resumes, site_at

__all__: list[str] = []

_IS_LONG = "STREAMCTX_KILL_ROUNDS" in os.environ
_ROUNDS = int(os.environ.get("STREAMCTX_KILL_ROUNDS", "12"))
_SEED = int(os.environ.get("STREAMCTX_KILL_SEED") or random.randrange(1 << 32))
_DEATH_S_MAX = 10.0

_Point: TypeAlias = tuple[str, str, int]
"""Moment, statement and count, see `tests.e2e.failing_server`."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio,
    pytest.mark.timeout(60 + 20 * _ROUNDS),
    pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="reads /proc"),
]


def _check_end(site: Site, sessions: Sequence[str | None]) -> None:
    """See that every client has the session that it had, and was never told to begin anew."""
    assert [editor.client.session_id for editor in site.found] == sessions
    assert all(editor.client.counters.resets == 0 for editor in site.found)
    assert not any(editor.client.errors for editor in site.found)
    assert "resynced" not in site.log
    assert site.log.count(" opened by ") == len(sessions)


async def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(_SEED)
    took: list[float] = []
    down: list[float] = []
    async with site_at(tmp_path) as site, contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(site.server())
        await converge(site.found, server.arena, [], within_s=10)
        sessions = [editor.client.session_id for editor in site.found]
        for _ in range(_ROUNDS):
            async with load(site.found):
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                acknowledged, before = site.acknowledged(), resumes(site)
                killed_at = time.time()
                server.send_signal(signal.SIGKILL)
                assert await server.exit_status() == -signal.SIGKILL
                left = site.left()
                server = await stack.enter_async_context(site.server())
                down.append(site.ready_at() - killed_at)
                if chance.random() < 0.25:
                    # Before all are back.
                    site.verify(left, acknowledged)
                    continue
                took += await resumed(site, before)
            await converge(site.found, server.arena, [], within_s=10)
            site.verify(left, acknowledged)
        await converge(site.found, server.arena, [], within_s=10)
        _check_end(site, sessions)
        await server.stop()
        kept = site.verify(site.left(), site.acknowledged())
        events = sum(len(found.sequences) for found in kept.values())
        took.sort()
        p99_s = took[int(len(took) * 0.99)]
        report(
            f"kill -9, {_ROUNDS} rounds, seed {_SEED}",
            edits=sum(editor.edits for editor in site.found),
            stored=events,
            down_ms_p50=round(statistics.median(down) * 1000),
            down_ms_max=round(max(down) * 1000),
            resumed=len(took),
            resumed_after_ms_p50=round(statistics.median(took) * 1000),
            resumed_after_ms_p99=round(p99_s * 1000),
        )
        assert p99_s < 2.0


_CREATING = [
    ("before", "PRAGMA locking_mode", 1),
    ("after", "PRAGMA journal_mode", 1),
    ("before", "CREATE TABLE journal", 1),
    ("after", "INSERT INTO meta VALUES", 1),
    ("before", "COMMIT", 1),
    ("after", "COMMIT", 1),
    ("after", "CREATE TABLE quarantine", 1),
    ("after", "COMMIT", 2),
    ("before", "SET value = 1 WHERE name = 'is_open'", 1),
]
_MIGRATING = [
    ("before", "CREATE TABLE quarantine", 1),
    ("before", "ALTER TABLE", 1),
    ("after", "ALTER TABLE", 1),
    ("after", "PRAGMA user_version =", 1),
    ("during", "COMMIT", 1),
    ("after", "COMMIT", 1),
]
_STARTING = [
    ("before", "PRAGMA locking_mode", 1),
    ("before", "PRAGMA journal_mode", 1),
    ("after", "PRAGMA journal_mode", 1),
    ("during", "SELECT row, session, previous", 1),
    ("after", "UPDATE sessions", 1),
    ("after", "SET value = . WHERE name = 'run'", 1),
    ("during", "COMMIT", 1),
    ("after", "COMMIT", 1),
]
"""As a killed server has left it."""
_RUNNING = [
    ("before", "PRAGMA wal_checkpoint", 1),
    ("during", "PRAGMA wal_checkpoint", 2),
    ("after", "PRAGMA wal_checkpoint", 1),
    ("before", "INSERT INTO snapshots", 3),
    ("after", "INSERT INTO snapshots", 3),
    ("after", "INSERT INTO documents", 4),
    ("before", "DELETE FROM snapshots", 2),
    ("after", "DELETE FROM snapshots", 2),
    ("before", "DELETE FROM journal", 1),
    ("during", "DELETE FROM journal", 2),
    ("after", "DELETE FROM journal", 1),
    ("during", "INSERT INTO journal", 100),
    ("after", "INSERT INTO journal", 100),
]


def _some(points: list[_Point]) -> list[_Point]:
    """A third of them in each run, by the seed, and all in a long one."""
    count = len(points) if _IS_LONG else (len(points) + 2) // 3
    chosen = random.Random(f"{_SEED} {points}").sample(range(len(points)), count)
    return [points[index] for index in sorted(chosen)]


async def _run_to_death(site: Site, point: _Point) -> None:
    """Run a server that dies at a point: while it starts, or under the load that there is."""
    moment, statement, count = point
    acknowledged = site.acknowledged()
    try:
        async with site.server(moment, statement, str(count)) as server, asyncio.timeout(_DEATH_S_MAX):
            while server.process.returncode is None:
                # What is acknowledged after this only makes the demand weaker.
                acknowledged = site.acknowledged()
                await asyncio.sleep(0.001)
            status = server.process.returncode
    except EarlyExit as exit_:
        status = exit_.status
    except TimeoutError:
        raise AssertionError(f"{point} was not reached") from None
    assert status == -signal.SIGKILL, (point, site.log)
    if site.has_sessions:
        site.verify(site.left(), acknowledged)


async def _go_on(site: Site) -> list[str | None]:
    """Run a good server on what there is, until it is killed: all is as the clients have it.

    Returns:
        The sessions.
    """
    async with site.server() as server:
        await converge(site.found, server.arena, [], within_s=10)
        async with load(site.found):
            await asyncio.sleep(0.3)
            acknowledged = site.acknowledged()
            server.send_signal(signal.SIGKILL)
            assert await server.exit_status() == -signal.SIGKILL
    site.verify(site.left(), acknowledged)
    return [editor.client.session_id for editor in site.found]


async def test_killed_while_it_starts_it_starts_again(tmp_path: Path) -> None:
    report("kill -9 at fail points", seed=_SEED)
    async with site_at(tmp_path) as site:
        for point in _some(_CREATING):
            await _run_to_death(site, point)
        sessions = await _go_on(site)
        for point in _some(_STARTING):
            await _run_to_death(site, point)
        for point in _some(_MIGRATING):
            _make_old(site.data, version=1)
            await _run_to_death(site, point)
        assert await _go_on(site) == sessions
        _check_end(site, sessions)


async def test_killed_while_it_tidies_it_has_lost_nothing(tmp_path: Path) -> None:
    report("kill -9 at fail points", seed=_SEED)
    async with site_at(tmp_path) as site:
        sessions = await _go_on(site)
        async with load(site.found):
            for point in _some(_RUNNING):
                await _run_to_death(site, point)
        assert await _go_on(site) == sessions
        _check_end(site, sessions)


async def test_sigterm_under_load_leaves_nothing_to_be_found_out(tmp_path: Path) -> None:
    async with site_at(tmp_path) as site:
        sessions = await _go_on(site)
        async with site.server() as server:
            await resumed(site, [0] * EDITORS)
            async with load(site.found):
                await asyncio.sleep(0.5)
                server.send_signal(signal.SIGTERM)
                assert await server.exit_status(DEFAULT_LIMITS.drain_s) == 0
            assert not (site.data / "store.db-wal").exists()
            database = StandardDatabase(site.data / "store.db")
            assert database.execute("SELECT value FROM meta WHERE name = 'is_open'") == [(0,)]
            database.close()
            site.verify(site.left(), site.acknowledged())
        _check_end(site, sessions)


def _make_old(data: Path, *, version: int) -> None:
    """Turn a store into what an older streamctx would have written."""
    path = data / "old.db"
    with contextlib.closing(StandardDatabase(path)) as database:
        for statement in ("ATTACH ? AS present", "BEGIN"):
            database.execute(statement, (str(data / "store.db"),) if "?" in statement else ())
        for migrate in MIGRATIONS[:version]:
            migrate(database)
        for (table,) in database.execute(
            "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ):
            columns = ", ".join(row[1] for row in database.execute(f"PRAGMA main.table_info({table})"))
            database.execute(f"DELETE FROM main.{table}")
            database.execute(f"INSERT INTO main.{table} SELECT {columns} FROM present.{table}")
        database.execute(f"PRAGMA user_version = {version}")
        database.execute("COMMIT")
    (data / "store.db-wal").unlink(missing_ok=True)
    path.replace(data / "store.db")
    path.with_name("store.db").chmod(0o600)
