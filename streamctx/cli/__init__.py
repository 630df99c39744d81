"""The command line, one module a family of commands."""

from __future__ import annotations

__all__: list[str] = []
