"""A change within one line that is not all ASCII, made in few steps."""

from __future__ import annotations

from streamctx.core.documents.lines import content_length
from streamctx.core.documents.units import CODECS
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change

__all__ = ["edited_line"]


def edited_line(line: str, change: Change, unit: Unit) -> tuple[str, str] | None:
    """Make a change whose characters are positions in `line`.

    Returns:
        The line after it and the text that was replaced, or `None` if the change
        is not allowed; finding out why is left to those with more time.
    """
    start, end = change.start_character, change.end_character
    codec, width = CODECS[unit]
    encoded = line[: content_length(line)].encode(codec)
    if start > end or end * width > len(encoded):
        return None
    try:
        change.text.encode()
        head = encoded[: start * width].decode(codec)
        removed = encoded[start * width : end * width].decode(codec)
    except UnicodeError:
        return None
    if change.old_length is not None and change.old_length != end - start:
        return None
    return head + change.text + line[len(head) + len(removed) :], removed
