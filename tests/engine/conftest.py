"""What the tests of stores share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.clock import Clock

__all__: list[str] = []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ram_path() -> Iterator[Path]:
    """A folder that needs no syncs, where there is one: for tests whose disk is one of their own."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as name:
        yield Path(name)
