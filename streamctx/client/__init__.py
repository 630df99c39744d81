"""The Python client: connection, outbox, reconnect."""

from __future__ import annotations

__all__: list[str] = []
