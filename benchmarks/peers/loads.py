"""How the load process speaks to each kind of server: a writer and one observer."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator

import msgspec

from benchmarks.peers.edits import Trace
from benchmarks.peers.raw_client import BINARY, TEXT, RawClient, masked
from streamctx.core.documents.text_digest import text_hash
from streamctx.vocabulary import Encoding, HashAlgorithm
from streamctx.wire.changes import Change
from streamctx.wire.codec import encode_body
from streamctx.wire.digests import Digest, crc32_digest, xxh3_64_digest
from streamctx.wire.frames import HEAD_BYTES, pack_frame
from streamctx.wire.messages import (
    Ack,
    ClientInfo,
    Edit,
    Hello,
    Message,
    Open,
    ServerMessage,
    Subscribe,
    Synced,
    Update,
    Welcome,
)

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["TOKEN", "EchoLoad", "Load", "RelayLoad", "SocketIoLoad", "StreamctxLoad"]

TOKEN = "a-token-for-benchmarks-on-loopback"


class Load(ABC):
    """The connections of one run, and its edits as frames made ready beforehand.

    `acknowledged` and `observed` count edits; `take_acks` and `take_updates` read a socket once.
    """

    frames: list[bytes]
    writer: RawClient
    observer: RawClient

    def __init__(self) -> None:
        self.acknowledged = 0
        self.observed = 0
        self._updates: list[bytes] = []

    def take_acks(self) -> None:
        self.acknowledged += len(self.writer.read())

    def take_updates(self) -> None:
        payloads = self.observer.read()
        self.observed += len(payloads)
        self._updates += payloads

    @abstractmethod
    def observed_changes(self) -> Iterator[Change]:
        """Everything that the observer was shown."""

    def close(self) -> None:
        self.writer.close()
        self.observer.close()


def _json_edits(trace: Trace) -> Iterator[dict[str, object]]:
    for index, change in enumerate(trace.changes):
        yield {
            "type": "edit",
            "sequence": index + 1,
            "document": 1,
            "base": index,
            "version": index + 1,
            "changes": [msgspec.structs.astuple(change)[:5]],
        }


def _dumped(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class RelayLoad(Load):
    """JSON text messages: each is acknowledged by one to the writer, and relayed to the observer."""

    def __init__(self, port: int, trace: Trace) -> None:
        super().__init__()
        self.observer = RawClient(port, "/observe")
        self.writer = RawClient(port, "/write")
        self.frames = [masked(TEXT, _dumped(edit)) for edit in _json_edits(trace)]

    @override
    def observed_changes(self) -> Iterator[Change]:
        for payload in self._updates:
            for change in json.loads(payload)["changes"]:
                yield Change(*change)


class EchoLoad(RelayLoad):
    """As a relay, but the writer is shown its own edits, which is all that it gets."""

    @override
    def take_acks(self) -> None:
        payloads = self.writer.read()
        self.acknowledged += len(payloads)
        self.observed += len(payloads)
        self._updates += payloads


class SocketIoLoad(Load):
    """Socket.IO packets over the WebSocket transport: emit with acknowledgement, broadcast."""

    def __init__(self, port: int, trace: Trace) -> None:
        super().__init__()
        self.observer = self._connect(port)
        self.writer = self._connect(port)
        self.frames = [
            masked(TEXT, b"42%d%s" % (index, _dumped(["edit", edit])))
            for index, edit in enumerate(_json_edits(trace))
        ]

    def _connect(self, port: int) -> RawClient:
        client = RawClient(port, "/socket.io/?EIO=4&transport=websocket")
        client.next_payloads()
        client.send(masked(TEXT, b"40"))
        client.next_payloads()
        return client

    @override
    def observed_changes(self) -> Iterator[Change]:
        for payload in self._updates:
            for change in json.loads(payload[2:])[1]["changes"]:
                yield Change(*change)


class _Progress(msgspec.Struct):
    """What tells how far things are, of `update`, `ack` and `heartbeat`; msgspec skips the rest."""

    to: int = 0
    received: int = 0


class StreamctxLoad(Load):
    """`streamctx.v1`: msgpack bodies, xxh3-64; the observer acknowledges once for each read."""

    def __init__(self, port: int, trace: Trace) -> None:
        super().__init__()
        self._decode = msgspec.msgpack.Decoder(ServerMessage).decode
        self._decode_progress = msgspec.msgpack.Decoder(_Progress).decode
        self._received = 0
        self.writer, session = self._greet(port, "produce")
        self.observer, _ = self._greet(port, "observe")
        self._first_offset = self._observe(session, trace)
        self.frames = [
            _frame(
                Edit(document=1, base=index, version=index + 1, changes=(change,)), xxh3_64_digest, index + 2
            )
            for index, change in enumerate(trace.changes)
        ]

    @override
    def take_acks(self) -> None:
        payloads = self.writer.read()
        if payloads:
            # Two numbers ahead: `received` is one past, and `open` was the first.
            self.acknowledged = self._decode_progress(payloads[-1][HEAD_BYTES:]).received - 2

    @override
    def take_updates(self) -> None:
        payloads = self.observer.read()
        if payloads:
            numbered = [payload for payload in payloads if _number(payload)]
            self._updates += numbered
            # A heartbeat is answered too; it comes where an acknowledgement is late.
            self._acknowledge(numbered)
            if numbered:
                self.observed = self._decode_progress(numbered[-1][HEAD_BYTES:]).to - self._first_offset

    @override
    def observed_changes(self) -> Iterator[Change]:
        for payload in self._updates:
            update = self._decode(payload[HEAD_BYTES:])
            assert isinstance(update, Update), update
            for event in update.events:
                assert isinstance(event, Edit)
                yield from event.changes

    def _greet(self, port: int, role: str) -> tuple[RawClient, str]:
        client = RawClient(
            port, "/v1/stream", f"Authorization: Bearer {TOKEN}", "Sec-WebSocket-Protocol: streamctx.v1"
        )
        hello = Hello(
            attempt=1,
            client=ClientInfo(name="benchmark"),
            digests=("xxh3-64",),
            role=role,  # type: ignore[arg-type]
        )
        client.send(_frame(hello, crc32_digest))
        welcome = self._decode(client.next_payloads()[0][HEAD_BYTES:])
        assert isinstance(welcome, Welcome), welcome
        return client, welcome.session

    def _observe(self, session: str, trace: Trace) -> int:
        """Subscribe, open the document, and return the feed offset before the first edit."""
        self.observer.send(_frame(Subscribe(subscription=1, session=session), xxh3_64_digest, 1))
        opened = Open(
            document=1,
            uri="file:///a",
            version=0,
            length=0,
            hash=text_hash("", HashAlgorithm.XXH3_64),
            text="",
        )
        offset = -1
        while True:
            for payload in self.observer.next_payloads():
                message = self._decode(payload[HEAD_BYTES:])
                if _number(payload):
                    self._acknowledge([payload])
                if isinstance(message, Synced):
                    self.writer.send(_frame(opened, xxh3_64_digest, 1))
                    self.writer.next_payloads()
                    offset = message.offset
                elif isinstance(message, Update) and message.to > offset >= 0:
                    return message.to

    def _acknowledge(self, numbered: list[bytes]) -> None:
        if numbered:
            self._received = _number(numbered[-1]) + 1
        received = self._received
        ack = Ack(received=received, applied=received, durable=received, limit=received + 1024)
        self.observer.send(_frame(ack, xxh3_64_digest))


def _number(payload: bytes) -> int:
    """The sequence number of a frame; 0 if it has none."""
    return int.from_bytes(payload[HEAD_BYTES - 8 : HEAD_BYTES], "big")


def _frame(message: Message, digest: Digest, sequence: int = 0) -> bytes:
    body = encode_body(message, Encoding.MSGPACK)
    return masked(BINARY, pack_frame(body, encoding=Encoding.MSGPACK, digest=digest, sequence=sequence))
