"""What is done when a store is opened:

find the ends of all chains again, and the sessions that are not whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamctx.engine.sqlite.journal import ScannedRow
from streamctx.engine.sqlite.sessions import Entry

__all__ = ["extend_chains"]


def extend_chains(
    entries: Iterable[Entry], rows: Iterable[ScannedRow], *, scanned: int, run: int | None
) -> tuple[int, set[str]]:
    """Bring the heads of sessions up to what the journal holds behind row `scanned`.

    Rows behind it were added one by one, so a number that is absent was there once. The row may have been of
    any session that had a connection in that run and of which no later row proves that it was not.
    Those are marked as damaged, as is one whose rows do not follow each other: none is shortened in silence.

    Args:
        entries: All sessions; changed here.
        rows: The rows behind `scanned`, in order.
        scanned: The row up to which the heads are known.
        run: The run of the store that wrote the rows; `None` if it ended in order, and so left none there.

    Returns:
        The highest row there ever was, and the ids of the sessions that were changed.
    """
    by_key = {entry.key: entry for entry in entries}
    changed: set[str] = set()
    last = scanned
    last_bad = 0
    for row in rows:
        if row.row != last + 1:
            last_bad = row.row - 1
        last = row.row
        if not row.is_good:
            last_bad = row.row
            continue
        # Rows of no session are those of one in quarantine.
        entry = by_key.get(row.session)
        if entry is None or row.row <= entry.head_row:
            continue
        changed.add(entry.id)
        if row.previous != entry.head_row:
            entry.damage = (
                entry.damage or f"row {row.row} of the journal does not follow row {entry.head_row}"
            )
        _extend(entry, row)
    if last_bad and run is not None:
        for entry in by_key.values():
            if entry.run == run and entry.head_row < last_bad and entry.damage is None:
                entry.damage = f"row {last_bad} of the journal cannot be read, and may be of this session"
                changed.add(entry.id)
    return max(last, *(entry.head_row for entry in by_key.values()), 0), changed


def _extend(entry: Entry, row: ScannedRow) -> None:
    entry.head_row = row.row
    entry.head_count += 1
    entry.head_bytes += row.byte_count
    entry.changed = max(entry.changed, row.at)
