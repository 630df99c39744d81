"""What must hold between fields of one message, which a schema cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from streamctx.wire.messages import (
    Ack,
    Heartbeat,
    Hello,
    Message,
    Nack,
    Open,
    Skip,
    Snapshot,
    Welcome,
)

__all__ = ["RELATIONS"]


def _ranges_rise(ranges: Iterable[tuple[int, int]]) -> str | None:
    for start, stop in ranges:
        if start >= stop:
            return f"the range [{start}, {stop}] is empty"
    return None


def _text_or_parts(message: Open | Snapshot) -> str | None:
    if (message.text is None) is (message.parts is None):
        return "exactly one of text and parts is expected"
    return None


RELATIONS: Mapping[type[Message], Callable[..., str | None]] = {
    Ack: lambda message: _ranges_rise(message.ranges) or _ranges_rise(message.lost),
    Heartbeat: lambda message: _ranges_rise(message.ranges) or _ranges_rise(message.lost),
    Nack: lambda message: _ranges_rise(message.ranges),
    Skip: lambda message: _ranges_rise(message.ranges),
    Hello: lambda message: _ranges_rise(message.resume.lost) if message.resume else None,
    Welcome: lambda message: _ranges_rise((*message.ranges, *message.lost)),
    Open: _text_or_parts,
    Snapshot: _text_or_parts,
}
"""By type, what is wrong with a message of it, `None` if nothing is (CNV-2, DOC-3)."""
