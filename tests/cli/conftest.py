"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.running import Home, RunningServer

__all__: list[str] = []


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with Home(tmp_path_factory.mktemp("server")).serve() as running:
        yield running
