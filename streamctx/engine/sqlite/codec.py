"""The bytes of a batch. What the core says is an event has to be one of the protocol's to be read back."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from streamctx.core.session.stored import JournalBatch, Refused, Spoilt
from streamctx.wire.messages import DurableEvent, SupersedableEvent

__all__ = ["decode_batch", "encode_batch"]

_Item: TypeAlias = DurableEvent | SupersedableEvent | Spoilt | Refused | None


class _Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As `JournalBatch`, with every event by name: a decoder cannot find the subclasses of a base class."""

    first: int
    stop: int
    entries: tuple[tuple[int, _Item], ...]


_ENCODER = msgspec.msgpack.Encoder()
_BATCHES = msgspec.msgpack.Decoder(_Batch)


def encode_batch(batch: JournalBatch) -> bytes:
    """Give the bytes to store of a batch."""
    return _ENCODER.encode(batch)


def decode_batch(payload: bytes) -> JournalBatch:
    """Give back a batch.

    Raises:
        msgspec.DecodeError: If the bytes are not those of one.
    """
    batch = _BATCHES.decode(payload)
    return JournalBatch(batch.first, batch.stop, batch.entries)
