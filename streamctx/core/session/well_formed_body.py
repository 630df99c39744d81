"""Bodies of messages that an application has made, whose texts may hold what is no character."""

from __future__ import annotations

import msgspec

from streamctx.core.documents.units import well_formed
from streamctx.vocabulary import Encoding
from streamctx.wire.codec import encode_body
from streamctx.wire.messages import Message

__all__ = ["encode_well_formed"]


def encode_well_formed(message: Message, encoding: Encoding) -> bytes:
    """Encode a message, with U+FFFD in place of each lone surrogate (CNV-4)."""
    try:
        return encode_body(message, encoding)
    except UnicodeEncodeError:
        # Rare enough to look for it only now.
        plain = _well_formed_within(msgspec.to_builtins(message))
        return encode_body(msgspec.convert(plain, type(message)), encoding)


def _well_formed_within(value: object) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        return {key: _well_formed_within(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed_within(item) for item in value]
    return value
