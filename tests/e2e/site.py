"""Servers that follow each other on the same data, and editors that are busy all the time."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamctx.limits import DEFAULT_LIMITS
from tests.chaos.editing import Editor, editors
from tests.chaos.process import ServerProcess, server_process
from tests.e2e.stored import Kept, read_store

__all__ = ["EDITORS", "Site", "load", "resumed", "resumes", "site_at"]

EDITORS = 6
_KEYSTROKE_S = 0.004
_PASTED_CHARACTERS = (20_000, 200_000)
_RESUMED_S_MAX = 20.0


@dataclass
class Site:
    """Where server after server runs: the same data, port and token; and clients that know all that."""

    home: Path
    data: Path
    port: int
    token: str = "a-token-of-more-than-enough-characters"
    found: Sequence[Editor] = ()
    epochs: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> str:
        return (self.home / "server.log").read_text()

    def server(
        self, *fault: str, may_fail: bool = False
    ) -> contextlib.AbstractAsyncContextManager[ServerProcess]:
        """Run the next one; with `fault` it dies as `tests.e2e.failing_server` says."""
        return server_process(
            self.home,
            port=self.port,
            module=("tests.e2e.failing_server", *fault) if fault else ("streamctx",),
            options=(
                *("--data", str(self.data), "--token-file", str(self.home / "token")),
                *("--log-level", "info"),
            ),
            may_fail=may_fail,
        )

    def ready_at(self) -> float:
        """When the present server began to listen, in seconds since 1970."""
        return (self.home / "ready.json").stat().st_mtime

    def left(self) -> Path:
        """A copy of what a dead server has left."""
        copy = self.home / f"left-{time.monotonic_ns()}"
        shutil.copytree(self.data, copy)
        return copy

    def verify(self, left: Path, acknowledged: dict[str, int]) -> dict[str, Kept]:
        """See that what a dead server has left is all that it had acknowledged, once, and nothing else."""
        kept = read_store(left)
        shutil.rmtree(left)
        for editor in self.found:
            session = editor.client.session_id
            if session is None:
                continue
            found = kept[session]
            assert found.expected >= acknowledged[editor.name], f"{editor.name}: acknowledged, and lost"
            assert self.epochs.setdefault(session, found.epoch) == found.epoch
            for uri, copy in found.copies.items():
                assert editor.had(uri, copy), f"{editor.name} never had {copy.version} of {uri}"
            for numbers in (found.sequences, *found.versions.values()):
                assert list(numbers) == sorted(set(numbers)), f"{editor.name}: doubled"
        return kept

    async def opened(self) -> None:
        """Wait until something of every editor is stored."""
        async with asyncio.timeout(_RESUMED_S_MAX):
            while min(self.acknowledged().values()) == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    @property
    def has_sessions(self) -> bool:
        return any(editor.client.session_id for editor in self.found)

    def acknowledged(self) -> dict[str, int]:
        return {editor.name: editor.client.session.acknowledged for editor in self.found}


@contextlib.asynccontextmanager
async def site_at(home: Path, data: Path | None = None) -> AsyncIterator[Site]:
    """A site with editors, which find the server as soon as there is one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        site = Site(home, home / "data" if data is None else data, free.getsockname()[1])
    (home / "token").write_text(site.token)
    (home / "token").chmod(0o600)
    url = f"ws://127.0.0.1:{site.port}/v1/stream"
    async with editors(url, site.token, EDITORS, limits=DEFAULT_LIMITS) as site.found:
        yield site


async def _work(editor: Editor, is_over: asyncio.Event) -> None:
    """Type fast, open and close documents, and paste large texts."""
    while not is_over.is_set():
        editor.step()
        chance = editor.random.random()
        if chance < 0.005:
            await editor.turn_over()
        elif chance < 0.01:
            editor.paste(editor.random.choice(_PASTED_CHARACTERS))
        await asyncio.sleep(editor.random.uniform(0.5, 1.5) * _KEYSTROKE_S)


@contextlib.asynccontextmanager
async def load(found: Sequence[Editor]) -> AsyncIterator[None]:
    """All work while the block runs."""
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for editor in found:
            group.create_task(_work(editor, is_over))
        try:
            yield
        finally:
            is_over.set()


async def resumed(site: Site, before: Sequence[int | None]) -> list[float]:
    """Wait until all have resumed that had a connection; how long after the server was ready each did."""
    took: list[float] = []
    waiting = [(editor, count) for editor, count in zip(site.found, before, strict=True) if count is not None]
    async with asyncio.timeout(_RESUMED_S_MAX):
        while waiting:
            now = time.time()
            done = [item for item in waiting if item[0].client.session.resumes > item[1]]
            took += [now - site.ready_at()] * len(done)
            waiting = [item for item in waiting if item not in done]
            await asyncio.sleep(0.005)
    return took


def resumes(site: Site) -> list[int | None]:
    """How often those that have a connection have resumed; the others are away for longer."""
    return [
        editor.client.session.resumes if editor.client.status == "connected" else None
        for editor in site.found
    ]
