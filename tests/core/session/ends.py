"""Two deliveries that talk to each other, or one that a test talks to."""

from __future__ import annotations

from dataclasses import replace

from streamctx.core.session.delivery import Delivery, Item
from streamctx.core.session.outbox_journal import OutboxJournal
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding
from streamctx.wire.codec import client_decoder, encode_body, server_decoder
from streamctx.wire.digests import DIGESTS
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import Ack, Cursor, Heartbeat, Message, Nack, Save, Skip

__all__ = ["DIGEST", "LIMITS", "End", "cursor", "frame", "only", "read", "save"]

LIMITS = replace(
    DEFAULT_LIMITS, window_events_max=8, reorder_events_max=8, reorder_span_max=16, digest_history=16
)
DIGEST = DIGESTS[DigestAlgorithm.XXH3_64]


def save(version: int) -> Save:
    return Save(document=1, version=version)


def cursor(character: int) -> Cursor:
    return Cursor(document=1, version=1, position=(0, character))


def frame(message: Message, sequence: int = 0, *, stream: int = 0) -> bytes:
    body = encode_body(message, Encoding.MSGPACK)
    return pack_frame(body, encoding=Encoding.MSGPACK, digest=DIGEST, sequence=sequence, stream=stream)


def read(data: bytes) -> tuple[int, Message]:
    parsed = parse_frame(data, encoding=Encoding.MSGPACK, digest=DIGEST)
    assert parsed is not None
    message = server_decoder(Encoding.MSGPACK).decode(parsed.body)
    if not isinstance(message, Message):
        message = client_decoder(Encoding.MSGPACK).decode(parsed.body)  # type: ignore[assignment]
    assert isinstance(message, Message)
    return parsed.sequence, message


class End:
    """One delivery, as a test uses it."""

    def __init__(
        self, *, limits: Limits = LIMITS, durable: bool = False, journal: OutboxJournal | None = None
    ) -> None:
        self.now = 0.0
        self.lost: list[tuple[int, int]] = []
        self.delivery = Delivery(
            encoding=Encoding.MSGPACK,
            digest=DigestAlgorithm.XXH3_64,
            decoder=client_decoder(Encoding.MSGPACK),
            limits=limits,
            jitter=lambda: 0.5,
            now=0.0,
            ring_events_max=100,
            ring_bytes_max=1_000_000,
            releases_at_durable=durable,
            journal=journal,
        )

    def receive(self, *frames: bytes) -> list[tuple[int, Item]]:
        """Take frames of one read; what they let be applied."""
        return [
            (sequence, item) for data in frames for sequence, item, _ in self.delivery.receive(data, self.now)
        ]

    def flush(self) -> list[tuple[int, Message]]:
        return [read(data) for data in self.delivery.flush(self.now)]

    def answers(self, *frames: bytes) -> list[Message]:
        self.receive(*frames)
        return [message for _, message in self.flush()]

    def ack(self) -> Ack | Heartbeat:
        self.delivery.hold_durable(None)
        message = self.flush()[-1][1]
        assert isinstance(message, Ack | Heartbeat)
        return message

    def wait(self, seconds: float) -> list[tuple[int, Message]]:
        """Let time pass with all timers; what was sent meanwhile."""
        stop = self.now + seconds
        sent = []
        while (due := self.delivery.next_timeout()) <= stop:
            self.now = max(due, self.now)
            self.delivery.handle_timeout(self.now)
            self.lost += self.delivery.expired(self.now)
            sent += self.flush()
        self.now = stop
        return sent

    def send(self, count: int) -> list[bytes]:
        for _ in range(count):
            self.delivery.send(save(self.delivery.next_sequence), self.now)
        return [data for data in self.delivery.flush(self.now) if read(data)[0]]


def only(messages: list[Message], kind: type[Nack] | type[Skip]) -> list[tuple[tuple[int, int], ...]]:
    return [message.ranges for message in messages if isinstance(message, kind)]
