"""The network side of the hub: WebSocket endpoint, HTTP application, policy, signals."""

from __future__ import annotations

__all__: list[str] = []
