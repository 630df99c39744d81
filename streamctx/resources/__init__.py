"""Resources: where large bytes come from. What carries them is in `core.streaming`."""

from __future__ import annotations

__all__: list[str] = []
