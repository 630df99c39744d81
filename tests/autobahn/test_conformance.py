"""Autobahn's fuzzing client against the protocol class of production; see `echo_server` for what is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.autobahn.environment import UnavailableError
from tests.autobahn.run import Run, agents_of, run_set

__all__: list[str] = []

# The first run makes the environment of wstest.
pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    try:
        runs = run_set("fast", tmp_path_factory.mktemp("autobahn"))
    except UnavailableError as error:
        pytest.skip(f"Autobahn cannot be run here: {error}")
    return {run.agent: run for run in runs}


@pytest.mark.parametrize("agent", agents_of("fast"))
def test_every_case_ends_as_listed_on_either_loop_and_with_either_parser(
    runs: Mapping[str, Run], agent: str
) -> None:
    assert runs[agent].problems == []


def test_fast_path_takes_the_plain_messages(runs: Mapping[str, Run]) -> None:
    assert runs["asyncio"].echo.fast_messages > 2000
    assert runs["asyncio-full-parser"].echo.fast_messages == 0
    assert runs["asyncio"].echo.messages == runs["asyncio-full-parser"].echo.messages
    assert runs["asyncio"].outcomes == runs["asyncio-full-parser"].outcomes
