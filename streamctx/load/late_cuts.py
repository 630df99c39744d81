"""Faults whose cuts spare what was handed to the socket before.

The client writes all that is due at once, and `MessageFaults` has a cut take the whole
write with it. On a link that cuts every fiftieth message, no write of a full window would
ever arrive. A real connection delivers what came before its end, so here the cut message
and what follows it are lost, and the connection ends right after.
"""

from __future__ import annotations

import sys

from streamctx.client.faults import Faulted, FaultRates, MessageFaults

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["LateCuts"]


class LateCuts(MessageFaults):
    """As `MessageFaults`, with a cut on the way out that comes after the write."""

    __slots__ = ("_is_cutting",)

    def __init__(self, rates: FaultRates, *, seed: int) -> None:
        super().__init__(rates, seed=seed)
        self._is_cutting = False

    @override
    def outgoing(self, message: bytes, now: float, *, is_text: bool) -> Faulted:
        if self._is_cutting:
            return Faulted([])
        faulted = super().outgoing(message, now, is_text=is_text)
        self._is_cutting = faulted.is_cut
        return Faulted(faulted.messages)

    @override
    def due_incoming(self, now: float) -> list[bytes]:
        """Take what was held back long enough.

        Raises:
            ConnectionResetError: If the connection is to end now.
        """
        if self._is_cutting:
            raise ConnectionResetError("cut on purpose")
        return super().due_incoming(now)

    @override
    def next_timeout(self) -> float | None:
        return 0.0 if self._is_cutting else super().next_timeout()

    @override
    def disconnected(self) -> None:
        super().disconnected()
        self._is_cutting = False
