"""Delivery: what makes one direction of a session exact.

Pure, synchronous machines: they read no clock, draw no random number and see
only typed values and opaque frames. They do not know each other; `core.session`
composes them.
"""

from __future__ import annotations

__all__: list[str] = []
