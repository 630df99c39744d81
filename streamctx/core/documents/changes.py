"""The order of the changes of a simultaneous batch.

All positions of such a batch are of the text before it. Made from the last to
the first, none moves the position of another.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamctx.errors import ErrorCode, EventRefused
from streamctx.wire.changes import Change

__all__ = ["last_to_first"]


def last_to_first(changes: Sequence[Change]) -> list[Change]:
    r"""Turn a simultaneous batch into changes to be made one after another.

    Changes that touch become one. Otherwise the `\n` of one could join a `\r`
    before it, and a range that ends there could no longer be told by a position.

    Args:
        changes: Each with its start not after its end. Where several are at one
            place, insertions come in array order and before the change that replaces.

    Returns:
        Changes whose effect in sequence is that of the batch; without `old_length`.

    Raises:
        EventRefused: `bad_change`, with the index of the later of two that overlap.
    """
    order = sorted(range(len(changes)), key=lambda index: _sort_key(changes[index]))
    merged: list[Change] = []
    start = end = (-1, -1)
    texts: list[str] = []
    for index in order:
        change = changes[index]
        change_start = (change.start_line, change.start_character)
        if change_start < end:
            raise EventRefused(
                ErrorCode.BAD_CHANGE,
                f"it starts at {_shown(change_start)} within another that ends at {_shown(end)}",
                change_index=index,
            )
        if change_start != end:
            if texts:
                merged.append(Change(*start, *end, "".join(texts)))
            start, texts = change_start, []
        end = (change.end_line, change.end_character)
        texts.append(change.text)
    if texts:
        merged.append(Change(*start, *end, "".join(texts)))
    merged.reverse()
    return merged


def _sort_key(change: Change) -> tuple[int, int, bool]:
    """Order by start, insertions first; sorting is stable, so the rest keeps array order."""
    start = (change.start_line, change.start_character)
    return *start, start != (change.end_line, change.end_character)


def _shown(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"
