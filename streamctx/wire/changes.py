"""One change of a text, as it stands in an edit (SPEC 10.3)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from streamctx.vocabulary import INTEGER_MAX

__all__ = ["Change"]

_Natural = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]


class Change(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """Replace the text between two positions.

    On the wire an array `[start_line, start_character, end_line, end_character, text]`,
    with `old_length` as sixth element where the sender wants the length of the
    replaced text checked (EDT-2).
    """

    start_line: _Natural
    start_character: _Natural
    end_line: _Natural
    end_character: _Natural
    text: str
    old_length: _Natural | None = None
