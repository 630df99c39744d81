"""A data directory without room, and a disk that fails: nothing that was acknowledged as durable is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import streamctx
from streamctx.core.session.client_events import Refusal
from streamctx.errors import ErrorCode
from tests.chaos.editing import Editor, converge
from tests.chaos.process import ServerProcess
from tests.chaos.report import report
from tests.e2e.site import EDITORS, Site, load, site_at

__all__: list[str] = []

_SIZE = 8 << 20
_LEFT = 3 << 19

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio,
    pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="reads /proc"),
]


def _mount(*arguments: str) -> str:
    """Mount something; returns what mount has to say if it could not."""
    done = subprocess.run(("mount", *arguments), check=False, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB, most of which a file takes that can be deleted."""
    path = tmp_path / "disk"
    path.mkdir()
    failure = (
        "takes root" if os.geteuid() else _mount("-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(path))
    )
    if failure:
        pytest.skip(f"no small disk can be mounted: {failure}")
    try:
        yield path
    finally:
        subprocess.run(("umount", "--lazy", str(path)), check=True)


def _fill(disk: Path) -> Path:
    """Leave little room; before a server comes, so that it has no ballast to live on for a while."""
    filler = disk / "filler"
    space = os.statvfs(disk)
    filler.write_bytes(bytes(space.f_bavail * space.f_frsize - _LEFT))
    return filler


def _is_told(editor: Editor) -> bool:
    return any(
        isinstance(refusal, Refusal)
        and refusal.error.code == ErrorCode.UNAVAILABLE
        and refusal.error.retry_after_ms >= 1000
        for refusal in editor.client.errors
    )


async def _until_all_are_told(site: Site) -> None:
    """Wait until everybody was told that nothing can be stored, and when to come again."""
    async with asyncio.timeout(20):
        while not all(map(_is_told, site.found)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def _check_readable(server: ServerProcess) -> None:
    """Reading goes on."""
    for path in ("/v1/sessions", "/readyz"):
        assert (await server.arena.get(path)).status == 200
    async with streamctx.connect(server.url, server.token, role="observe") as observer, asyncio.timeout(5):
        await observer.ready()
        async with await observer.observe("*"):
            pass


async def test_full_disk_is_told_and_recovers_by_itself(tmp_path: Path, disk: Path) -> None:
    filler = _fill(disk)
    async with site_at(tmp_path, disk / "data") as site, site.server(may_fail=True) as server:
        await converge(site.found, server.arena, [], within_s=10)
        sessions = [editor.client.session_id for editor in site.found]
        async with load(site.found):
            await _until_all_are_told(site)
            before, began = (await server.metrics())["accepted"], time.monotonic()
            await _check_readable(server)
            await asyncio.sleep(3)
            came = (await server.metrics())["accepted"] - before
            took_s = time.monotonic() - began
            filler.unlink()
            await asyncio.sleep(1)
        took = await converge(site.found, server.arena, [], within_s=10)
        lines = [line for line in site.log.splitlines() if " INFO " not in line]
        report("disk full", came=came, within_s=round(took_s, 1), equal_after_s=round(took, 2))
        # Each waits a second at least between two attempts; one more is the observer.
        assert came <= EDITORS * (took_s + 1) + 1
        assert len(lines) == 2, lines
        assert "the disk with the data directory is full" in lines[0]
        assert "the store takes sessions again" in lines[1]
        _check_end(site, sessions)
        await server.stop()
        site.verify(site.left(), site.acknowledged())


async def test_killed_with_a_full_disk_it_has_all_that_was_acknowledged(tmp_path: Path, disk: Path) -> None:
    _fill(disk)
    async with site_at(tmp_path, disk / "data") as site:
        async with site.server(may_fail=True) as server:
            await site.opened()
            sessions = [editor.client.session_id for editor in site.found]
            async with load(site.found):
                await _until_all_are_told(site)
                await asyncio.sleep(0.5)
                acknowledged = site.acknowledged()
                server.send_signal(signal.SIGKILL)
                assert await server.exit_status() == -signal.SIGKILL
        site.verify(site.left(), acknowledged)
        assert not _mount("-o", f"remount,size={8 * _SIZE}", str(disk))
        async with site.server(may_fail=True) as server:
            await converge(site.found, server.arena, [], within_s=10)
            _check_end(site, sessions)


async def test_failing_disk_ends_the_server_and_loses_nothing(tmp_path: Path) -> None:
    io_error = 10
    async with site_at(tmp_path) as site:
        async with site.server(f"error:{io_error}", "INSERT INTO journal", "200", may_fail=True) as server:
            await site.opened()
            async with load(site.found), server.arena.greeted() as idle:
                assert (await idle.closed()).code == 1011
                assert await server.exit_status() == 1
                acknowledged = site.acknowledged()
        lines = [line for line in site.log.splitlines() if " INFO " not in line]
        assert len(lines) == 2, lines
        assert "streamctx.engine: the store has failed" in lines[0]
        assert lines[1].startswith("Error: the store has failed")
        assert min(acknowledged.values()) > 1
        site.verify(site.left(), acknowledged)
        sessions = [editor.client.session_id for editor in site.found]
        async with site.server(may_fail=True) as server:
            await converge(site.found, server.arena, [], within_s=10)
            assert [editor.client.session_id for editor in site.found] == sessions


def _check_end(site: Site, sessions: Sequence[str | None]) -> None:
    assert [editor.client.session_id for editor in site.found] == sessions
    assert all(editor.client.counters.resets == 0 for editor in site.found)
    for editor in site.found:
        for refusal in editor.client.errors:
            assert isinstance(refusal, Refusal)
            assert refusal.error.code == ErrorCode.UNAVAILABLE
