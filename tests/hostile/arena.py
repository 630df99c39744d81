"""A server under attack, a neighbour on it that goes on working, and what may not be in its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streamctx.core.session.observed import ObservedSession
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import Encoding, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import Edit, Hello, Subscribe, Sync, Synced, Update, Version
from tests.hostile.raw import HELLO, Raw, hash_of, opening
from tests.server.raw_client import RawClient, Response

__all__ = ["LIMITS", "Arena", "log_faults", "neighbour", "until"]

LIMITS: Final = Limits(
    request_head_timeout_s=1.0,
    hello_timeout_s=1.0,
    send_deadline_s=1.5,
    heartbeat_s=0.5,
    dead_s=3.0,
    close_wait_s=0.3,
    gap_timeout_s=1.0,
    detached_session_s=1.0,
    drain_s=1.0,
)
"""The short times of a server under attack; what it may hold is as always."""

_EDIT_INTERVAL_S = 0.005
_URI = "file:///neighbour/main.py"


@dataclass(frozen=True)
class Arena:
    """Where the server is."""

    port: int
    token: str
    limits: Limits = DEFAULT_LIMITS

    def raw(
        self, encoding: Encoding = Encoding.MSGPACK, *, token: str | None = ""
    ) -> contextlib.AbstractAsyncContextManager[Raw]:
        """A WebSocket that has said nothing yet; by default its request has the right token."""
        return Raw.connect(self.port, self.token if token == "" else token, encoding)

    @contextlib.asynccontextmanager
    async def greeted(
        self, encoding: Encoding = Encoding.MSGPACK, hello: Hello = HELLO
    ) -> AsyncIterator[Raw]:
        """A WebSocket after its handshake."""
        async with self.raw(encoding) as raw:
            await raw.greet(hello)
            yield raw

    def tcp(self) -> contextlib.AbstractAsyncContextManager[RawClient]:
        """A TCP connection."""
        return RawClient.open(self.port)

    async def get(self, path: str, *, token: str | None = "", method: str = "GET") -> Response:
        """One HTTP request; by default with the right token."""
        async with self.tcp() as client:
            lines = [f"{method} {path} HTTP/1.1", f"Host: localhost:{self.port}", "Connection: close"]
            if token is not None:
                lines.append(f"Authorization: Bearer {token or self.token}")
            await client.send("\r\n".join(lines).encode() + b"\r\n\r\n")
            return await client.response()

    async def metric(self, name: str) -> int:
        """One value of `/metrics`."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"streamctx_{name} "))

    async def sessions(self) -> list[dict[str, Any]]:
        """What `/v1/sessions` tells."""
        found: list[dict[str, Any]] = json.loads((await self.get("/v1/sessions")).body)["sessions"]
        return found

    async def session(self, raw: Raw) -> dict[str, Any]:
        """What REST tells of one session."""
        found: dict[str, Any] = json.loads((await self.get(f"/v1/sessions/{raw.session}")).body)
        return found

    async def has_connected(self, count: int) -> None:
        """Wait until so many sessions have a connection, besides the two of the neighbour."""

        async def has_count() -> bool:
            return [session["connected"] for session in await self.sessions()].count(True) == count + 2

        await until(has_count)


@contextlib.asynccontextmanager
async def neighbour(arena: Arena) -> AsyncIterator[None]:
    """An editor and its observer, who must not notice anything of what happens in the block."""
    async with arena.raw() as producer, arena.raw(Encoding.JSON) as observer:
        welcome = await producer.greet()
        text = "def main() -> None:\n    ...\n"
        await producer.push(opening(1, text, uri=_URI))
        await observer.greet()
        await observer.push(Subscribe(subscription=1, session=welcome.session))
        copy = ObservedSession(welcome.session, unit=Unit.UTF_16, limits=arena.limits)
        is_over = asyncio.Event()

        async def edit() -> tuple[int, str]:
            version, edited = 1, text
            while not is_over.is_set() or version < 5:
                change = Change(0, 0, 0, 0, "é" if version % 2 else "x\n")
                edited = change.text + edited
                await producer.push(Edit(document=1, base=version, version=version + 1, changes=(change,)))
                version += 1
                await asyncio.sleep(_EDIT_INTERVAL_S)
            length = len(edited)
            await producer.push(Version(document=1, version=version, length=length, hash=hash_of(edited)))
            return version, edited

        async def listen() -> None:
            while True:
                await producer.next()

        async def observe() -> None:
            while True:
                message = await observer.next()
                if isinstance(message, Sync | Update | Synced):
                    copy.receive(message)

        listening = asyncio.create_task(listen())
        observing = asyncio.create_task(observe())
        editing = asyncio.create_task(edit())
        try:
            yield
            is_over.set()
            async with asyncio.timeout(20):
                version, edited = await editing
                while (document := copy.document(_URI)) is None or document.version < version:
                    assert not observing.done(), observing.exception()
                    await asyncio.sleep(_EDIT_INTERVAL_S)
            assert copy.text(1) == edited
            assert not document.is_stale
            assert not producer.errors
            assert not observer.errors
            assert not listening.done(), listening.exception()
        finally:
            for task in (editing, observing, listening):
                task.cancel()
            await asyncio.gather(editing, observing, listening, return_exceptions=True)


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    """Ask again and again until it holds."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def log_faults(lines: Sequence[str]) -> list[str]:
    """The lines that a hostile client must not be able to cause."""
    return [
        line
        for line in lines
        if "Traceback" in line
        or " ERROR " in line
        or "Task was destroyed" in line
        or any(ord(character) < 0x20 or ord(character) in range(0x7F, 0xA0) for character in line)
    ]
