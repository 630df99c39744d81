"""Replays over bad connections; `replay_matrix` runs many more."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from streamctx.cli.replay import own_server
from streamctx.cli.rest import get_json
from streamctx.client.faults import FaultRates
from streamctx.load.player import Fetch, Player, PlayOptions
from streamctx.load.report import Report
from streamctx.load.script import Script, TraceScript
from streamctx.load.traces import Trace, Transaction
from streamctx.vocabulary import Encoding, Unit
from tests.e2e.replay_matrix import FAULTS, NAMES, TRACES, Case, run_case

__all__: list[str] = []

OPTIONS = PlayOptions(url="", token="", is_observed=True)
UNITS = [(Unit.UTF_16, Unit.UTF_8), (Unit.UTF_8, Unit.UTF_32), (Unit.UTF_32, Unit.UTF_16)]
BAD_LINK = FaultRates.parse("drop=0.1,dup=0.1,reorder=0.1,corrupt=0.05,cut=0.005")


def _script(seed: int, transactions: int) -> Script:
    """Random edits of all kinds, with characters of every width and every line end."""
    chance = random.Random(seed)
    start = text = "first\r\nsécond 😀\rthird\n" * 20
    made = []
    for _ in range(transactions):
        patches = []
        for _ in range(chance.choice((1, 1, 1, 3))):
            position = chance.randint(0, len(text))
            deleted = min(chance.choice((0, 0, 1, 2, 9)), len(text) - position)
            inserted = "".join(chance.choices("ab \n\ré€😀", k=chance.choice((0, 1, 1, 2, 30))))
            patches.append((position, deleted, inserted))
            text = text[:position] + inserted + text[position + deleted :]
        made.append(Transaction(0.0, patches))
    return TraceScript(Trace(start, text, made), f"random {seed}")


def _play(
    script: Script, options: PlayOptions, wrap: Callable[[Fetch], Fetch] = lambda fetch: fetch
) -> tuple[Report, Player]:
    async def play() -> tuple[Report, Player]:
        async with own_server() as target:
            fetch = wrap(functools.partial(get_json, target))
            player = Player(script, replace(options, url=target.url, token=target.token), fetch)
            with anyio.fail_after(50):
                return await player.run(), player

    return anyio.run(play)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize(("unit", "observer_unit"), UNITS)
def test_a_good_connection_needs_no_repair(encoding: Encoding, unit: Unit, observer_unit: Unit) -> None:
    options = replace(OPTIONS, encoding=encoding, unit=unit, observer_unit=observer_unit)
    report, player = _play(_script(1, 500), options)
    assert report.verified, report.lines()
    repairs = (report.retransmitted, report.nacks, report.skipped, report.duplicates, report.corrupt)
    assert (*repairs, report.resumes) == (0, 0, 0, 0, 0, 0)
    assert len(report.ack.values) == len(report.observer.values) == report.edits == 500
    assert player.lost == 0


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize(("unit", "observer_unit"), UNITS)
def test_a_bad_connection_changes_no_text(encoding: Encoding, unit: Unit, observer_unit: Unit) -> None:
    options = replace(
        OPTIONS, encoding=encoding, unit=unit, observer_unit=observer_unit, faults=BAD_LINK, seed=3
    )
    report, player = _play(_script(2, 400), options)
    assert report.verified, report.lines()
    assert report.nacks and report.retransmitted and report.corrupt
    assert sum(player.fault_counts.values()) > 50
    assert len(report.ack.values) == len(report.observer.values) == 400


def test_a_copy_that_differs_is_not_verified() -> None:
    def falsified(fetch: Fetch) -> Fetch:
        def get(path: str) -> object:
            found = fetch(path)
            assert isinstance(found, dict)
            return {**found, "text": "something else"} if "/documents/" in path else found

        return get

    report, _ = _play(_script(3, 20), OPTIONS, falsified)
    assert not report.verified
    assert report.sha256_observer == report.sha256_expected != report.sha256_server


def test_a_server_that_goes_away_ends_the_replay() -> None:
    reports = []

    async def play() -> None:
        async with anyio.create_task_group() as group, own_server() as target:
            options = replace(OPTIONS, url=target.url, token=target.token, timeout_s=0.5, rate=100.0)
            player = Player(_script(4, 30), options, functools.partial(get_json, target))

            async def run() -> None:
                reports.append(await player.run())

            group.start_soon(run)
            # A player has no event to wait for.
            while player.performer is None or player.performer.edits < 10:  # noqa: ASYNC110
                await anyio.sleep(0.01)

    anyio.run(play)
    (report,) = reports
    assert not report.verified
    assert any("nothing went on for 0.5 s" in problem for problem in report.problems)


@pytest.mark.slow
@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded editing traces are not at hand")
@pytest.mark.parametrize("encoding", Encoding)
def test_a_recorded_session_survives_a_bad_connection(encoding: Encoding) -> None:
    outcome = run_case(Case(part="faulty", trace=NAMES[0], encoding=encoding.value, faults=FAULTS))
    assert not outcome.problems
