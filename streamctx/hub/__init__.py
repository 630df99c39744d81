"""Live sessions: registry, attach and fence, feeds, redaction."""

from __future__ import annotations

__all__: list[str] = []
