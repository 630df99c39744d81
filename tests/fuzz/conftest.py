"""Says at the end of a test run what was fuzzed, since nobody sees the output of tests that pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

__all__: list[str] = []

_REPORT = pytest.StashKey[list[str]]()


@pytest.fixture
def report(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a line to be shown at the end."""
    return pytestconfig.stash.setdefault(_REPORT, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the tests of this folder have left."""
    for line in config.stash.get(_REPORT, []):
        terminalreporter.write_line(line)
