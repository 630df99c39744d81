"""Editors with an outbox on disk: whatever ends them, what they had typed reaches the server, once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import streamctx
from streamctx.client.faults import FaultKind, FaultRates, MessageFaults
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.limits import MIB
from streamctx.wire.messages import Mention
from tests.chaos.process import ROOT, ServerProcess, server_process
from tests.client.threaded_server import TOKEN, ThreadedServer, threaded_server
from tests.e2e.outbox_process import NAMES, change_at, first_text

__all__: list[str] = []

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]

_ROUNDS = int(os.environ.get("STREAMCTX_OUTBOX_ROUNDS", "10"))
_LINE_S_MAX = 20.0


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    with threaded_server() as running:
        yield running


class EditorProcess:
    """`tests.e2e.outbox_process`, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.versions: dict[str, int] = {}
        self.notes: set[str] = set()

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(_LINE_S_MAX):
            line = await self.process.stdout.readline()
        said: dict[str, Any] = json.loads(line)
        self._take(said)
        return said

    def _take(self, said: dict[str, Any]) -> None:
        if "version" in said:
            self.versions[said["name"]] = said["version"]
        elif "note" in said:
            self.notes.add(said["note"])

    async def kill(self) -> None:
        """Kill it, and take in what it had said before."""
        self.process.kill()
        await self.process.wait()
        assert self.process.stdout is not None
        # The last line may be half of one.
        for line in (await self.process.stdout.read()).splitlines():
            with contextlib.suppress(ValueError):
                self._take(json.loads(line))

    async def confirmed(self) -> dict[str, Any]:
        """Have it stop, and wait until the server has everything."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        while "session" not in (said := await self.line()):
            pass
        return said


@contextlib.asynccontextmanager
async def editor_process(server: ServerProcess, directory: Path) -> AsyncIterator[EditorProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.outbox_process", server.url, server.token, str(directory),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * MIB,
    )  # fmt: skip
    try:
        yield EditorProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


class Model:
    """What the text of each version has to be."""

    def __init__(self) -> None:
        self._buffers = {name: TextBuffer(first_text(name)) for name in NAMES}
        self._versions = dict.fromkeys(NAMES, 0)

    def text(self, name: str, version: int) -> str:
        """Versions are asked for as they rise."""
        while self._versions[name] < version:
            self._buffers[name].apply([change_at(self._versions[name])])
            self._versions[name] += 1
        assert self._versions[name] == version
        return self._buffers[name].text()


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * _ROUNDS)
async def test_killed_editor_loses_and_doubles_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("STREAMCTX_OUTBOX_SEED", "1"))
    chance = random.Random(seed)
    model = Model()
    directory = tmp_path / "outbox"
    sessions: set[tuple[str, str]] = set()
    notes: Counter[str | None] = Counter()
    last = dict.fromkeys(NAMES, 0)
    made: set[str] = set()
    async with (
        server_process(tmp_path) as server,
        streamctx.connect(server.url, server.token, role="observe") as watcher,
        await watcher.observe("*") as observation,
        asyncio.TaskGroup() as group,
    ):
        watching = group.create_task(_count_mentions(observation, notes))
        for round_ in range(_ROUNDS):
            async with editor_process(server, directory) as editor:
                found = await editor.line()
                assert found["found"] == ("session" if sessions else "nothing")
                _check(found, model, last)
                last = {name: found["texts"].get(_uri(name), [0, 0])[1] for name in NAMES}
                while len(editor.versions) < len(NAMES):
                    await editor.line()
                if not round_:
                    # A session that its server has not seen confirmed is forgotten (HSK-8).
                    while not any(view["documents"] for view in await server.arena.sessions()):
                        await editor.line()
                # Sometimes before it is connected, sometimes after thousands of edits.
                for _ in range(chance.choice([0, 1, 30, 300, 1000])):
                    await editor.line()
                await editor.kill()
                last = {name: max(last[name], editor.versions[name]) for name in NAMES}
                made |= editor.notes
            sessions |= await _producers(server)
        async with editor_process(server, directory) as editor:
            found = await editor.line()
            _check(found, model, last)
            said = await editor.confirmed()
            assert said["resumes"] == 1
            assert said["resets"] == 0
            sessions |= await _producers(server)
            assert len(sessions) == 1
            assert said["session"] == next(iter(sessions))[0]
            await _check_server(server, said["session"], editor, found, model)
            made |= editor.notes
            async with asyncio.timeout(5):
                while not made <= notes.keys():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert max(notes.values()) == 1
            editor.process.stdin.close()  # type: ignore[union-attr]
            assert await editor.process.wait() == 0
        watching.cancel()
        assert not (directory / "outbox.log").exists()


async def _producers(server: ServerProcess) -> set[tuple[str, str]]:
    """The sessions that editors have, each with its epoch."""
    views = await server.arena.sessions()
    return {(view["session"], view["epoch"]) for view in views if view["role"] != "observe"}


@pytest.mark.slow
@pytest.mark.timeout(90 + 10 * _ROUNDS)
async def test_editor_and_server_that_are_both_killed_lose_nothing(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("STREAMCTX_OUTBOX_SEED", "1")))
    model = Model()
    directory = tmp_path / "outbox"
    sessions: set[tuple[str, str]] = set()
    last = dict.fromkeys(NAMES, 0)
    options = ("--data", str(tmp_path / "data"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(max(1, _ROUNDS // 2)):
        async with (
            server_process(tmp_path, port=port, options=options) as server,
            editor_process(server, directory) as editor,
        ):
            _check(found := await editor.line(), model, last)
            last = {name: found["texts"].get(_uri(name), [0, 0])[1] for name in NAMES}
            while len(editor.versions) < len(NAMES) or not await _producers(server):
                await editor.line()
            for _ in range(chance.choice([1, 30, 300])):
                await editor.line()
            sessions |= await _producers(server)
            if chance.random() < 0.5:
                server.process.kill()
                # It types on, and nobody takes it.
                for _ in range(chance.choice([0, 200])):
                    await editor.line()
            await editor.kill()
            last = {name: max(last[name], editor.versions[name]) for name in NAMES}
            if server.process.returncode is None:
                server.process.kill()
            await server.process.wait()
    async with (
        server_process(tmp_path, port=port, options=options) as server,
        editor_process(server, directory) as editor,
    ):
        _check(found := await editor.line(), model, last)
        said = await editor.confirmed()
        sessions |= await _producers(server)
        assert said["resets"] == 0
        assert len(sessions) == 1
        await _check_server(server, said["session"], editor, found, model)
        editor.process.stdin.close()  # type: ignore[union-attr]
        assert await editor.process.wait() == 0


async def _check_server(
    server: ServerProcess, session: str, editor: EditorProcess, found: dict[str, Any], model: Model
) -> None:
    """The server has what the editor has typed, and nothing was wrong with any of it."""
    for alias, name in enumerate(NAMES, 1):
        view = await server.arena.get(f"/v1/sessions/{session}/documents/{alias}")
        document = json.loads(view.body)
        version = editor.versions.get(name) or found["texts"][_uri(name)][1]
        assert document["version"] == version
        assert not document["stale"]
        assert document["text"] == model.text(name, version)
    metrics = await server.metrics()
    assert metrics["events_refused"] == metrics["frames_lost"] == 0


def _uri(name: str) -> str:
    return f"file:///work/{name}"


def _check(found: dict[str, Any], model: Model, last: dict[str, int]) -> None:
    """What a process finds is all that the one before had said it typed, and one call more at most."""
    for name in NAMES:
        if _uri(name) not in found["texts"]:
            assert last[name] == 0
            continue
        text, version = found["texts"][_uri(name)]
        assert last[name] <= version <= last[name] + 1
        assert text == model.text(name, version)


async def _count_mentions(observation: streamctx.Observation, notes: Counter[str | None]) -> None:
    async for change in observation:
        if change.is_synced:
            notes.update(event.note for event in change.events if isinstance(event, Mention))


async def test_session_that_is_left_with_everything_confirmed_is_over(
    tmp_path: Path, server: ThreadedServer
) -> None:
    async with streamctx.connect(server.url, TOKEN, outbox=tmp_path / "outbox") as client:
        assert client.outbox is not None
        assert client.outbox.found == "nothing"
        await client.open("file:///a", "abc")
        await client.flush()
        assert b"file:///a" in _log(tmp_path / "outbox")
    assert not (tmp_path / "outbox" / "outbox.log").exists()
    async with streamctx.connect(server.url, TOKEN, outbox=tmp_path / "outbox") as client:
        assert client.restored == ()


async def test_what_was_typed_without_a_server_is_sent_by_the_next_process(tmp_path: Path) -> None:
    with threaded_server() as server:
        url = server.url
        with pytest.raises(RuntimeError):
            async with streamctx.connect(url, TOKEN, outbox=tmp_path) as client:
                document = await client.open("file:///a", "")
                await client.flush()
                before = client.session_id
                raise RuntimeError
        faults = MessageFaults(FaultRates({FaultKind.DROP: 1.0}), seed=1)
        async with streamctx.connect(url, TOKEN, outbox=tmp_path, faults=faults, flush_s=0) as client:
            (document,) = client.restored
            for version in range(3):
                document.edit((0, 0, 0, 0, f"{version}"))
        async with streamctx.connect(url, TOKEN, outbox=tmp_path) as client:
            assert client.outbox is not None
            assert client.outbox.found == "session"
            (document,) = client.restored
            assert document.text == "210"
            await client.flush()
            assert client.session_id == before
            assert len(server.sessions()) == 1
            assert server.text(before, "1") == "210"
            # It is opened again with what the editor has now.
            again = await client.open("file:///a", "other")
            assert client.restored == ()
            assert again.alias == document.alias
            again.edit((0, 0, 0, 0, "an"))
            await client.flush()
            assert server.text(before, "1") == "another"


async def test_another_server_gets_the_texts_and_not_the_secret(tmp_path: Path) -> None:
    with threaded_server() as first, threaded_server() as second:
        with pytest.raises(RuntimeError):
            async with streamctx.connect(first.url, TOKEN, outbox=tmp_path) as client:
                await client.open("file:///a", "abc")
                await client.flush()
                raise RuntimeError
        async with streamctx.connect(second.url, TOKEN, outbox=tmp_path) as client:
            await client.flush()
            assert client.counters.resets == 1
            assert client.counters.resumes == 0
            assert second.text(client.session_id, "1") == "abc"


async def test_two_clients_cannot_have_one_outbox(tmp_path: Path, server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN, outbox=tmp_path):
        with pytest.raises(streamctx.ConfigurationError, match="in use by another client"):
            async with streamctx.connect(server.url, TOKEN, outbox=tmp_path):
                pass
    async with streamctx.connect(server.url, TOKEN, outbox=tmp_path, outbox_fsync=True) as client:
        await client.open("file:///a", "abc")
        await client.flush()


async def test_nothing_of_an_excluded_document_stays_on_disk(tmp_path: Path, server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN, outbox=tmp_path) as client:
        await client.open("file:///a", "abc")
        document = await client.open("file:///work/.env", "PASSWORD=1")
        document.edit((0, 0, 0, 0, "CANARY=1\n"))
        await client.flush()
        assert document.refused == "excluded"
        document.edit((0, 0, 0, 0, "MORE=1\n"))
        canaries = (b"PASSWORD", b"CANARY", b"MORE", b".env")
        async with asyncio.timeout(5):
            while any(word in _log(tmp_path) for word in canaries):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert b"abc" in _log(tmp_path)


def _log(directory: Path) -> bytes:
    return (directory / "outbox.log").read_bytes()
