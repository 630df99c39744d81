"""The checks that rows carry: they find accidents, not attackers, who could write a fitting check as well.

A check covers what identifies the row besides what the row holds, so that a row cannot stand in for another.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

__all__ = ["Damage", "content_check", "row_check"]

_NUMBERS = {count: struct.Struct(f">{count}q") for count in range(2, 7)}
# SQLite's integers have a sign.
_SIGN = 1 << 63


class Damage(Exception):
    """What is stored is not what was written.

    The message says which row and how, and nothing of its content.
    """


def row_check(*numbers: int, content: bytes) -> int:
    """The check of a row with these numbers and this content."""
    return xxh3_64_intdigest(content, xxh3_64_intdigest(_NUMBERS[len(numbers)].pack(*numbers))) - _SIGN


def content_check(content: bytes) -> int:
    """The check of a content wherever it stands."""
    return xxh3_64_intdigest(content) - _SIGN
