"""`streamctx replay`: play a trace or a recording into a server, and prove that every copy is equal."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio
import click

from streamctx.cli.output import echo_json, printable, styled
from streamctx.cli.path_option import PathOption
from streamctx.cli.rest import get_json
from streamctx.cli.target import NoServerError, Target, find_target, target_options
from streamctx.vocabulary import DigestAlgorithm, Encoding, Unit

if TYPE_CHECKING:
    from streamctx.load.player import Player, PlayOptions
    from streamctx.load.report import Report
    from streamctx.load.script import Script

__all__ = ["command", "options_for", "own_server", "run_loop"]

_FRAME_S = 0.1
_LINE_S = 5.0

R = TypeVar("R")


@click.command(name="replay", short_help="Play a recording into a server.")
@click.argument("trace", type=PathOption(exists=True, dir_okay=False))
@target_options
@click.option(
    "--encoding",
    type=click.Choice([choice.value for choice in Encoding]),
    default=Encoding.MSGPACK.value,
    show_default=True,
    help="How message bodies are written.",
)
@click.option(
    "--digest",
    type=click.Choice([choice.value for choice in DigestAlgorithm]),
    default=DigestAlgorithm.XXH3_64.value,
    show_default=True,
    help="What proves each frame.",
)
@click.option(
    "--unit",
    type=click.Choice([choice.value for choice in Unit]),
    default=Unit.UTF_16.value,
    show_default=True,
    help="What positions count.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="EDITS_PER_S",
    help="So many edits a second; without it, as fast as the server acknowledges.",
)
@click.option(
    "--faults",
    metavar="KIND=RATE,…",
    help="Disturb the messages: drop, dup, reorder, corrupt, cut; such as drop=0.02,cut=0.002.",
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the faults.")
@click.option("--observe", is_flag=True, help="Follow it with an observer on a second connection.")
@click.option(
    "--observe-unit",
    type=click.Choice([choice.value for choice in Unit]),
    help="What the observer's positions count.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Give up after so many seconds without progress.",
)
def command(
    *,
    trace: Path,
    url: str | None,
    token_file: Path | None,
    encoding: str,
    digest: str,
    unit: str,
    rate: float | None,
    faults: str | None,
    seed: int,
    observe: bool,
    observe_unit: str | None,
    as_json: bool,
    timeout: float,
) -> int:
    """Play TRACE into a server, and compare the server's text with the one that it leads to.

    TRACE is an editing trace ({startContent, endContent, txns}) or a recording of `streamctx record`, plain
    or gzipped. Without a server that runs here, or --url, one is started for the run.

    The status is 0 only if every copy was equal.
    """
    from streamctx.client.faults import FaultRates
    from streamctx.load.player import PlayOptions
    from streamctx.load.script import read_script

    options = PlayOptions(
        url="",
        token="",
        encoding=Encoding(encoding),
        digest=DigestAlgorithm(digest),
        unit=Unit(unit),
        rate=rate,
        faults=None if faults is None else FaultRates.parse(faults),
        seed=seed,
        is_observed=observe or observe_unit is not None,
        observer_unit=None if observe_unit is None else Unit(observe_unit),
        timeout_s=timeout,
    )
    script = read_script(trace)
    target: Target | None = None
    try:
        target = find_target(url, token_file)
    except NoServerError:
        click.echo("No server runs here: starting one for this run.", err=True)
    report = run_loop(functools.partial(_replay, script, options, target))
    if as_json:
        echo_json(report.to_json())
    else:
        lines = report.lines()
        for line in lines[:-1]:
            click.echo(line)
        click.echo(styled(lines[-1], fg="green" if report.verified else "red", bold=True))
    for problem in report.problems if as_json else ():
        click.echo(problem, err=True)
    return 0 if report.verified else 1


def run_loop(function: Callable[[], Awaitable[R]]) -> R:
    """Run an async function on the fastest loop that is installed."""
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return anyio.run(function)
    return anyio.run(function, backend_options={"use_uvloop": True})


@contextlib.asynccontextmanager
async def own_server() -> AsyncIterator[Target]:
    """Run a server on a free port of this machine, for the block alone; nobody else finds it."""
    from streamctx import __version__
    from streamctx.hub.hub import Hub
    from streamctx.hub.ports import Principal
    from streamctx.server.config import ServerConfig
    from streamctx.server.serve import serve
    from streamctx.server.tokens import resolve_token

    config = ServerConfig(port=0, ephemeral=True, discovery=False)
    principal = Principal("owner", frozenset({"produce", "observe", "resource", "admin"}))
    token = resolve_token(config)
    hub = Hub(tokens={token: principal}, version=__version__, limits=config.limits)
    async with serve(hub, config) as server:
        yield Target(url=server.url, http_url=server.http_url, token=token)


def options_for(options: PlayOptions, target: Target) -> PlayOptions:
    """The same options, for a server."""
    uds = None if target.uds is None else str(target.uds)
    return dataclasses.replace(options, url=target.url, token=target.token, uds=uds)


async def _replay(script: Script, options: PlayOptions, target: Target | None) -> Report:
    from streamctx.load.player import Player, unwrapped

    async with contextlib.AsyncExitStack() as stack:
        if target is None:
            target = await stack.enter_async_context(own_server())
        player = Player(script, options_for(options, target), functools.partial(get_json, target))
        with unwrapped():
            async with anyio.create_task_group() as group:
                group.start_soon(_show_progress, player)
                report = await player.run()
                group.cancel_scope.cancel()
        return report


async def _show_progress(player: Player) -> None:
    """Show how far it is, on standard error: a bar on a terminal, else a line now and then."""
    total = player.script.edit_count
    if not sys.stderr.isatty():
        while True:
            await anyio.sleep(_LINE_S)
            click.echo(_progress_line(player, total), err=True)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        bar = progress.add_task(printable(player.script.name), total=total, state="")
        while True:
            performer = player.performer
            acknowledged = 0 if performer is None else performer.edits - performer.acks.waiting
            progress.update(bar, completed=acknowledged, state=_state(player))
            await anyio.sleep(_FRAME_S)


def _progress_line(player: Player, total: int) -> str:
    performer = player.performer
    edits = 0 if performer is None else performer.edits
    acknowledged = 0 if performer is None else edits - performer.acks.waiting
    name = printable(player.script.name)
    return f"{name}: {edits:,} of {total:,} edits made, {acknowledged:,} acknowledged, {_state(player)}"


def _state(player: Player) -> str:
    producer = player.producer
    if producer is None:
        return "connecting"
    counters = producer.counters
    return f"{counters.retransmitted:,} retransmitted, {counters.resumes:,} resumes"
