"""The protocol as state machines, without I/O, clock, randomness or tasks."""

from __future__ import annotations

__all__: list[str] = []
