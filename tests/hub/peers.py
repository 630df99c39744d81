"""A hub in memory, and raw connections to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from streamctx.core.documents.text_digest import text_hash
from streamctx.engine.base import Engine, StoreError
from streamctx.hub.hub import Hub
from streamctx.hub.ports import ConnectionInfo, Principal
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm
from streamctx.wire.codec import encode_body, server_decoder
from streamctx.wire.digests import DIGESTS, crc32_digest
from streamctx.wire.frames import pack_frame, parse_frame
from streamctx.wire.messages import (
    ClientInfo,
    ErrorMessage,
    Heartbeat,
    Hello,
    Message,
    Open,
    Resume,
    Welcome,
)

__all__ = ["ALL", "OTHER", "Raw", "Stage", "opened"]

ALL = Principal("owner", frozenset({"produce", "observe"}))
OTHER = Principal("other", frozenset({"produce", "observe"}))
READER = Principal("owner", frozenset({"observe"}))
XXH3 = DIGESTS[DigestAlgorithm.XXH3_64]
M = TypeVar("M", bound=Message)
_IDS = itertools.count(1)


class Stage:
    """A hub with known tokens, ids and clock."""

    def __init__(
        self,
        *,
        limits: Limits = DEFAULT_LIMITS,
        engine: Engine | None = None,
        on_failure: Callable[[StoreError], None] | None = None,
    ) -> None:
        self.now = 0.0
        self.connections = itertools.count(1)
        self.hub = Hub(
            tokens={"all": ALL, "other": OTHER, "reader": READER},
            version="1",
            limits=limits,
            engine=engine,
            new_id=lambda: f"id-{next(_IDS)}",
            jitter=lambda: 0.5,
        )
        self.hub.on_failure = on_failure

    def pass_time(self, raw: Raw, until: float) -> None:
        """Let time pass for a connection, with all timers that it sets."""
        while raw.timer is not None and raw.timer <= until:
            self.now = max(self.now, raw.timer)
            raw.handler.handle_timeout(self.now)
        self.now = until

    def raw(self, *, encoding: Encoding = Encoding.MSGPACK) -> Raw:
        """Open a connection."""
        return Raw(self, encoding)

    def joined(self, token: str = "all", **hello: object) -> Raw:
        """Open a connection, greet, and confirm the WELCOME."""
        raw = self.raw()
        raw.hello(token, **hello)  # type: ignore[arg-type]
        raw.send(Heartbeat(next=1, received=1, applied=1, durable=1, limit=1025))
        return raw


class Raw:
    """One connection, from the client's side; it sends what it is told."""

    def __init__(self, stage: Stage, encoding: Encoding) -> None:
        self.stage = stage
        self.encoding = encoding
        self.is_writable = True
        self.timer: float | None = None
        self.closed_with: int | None = None
        self.got: list[tuple[int, int, Message]] = []
        self.frames: list[bytes] = []
        self.digest: Callable[[bytes | memoryview], bytes] = crc32_digest
        info = ConnectionInfo(
            encoding=encoding, principal=None, address="test", connection_id=next(stage.connections)
        )
        self.handler = stage.hub.connect(_Wire(self), info, stage.now)

    def arrive(self, data: bytes) -> None:
        frame = parse_frame(data, encoding=self.encoding, digest=self.digest)
        if frame is None:
            frame = parse_frame(data, encoding=self.encoding, digest=crc32_digest)
        assert frame is not None
        message = server_decoder(self.encoding).decode(frame.body)
        assert isinstance(message, Message)
        if isinstance(message, Welcome):
            self.digest = DIGESTS[DigestAlgorithm(message.digest)]
        self.got.append((frame.sequence, frame.stream, message))
        self.frames.append(data)

    def hello(self, token: str | None = "all", *, attempt: int = 1, **fields: object) -> Welcome | None:
        """Say HELLO; the WELCOME, if one came."""
        message = Hello(
            attempt=attempt,
            client=ClientInfo(name="raw"),
            digests=("xxh3-64",),
            auth=token,
            **fields,  # type: ignore[arg-type]
        )
        before = len(self.of(Welcome))
        self.give(
            pack_frame(encode_body(message, self.encoding), encoding=self.encoding, digest=crc32_digest)
        )
        return self.of(Welcome)[-1] if len(self.of(Welcome)) > before else None

    def give(self, *frames: bytes) -> None:
        """Let frames arrive together."""
        for data in frames:
            self.handler.receive(data.decode() if self.encoding is Encoding.JSON else data, self.stage.now)
        self.handler.read_done(self.stage.now)

    def frame(self, message: Message, sequence: int = 0) -> bytes:
        body = encode_body(message, self.encoding)
        return pack_frame(body, encoding=self.encoding, digest=XXH3, sequence=sequence)

    def send(self, message: Message, sequence: int = 0) -> None:
        self.give(self.frame(message, sequence))

    def of(self, kind: type[M]) -> list[M]:
        return [message for _, _, message in self.got if isinstance(message, kind)]

    def errors(self) -> list[str]:
        return [error.code for error in self.of(ErrorMessage)]

    def resume(self, **changes: object) -> Resume:
        """What its last WELCOME lets it resume."""
        welcome = self.of(Welcome)[-1]
        fields: dict[str, object] = {
            "session": welcome.session,
            "secret": welcome.secret,
            "epoch": welcome.epoch,
            "expects": 1,
            "next": 1,
        }
        return Resume(**{**fields, **changes})  # type: ignore[arg-type]


class _Wire:
    """The hub's `Peer` of a raw connection."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    @property
    def is_writable(self) -> bool:
        return self.raw.is_writable

    def send(self, messages: Sequence[bytes | str]) -> None:
        for message in messages:
            self.raw.arrive(message.encode() if isinstance(message, str) else message)

    def close(self, code: int, reason: str) -> None:
        self.raw.closed_with, self.raw.timer = code, None

    def abort(self) -> None:
        self.raw.closed_with = 1006

    def set_timer(self, at: float | None) -> None:
        self.raw.timer = at


def opened(text: str = "abc", *, document: int = 1, uri: str = "file:///a.py") -> Open:
    return Open(
        document=document,
        uri=uri,
        version=1,
        length=len(text),
        hash=text_hash(text, HashAlgorithm.XXH3_64),
        text=text,
    )
