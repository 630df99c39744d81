"""Frame digests and content hashes (SPEC 4.3, 10.5)."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import TypeAlias

import xxhash

from streamctx.vocabulary import DigestAlgorithm, HashAlgorithm

__all__ = ["DIGESTS", "DIGEST_BYTES", "Digest", "crc32_digest", "hash_bytes", "xxh3_64_digest"]

DIGEST_BYTES = 8

Digest: TypeAlias = Callable[[bytes | memoryview], bytes]
"""Digest of a frame's covered bytes: 8 bytes."""

xxh3_64_digest: Digest = xxhash.xxh3_64_digest
"""XXH3, 64 bits, seed 0, in canonical (big-endian) order."""


def crc32_digest(data: bytes | memoryview) -> bytes:
    """Four zero bytes and the CRC-32 of `data` (DIG-2)."""
    return zlib.crc32(data).to_bytes(DIGEST_BYTES, "big")


DIGESTS: dict[DigestAlgorithm, Digest] = {
    DigestAlgorithm.XXH3_64: xxh3_64_digest,
    DigestAlgorithm.CRC32: crc32_digest,
}


def hash_bytes(data: bytes, algorithm: HashAlgorithm) -> str:
    """Hash of a content, as `<algorithm>:<hexadecimal>` (HSH-1)."""
    if algorithm is HashAlgorithm.XXH3_64:
        return f"{algorithm}:{xxhash.xxh3_64_hexdigest(data)}"
    return f"{algorithm}:{hashlib.sha256(data).hexdigest()}"
