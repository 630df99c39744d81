"""How long the state machines of Hypothesis, and what is like them, run.

`STREAMCTX_EXAMPLES=20` makes each try twenty times as many examples; `--timeout=0` gives it the time.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["machine_settings"]

_FACTOR = int(os.environ.get("STREAMCTX_EXAMPLES", "1"))


def machine_settings(*, examples: int, steps: int = 50) -> settings:
    """So many runs, of so many steps if they have any; a busy computer is no reason to fail."""
    return settings(
        max_examples=examples * _FACTOR,
        stateful_step_count=steps,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
