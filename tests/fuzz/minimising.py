"""The smallest input that still fails in the same way, and the fewest inputs that still reach as much."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.drivers import Target, hang_fails

__all__ = ["failure_of", "fewest", "minimised"]

_STEADY_NUMBERS = "".maketrans("0123456789", "0" * 10)
Failure = tuple[str, str, int, str]
"""Type, file, line and text, without its numbers, of what failed at the bottom."""


def failure_of(fuzz: Target, data: bytes) -> Failure | None:
    """How an input fails; `None` if it does not."""
    try:
        with hang_fails():
            fuzz(data)
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        place = traceback.extract_tb(root.__traceback__)[-1]
        if isinstance(root, TimeoutError):
            return (type(root).__name__, "", 0, "")
        return (
            type(root).__name__,
            place.filename,
            place.lineno or 0,
            str(root)[:60].translate(_STEADY_NUMBERS),
        )
    return None


def minimised(fuzz: Target, data: bytes, *, seconds: float) -> bytes:
    """Leave out and set to zero what does not matter for how an input fails."""
    failure = failure_of(fuzz, data)
    if failure is None:
        return data
    stop = time.monotonic() + seconds

    def fails(candidate: bytes) -> bool:
        return time.monotonic() < stop and failure_of(fuzz, candidate) == failure

    before = None
    while before != data:
        before = data
        size = max(1, len(data) // 2)
        while size:
            start = 0
            while start < len(data):
                candidate = data[:start] + data[start + size :]
                if fails(candidate):
                    data = candidate
                else:
                    start += size
            size //= 2
        for index, byte in enumerate(data):
            candidate = data[:index] + b"\0" + data[index + 1 :]
            if byte and fails(candidate):
                data = candidate
    return data


def fewest(fuzz: Target, inputs: Iterable[bytes], *, bytes_max: int) -> list[bytes]:
    """Choose inputs, shortest first, that each take a step in `streamctx` which none before has taken."""
    seen: set[tuple[CodeType, int, int]] = set()
    chosen: list[bytes] = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        if sum(map(len, chosen)) + len(data) > bytes_max:
            break
        steps = _steps(fuzz, data)
        if steps is not None and not steps <= seen:
            seen |= steps
            chosen.append(data)
    return chosen


def _steps(fuzz: Target, data: bytes) -> set[tuple[CodeType, int, int]] | None:
    """From which line to which line the code of `streamctx` went; `None` if the input fails."""
    steps: set[tuple[CodeType, int, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any] | None:
        if not str(frame.f_globals.get("__name__", "")).startswith("streamctx"):
            return None
        last = 0

        def step(frame: FrameType, event: str, argument: Any) -> Callable[[FrameType, str, Any], Any]:
            nonlocal last
            steps.add((frame.f_code, last, frame.f_lineno))
            last = frame.f_lineno
            return step

        return step

    sys.settrace(enter)
    try:
        fuzz(data)
    except Exception:
        return None
    finally:
        sys.settrace(None)
    return steps
