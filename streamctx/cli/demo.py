"""`streamctx demo`: a person types over a bad connection, an agent follows, and nothing is lost."""

from __future__ import annotations

import functools
import importlib.resources
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio
import click

from streamctx.cli.output import printable, styled
from streamctx.cli.replay import options_for, own_server, run_loop
from streamctx.cli.rest import get_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from streamctx.client.faults import FaultKind
    from streamctx.core.documents.text_buffer import TextBuffer
    from streamctx.load.player import Player
    from streamctx.load.report import Latencies, Report
    from streamctx.load.script import Script
    from streamctx.wire.messages import Cursor

__all__ = ["FAULTS", "command"]

FAULTS = "drop=0.02,dup=0.02,reorder=0.02,corrupt=0.01,cut=0.001"
"""What the demo does to the messages of both connections, in both directions."""

_FRAME_S = 1 / 12
_LINE_S = 1.0
_CHROME_LINES = 16
"""What the screen needs besides the two views of the text."""


@click.command(name="demo", short_help="See a lossy connection lose nothing.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1.0),
    default=25.0,
    show_default=True,
    help="How long the typing takes.",
)
@click.option("--fast", is_flag=True, help="Type as fast as the server acknowledges.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the faults.")
def command(*, seconds: float, fast: bool, seed: int) -> int:
    """See a lossy connection lose nothing.

    Starts a server of its own and plays a recording into it, in which a file is typed character by character.
    On the way messages are dropped, doubled, reordered and damaged, and the connections are cut. An observer
    follows over a connection that is as bad. In the end three copies of the text are compared.

    The status is 0 only if all of them are equal.
    """
    from streamctx.load.script import read_script

    with importlib.resources.as_file(
        importlib.resources.files("streamctx") / "data" / "demo.jsonl.gz"
    ) as path:
        script = read_script(path)
    speed = None if fast else script.duration_s / seconds
    report, faults, lost = run_loop(functools.partial(_play, script, speed, seed))
    click.echo("\n".join(_verdict(report, faults, lost)))
    return 0 if report.verified else 1


async def _play(
    script: Script, speed: float | None, seed: int
) -> tuple[Report, Mapping[FaultKind, int], int]:
    from streamctx.client.faults import FaultRates
    from streamctx.load.player import Player, PlayOptions, unwrapped

    options = PlayOptions(
        url="", token="", speed=speed, faults=FaultRates.parse(FAULTS), seed=seed, is_observed=True
    )
    async with own_server() as target:
        player = Player(script, options_for(options, target), functools.partial(get_json, target))
        click.echo(f"A server of its own listens at {target.url}.")
        click.echo(f"Playing {script.edit_count:,} edits through a link with {FAULTS}.\n")
        with unwrapped():
            async with anyio.create_task_group() as group:
                group.start_soon(_show, player)
                report = await player.run()
                group.cancel_scope.cancel()
        return report, player.fault_counts, player.lost


async def _show(player: Player) -> None:
    """Show it live on a terminal, else a line a second."""
    if not sys.stdout.isatty():
        while True:
            await anyio.sleep(_LINE_S)
            click.echo(_plain_line(player))
            sys.stdout.flush()
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        player.before_closing = lambda: live.update(_screen(player, console), refresh=True)
        while True:
            live.update(_screen(player, console), refresh=True)
            await anyio.sleep(_FRAME_S)


def _plain_line(player: Player) -> str:
    producer, performer = player.producer, player.performer
    if producer is None or performer is None:
        return "connecting"
    faults, repairs = player.fault_counts, _repairs(player)
    edits = f"{performer.edits:>6,} of {player.script.edit_count:,} edits"
    return (
        f"{edits}, agent at version {_agent_version(player):,}; "
        f"faults {sum(faults.values()):,}, retransmitted {repairs['retransmitted']:,}, "
        f"resumes {repairs['resumes']:,}; acknowledged {_brief(performer.acks.latencies)}"
    )


def _repairs(player: Player) -> dict[str, int]:
    """What the two clients have counted so far; the server's counts come with the verdict."""
    total = dict.fromkeys(("retransmitted", "nacks_sent", "corrupt", "resumes"), 0)
    for client in (player.producer, player.observer):
        if client is not None:
            counters = client.counters
            for name in total:
                total[name] += getattr(counters, name)
    return total


def _agent_version(player: Player) -> int:
    _, alias = _document(player)
    document = None if player.watcher is None or alias is None else player.watcher.document(alias)
    return 0 if document is None else document.version


def _document(player: Player) -> tuple[TextBuffer | None, int | None]:
    """The document that is typed in, and its alias in the session."""
    performer = player.performer
    if performer is None or player.producer is None or not performer.documents:
        return None, None
    alias = next(iter(performer.documents.values())).alias
    document = player.producer.session.documents.get(alias)
    return (None if document is None else document.buffer), alias


def _brief(latencies: Latencies) -> str:
    values = latencies.summary_ms()
    shown = (
        f"{name} {'-' if values[name] is None else f'{values[name]:,.1f} ms'}" for name in ("p50", "p99")
    )
    return ", ".join(shown)


# The screen.


def _screen(player: Player, console: Console) -> RenderableType:
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    performer, watcher = player.performer, player.watcher
    if performer is None:
        return "connecting"
    height = max(4, console.height - _CHROME_LINES)
    mine, alias = _document(player)
    copy = None if watcher is None or alias is None else watcher.document(alias)
    views = Table.grid(expand=True)
    views.add_column(ratio=1)
    views.add_column(ratio=1)
    status = "" if player.producer is None else f", {player.producer.status}"
    views.add_row(
        Panel(_view(mine, performer.cursor, height), title=f"editor{status}", height=height + 2),
        Panel(
            _view(None if copy is None else copy.buffer, _agent_cursor(player, alias), height),
            title="what the agent sees",
            height=height + 2,
        ),
    )
    total = player.script.edit_count
    done = performer.edits - performer.acks.waiting
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=total, completed=done))
    return Group(views, bar, f"{done:,} of {total:,} edits acknowledged", _figures(player))


def _figures(player: Player) -> RenderableType:
    from rich.table import Table

    assert player.performer is not None
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    faults = player.fault_counts
    table.add_row("faults", ", ".join(f"{kind} {count:,}" for kind, count in faults.items()))
    repairs = _repairs(player)
    table.add_row(
        "repairs", ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in repairs.items())
    )
    table.add_row("acknowledged", _brief(player.performer.acks.latencies))
    if player.watcher is not None:
        table.add_row("agent", f"{_brief(player.watcher.latencies)}, at version {_agent_version(player):,}")
    return table


def _agent_cursor(player: Player, alias: int | None) -> Cursor | None:
    from streamctx.wire.messages import Cursor

    observed = None if player.watcher is None else player.watcher.observed
    if observed is None:
        return None
    for event in observed.presence.values():
        if isinstance(event, Cursor) and event.document == alias:
            return event
    return None


def _view(buffer: TextBuffer | None, cursor: Cursor | None, height: int) -> Text:
    """The lines around the cursor, which is shown as a block."""
    from rich.text import Text

    shown = Text(no_wrap=True, overflow="ellipsis")
    if buffer is None:
        return shown
    cursor_line, character = (0, 0) if cursor is None else cursor.position
    first = max(0, min(cursor_line - height // 2, buffer.line_count - height))
    for number in range(first, min(first + height, buffer.line_count)):
        line = buffer.line(number).rstrip("\r\n")
        shown.append(f"{number + 1:>4} ", style="dim")
        if number == cursor_line and cursor is not None:
            column = _column(line, character, buffer)
            shown.append(printable(line[:column]))
            shown.append(printable(line[column : column + 1]) or " ", style="reverse")
            shown.append(printable(line[column + 1 :]))
        else:
            shown.append(printable(line))
        shown.append("\n")
    return shown


def _column(line: str, character: int, buffer: TextBuffer) -> int:
    """The index of a position in its line, or about; the copy may be newer than the cursor."""
    from streamctx.core.documents.units import character_index

    try:
        return character_index(line, character, buffer.unit) or 0
    except ValueError:
        return len(line)


# The end.


def _verdict(report: Report, faults: Mapping[FaultKind, int], lost: int) -> list[str]:
    made = ", ".join(f"{count:,} {kind}" for kind, count in faults.items())
    repairs = ", ".join(
        f"{getattr(report, name):,} {name}"
        for name in ("retransmitted", "nacks", "skipped", "duplicates", "corrupt", "resumes")
    )
    lines = [
        "",
        f"faults     {sum(faults.values()):,}: {made}",
        f"repairs    {repairs}",
        f"latency    acknowledged {_brief(report.ack)}; seen by the agent {_brief(report.observer)}",
        f"editor     sha-256 {report.sha256_expected}",
        f"server     sha-256 {report.sha256_server or 'none'}",
        f"agent      sha-256 {report.sha256_observer or 'none'}",
        *report.problems,
    ]
    if report.verified:
        words = f"verified: {report.edits:,} edits, {sum(faults.values()):,} faults, lost events {lost}"
        return [*lines, styled(f"{words}; all copies are equal.", fg="green", bold=True)]
    return [*lines, styled(f"NOT VERIFIED: lost events {lost}", fg="red", bold=True)]
