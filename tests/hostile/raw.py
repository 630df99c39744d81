"""A client that builds its frames by hand, right or wrong, and reads what the server makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from types import UnionType
from typing import Any, Final

import msgspec

from streamctx.vocabulary import Encoding, HashAlgorithm
from streamctx.wire.codec import encode_body, server_decoder
from streamctx.wire.digests import Digest, crc32_digest, hash_bytes
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import (
    Ack,
    ClientInfo,
    ErrorMessage,
    Heartbeat,
    Hello,
    Message,
    Open,
    Resume,
    ServerMessage,
    Welcome,
)
from tests.server.raw_client import RawClient, frame

__all__ = [
    "HELLO",
    "Closed",
    "Raw",
    "binary_frame",
    "body_of",
    "hash_of",
    "opening",
    "resuming",
    "text_frame",
]

TIMEOUT_S: Final = 10.0
SUBPROTOCOLS: Final = {Encoding.MSGPACK: "streamctx.v1", Encoding.JSON: "streamctx.v1.json"}
HELLO: Final = Hello(attempt=1, client=ClientInfo(name="hostile"), digests=("crc32",))

_TEXT, _BINARY, _CLOSE = 0x81, 0x82, 0x88


class Closed(Exception):
    """The server has closed the WebSocket, with this code."""

    def __init__(self, code: int, errors: list[ErrorMessage]) -> None:
        super().__init__(f"closed with {code} after {[error.code for error in errors]}")
        self.code = code
        self.errors = errors

    @property
    def last_error(self) -> str:
        """The code of the ERROR that came last."""
        return self.errors[-1].code if self.errors else ""


class Raw:
    """One WebSocket, its numbers, and what it was sent.

    Numbered frames of the server are acknowledged as they are read, unless `acknowledges` is false.
    """

    def __init__(self, client: RawClient, encoding: Encoding = Encoding.MSGPACK) -> None:
        self.client = client
        self.encoding = encoding
        self.digest: Digest = crc32_digest
        self.acknowledges = True
        self.errors: list[ErrorMessage] = []
        self.received_bytes = 0
        self.session = ""
        self.numbers = itertools.count(1)
        self._received = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls, port: int, token: str | None, encoding: Encoding = Encoding.MSGPACK
    ) -> AsyncIterator[Raw]:
        """Upgrade, and say nothing yet."""
        headers = () if token is None else (f"Authorization: Bearer {token}",)
        async with RawClient.open(port) as client:
            response = await client.upgrade(*headers, subprotocol=SUBPROTOCOLS[encoding])
            assert response.status == 101, response
            yield cls(client, encoding)

    async def greet(self, hello: Hello = HELLO) -> Welcome:
        """Say HELLO, and show that WELCOME has come."""
        await self.send(hello)
        welcome: Welcome = await self.find(Welcome)
        self._received = welcome.next - 1
        self.session = welcome.session
        await self.send(self._heartbeat(1))
        return welcome

    async def answer(self, hello: Hello) -> Welcome | Closed:
        """Say HELLO; how that ends."""
        await self.send(hello)
        try:
            welcome: Welcome = await self.find(Welcome)
        except Closed as closed:
            return closed
        return welcome

    def frame_of(self, message: Message | bytes, *, sequence: int = 0, stream: int = 0) -> bytes:
        """A good frame around a message, or around a body that may be bad."""
        body = message if isinstance(message, bytes) else encode_body(message, self.encoding)
        return pack_frame(body, encoding=self.encoding, digest=self.digest, sequence=sequence, stream=stream)

    async def send(self, message: Message | bytes, *, sequence: int = 0) -> None:
        """Send a message, or a body, with that number."""
        await self.send_frames(self.frame_of(message, sequence=sequence))

    async def push(self, *messages: Message | bytes) -> int:
        """Send messages, or bodies, with the next numbers; return the last of them."""
        numbered = [(next(self.numbers), message) for message in messages]
        await self.send_frames(*(self.frame_of(message, sequence=number) for number, message in numbered))
        return numbered[-1][0]

    async def send_frames(self, *frames: bytes) -> None:
        """Send frames of ours, good or bad, each as one WebSocket message."""
        first = _TEXT if self.encoding is Encoding.JSON else _BINARY
        await self.client.send(b"".join(frame(first, content) for content in frames))

    async def next(self) -> ServerMessage:
        """The next message of the server.

        Raises:
            Closed: If it has closed.
        """
        first, payload = await self.client.frame()
        self.received_bytes += len(payload)
        if first == _CLOSE:
            raise Closed(int.from_bytes(payload[:2], "big"), self.errors)
        parsed = parse_frame(payload, encoding=self.encoding, digest=self.digest)
        assert parsed is not None, payload
        message = server_decoder(self.encoding).decode(parsed.body)
        assert isinstance(message, Message), message
        if isinstance(message, ErrorMessage):
            self.errors.append(message)
        if parsed.sequence and self.acknowledges and parsed.sequence > self._received:
            self._received = parsed.sequence
            await self.send(self.ack(self._received + 1))
        return message

    async def find(
        self, kind: type[Any] | UnionType, is_wanted: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        """The next message of a kind; what comes before it is read and dropped."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                message = await self.next()
                if isinstance(message, kind) and is_wanted(message):
                    return message

    async def error(self, reference: int | None = None) -> ErrorMessage:
        """The next ERROR; with `reference`, the one about that number."""
        found = await self.find(ErrorMessage, lambda error: reference in (None, error.reference))
        assert isinstance(found, ErrorMessage)
        return found

    async def closed(self) -> Closed:
        """Read until the server closes."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    await self.next()
                except Closed as closed:
                    return closed

    async def applied(self, sequence: int) -> None:
        """Read until the server has applied that number."""
        await self.send(self._heartbeat(sequence + 1))
        await self.find(Ack | Heartbeat, lambda ack: ack.applied > sequence)

    def ack(self, received: int) -> Ack:
        """An ACK of all numbers of the server below `received`."""
        return Ack(received=received, applied=received, durable=received, limit=received + 1024)

    def _heartbeat(self, next_: int) -> Heartbeat:
        received = self._received + 1
        return Heartbeat(
            next=next_, received=received, applied=received, durable=received, limit=received + 1024
        )


def body_of(encoding: Encoding, **fields: object) -> bytes:
    """A body with any fields."""
    return msgspec.msgpack.encode(fields) if encoding is Encoding.MSGPACK else msgspec.json.encode(fields)


def binary_frame(
    body: bytes, *, version: int = 1, kind: int = 1, reserved: int = 0, stream: int = 0, sequence: int = 0
) -> bytes:
    """A binary frame with a good crc32 and any head."""
    covered = (
        bytes((version, kind))
        + reserved.to_bytes(2, "big")
        + stream.to_bytes(4, "big")
        + sequence.to_bytes(8, "big")
        + body
    )
    return crc32_digest(covered) + covered


def text_frame(rest: str) -> bytes:
    """A text frame with a good crc32 over anything."""
    covered = rest.encode()
    return crc32_digest(covered).hex().encode() + b" " + covered


def hash_of(text: str) -> str:
    """The hash of a text."""
    return hash_bytes(text.encode(), HashAlgorithm.XXH3_64)


def resuming(welcome: Welcome, attempt: int = 2, **fields: Any) -> Hello:
    """A HELLO that resumes what a WELCOME began; `fields` are other ones of `resume`."""
    good: dict[str, Any] = {
        "session": welcome.session,
        "secret": welcome.secret,
        "epoch": welcome.epoch,
        "expects": 1,
        "next": welcome.expects,
    }
    return msgspec.structs.replace(HELLO, attempt=attempt, resume=Resume(**(good | fields)))


def opening(alias: int, text: str = "", *, uri: str | None = None, version: int = 1) -> Open:
    """An `open` that fits its text."""
    length = len(text.encode("utf-16-le")) // 2
    return Open(
        document=alias,
        uri=uri or f"file:///w/{alias}.py",
        version=version,
        length=length,
        hash=hash_of(text),
        text=text,
    )
