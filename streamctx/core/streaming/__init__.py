"""Streaming: large resources in chunks, beside everything else of a connection.

Pure, synchronous machines, as those of `core.delivery`: how much may be under way, whose chunk is next, and
how chunks become a whole.
"""

from __future__ import annotations

__all__: list[str] = []
