"""Says at the end of a test run what was fuzzed, since nobody sees the output of tests that pass."""

from __future__ import annotations

import pytest

__all__ = ["REPORT"]

REPORT = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the tests of this folder have left."""
    for line in config.stash.get(REPORT, []):
        terminalreporter.write_line(line)
