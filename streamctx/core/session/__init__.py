"""The endpoints that join delivery and documents: server side, client side, observer."""

from __future__ import annotations

__all__: list[str] = []
