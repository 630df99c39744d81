"""Runs a command's coroutine, and ends it cleanly when the process is asked to end."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

__all__ = ["end_at_signal", "run_async"]

T = TypeVar("T")


def run_async(function: Callable[[], Awaitable[T]]) -> T:
    """Run to the end; of a group of one exception, which task groups make, the exception is raised."""
    try:
        return anyio.run(function)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from error.__cause__


async def end_at_signal(end: Callable[[], object]) -> None:
    """Call `end` on SIGINT or SIGTERM; these do nothing else as long as this runs."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            end()
            return
