"""A document as a value, from which it can be made again."""

from __future__ import annotations

import msgspec

from streamctx.wire.messages import Open, Snapshot

__all__ = ["DocumentState", "TransferState"]


class TransferState(msgspec.Struct, frozen=True):
    """A text that is coming in parts: the message that announced it, and what has come."""

    announced: Open | Snapshot
    part_count: int
    text: str


class DocumentState(msgspec.Struct, frozen=True, kw_only=True):
    """One text document; `text` is `None` until the first text is complete."""

    metadata: Open
    text: str | None
    version: int
    text_since: int
    plain_since: int | None = None
    verified_version: int | None = None
    saved_version: int | None = None
    stale_reason: str | None = None
    """Why it is stale; `None` if it is not."""
    unfit_count: int = 0
    edit_count: int = 0
    transfer: TransferState | None = None
