"""What holds for every test: seeded randomness and markers by folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

__all__: list[str] = []

_TESTS = Path(__file__).parent

# An example that failed is printed so that it can be run again; speed is not what Hypothesis checks here.
settings.register_profile("local", deadline=None, print_blob=True)
# The same examples in every run, so that a red run is the change's own.
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in `e2e/` and `interop/` by its folder."""
    for item in items:
        if not item.path.is_relative_to(_TESTS):
            continue
        folder = item.path.relative_to(_TESTS).parts[0]
        if folder in {"e2e", "interop"}:
            item.add_marker(folder)
