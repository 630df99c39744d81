"""Both ways to resolve a path, and somebody who moves names about meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamctx.resources.beneath import Beneath, Way

__all__ = ["WAYS", "descriptor_count", "exchanging"]


def _has_openat2() -> bool:
    beneath = Beneath(b"/", follows_links=True)
    beneath.close()
    return beneath.way is Way.OPENAT2


WAYS = [
    pytest.param(
        way,
        id=way.value,
        marks=pytest.mark.skipif(
            way is Way.OPENAT2 and not _has_openat2(), reason="there is no openat2 here"
        ),
    )
    for way in Way
]

# Another process, so that it is as fast as can be. It ends with the test's process, whatever becomes of it.
_EXCHANGE = """
import ctypes, os, sys

first, second = map(os.fsencode, sys.argv[1:])
renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)

def exchange():
    if renameat2 is None or renameat2(-100, first, -100, second, 2) != 0:
        os.rename(first, first + b".spare")
        os.rename(second, first)
        os.rename(first + b".spare", second)

parent = os.getppid()
exchange()
print("begun", flush=True)
while os.getppid() == parent:
    for _ in range(1000):
        exchange()
"""


@contextmanager
def exchanging(first: Path, second: Path) -> Iterator[None]:
    """Have two names exchanged all the time."""
    command = [sys.executable, "-I", "-S", "-c", _EXCHANGE, str(first), str(second)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
            yield
        finally:
            process.kill()


def descriptor_count() -> int:
    return len(os.listdir("/dev/fd"))
