"""What a store has done so far, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreCounters"]


@dataclass(slots=True)
class StoreCounters:
    """Counted since the store was opened. Read them on any thread."""

    commits: int = 0
    rows: int = 0
    """Batches added to the journal."""
    row_bytes: int = 0
    commit_s_max: float = 0.0
    """The longest that one commit took, its sync included."""
    loads: int = 0
    snapshots: int = 0
    rows_swept: int = 0
    """Rows of the journal that were gone through, to delete those that nothing can reach."""
    quarantined: int = 0
    """Sessions that were set aside."""
    damaged_histories: int = 0
    """Times that the past of a session could not be read."""
    refused: int = 0
    """Writes that a quota or a wrong epoch forbade."""
    full_errors: int = 0
    fatal_errors: int = 0
    checkpoints: int = 0
    checks_passed: int = 0
    checks_failed: int = 0
    """Background checks of the whole file after an unclean stop."""
