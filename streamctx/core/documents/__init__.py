"""Texts and scenes as their producers have them: buffers, edits, positions, presence."""

from __future__ import annotations

__all__: list[str] = []
