"""A server that is told to end, or stopped and continued, in the middle of work: nobody loses anything."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import streamctx
from streamctx.core.session.observed import ObservedSession
from streamctx.errors import CloseCode
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import Encoding, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Ack,
    Edit,
    GoAway,
    Heartbeat,
    Subscribe,
    Sync,
    Synced,
    Update,
)
from tests.chaos.editing import converge, editors, typing
from tests.chaos.process import ServerProcess, server_process
from tests.chaos.report import report
from tests.chaos.scale import CLIENTS
from tests.hostile.raw import Closed, Raw, opening

__all__: list[str] = []

_INTERVAL_S = 0.02
_QUICK = Limits(reconnect_delay_max_s=2.0)
"""Over so long the clients of a server that drains spread their return."""

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]


class _Witness:
    """A producer that never stops by itself, and an observer of it: both stay until they are closed."""

    def __init__(self, producer: Raw, observer: Raw) -> None:
        self.producer = producer
        self.observer = observer
        self.texts = {1: "start\n"}
        self.acknowledged = 0
        self.has_goaway = False
        self.closed: dict[str, int] = {}
        self.copy = ObservedSession(producer.session, unit=Unit.UTF_16, limits=DEFAULT_LIMITS)

    async def produce(self) -> None:
        """Edit until the close."""
        version = 1
        with contextlib.suppress(ConnectionError):
            while "producer" not in self.closed:
                change = Change(0, 0, 0, 0, f"{version} ")
                self.texts[version + 1] = change.text + self.texts[version]
                await self.producer.push(
                    Edit(document=1, base=version, version=version + 1, changes=(change,))
                )
                version += 1
                await asyncio.sleep(0.002)

    async def listen(self) -> None:
        """Note what is acknowledged as applied: number 1 opened version 1, and each one after it edited."""
        try:
            while True:
                message = await self.producer.next()
                if isinstance(message, Ack | Heartbeat):
                    self.acknowledged = max(self.acknowledged, message.applied - 1)
                self.has_goaway |= isinstance(message, GoAway)
        except Closed as closed:
            self.closed["producer"] = closed.code

    async def observe(self) -> None:
        """Keep a copy."""
        try:
            while True:
                message = await self.observer.next()
                if isinstance(message, Sync | Update | Synced):
                    self.copy.receive(message)
        except Closed as closed:
            self.closed["observer"] = closed.code


@contextlib.asynccontextmanager
async def _witness(server: ServerProcess) -> AsyncIterator[_Witness]:
    async with server.arena.raw() as producer, server.arena.raw(Encoding.JSON) as observer:
        await producer.greet()
        await producer.push(opening(1, "start\n", uri="file:///witness"))
        await observer.greet()
        await observer.push(Subscribe(subscription=1, session=producer.session))
        yield _Witness(producer, observer)


async def test_sigterm_under_load_loses_nothing_and_clients_find_the_next_server(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(server_process(tmp_path, _QUICK))
        found = await stack.enter_async_context(editors(server.url, server.token, CLIENTS, limits=_QUICK))
        watcher = await stack.enter_async_context(streamctx.connect(server.url, server.token, role="observe"))
        observation = await watcher.observe("*")
        async with typing(found, _INTERVAL_S):
            async with _witness(server) as witness, asyncio.TaskGroup() as group:
                for work in (witness.produce, witness.listen, witness.observe):
                    group.create_task(work())
                await asyncio.sleep(1)
                sessions = {editor.client.session_id for editor in found}
                started = loop.time()
                server.send_signal(signal.SIGTERM)
            assert await server.exit_status(DEFAULT_LIMITS.drain_s) == 0
            drain_s = loop.time() - started
            document = witness.copy.document("file:///witness")
            assert document is not None
            # What was acknowledged as applied has been shown, so it was applied; and so have all others.
            assert document.version >= witness.acknowledged > 20
            assert witness.copy.text(1) == witness.texts[document.version]
            assert witness.has_goaway
            assert witness.closed == {"producer": CloseCode.DRAINING, "observer": CloseCode.DRAINING}
            assert all(editor.client.status == "reconnecting" for editor in found)
            next_server = await stack.enter_async_context(server_process(tmp_path, _QUICK, port=server.port))
            assert next_server.token == server.token
            await asyncio.sleep(1)
        took_s = await converge(found, next_server.arena, [observation], within_s=10.0)
        # It has nothing of the old one: all was opened anew, from the editors' own texts.
        assert all(editor.client.counters.resets == 1 for editor in found)
        assert not sessions & {editor.client.session_id for editor in found}
        report(
            "SIGTERM",
            drained_after_s=round(drain_s, 2),
            acknowledged=witness.acknowledged,
            shown=document.version,
            edits=sum(editor.edits for editor in found),
            equal_after_s=round(took_s, 2),
        )


async def test_second_sigterm_ends_the_server_at_once(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with (
        server_process(tmp_path) as server,
        editors(server.url, server.token, 3, limits=DEFAULT_LIMITS) as found,
        server.arena.greeted() as stubborn,
        typing(found, _INTERVAL_S),
    ):
        server.send_signal(signal.SIGTERM)
        await stubborn.find(GoAway)
        server.send_signal(signal.SIGTERM)
        started = loop.time()
        assert await server.exit_status() == 1
        assert loop.time() - started < 1.0


@pytest.mark.parametrize(
    ("limits", "stopped_s"),
    [
        pytest.param(DEFAULT_LIMITS, 3.0, id="shorter_than_dead"),
        pytest.param(Limits(heartbeat_s=0.5, dead_s=1.5), 3.0, id="longer_than_dead"),
    ],
)
async def test_clients_ride_out_a_stopped_server(tmp_path: Path, limits: Limits, stopped_s: float) -> None:
    is_noticed = stopped_s > limits.dead_s
    async with (
        server_process(tmp_path, limits) as server,
        editors(server.url, server.token, CLIENTS, limits=limits) as found,
        streamctx.connect(server.url, server.token, role="observe", limits=limits) as watcher,
        await watcher.observe("*") as observation,
    ):
        async with typing(found, _INTERVAL_S):
            await asyncio.sleep(0.5)
            server.send_signal(signal.SIGSTOP)
            await asyncio.sleep(stopped_s)
            server.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.5)
        took_s = await converge(found, server.arena, [observation], within_s=10.0)
        counters = [editor.client.counters for editor in found]
        metrics = await server.metrics()
        report(
            f"SIGSTOP of the server for {stopped_s:g} s, dead after {limits.dead_s:g} s",
            edits=sum(editor.edits for editor in found),
            resumed=sum(each.resumes for each in counters),
            takeovers=metrics["takeovers"],
            equal_after_s=round(took_s, 2),
        )
        assert all((each.resumes > 0) is is_noticed for each in counters)
        assert all(each.resets == each.lost == 0 for each in counters)
        assert metrics["sessions"] == CLIENTS + 1
        assert metrics["events_refused"] == metrics["frames_lost"] == 0
