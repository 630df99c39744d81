"""What holds for every test of this folder: it is end to end, and looks into processes."""

from __future__ import annotations

from pathlib import Path

import pytest

__all__: list[str] = []

_FOLDER = Path(__file__).parent
_HAS_PROC = Path("/proc/self/net/tcp").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker("e2e")
            if not _HAS_PROC:
                item.add_marker(pytest.mark.skip(reason="reads /proc"))
