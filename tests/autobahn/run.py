"""Run Autobahn's fuzzing client against echo servers: `python -m tests.autobahn.run fast|all`.

Each loop is tested with the fast path and with the full parser alone, at the same time, since wstest mostly
waits. wstest ends with 0 whatever it finds; the verdicts are in its reports, and are compared with the table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.autobahn.echo_server import Address, EchoReport, Settings
from tests.autobahn.environment import ROOT, UnavailableError, clean_environment, wstest_python
from tests.autobahn.verdicts import Outcome, Table, compare, differences, load_table, summary

__all__ = ["Run", "agents_of", "run_set"]

_WSTEST_TIMEOUT_S = {"fast": 120.0, "all": 600.0}
_SUBPROTOCOL = "streamctx.v1"


@dataclass(frozen=True, slots=True)
class Run:
    """One server's: `problems` are empty if all is as expected."""

    agent: str
    settings: Settings
    outcomes: Mapping[str, Outcome]
    echo: EchoReport
    duration_s: float
    problems: list[str]


def agents_of(set_name: str) -> dict[str, Settings]:
    """The servers of a set of cases by name; those on uvloop if it is installed."""
    loops = ["asyncio", *(["uvloop"] if importlib.util.find_spec("uvloop") else [])]
    agents = {}
    for loop in loops:
        agents[loop] = Settings(loop=loop)
        agents[f"{loop}-full-parser"] = Settings(loop=loop, is_fast=False)
        if set_name == "all":
            agents[f"{loop}-raised-limits"] = Settings(loop=loop, are_limits_raised=True)
    return agents


def run_set(set_name: str, reports: Path) -> list[Run]:
    """Run a set of cases against all its servers; wstest's own pages are in `reports` afterwards.

    Raises:
        UnavailableError: If wstest cannot be run here.
    """
    python = wstest_python()
    table = load_table()
    agents = agents_of(set_name)
    with ThreadPoolExecutor(len(agents)) as executor:
        futures = [
            executor.submit(_run_agent, python, table, set_name, agent, settings, reports / agent)
            for agent, settings in agents.items()
        ]
        runs = [future.result() for future in futures]
    for run in runs[1:]:
        if not run.settings.are_limits_raised:
            run.problems.extend(
                f"{difference}, by {runs[0].agent} and here"
                for difference in differences(runs[0].outcomes, run.outcomes)
            )
    return runs


def _run_agent(
    python: Path, table: Table, set_name: str, agent: str, settings: Settings, folder: Path
) -> Run:
    folder.mkdir(parents=True)
    timeout_s = _WSTEST_TIMEOUT_S[set_name]
    parts = {
        "waiting": {"cases": table.waiting, "exclude-cases": ()},
        "others": {"cases": table.sets[set_name].cases, "exclude-cases": table.waiting},
    }
    outcomes: dict[str, Outcome] = {}
    started_at = time.monotonic()
    with (
        _echo_server(settings, folder / "server.log") as (address, reports),
        ThreadPoolExecutor(len(parts)) as executor,
    ):
        futures = [
            executor.submit(_run_wstest, python, address, agent, cases, folder / part, timeout_s)
            for part, cases in parts.items()
        ]
        for future in futures:
            outcomes |= future.result()
    duration_s = time.monotonic() - started_at
    echo = reports[0]
    problems = compare(outcomes, table, set_name=set_name, are_limits_raised=settings.are_limits_raised)
    problems += _server_problems(settings, echo, connection_count=len(outcomes))
    log = (folder / "server.log").read_text()
    if log:
        problems.append(f"the server complained: {log.splitlines()[0]}")
    return Run(agent, settings, outcomes, echo, duration_s, problems)


def _server_problems(settings: Settings, echo: EchoReport, *, connection_count: int) -> list[str]:
    expected = {
        # A case is a connection.
        "websockets_accepted": connection_count,
        "websockets_refused": 0,
        "websockets_stalled": 0,
        "websockets_flooded": 0,
        "handler_failures": 0,
    }
    problems = [
        f"{name} is {echo.measurements[name]}, not {value}"
        for name, value in expected.items()
        if echo.measurements[name] != value
    ]
    # Most cases send few messages and those in odd ways; the plain ones come in hundreds.
    is_used = echo.fast_messages > echo.messages / 2
    if is_used is not settings.is_fast:
        problems.append(f"{echo.fast_messages} of {echo.messages} messages took the fast path")
    return problems


@contextlib.contextmanager
def _echo_server(settings: Settings, log: Path) -> Iterator[tuple[Address, list[EchoReport]]]:
    """Run a server; the list holds its report after the block."""
    reports: list[EchoReport] = []
    command = [sys.executable, "-m", "tests.autobahn.echo_server", msgspec.json.encode(settings).decode()]
    with (
        log.open("wb") as log_file,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log_file
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the echo server did not start: {log.read_text()}")
        yield msgspec.json.decode(line, type=Address), reports
        process.stdin.close()
        reports.append(msgspec.json.decode(process.stdout.readline(), type=EchoReport))


def _run_wstest(
    python: Path,
    address: Address,
    agent: str,
    cases: Mapping[str, tuple[str, ...]],
    folder: Path,
    timeout_s: float,
) -> dict[str, Outcome]:
    folder.mkdir()
    server = {
        "agent": agent,
        "url": address.url,
        "protocols": [_SUBPROTOCOL],
        # wstest has no setting for headers of one's own, and writes this one as it stands.
        "origin": f"{address.origin}\r\nAuthorization: Bearer {address.token}",
    }
    specification = {"outdir": str(folder), "servers": [server], "exclude-agent-cases": {}, **cases}
    (folder / "wstest.json").write_bytes(msgspec.json.encode(specification))
    with (folder / "wstest.log").open("wb") as log:
        subprocess.run(
            [python, "-m", "autobahntestsuite.wstest", "-m", "fuzzingclient", "-s", "wstest.json"],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=True,
        )
    index = msgspec.json.decode((folder / "index.json").read_bytes(), type=dict[str, dict[str, Outcome]])
    # Without any case the server is missing in it.
    return index.get(agent, {})


def _print(runs: list[Run]) -> None:
    columns = ("OK", "NON-STRICT", "INFORMATIONAL", "UNIMPLEMENTED", "FAILED")
    rows: list[tuple[str, ...]] = [("server", "cases", *columns, "fast path", "seconds")]
    for run in runs:
        counts = summary(run.outcomes)
        rows.append(
            (
                run.agent,
                str(len(run.outcomes)),
                *(str(counts[column]) for column in columns),
                f"{run.echo.fast_messages}/{run.echo.messages}",
                f"{run.duration_s:.1f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        sys.stdout.write("  ".join([row[0].ljust(widths[0]), *cells]) + "\n")
    for run in runs:
        for problem in run.problems:
            sys.stdout.write(f"{run.agent}: {problem}\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.autobahn.run", description=__doc__)
    parser.add_argument("set", choices=sorted(_WSTEST_TIMEOUT_S))
    parser.add_argument("--reports", type=Path, default=ROOT / "build/autobahn", help="emptied before")
    arguments = parser.parse_args()
    reports: Path = arguments.reports.absolute()
    shutil.rmtree(reports, ignore_errors=True)
    try:
        runs = run_set(arguments.set, reports)
    except UnavailableError as error:
        sys.stderr.write(f"Autobahn cannot be run here: {error}\n")
        return 2
    _print(runs)
    has_problems = any(run.problems for run in runs)
    sys.stdout.write(f"{'FAILED' if has_problems else 'As expected'}; reports are in {reports}\n")
    return int(has_problems)


if __name__ == "__main__":
    sys.exit(main())
