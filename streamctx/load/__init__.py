"""Recorded and made-up editing, and what plays it into a server."""

from __future__ import annotations

__all__: list[str] = []
