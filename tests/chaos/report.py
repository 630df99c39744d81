"""Where the tests of this folder say what they have measured: see it with `pytest -rA` or `-s`."""

from __future__ import annotations

import sys

__all__ = ["report"]


def report(name: str, **figures: object) -> None:
    """Say what a test has measured, or what to run it again with."""
    line = ", ".join(f"{key} {value}" for key, value in figures.items())
    sys.stdout.write(f"{name}: {line}\n")
