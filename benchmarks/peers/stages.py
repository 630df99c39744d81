"""Where our server's time goes: the whole way in memory, and each stage of it by itself.

The whole way is that of `data_received`, without socket and event loop: reads of 64 frames go through the
fast path, a real hub and its two connections, and end as the frames of one write to each peer.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

from benchmarks.peers.edits import Trace
from benchmarks.peers.loads import TOKEN
from benchmarks.peers.raw_client import BINARY, masked
from streamctx.core.delivery.receive_window import ReceiveWindow
from streamctx.core.delivery.retransmit_ring import RetransmitRing
from streamctx.core.documents.document import Document
from streamctx.core.documents.text_digest import text_hash
from streamctx.core.session.feed_log import FeedLog
from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionInfo, Principal
from streamctx.limits import DEFAULT_LIMITS
from streamctx.server.frames import frame_head, take_messages
from streamctx.vocabulary import Encoding, HashAlgorithm, Unit
from streamctx.wire.codec import client_decoder, encode_body, server_decoder
from streamctx.wire.digests import Digest, crc32_digest, xxh3_64_digest
from streamctx.wire.frames import HEAD_BYTES, Frame, pack_frame, parse_frame
from streamctx.wire.messages import (
    Ack,
    ClientInfo,
    Edit,
    Hello,
    Message,
    Open,
    Subscribe,
    Update,
    Welcome,
)

__all__ = ["measure_stages"]

READ_EDITS = 64
MESSAGE_BYTES_MAX = DEFAULT_LIMITS.websocket_message_bytes_max
OPEN = Open(
    document=1, uri="file:///a", version=0, length=0, hash=text_hash("", HashAlgorithm.XXH3_64), text=""
)
Stage = Callable[[], None]


class MemoryPeer:
    """Takes what a connection sends as far as the frames of one write."""

    is_writable = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, messages: Sequence[bytes | str]) -> None:
        for message in messages:
            assert isinstance(message, bytes)
            self.sent.append(frame_head(BINARY, len(message)) + message)

    def close(self, code: int, reason: str) -> None:
        raise SystemExit(f"the server closed: {code} {reason}")

    def abort(self) -> None:
        raise SystemExit("the server aborted")

    def set_timer(self, at: float | None) -> None:
        pass


def measure_stages(trace: Trace, *, rounds: int) -> dict[str, float]:
    """Return microseconds an edit, by stage, as medians of rounds."""
    edits = [
        Edit(document=1, base=index, version=index + 1, changes=(change,))
        for index, change in enumerate(trace.changes)
    ]
    messages = [_packed(edit, xxh3_64_digest, index + 2) for index, edit in enumerate(edits)]
    masked_frames = [masked(BINARY, message) for message in messages]
    reads = _reads(masked_frames)
    frames = [_parsed(message) for message in messages]
    makers: dict[str, Callable[[], Stage]] = {
        "the whole way": lambda: _whole(reads, trace),
        "the same, one edit a read": lambda: _whole(masked_frames, trace),
        "WebSocket frame, unmask": lambda: _websocket(reads),
        "digest, head": lambda: _parse(messages),
        "decode": lambda: _decode(frames),
        "receive window": lambda: _window(frames),
        "apply to the text": lambda: _apply(edits),
        "log for observers": lambda: _log(edits),
        "update: encode, number, keep": lambda: _update(edits),
        "acknowledge": lambda: _acknowledge(edits),
    }
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(rounds):
        for name, make in makers.items():
            times[name].append(_timed(make()) / len(edits))
    stages = {name: statistics.median(taken) for name, taken in times.items()}
    whole, by_one = stages.pop("the whole way"), stages.pop("the same, one edit a read")
    return stages | {
        "what joins them": whole - sum(stages.values()),
        "the whole way": whole,
        "the same, one edit a read": by_one,
    }


def _timed(stage: Stage) -> float:
    gc.collect()
    before = time.process_time_ns()
    stage()
    return (time.process_time_ns() - before) / 1000


def _packed(message: Message, digest: Digest, sequence: int = 0) -> bytes:
    body = encode_body(message, Encoding.MSGPACK)
    return pack_frame(body, encoding=Encoding.MSGPACK, digest=digest, sequence=sequence)


def _parsed(message: bytes) -> Frame:
    frame = parse_frame(message, encoding=Encoding.MSGPACK, digest=xxh3_64_digest)
    assert frame is not None
    return frame


def _reads(frames: Sequence[bytes]) -> list[bytes]:
    return [b"".join(frames[start : start + READ_EDITS]) for start in range(0, len(frames), READ_EDITS)]


def _batches(edits: Sequence[Edit]) -> list[Sequence[Edit]]:
    return [edits[start : start + READ_EDITS] for start in range(0, len(edits), READ_EDITS)]


def _whole(reads: Sequence[bytes], trace: Trace) -> Stage:
    hub = Hub(tokens={TOKEN: Principal("me", frozenset({"produce", "observe"}))}, version="0")
    writer, observer = MemoryPeer(), MemoryPeer()
    principal = hub.authenticate(TOKEN)
    write = hub.connect(writer, ConnectionInfo(Encoding.MSGPACK, principal, "", 1), 0.0)
    observe = hub.connect(observer, ConnectionInfo(Encoding.MSGPACK, principal, "", 2), 0.0)
    client = ClientInfo(name="benchmark")
    for connection, role in ((write, "produce"), (observe, "observe")):
        hello = Hello(attempt=1, client=client, digests=("xxh3-64",), role=role)  # type: ignore[arg-type]
        connection.receive(_packed(hello, crc32_digest), 0.0)
    welcome = server_decoder(Encoding.MSGPACK).decode(_sent_bodies(writer)[0])
    assert isinstance(welcome, Welcome)
    observe.receive(_packed(Subscribe(subscription=1, session=welcome.session), xxh3_64_digest, 1), 0.0)
    observe.read_done(0.0)
    write.receive(_packed(OPEN, xxh3_64_digest, 1), 0.0)
    write.read_done(0.0)
    # Every read lets one update out; the observer acknowledges each.
    first = int.from_bytes(observer.sent[-1][-len(_sent_bodies(observer)[-1]) - 8 :][:8], "big") + 1
    acks = [
        _packed(Ack(received=number, applied=number, durable=number, limit=number + 1024), xxh3_64_digest)
        for number in range(first + 1, first + 1 + len(reads))
    ]

    def stage() -> None:
        now = 0.0
        for read, ack in zip(reads, acks, strict=True):
            now += 0.001
            messages: list[bytes | str] = []
            take_messages(read, MESSAGE_BYTES_MAX, messages)
            for message in messages:
                write.receive(message, now)
            write.read_done(now)
            observe.receive(ack, now)
            observe.read_done(now)
        document = hub.document(principal, welcome.session, "1") if principal else None
        if document is None or document["text"] != trace.end:
            raise SystemExit("the text in the hub is not the end of the trace")

    return stage


def _sent_bodies(peer: MemoryPeer) -> list[bytes]:
    bodies = []
    for sent in peer.sent:
        head_bytes = 2 if sent[1] < 126 else 4
        bodies.append(sent[head_bytes + HEAD_BYTES :])
    return bodies


def _websocket(reads: Sequence[bytes]) -> Stage:
    def stage() -> None:
        for read in reads:
            take_messages(read, MESSAGE_BYTES_MAX, [])

    return stage


def _parse(messages: Sequence[bytes]) -> Stage:
    def stage() -> None:
        for message in messages:
            parse_frame(message, encoding=Encoding.MSGPACK, digest=xxh3_64_digest)

    return stage


def _decode(frames: Sequence[Frame]) -> Stage:
    decode = client_decoder(Encoding.MSGPACK).decode

    def stage() -> None:
        for frame in frames:
            decode(frame.body)

    return stage


def _window(frames: Sequence[Frame]) -> Stage:
    window: ReceiveWindow[None] = ReceiveWindow(DEFAULT_LIMITS)
    window.skip(1, 2)

    def stage() -> None:
        for frame in frames:
            window.receive(frame.sequence, frame.digest, None, 100, ordered=True)

    return stage


def _apply(edits: Sequence[Edit]) -> Stage:
    document = Document(OPEN, unit=Unit.UTF_16, hash_algorithm=HashAlgorithm.XXH3_64, limits=DEFAULT_LIMITS)
    document.begin_text(OPEN)

    def stage() -> None:
        for edit in edits:
            document.edit(edit)

    return stage


def _log(edits: Sequence[Edit]) -> Stage:
    log = FeedLog(DEFAULT_LIMITS)

    def stage() -> None:
        for edit in edits:
            log.append(edit, uri=OPEN.uri)

    return stage


def _update(edits: Sequence[Edit]) -> Stage:
    ring = RetransmitRing(events_max=2048, bytes_max=DEFAULT_LIMITS.server_ring_bytes_max)
    batches = _batches(edits)

    def stage() -> None:
        for index, batch in enumerate(batches):
            update = Update(session="s" * 43, from_=64 * index, to=64 * index + 64, events=tuple(batch))
            frame = _packed(update, xxh3_64_digest, index + 1)
            ring.record(index + 1, frame, len(frame), 0.0, key=None, durable=True)
            ring.acknowledge(index + 2, (), index + 2)

    return stage


def _acknowledge(edits: Sequence[Edit]) -> Stage:
    count = len(_batches(edits))

    def stage() -> None:
        for index in range(1, count + 1):
            number = index * READ_EDITS
            ack = Ack(received=number, applied=number, durable=number, limit=number + 1024)
            _packed(ack, xxh3_64_digest)

    return stage
