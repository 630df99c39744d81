"""The WebSocket of the client against scripted peers, without a network."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import pytest
from anyio.abc import ByteStream
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from streamctx.client import websocket as module
from streamctx.client.target import Target, parse_url
from streamctx.client.websocket import WebSocket, open_websocket
from streamctx.errors import ErrorCode, RemoteProtocolError, SessionClosed
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import Encoding

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__: list[str] = []

TARGET = Target(parse_url("ws://h:1"), "the-token")


class Peer(ByteStream):
    """A server that answers the upgrade, with `answer` if that is given, and then what it is told to."""

    def __init__(self, answer: bytes | None = None, subprotocol: str | None = "streamctx.v1") -> None:
        known = None if subprotocol is None else [Subprotocol(subprotocol)]
        self.protocol = ServerProtocol(subprotocols=known)
        self.request: Request | None = None
        self.answer = answer
        self.waiting: deque[bytes] = deque()
        self.is_closed = False

    @override
    async def send(self, item: bytes) -> None:
        self.protocol.receive_data(item)
        for event in self.protocol.events_received():
            if isinstance(event, Request):
                self.request = event
                self.protocol.send_response(self.protocol.accept(event))
        data = b"".join(self.protocol.data_to_send())
        if data:
            self.waiting.append(data if self.answer is None else self.answer)

    @override
    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self.waiting:
            raise anyio.EndOfStream
        return self.waiting.popleft()

    @override
    async def send_eof(self) -> None:
        raise NotImplementedError

    @override
    async def aclose(self) -> None:
        self.is_closed = True

    def say(self, *frames: Frame) -> None:
        self.waiting.append(b"".join(frame.serialize(mask=False) for frame in frames))


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(5):
            await test()

    anyio.run(bounded)


async def connect(
    monkeypatch: pytest.MonkeyPatch, peer: Peer, encoding: Encoding = Encoding.MSGPACK
) -> WebSocket:
    async def given(target: Target, ssl_context: object) -> ByteStream:
        return peer

    monkeypatch.setattr(module, "_connect", given)
    return await open_websocket(TARGET, encoding=encoding, limits=DEFAULT_LIMITS, ssl_context=None)


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def test_request_carries_token_and_subprotocol_and_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        peer = Peer(subprotocol="streamctx.v1.json")
        await connect(monkeypatch, peer, Encoding.JSON)
        assert peer.request is not None
        headers = peer.request.headers
        assert headers["Authorization"] == "Bearer the-token"
        assert headers["Sec-WebSocket-Protocol"] == "streamctx.v1.json"
        assert "Sec-WebSocket-Extensions" not in headers and "Origin" not in headers
        assert peer.request.path == "/v1/stream"

    run(test)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("400 Bad Request", ErrorCode.UNSUPPORTED),
        ("401 Unauthorized", ErrorCode.UNAUTHORIZED),
        ("403 Forbidden", ErrorCode.FORBIDDEN),
        ("404 Not Found", ErrorCode.NOT_FOUND),
        ("421 Misdirected Request", ErrorCode.FORBIDDEN),
    ],
)
def test_refusals_that_stay_end_it(monkeypatch: pytest.MonkeyPatch, status: str, code: ErrorCode) -> None:
    async def test() -> None:
        body = b'{"error": {"code": "c", "message": "what\\nto do"}}'
        peer = Peer(answer(status, body))
        with pytest.raises(
            SessionClosed, match=rf"ws://h:1 answered {status[:3]}: .* \(what to do\)"
        ) as refused:
            await connect(monkeypatch, peer)
        assert refused.value.code is code
        assert "the-token" not in str(refused.value)
        assert peer.is_closed

    run(test)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer("503 Service Unavailable", b"not json"), "answered 503$"),
        (answer("502 Bad Gateway", b'{"error": []}'), "answered 502$"),
        (answer("500 X", b'{"error": {"message": 1}}'), "answered 500$"),
        (answer("301 Moved", b"", "Location: ws://other"), "answered 301$"),
        (b"SSH-2.0-OpenSSH\r\n", "does not answer as a WebSocket server"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "does not answer as a WebSocket server"),
        (b"HTTP/1.1 101 Swi", "does not answer as a WebSocket server"),
        (b"", "does not answer as a WebSocket server"),
    ],
)
def test_other_answers_may_change(monkeypatch: pytest.MonkeyPatch, reply: bytes, message: str) -> None:
    async def test() -> None:
        peer = Peer(reply)
        with pytest.raises(ConnectionError, match=message):
            await connect(monkeypatch, peer)
        assert peer.is_closed

    run(test)


def test_server_of_another_protocol_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        with pytest.raises(SessionClosed, match=r"not streamctx\.v1"):
            await connect(monkeypatch, Peer(subprotocol=None))

    run(test)


def test_one_read_gives_all_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        peer = Peer()
        websocket = await connect(monkeypatch, peer)
        peer.say(*(Frame(Opcode.BINARY, b"%d" % number) for number in range(1000)))
        assert await websocket.receive() == [b"%d" % number for number in range(1000)]
        assert not websocket.is_over

    run(test)


def test_messages_behind_the_handshake_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        class Eager(Peer):
            @override
            async def receive(self, max_bytes: int = 65536) -> bytes:
                return await super().receive() + Frame(Opcode.BINARY, b"early").serialize(mask=False)

        websocket = await connect(monkeypatch, Eager())
        assert websocket.take_messages() == [b"early"]

    run(test)


def test_fragments_are_joined_around_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        peer = Peer()
        websocket = await connect(monkeypatch, peer)
        peer.say(Frame(Opcode.BINARY, b"a", fin=False), Frame(Opcode.PING, b"p"))
        assert await websocket.receive() == []
        assert websocket.bytes_to_send([]) != b""
        peer.say(Frame(Opcode.CONT, b"b", fin=False), Frame(Opcode.CONT, b"c"))
        assert await websocket.receive() == [b"abc"]

    run(test)


def test_too_many_fragments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        peer = Peer()
        websocket = await connect(monkeypatch, peer)
        many = DEFAULT_LIMITS.websocket_fragment_count_max
        peer.say(Frame(Opcode.BINARY, b"", fin=False), *[Frame(Opcode.CONT, b"", fin=False)] * many)
        with pytest.raises(RemoteProtocolError, match="fragments"):
            await websocket.receive()

    run(test)


@pytest.mark.parametrize(
    ("encoding", "opcode"), [(Encoding.MSGPACK, Opcode.TEXT), (Encoding.JSON, Opcode.BINARY)]
)
def test_wrong_kind_of_message_is_refused(
    monkeypatch: pytest.MonkeyPatch, encoding: Encoding, opcode: Opcode
) -> None:
    async def test() -> None:
        name = "streamctx.v1.json" if encoding is Encoding.JSON else "streamctx.v1"
        peer = Peer(subprotocol=name)
        websocket = await connect(monkeypatch, peer, encoding)
        peer.say(Frame(opcode, b"x"))
        with pytest.raises(RemoteProtocolError, match="subprotocol"):
            await websocket.receive()

    run(test)


def test_close_is_told_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        peer = Peer()
        websocket = await connect(monkeypatch, peer)
        peer.protocol.send_close(4103, "slow")
        peer.waiting.append(b"".join(peer.protocol.data_to_send()))
        assert await websocket.receive() == []
        assert (websocket.is_over, websocket.close_code) == (True, 4103)
        await websocket.send(websocket.bytes_to_send([b"not sent any more"]))
        received = peer.protocol.close_rcvd
        assert received is not None and received.code == 4103

    run(test)


@pytest.mark.parametrize("data", [b"\xff\xff", Frame(Opcode.BINARY, bytes(2**20 + 1)).serialize(mask=False)])
def test_broken_websocket_is_over(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    async def test() -> None:
        peer = Peer()
        websocket = await connect(monkeypatch, peer)
        peer.waiting.append(data)
        assert await websocket.receive() == []
        assert (websocket.is_over, websocket.close_code) == (True, None)

    run(test)


def test_end_of_the_stream_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        websocket = await connect(monkeypatch, Peer())
        assert await websocket.receive() == []
        assert (websocket.is_over, websocket.close_code) == (True, None)

    run(test)
