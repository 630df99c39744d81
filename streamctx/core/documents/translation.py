"""Events with their positions said in another unit, for observers that asked for it (OBS-5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.vocabulary import Unit
from streamctx.wire.messages import (
    Cursor,
    Diagnostics,
    Mention,
    Selection,
)

__all__ = ["is_plain", "translations"]

E = TypeVar("E")


def is_plain(buffer: TextBuffer) -> bool:
    """Whether a text is known to be all ASCII, so that every unit counts alike.

    Of one that is counted in UTF-8 it is not known: its length is that of its bytes, whatever they are.
    """
    return buffer.unit is not Unit.UTF_8 and buffer.length == buffer.byte_length


def translations(event: E, buffer: TextBuffer, units: Iterable[Unit]) -> dict[Unit, E]:
    """Say an event in other units, where the numbers may differ.

    The positions must have been checked against the text of `buffer`.

    Returns:
        The event by unit; empty where all units give the same numbers.
    """
    if is_plain(buffer):
        return {}
    return {unit: _translated(event, buffer, unit) for unit in units if unit is not buffer.unit}


def _translated(event: E, buffer: TextBuffer, unit: Unit) -> E:
    def point(line: int, character: int) -> tuple[int, int]:
        return line, buffer.convert_character(line, character, unit)

    def span(value: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        return (*point(*value[:2]), *point(*value[2:]))

    if isinstance(event, Cursor):
        return msgspec.structs.replace(event, position=point(*event.position))
    if isinstance(event, Selection):
        return msgspec.structs.replace(event, ranges=tuple(span(value) for value in event.ranges))
    if isinstance(event, Mention):
        return msgspec.structs.replace(event, range=span(event.range))
    if isinstance(event, Diagnostics):
        items = tuple(msgspec.structs.replace(item, range=span(item.range)) for item in event.items)
        return msgspec.structs.replace(event, items=items)
    return event
