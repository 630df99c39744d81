"""Bytes to messages and back: structs, codecs, frame header, digests, capabilities."""

from __future__ import annotations

__all__: list[str] = []
