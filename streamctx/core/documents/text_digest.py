"""Hashes of whole texts, by which two ends prove that they hold the same one.

The hash is taken of the exact text as UTF-8: its own line ends, no byte order
mark, no normalisation. The result names its algorithm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import xxhash

from streamctx.vocabulary import HashAlgorithm
from streamctx.wire.digests import hash_bytes

__all__ = ["hash_of_parts", "text_hash"]


def text_hash(text: str, algorithm: HashAlgorithm) -> str:
    """Hash a text: `xxh3-64:` and 16 hex digits, or `sha-256:` and 64.

    Raises:
        UnicodeEncodeError: If the text holds a surrogate; see `units.well_formed`.
    """
    return hash_bytes(text.encode(), algorithm)


def hash_of_parts(parts: Iterable[bytes], algorithm: HashAlgorithm) -> str:
    """Hash UTF-8 that is at hand in parts, without joining them; equal to `text_hash` of the whole."""
    hasher = xxhash.xxh3_64() if algorithm is HashAlgorithm.XXH3_64 else hashlib.sha256()
    for part in parts:
        hasher.update(part)
    return f"{algorithm}:{hasher.hexdigest()}"
