"""How long and with how many the tests of this folder run: short by default, and longer by `make chaos`."""

from __future__ import annotations

import os

__all__ = ["CLIENTS", "SEED", "minutes"]

CLIENTS = int(os.environ.get("STREAMCTX_CHAOS_CLIENTS", "20"))
SEED = int(os.environ.get("STREAMCTX_CHAOS_SEED", "1"))


def minutes(default: float) -> float:
    """What is asked for, or the default of a test."""
    return float(os.environ.get("STREAMCTX_CHAOS_MINUTES") or default)
