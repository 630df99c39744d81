"""State that outlives a connection."""

from __future__ import annotations

__all__: list[str] = []
