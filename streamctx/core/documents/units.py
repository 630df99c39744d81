"""Lengths and positions in the three units that a session may negotiate.

Python's own strings count code points, which is the unit utf-32; the other two
are measured here. All of it is for well-formed text: lone surrogates are refused
or replaced before a text gets this far.
"""

from __future__ import annotations

from streamctx.vocabulary import Unit

__all__ = ["CODECS", "character_index", "length_in", "well_formed"]

CODECS = {Unit.UTF_16: ("utf-16-le", 2), Unit.UTF_8: ("utf-8", 1), Unit.UTF_32: ("utf-32-le", 4)}
"""The encoding that has one code unit for each that a position counts, and its bytes."""


def length_in(text: str, unit: Unit) -> int:
    """Count `text` in `unit`.

    Raises:
        UnicodeEncodeError: If the text holds a surrogate and the unit is not utf-32.
    """
    if unit is Unit.UTF_32 or text.isascii():
        return len(text)
    codec, code_unit_bytes = CODECS[unit]
    return len(text.encode(codec)) // code_unit_bytes


def character_index(text: str, character: int, unit: Unit) -> int | None:
    """Turn an offset in `unit` into an index of `text`.

    Returns:
        The index, or `None` if the offset is inside a character: between the
        two halves of a surrogate pair or within a UTF-8 sequence.

    Raises:
        ValueError: If the offset is outside the text; measure first.
    """
    if unit is Unit.UTF_32 or text.isascii():
        if not 0 <= character <= len(text):
            raise ValueError(f"offset {character} is outside a text of {len(text)}")
        return character
    codec, code_unit_bytes = CODECS[unit]
    encoded = text.encode(codec)
    if not 0 <= character * code_unit_bytes <= len(encoded):
        raise ValueError(f"offset {character} is outside a text of {len(encoded) // code_unit_bytes}")
    if len(encoded) == len(text) * code_unit_bytes:
        # Only characters of the basic plane: utf-16 and code points agree.
        return character
    try:
        return len(encoded[: character * code_unit_bytes].decode(codec))
    except UnicodeDecodeError:
        return None


def well_formed(text: str) -> str:
    """Replace what the protocol does not carry: every lone surrogate becomes U+FFFD.

    A high surrogate followed by a low one, as two items of a Python string,
    becomes the one character they stand for, as JavaScript's `toWellFormed` and
    `TextEncoder` have it. The length in utf-16 does not change.

    Source: SPEC 10; DOM Encoding standard, `USVString`.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
