"""How long the state machines of Hypothesis run.

`STREAMCTX_EXAMPLES=20` makes every machine run twenty times as many examples; `--timeout=0` then lets them.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

__all__ = ["machine_settings"]

_FACTOR = int(os.environ.get("STREAMCTX_EXAMPLES", "1"))


def machine_settings(*, examples: int, steps: int) -> settings:
    """So many runs of so many steps; how fast the machine is at the moment is no reason to fail."""
    return settings(
        max_examples=examples * _FACTOR,
        stateful_step_count=steps,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
