"""One server that editors stream their live context into, and that agents read it from."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
