"""The Python client against a real server over real sockets, on asyncio and on trio."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import shutil
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import pytest
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

import streamctx
from streamctx import (
    Change,
    Client,
    Encoding,
    ErrorCode,
    EventRefused,
    FaultRates,
    Limits,
    LocalProtocolError,
    MessageFaults,
    SessionClosed,
)
from streamctx.client.faults import Direction, FaultKind
from streamctx.client.websocket import CONNECTION_ERRORS, WebSocket
from streamctx.limits import DEFAULT_LIMITS
from streamctx.wire.capabilities import negotiated_limits
from streamctx.wire.codec import encode_body
from streamctx.wire.digests import crc32_digest
from streamctx.wire.frames import pack_frame
from streamctx.wire.messages import (
    DesignNode,
    DesignOpen,
    DesignPage,
    DesignTool,
    Edit,
    Mention,
    ServerInfo,
    Welcome,
)
from tests.client.threaded_server import TOKEN, ThreadedServer, threaded_server

__all__: list[str] = []

_URI = "file:///work/a.py"


def _backends() -> list[str]:
    try:
        import trio  # noqa: F401
    except ImportError:
        return ["asyncio"]
    return ["asyncio", "trio"]


def on_each_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test under each event loop there is; at most 30 seconds."""

    @functools.wraps(test)
    def run(backend: str, **fixtures: object) -> None:
        async def bounded() -> None:
            with anyio.fail_after(30):
                await test(**fixtures)

        anyio.run(bounded, backend=backend)

    signature = inspect.signature(test)
    backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), backend], return_annotation=None
    )
    del run.__wrapped__
    parametrized: Callable[..., None] = pytest.mark.parametrize("backend", _backends())(run)
    return parametrized


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    with threaded_server() as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await anyio.sleep(0.005)


def is_status(client: Client, status: str) -> bool:
    return client.status == status  # A call, so that the type checker forgets what it was.


async def in_thread(function: Callable[[], object]) -> None:
    await anyio.to_thread.run_sync(function)


def type_at_random(document: streamctx.Document, chooser: random.Random) -> None:
    """One edit somewhere in the text."""
    lines = document.text.split("\n")
    line = chooser.randrange(len(lines))
    start = chooser.randint(0, len(lines[line]))
    end = chooser.randint(start, min(start + 3, len(lines[line])))
    document.edit((line, start, line, end, chooser.choice(["a", "bc", "\n", "", "xyz"])))


# Ready, refused, unreachable


@on_each_loop
async def test_ready_returns_once_welcomed(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        assert is_status(client, "connecting")
        await client.ready()
        assert is_status(client, "connected")
        assert client.session_id == server.sessions()[0]["session"]
    assert client.status == "closed"
    assert server.sessions() == []


@on_each_loop
async def test_wrong_token_closes_for_good(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, "wrong-but-long-enough") as client:
        with pytest.raises(SessionClosed, match=r"401.*token") as refused:
            await client.ready()
        assert refused.value.code is ErrorCode.UNAUTHORIZED
        assert client.status == "closed"
        with pytest.raises(SessionClosed):
            await client.open(_URI, "")
        with pytest.raises(SessionClosed):
            await client.flush()


@on_each_loop
async def test_missing_token_closes_for_good(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("STREAMCTX_TOKEN", "STREAMCTX_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with streamctx.connect(server.url) as client:
        with pytest.raises(SessionClosed) as refused:
            await client.ready()
        assert refused.value.code is ErrorCode.UNAUTHORIZED


@on_each_loop
async def test_wrong_path_closes_for_good(server: ThreadedServer) -> None:
    async with streamctx.connect(f"{server.url}/v1/other", TOKEN) as client:
        with pytest.raises(SessionClosed, match="404"):
            await client.ready()


@on_each_loop
async def test_unreachable_server_is_said_and_waited_for(server: ThreadedServer) -> None:
    await in_thread(server.kill)
    async with streamctx.connect(server.url, TOKEN, flush_s=0.0) as client:
        with pytest.raises(ConnectionError, match=str(server.port)):
            await client.ready()
        assert is_status(client, "connecting")
        await in_thread(server.start)
        while not is_status(client, "connected"):
            try:
                await client.ready()
            except ConnectionError:
                continue


@on_each_loop
async def test_no_server_found_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STREAMCTX_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with streamctx.connect() as client:
        with pytest.raises(ConnectionError, match=str(tmp_path)):
            await client.ready()


@on_each_loop
async def test_error_of_the_block_comes_out_as_it_is(server: ThreadedServer) -> None:
    with pytest.raises(KeyError):
        async with streamctx.connect(server.url, TOKEN) as client:
            await client.ready()
            raise KeyError("x")


# Documents


@on_each_loop
@pytest.mark.parametrize("encoding", list(Encoding))
async def test_edits_arrive_exactly(server: ThreadedServer, encoding: Encoding) -> None:
    chooser = random.Random(1)
    async with streamctx.connect(server.url, TOKEN, encoding=encoding) as client:
        document = await client.open(_URI, "one\ntwo 😀\n", language="python", version=7)
        document.edit(Change(1, 4, 1, 6, "é"), version=10)
        document.edit([(0, 0, 0, 3, "1"), (0, 1, 0, 1, "!")])
        document.edit([(0, 0, 0, 0, "> "), (1, 0, 1, 0, "> ")], mode="sim")
        assert document.text == "> 1!\n> two é\n"
        assert document.version == 12
        for _ in range(500):
            type_at_random(document, chooser)
        document.save()
        await client.flush()
        seen = server.document(client.session_id, _URI)
        assert seen is not None
        assert seen["text"] == document.text
        assert seen["version"] == document.version
        assert client.pending == 0
        assert not client.errors
        document.close()
        await client.flush()
        assert server.document(client.session_id, _URI) is None


@on_each_loop
async def test_long_text_travels_in_parts(server: ThreadedServer) -> None:
    text = "".join(f"line {number} with some text\n" for number in range(13_000))
    assert len(text) > 300 * 1024
    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, text)
        document.edit((0, 0, 0, 4, "LINE"))
        await client.flush()
        assert server.text(client.session_id, _URI) == document.text
        document.replace(text * 2)
        document.edit((1, 0, 1, 0, "more"))
        await client.flush()
        assert server.text(client.session_id, _URI) == document.text


@on_each_loop
async def test_many_documents(server: ThreadedServer) -> None:
    chooser = random.Random(2)
    async with streamctx.connect(server.url, TOKEN) as client:
        documents = [await client.open(f"file:///{number}.py", f"{number}\n") for number in range(200)]
        with pytest.raises(LocalProtocolError, match="200"):
            await client.open("file:///one-more.py", "")
        for _ in range(2000):
            type_at_random(chooser.choice(documents), chooser)
        await client.flush()
        for document in documents:
            assert server.text(client.session_id, document.uri) == document.text


@on_each_loop
async def test_refused_document_says_so_and_harms_no_other(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        secret = await client.open("file:///work/.env", "KEY=1\n")
        other = await client.open(_URI, "x")
        await client.flush()
        assert secret.refused == ErrorCode.EXCLUDED
        assert len(client.errors) == 1
        secret.edit((0, 0, 0, 0, "more"))
        secret.cursor((0, 0))
        other.edit((0, 0, 0, 0, "y"))
        await client.flush()
        assert server.text(client.session_id, _URI) == "yx"
        assert server.document(client.session_id, secret.uri) is None


@on_each_loop
async def test_wrong_edit_changes_nothing(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, "x")
        for change in ((1, 0, 1, 0, ""), (0, 2, 0, 2, "")):
            with pytest.raises(EventRefused):
                document.edit(change)
        for impossible in (Change(-1, 0, 0, 0, ""), Change(0, -1, 0, 0, "")):
            with pytest.raises(EventRefused):
                document.edit(impossible)
        with pytest.raises(LocalProtocolError):
            document.edit([])
        with pytest.raises(LocalProtocolError):
            document.edit((0, 0, 0, 0, "y"), version=0)
        assert (document.text, document.version) == ("x", 0)
        document.close()
        assert not document.is_open
        with pytest.raises(LocalProtocolError):
            document.edit((0, 0, 0, 0, "y"))


@on_each_loop
async def test_edits_of_one_turn_leave_in_one_write(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = []
    send = WebSocket.send

    async def counted(websocket: WebSocket, data: bytes) -> None:
        writes.append(len(data))
        await send(websocket, data)

    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, "")
        await client.flush()
        await anyio.sleep(0.1)
        monkeypatch.setattr(WebSocket, "send", counted)
        for _ in range(50):
            document.edit((0, 0, 0, 0, "x"))
        await client.flush()
        assert len([size for size in writes if size > 1000]) == 1


# Observers


@on_each_loop
async def test_observer_sees_documents_and_presence(server: ThreadedServer) -> None:
    async with (
        streamctx.connect(server.url, TOKEN, name="editor", role="produce") as editor,
        streamctx.connect(server.url, TOKEN, name="agent", role="observe", encoding=Encoding.JSON) as agent,
    ):
        document = await editor.open(_URI, "text\n")
        document.cursor((0, 2))
        document.select([(0, 0, 0, 4)])
        document.viewport(0, 1)
        document.state(dirty=True)
        editor.focus(document)
        await editor.flush()
        async with await agent.observe() as observation:
            changes = []
            async for change in observation:
                changes.append(change)
                if change.is_synced:
                    break
            (session_id,) = observation.sessions
            assert session_id == editor.session_id
            observed = observation.sessions[session_id]
            assert observed.client is not None and observed.client.name == "editor"
            assert {key[0] for key in observed.presence} == {
                "cursor",
                "selection",
                "viewport",
                "state",
                "focus",
            }
            assert observation.text(session_id, _URI) == "text\n"
            for _ in range(100):
                document.edit((0, 0, 0, 0, "x"))
            document.mention((0, 0, 0, 1), note="this")
            async for change in observation:
                assert change.missed == 0
                changes.append(change)
                if any(isinstance(event, Mention) for event in change.events):
                    break
            assert observation.text(observed, _URI) == document.text
            document.close()
            await until(lambda: not observation.sessions[session_id].documents)
        assert [change async for change in observation if change.is_synced] != []


@on_each_loop
async def test_observer_is_shown_a_long_text_in_parts(server: ThreadedServer) -> None:
    async with (
        streamctx.connect(server.url, TOKEN) as editor,
        streamctx.connect(server.url, TOKEN) as agent,
    ):
        document = await editor.open(_URI, "")
        observation = await agent.observe()
        await editor.ready()
        session_id = str(editor.session_id)
        await until(lambda: observation.text(session_id, _URI) == "")
        for size in (60_000, 70_000, 200_000):
            document.replace("x" * size)
            document.edit((0, 0, 0, 0, "y"))
            await until(lambda: observation.text(session_id, _URI) == document.text)
        assert agent.counters.resubscribed == 0
        assert observation.sessions[session_id].counters.syncs == 1
        observation.close()


@on_each_loop
async def test_observer_of_an_unknown_session_is_told(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        with pytest.raises(EventRefused) as refused:
            await client.observe("nobody")
        assert refused.value.code is ErrorCode.NOT_FOUND


@on_each_loop
async def test_observation_that_nobody_reads_is_bounded(server: ThreadedServer) -> None:
    async with (
        streamctx.connect(server.url, TOKEN) as editor,
        streamctx.connect(server.url, TOKEN) as agent,
    ):
        document = await editor.open(_URI, "")
        observation = await agent.observe()
        for _ in range(30):
            document.replace("x" * 60_000 + str(document.version))
            await editor.flush()
        await until(lambda: observation.text(str(editor.session_id), _URI) == document.text)
        change = await observation.__anext__()
        assert change.missed == observation.missed > 0
        observation.close()


@on_each_loop
async def test_design_documents(server: ThreadedServer) -> None:
    async with (
        streamctx.connect(server.url, TOKEN) as tool,
        streamctx.connect(server.url, TOKEN) as agent,
    ):
        design = DesignOpen(
            document=1,
            uri="design:1",
            tool=DesignTool(name="draw"),
            file_name="f",
            pages=(DesignPage(id="p", name="P", order=0),),
            capture="page",
        )
        alias = tool.open_design(design)
        nodes = [DesignNode(id=str(number), kind="box", name="n") for number in range(150)]
        tool.select_nodes(alias, "p", nodes)
        await tool.flush()
        observation = await agent.observe()
        await until(lambda: any(o.designs and o.presence for o in observation.sessions.values()))
        (observed,) = observation.sessions.values()
        (selection,) = observed.presence.values()
        assert (len(selection.nodes), selection.total, selection.truncated) == (100, 150, True)  # type: ignore[union-attr]
        tool.close_design(alias)
        await until(lambda: not observed.designs)
        assert not tool.errors


# Lost connections and servers


@on_each_loop
async def test_connection_dropped_at_any_moment_loses_nothing(server: ThreadedServer) -> None:
    chooser = random.Random(3)
    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, "")
        await client.ready()
        session_id = client.session_id
        for round_ in range(30):
            for _ in range(chooser.randrange(20)):
                type_at_random(document, chooser)
            if round_ % 3:
                await until(lambda: client.status == "connected")
            await anyio.sleep(chooser.random() * 0.005)
            client.abort()
        await client.flush()
        assert server.text(client.session_id, _URI) == document.text
        assert client.counters.connections > 5
        if client.counters.resets == 0:
            assert client.session_id == session_id


@on_each_loop
async def test_edits_made_offline_arrive_and_say_so(server: ThreadedServer) -> None:
    async with (
        streamctx.connect(server.url, TOKEN) as client,
        streamctx.connect(server.url, TOKEN) as agent,
    ):
        document = await client.open(_URI, "")
        await client.flush()
        observation = await agent.observe(str(client.session_id))
        client.abort()
        while client.status == "connected":
            await anyio.lowlevel.checkpoint()
        document.edit((0, 0, 0, 0, "offline"))
        await client.flush()
        document.edit((0, 0, 0, 0, "online "))
        edits = []
        async for change in observation:
            edits += [event for event in change.events if isinstance(event, Edit)]
            if len(edits) == 2:
                break
        assert [edit.is_offline for edit in edits] == [True, False]
        observation.close()


@on_each_loop
async def test_new_server_is_given_everything_anew(server: ThreadedServer) -> None:
    async with (
        streamctx.connect(server.url, TOKEN) as client,
        streamctx.connect(server.url, TOKEN) as agent,
    ):
        document = await client.open(_URI, "one\n")
        await client.flush()
        first = client.session_id
        observation = await agent.observe()
        await until(lambda: observation.text(str(first), _URI) == "one\n")
        await in_thread(server.kill)
        document.edit((1, 0, 1, 0, "two\n"))
        await until(lambda: client.status == "reconnecting")
        document.edit((2, 0, 2, 0, "three\n"))
        await in_thread(server.start)
        await client.flush()
        assert client.session_id != first
        assert client.counters.resets == 1
        assert server.text(client.session_id, _URI) == "one\ntwo\nthree\n"
        await until(lambda: observation.text(str(client.session_id), _URI) == document.text)
        assert list(observation.sessions) == [client.session_id]
        ended = []
        async for change in observation:
            if change.is_ended:
                ended.append(change.session_id)
            if change.session_id == client.session_id and change.is_synced:
                break
        assert ended == [first]


@on_each_loop
async def test_draining_server_is_left_and_come_back_to() -> None:
    with threaded_server(limits=Limits(reconnect_delay_max_s=0.5)) as server:
        async with streamctx.connect(server.url, TOKEN) as client:
            document = await client.open(_URI, "x")
            await client.flush()
            await in_thread(server.drain)
            document.edit((0, 0, 0, 0, "y"))
            await in_thread(server.start)
            await client.flush()
            assert server.text(client.session_id, _URI) == "yx"


@on_each_loop
async def test_what_cannot_be_a_position_is_refused_where_it_is_said(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, "text\n")
        wrong: Any = "x"
        for refused in (
            lambda: document.cursor(wrong),
            lambda: document.cursor((0, -1)),
            lambda: document.select([(0, 0)]),  # type: ignore[list-item]
            lambda: document.viewport(0, wrong),
            lambda: document.mention((0, 0, 0, wrong)),
            lambda: document.edit((0, 0, 0, 0, 5)),  # type: ignore[arg-type]
            lambda: document.edit((0, 0, 0)),  # type: ignore[arg-type]
            lambda: document.edit((0, -1, 0, 0, "")),
        ):
            with pytest.raises(LocalProtocolError):
                refused()
        await client.flush()
        assert document.text == "text\n"
        assert not client.errors


@on_each_loop
async def test_waiters_are_told_of_what_came_late(server: ThreadedServer) -> None:
    faults = MessageFaults(FaultRates.parse("reorder=1"), seed=1)  # every message waits for its timer
    async with streamctx.connect(server.url, TOKEN, faults=faults) as client:
        document = await client.open(_URI, "text\n")
        with anyio.fail_after(8):
            await client.observe()
            for _ in range(3):
                document.edit((0, 0, 0, 0, "x"))
                await client.flush()
        assert server.text(client.session_id, _URI) == document.text


@on_each_loop
@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("seed", [1, 2])
async def test_faults_on_every_message_are_healed(
    server: ThreadedServer, encoding: Encoding, seed: int
) -> None:
    chooser = random.Random(seed)
    rates = FaultRates.parse("drop=0.03,dup=0.03,reorder=0.03,corrupt=0.03,cut=0.005")
    faults = MessageFaults(rates, seed=seed)
    async with (
        streamctx.connect(server.url, TOKEN, encoding=encoding, faults=faults) as client,
        streamctx.connect(
            server.url, TOKEN, encoding=encoding, faults=MessageFaults(rates, seed=seed + 10)
        ) as agent,
    ):
        observation = await agent.observe()
        documents = [await client.open(f"file:///{number}.py", "start\n") for number in range(3)]
        for _ in range(60):
            for _ in range(chooser.randrange(20)):
                type_at_random(chooser.choice(documents), chooser)
            documents[0].cursor((0, 0))
            await anyio.sleep(chooser.random() * 0.004)
        await client.flush()
        for document in documents:
            assert server.text(client.session_id, document.uri) == document.text
        for document in documents:
            await until(
                lambda uri=document.uri, text=document.text: (  # type: ignore[misc]
                    observation.text(str(client.session_id), uri) == text
                )
            )
        assert sum(faults.counts[Direction.OUTGOING].values()) > 0
        assert faults.counts[Direction.OUTGOING][FaultKind.CORRUPT] > 0
        faults.is_paused = True


@on_each_loop
async def test_cut_spares_what_left_before_it(server: ThreadedServer) -> None:
    rates = FaultRates.parse("cut=0.02")
    faults = MessageFaults(rates, seed=6)
    async with streamctx.connect(server.url, TOKEN, faults=faults) as client:
        document = await client.open(_URI, "")
        for _ in range(500):
            document.edit((0, 0, 0, 0, "x"))
        # A write of this many messages never gets through whole: it has to arrive in pieces.
        await client.flush()
        assert server.text(client.session_id, _URI) == document.text
        assert faults.counts[Direction.OUTGOING][FaultKind.CUT] > 3


@on_each_loop
async def test_handshake_stands_faults(server: ThreadedServer) -> None:
    faults = MessageFaults(FaultRates.parse("drop=0.4,corrupt=0.3"), seed=5)
    async with streamctx.connect(server.url, TOKEN, faults=faults, flush_s=0.0) as client:
        await client.ready()
        faults.is_paused = True
        document = await client.open(_URI, "x")
        await client.flush()
        assert server.text(client.session_id, _URI) == document.text


# Leaving, cancelling, threads


@on_each_loop
async def test_leaving_flushes(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as agent:
        observation = await agent.observe()
        async with streamctx.connect(server.url, TOKEN) as client:
            document = await client.open(_URI, "x")
            document.edit((0, 0, 0, 0, "y"))
        seen = []
        async for change in observation:
            seen += [type(event).__name__ for event in change.events]
            if change.is_ended:
                break
        assert "Open" in seen
        assert client.session.is_settled
        with pytest.raises(SessionClosed):
            document.edit((0, 0, 0, 0, "z"))


@on_each_loop
async def test_leaving_without_a_server_is_bounded(
    server: ThreadedServer, caplog: pytest.LogCaptureFixture
) -> None:
    await in_thread(server.kill)
    with anyio.fail_after(2):
        async with streamctx.connect(server.url, TOKEN, flush_s=0.05) as client:
            await client.open(_URI, "x")
    assert "1 events" in caplog.text
    assert TOKEN not in caplog.text and _URI not in caplog.text


@on_each_loop
async def test_cancelled_client_leaves_its_session_to_be_resumed(server: ThreadedServer) -> None:
    clients: list[Client] = []

    async def produce() -> None:
        async with streamctx.connect(server.url, TOKEN) as client:
            clients.append(client)
            document = await client.open(_URI, "x")
            await client.ready()
            while True:
                document.edit((0, 0, 0, 0, "y"))
                await anyio.lowlevel.checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(produce)
            await until(lambda: bool(clients) and clients[0].status == "connected")
            await anyio.sleep(0.02)
            group.cancel_scope.cancel()
    assert clients[0].status == "closed"
    await until(lambda: [session["connected"] for session in server.sessions()] == [False])


@on_each_loop
async def test_cancelled_waiting_harms_nothing(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, "x" * 200_000)
        for _ in range(20):
            with anyio.move_on_after(0.001):
                await client.flush()
            with anyio.move_on_after(0.0):
                await client.observe()
            document.edit((0, 0, 0, 0, "y"))
        await client.flush()
        assert server.text(client.session_id, _URI) == document.text
        assert not client.session.subscriptions


@on_each_loop
async def test_other_threads_call_in(server: ThreadedServer) -> None:
    async with streamctx.connect(server.url, TOKEN) as client:
        document = await client.open(_URI, "")
        await client.flush()

        def work() -> None:
            for _ in range(100):
                client.call_soon(document.edit, (0, 0, 0, 0, "x"))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await in_thread(thread.join)
        await until(lambda: len(document.text) == 400)
        await client.flush()
        assert server.text(client.session_id, _URI) == "x" * 400


def test_call_after_the_end_of_the_loop_is_refused(server: ThreadedServer) -> None:
    async def main() -> Client:
        async with streamctx.connect(server.url, TOKEN) as client:
            return client

    for backend in _backends():
        client = anyio.run(main, backend=backend)
        with pytest.raises(LocalProtocolError):
            client.call_soon(print)


@on_each_loop
async def test_unix_socket(tmp_path: Path) -> None:
    with threaded_server(port=None, uds=tmp_path / "s") as server:
        async with streamctx.connect(token=TOKEN, uds=tmp_path / "s") as client:
            await client.open(_URI, "x")
            await client.flush()
            assert server.text(client.session_id, _URI) == "x"


@on_each_loop
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await in_thread(
        lambda: subprocess.run(["openssl", *command.split(), *names], check=True, capture_output=True)
    )
    context = ssl.create_default_context(cafile=certificate)
    chooser = random.Random(4)
    with threaded_server(tls_cert=certificate, tls_key=key) as server:
        url = server.url.replace("ws:", "wss:")
        async with streamctx.connect(url, TOKEN, ssl_context=context) as client:
            document = await client.open(_URI, "x" * 300_000)
            for _ in range(200):
                type_at_random(document, chooser)
                if chooser.random() < 0.1:
                    await anyio.sleep(0.001)
            await client.flush()
            assert server.text(client.session_id, _URI) == document.text
        async with streamctx.connect(url, TOKEN) as client:
            with pytest.raises(ConnectionError, match="certificate"):
                await client.ready()


# A peer that does not read


@contextlib.asynccontextmanager
async def deaf_peer() -> AsyncIterator[tuple[str, list[int]]]:
    """A server that upgrades and then reads nothing; gives its address and counts connections."""
    accepted: list[int] = []

    async def serve(stream: anyio.abc.SocketStream) -> None:
        accepted.append(len(accepted))
        with contextlib.suppress(*CONNECTION_ERRORS):
            await welcome(stream)

    async def welcome(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            protocol = ServerProtocol(subprotocols=[Subprotocol("streamctx.v1")])
            protocol.receive_data(await stream.receive())
            (request,) = protocol.events_received()
            assert isinstance(request, Request)
            protocol.send_response(protocol.accept(request))
            await stream.send(b"".join(protocol.data_to_send()))
            # HELLO is read, and answered with a WELCOME; then nothing more.
            data = await stream.receive()
            protocol.receive_data(data)
            message = Welcome(
                attempt=len(accepted),
                session="s",
                secret="x",
                epoch="e",
                lease=1,
                verdict="new" if len(accepted) == 1 else "resumed",
                expects=1,
                next=1,
                digest="xxh3-64",
                unit="utf-16",
                hash="xxh3-64",
                durability="none",
                limits=negotiated_limits(DEFAULT_LIMITS),
                server=ServerInfo(name="deaf", version="1"),
            )
            body = encode_body(message, Encoding.MSGPACK)
            protocol.send_binary(pack_frame(body, encoding=Encoding.MSGPACK, digest=crc32_digest))
            await stream.send(b"".join(protocol.data_to_send()))
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"ws://127.0.0.1:{port}", accepted
        group.cancel_scope.cancel()
    await listener.aclose()


@on_each_loop
async def test_peer_that_does_not_read_is_left_and_memory_is_bounded() -> None:
    limits = Limits(send_deadline_s=0.3, close_wait_s=0.2)
    async with (
        deaf_peer() as (url, accepted),
        streamctx.connect(url, TOKEN, limits=limits, flush_s=0.0) as client,
    ):
        await client.ready()
        document = await client.open(_URI, "")
        for _ in range(3000):
            document.edit((0, 0, 0, 0, "x" * 10_000))
            document.cursor((0, 0))
        assert client.counters.collapsed > 0
        await until(lambda: len(accepted) >= 2)
        assert client.pending < 11_000
