"""A document as its editor's client has it."""

from __future__ import annotations

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.wire.messages import Open

__all__ = ["HASHED_WHILE_BUSY_BYTES_MAX", "VERSION_IDLE_S", "ClientDocument"]

VERSION_IDLE_S = 0.5
_VERSION_BUSY_S = 2.0
HASHED_WHILE_BUSY_BYTES_MAX = 8_000_000
"""A larger text is hashed only when its editor is idle or saves."""


class ClientDocument:
    """A document as the client has it: the authority for the server's copy.

    `is_announced` says whether its `open` was sent in this epoch, and not given up. `edits_unverified`
    counts edits since the last `version`. `open_sequence` and `text_sequence` are the
    numbers of the last `open`, and of the last `open` or `snapshot`, in this epoch;
    `refused_sequence` that of the last event of it that was refused. `saved_version` is the
    last that its editor has written to disk, `None` before the first.
    """

    __slots__ = (
        "alias",
        "buffer",
        "edits_unverified",
        "first_unverified_at",
        "is_announced",
        "last_edit_at",
        "metadata",
        "open_sequence",
        "refused",
        "refused_sequence",
        "reopens",
        "saved_version",
        "text_sequence",
        "version",
    )

    def __init__(self, metadata: Open, buffer: TextBuffer) -> None:
        self.alias = metadata.document
        self.metadata = metadata
        self.buffer = buffer
        self.version = metadata.version
        self.forget_numbers()
        self.refused: str | None = None
        self.saved_version: int | None = None
        self.edits_unverified = 0
        self.first_unverified_at = 0.0
        self.last_edit_at = 0.0

    def forget_numbers(self) -> None:
        """Begin an epoch: nothing of it was sent."""
        self.is_announced = False
        self.open_sequence = self.text_sequence = self.refused_sequence = 0
        self.reopens = 0
        """How often it was opened anew because the server did not know it."""

    def version_due_at(self) -> float:
        """When its hash is to be sent (VER-1)."""
        idle_at = self.last_edit_at + VERSION_IDLE_S
        if self.buffer.byte_length > HASHED_WHILE_BUSY_BYTES_MAX:
            return idle_at
        return min(idle_at, self.first_unverified_at + _VERSION_BUSY_S)
