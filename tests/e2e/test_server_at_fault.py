"""What the Python client does about a server that breaks the rules: it leaves, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import anyio.abc
import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

import streamctx
from streamctx import Encoding
from streamctx.client.websocket import CONNECTION_ERRORS
from streamctx.limits import DEFAULT_LIMITS
from streamctx.wire.capabilities import negotiated_limits
from streamctx.wire.codec import client_decoder, encode_body
from streamctx.wire.digests import crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import Hello, Message, ServerInfo, SnapshotRequest, Welcome

__all__: list[str] = []


@dataclass
class Peer:
    """A server that welcomes whoever comes, the first time with bad frames behind it."""

    faults: list[bytes]
    hellos: list[Hello] = field(default_factory=list)
    closes: list[int | None] = field(default_factory=list)
    url: str = ""

    async def until_greeted(self, count: int) -> None:
        while len(self.hellos) < count:  # noqa: ASYNC110
            await anyio.sleep(0.005)

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with contextlib.suppress(*CONNECTION_ERRORS, anyio.EndOfStream):
                await self._attend(stream)

    async def _attend(self, stream: anyio.abc.SocketStream) -> None:
        protocol = ServerProtocol(subprotocols=[Subprotocol("streamctx.v1")])
        while True:
            protocol.receive_data(await stream.receive())
            for event in protocol.events_received():
                if isinstance(event, Request):
                    protocol.send_response(protocol.accept(event))
                elif isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                    self._answer(protocol, bytes(event.data))
            await stream.send(b"".join(protocol.data_to_send()))
            if protocol.close_rcvd is not None:
                self.closes.append(protocol.close_rcvd.code)
                return

    def _answer(self, protocol: ServerProtocol, data: bytes) -> None:
        parsed = parse_frame(data, encoding=Encoding.MSGPACK, digest=crc32_digest)
        hello = None if parsed is None else client_decoder(Encoding.MSGPACK).decode(parsed.body)
        if not isinstance(hello, Hello):
            return
        self.hellos.append(hello)
        welcome = Welcome(
            attempt=hello.attempt,
            session="s" if hello.resume is not None or len(self.hellos) == 1 else "t",
            secret=f"secret {len(self.hellos)}",
            epoch="e",
            lease=len(self.hellos),
            verdict="new" if hello.resume is None else "resumed",
            expects=1,
            next=1 if hello.resume is None else hello.resume.expects,
            digest="crc32",
            unit="utf-16",
            hash="xxh3-64",
            durability="none",
            limits=negotiated_limits(DEFAULT_LIMITS),
            server=ServerInfo(name="faulty", version="1"),
        )
        for frame in (framed(welcome), *(self.faults if len(self.hellos) == 1 else ())):
            protocol.send_binary(frame)


def framed(message: Message, sequence: int = 0) -> bytes:
    body = encode_body(message, Encoding.MSGPACK)
    return pack_frame(body, encoding=Encoding.MSGPACK, digest=crc32_digest, sequence=sequence)


@contextlib.asynccontextmanager
async def peer_with(*faults: bytes) -> AsyncIterator[Peer]:
    peer = Peer(list(faults))
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    peer.url = f"ws://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, peer.serve)
        with anyio.fail_after(20):
            yield peer
        group.cancel_scope.cancel()


def request(version: int) -> SnapshotRequest:
    return SnapshotRequest(document=9, reason="refused", version=version)


@pytest.mark.asyncio
async def test_a_server_at_fault_is_left_with_3000_and_its_session_resumed() -> None:
    far_ahead = framed(request(1), sequence=100_000)
    async with peer_with(framed(request(1), 1), far_ahead) as peer, streamctx.connect(peer.url, "token"):
        await peer.until_greeted(2)
        assert peer.closes == [3000]
        first, second = peer.hellos
        assert second.attempt > first.attempt
        assert second.resume is not None
        assert (second.resume.session, second.resume.secret, second.resume.expects) == ("s", "secret 1", 2)


@pytest.mark.asyncio
async def test_after_a_conflict_of_the_server_the_next_session_is_new() -> None:
    conflict = framed(request(2), 1)
    async with peer_with(framed(request(1), 1), conflict) as peer, streamctx.connect(peer.url, "token"):
        await peer.until_greeted(2)
        assert peer.closes == [3000]
        first, second = peer.hellos
        assert second.attempt > first.attempt
        assert second.resume is None
