"""What both ends choose from by name, and the one number that bounds all others.

Nothing here has behaviour. Everything else may import this module.
"""

from __future__ import annotations

import enum

__all__ = [
    "INTEGER_MAX",
    "DigestAlgorithm",
    "Encoding",
    "HashAlgorithm",
    "Unit",
]

INTEGER_MAX = 2**53 - 1
"""The largest integer on the wire: the largest a JavaScript number holds exactly."""


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
