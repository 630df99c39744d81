"""The terms of SPEC section 1 as types, with their units.

Nothing here has behaviour. Everything else may import this module.
"""

from __future__ import annotations

import enum
from typing import NewType

__all__ = [
    "INTEGER_MAX",
    "ByteCount",
    "DigestAlgorithm",
    "DocumentAlias",
    "DocumentVersion",
    "Encoding",
    "Epoch",
    "FeedOffset",
    "HashAlgorithm",
    "Instant",
    "SequenceNumber",
    "SessionId",
    "Unit",
]

INTEGER_MAX = 2**53 - 1
"""The largest integer on the wire: the largest a JavaScript number holds exactly."""

SequenceNumber = NewType("SequenceNumber", int)
"""Number of a message within one session and direction; the first is 1, 0 is unnumbered."""

Epoch = NewType("Epoch", str)
"""Which life of a session's state on the server a sequence number belongs to."""

SessionId = NewType("SessionId", str)
"""Public name of a session. It is not a secret and grants nothing."""

DocumentAlias = NewType("DocumentAlias", int)
"""A producer's number for a document, within its session; from 1."""

DocumentVersion = NewType("DocumentVersion", int)
"""State of a document after an edit; the editor's own number, it never goes back."""

FeedOffset = NewType("FeedOffset", int)
"""Count of events that a session has shown to its observers."""

Instant = NewType("Instant", float)
"""Seconds on a monotonic clock whose zero means nothing."""

ByteCount = NewType("ByteCount", int)


class Unit(enum.StrEnum):
    """What a `character` of a position counts (LSP 3.17 `PositionEncodingKind`)."""

    UTF_16 = "utf-16"
    UTF_8 = "utf-8"
    UTF_32 = "utf-32"


class Encoding(enum.StrEnum):
    """How message bodies are written; chosen by the WebSocket subprotocol."""

    MSGPACK = "msgpack"
    JSON = "json"


class DigestAlgorithm(enum.StrEnum):
    """The per-frame digest that is in force after WELCOME."""

    XXH3_64 = "xxh3-64"
    CRC32 = "crc32"


class HashAlgorithm(enum.StrEnum):
    """The hash of whole texts and contents; its name is part of every hash string."""

    XXH3_64 = "xxh3-64"
    SHA_256 = "sha-256"
