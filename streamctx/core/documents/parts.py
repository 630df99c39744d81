"""How a long text is cut into parts (DOC-3)."""

from __future__ import annotations

from collections.abc import Iterator

from streamctx.limits import Limits

__all__ = ["PART_CHARACTERS", "cut", "part_characters", "part_count"]

PART_CHARACTERS = 16_384
"""Code points in one part: at most 64 KiB of UTF-8 whatever they are, and at most
96 KiB if every one of them is escaped in JSON, so that a part always fits a frame.
A text of no more code points goes into its `open` or `snapshot` whole."""
_BYTES_OF_CHARACTER_MAX = 6
"""Of one code point in a body: JSON escapes a control character with six."""
_FIELDS_BYTES = 1024
"""What else a body with a text holds."""


def part_characters(limits: Limits) -> int:
    """How many code points one message may carry and keep to the limits, whatever they are (LIM-1)."""
    in_frame = (limits.frame_bytes_max - _FIELDS_BYTES) // _BYTES_OF_CHARACTER_MAX
    return max(1, min(PART_CHARACTERS, limits.part_text_bytes_max // 4, in_frame))


def part_count(text: str, characters: int = PART_CHARACTERS) -> int:
    """In how many parts `cut` gives a text."""
    return -(-len(text) // characters)


def cut(text: str, characters: int = PART_CHARACTERS) -> Iterator[str]:
    """Cut a text into parts of so many code points, lazily."""
    for start in range(0, len(text), characters):
        yield text[start : start + characters]
