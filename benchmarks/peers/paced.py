"""Many writers, each of which makes an edit now and then: raw clients in one process, frames made beforehand.

All clients send the same frames, since nothing in a frame says whose it is.
"""

from __future__ import annotations

import select
import time
from array import array
from dataclasses import dataclass

import msgspec

from benchmarks.peers.raw_client import BINARY, RawClient, masked
from streamctx.core.documents.text_digest import text_hash
from streamctx.vocabulary import Encoding, HashAlgorithm
from streamctx.wire.changes import Change
from streamctx.wire.codec import encode_body
from streamctx.wire.digests import Digest, crc32_digest, xxh3_64_digest
from streamctx.wire.frames import HEAD_BYTES, pack_frame
from streamctx.wire.messages import ClientInfo, Edit, Hello, Message, Open, ServerMessage, Welcome

__all__ = ["Paced", "Paces"]

_SILENCE_S = 10.0
_TEXT = "x" * 200 + "\n"
_TYPED = "a line of some fifty characters, as one pastes it\n"


class _Progress(msgspec.Struct):
    durable: int = 0


@dataclass(frozen=True)
class Paces:
    """How a run went; times in seconds, from a send to the ACK whose `durable` covers it, sorted."""

    ack_s: array[float]
    acks: int
    late_s_max: float
    """How far the load was behind its own plan at worst."""


class Paced:
    """Connected writers, each with one open document."""

    def __init__(self, port: int, token: str, clients: int, events: int) -> None:
        """Connect, and make the frames.

        Args:
            clients: How many.
            events: How many edits each makes.
        """
        self.sessions: list[str] = []
        self._events = events
        self._clients = [self._greet(port, token) for _ in range(clients)]
        change = Change(0, 0, 0, 0, _TYPED), Change(0, 0, 1, 0, "")
        self._frames = [
            _frame(
                Edit(document=1, base=index, version=index + 1, changes=(change[index % 2],)),
                xxh3_64_digest,
                index + 2,
            )
            for index in range(events)
        ]
        self._durable = msgspec.msgpack.Decoder(_Progress).decode

    def _greet(self, port: int, token: str) -> RawClient:
        client = RawClient(
            port, "/v1/stream", f"Authorization: Bearer {token}", "Sec-WebSocket-Protocol: streamctx.v1"
        )
        hello = Hello(attempt=1, client=ClientInfo(name="benchmark"), digests=("xxh3-64",), role="produce")
        client.send(_frame(hello, crc32_digest))
        welcome = msgspec.msgpack.decode(client.next_payloads()[0][HEAD_BYTES:], type=ServerMessage)
        assert isinstance(welcome, Welcome), welcome
        self.sessions.append(welcome.session)
        opened = Open(
            document=1,
            uri="file:///a",
            version=0,
            length=len(_TEXT),
            hash=text_hash(_TEXT, HashAlgorithm.XXH3_64),
            text=_TEXT,
        )
        client.send(_frame(opened, xxh3_64_digest, 1))
        return client

    def run(self, rate: float) -> Paces:
        """Let every client make all its edits, `rate` a second, evenly spread, until all are durable."""
        clients, frames, events, decode = self._clients, self._frames, self._events, self._durable
        by_descriptor = {client.socket.fileno(): index for index, client in enumerate(clients)}
        poll = select.epoll()
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        count, clock = len(clients), time.perf_counter
        sent_at = [array("d", bytes(8 * (events + 2))) for _ in clients]
        durable = [2] * count
        ack_s = array("d")
        acks, late_s_max = 0, 0.0
        step_s = 1 / (rate * count)
        start = clock() + 0.1
        sent, total, remaining = 0, count * events, count * events
        heard_at = start
        while remaining:
            now = clock()
            due = min(total, int((now - start) / step_s) + 1) if now >= start else 0
            if due > sent:
                late_s_max = max(late_s_max, now - start - sent * step_s)
            # Not too many at a time, so that what comes meanwhile is seen when it comes.
            for number in range(sent, min(due, sent + 32)):
                event, index = divmod(number, count)
                sent_at[index][event + 2] = clock()
                clients[index].socket.send(frames[event])
                sent += 1
            wait_s = 0.0 if sent < due else max(0.0, start + sent * step_s - clock()) if sent < total else 1.0
            for descriptor, _ in poll.poll(wait_s):
                index = by_descriptor[descriptor]
                payloads = clients[index].read()
                now = heard_at = clock()
                acks += len(payloads)
                for payload in payloads:
                    stop = decode(payload[HEAD_BYTES:]).durable
                    if stop > durable[index]:
                        times = sent_at[index]
                        for sequence in range(durable[index], stop):
                            ack_s.append(now - times[sequence])
                        remaining -= stop - durable[index]
                        durable[index] = stop
            if clock() - heard_at > _SILENCE_S:
                raise SystemExit(f"nothing came for {_SILENCE_S:g} s; {remaining} events are not durable")
        poll.close()
        return Paces(array("d", sorted(ack_s)), acks, late_s_max)

    def close(self) -> None:
        """Drop all connections."""
        for client in self._clients:
            client.close()


def _frame(message: Message, digest: Digest, sequence: int = 0) -> bytes:
    body = encode_body(message, Encoding.MSGPACK)
    return masked(BINARY, pack_frame(body, encoding=Encoding.MSGPACK, digest=digest, sequence=sequence))
