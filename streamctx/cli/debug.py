"""`streamctx debug`: look into what a server did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamctx import __version__
from streamctx.cli.output import printable, styled
from streamctx.cli.path_option import PathOption

if TYPE_CHECKING:
    from streamctx.cli.rerun import Difference, TracedFrame

__all__ = ["command"]


@click.group(name="debug", short_help="Look into what a server did.")
def command() -> None:
    """Look into what a server did."""


@command.command(name="rerun")
@click.argument("file", type=PathOption(dir_okay=False))
@click.option("--trace", is_flag=True, help="Print every frame, decoded. It shows document text and secrets.")
def rerun(file: Path, *, trace: bool) -> None:
    """Feed a log of `streamctx serve --debug-log` to a fresh server's core, and compare what it sends.

    Nothing is opened but FILE and, as the server does, the `.streamctxignore` of each workspace. FILE holds
    the texts of documents, and secrets: do not hand it on unread.

    The exit status is 1 if anything differs.
    """
    from streamctx.cli.rerun import Rerun
    from streamctx.hub.recorder import read_debug_log

    log = read_debug_log(file)
    if log.header.version != __version__:
        click.echo(f"The log is of version {log.header.version}, this is {__version__}.", err=True)
    run = Rerun(log, on_frame=_echo_frame if trace else None)
    difference = run.run()
    if difference is None:
        click.echo(f"identical: {run.input_count} inputs, {run.frame_count} frames")
        return
    _echo_difference(difference)
    sys.exit(1)


def _echo_frame(frame: TracedFrame) -> None:
    direction = "<" if frame.is_input else styled(">", bold=True)
    click.echo(f"{frame.now:.6f} {frame.connection} {direction} {printable(frame.describe())}")


def _echo_difference(difference: Difference) -> None:
    entry, recorded, repeated = difference.entry, difference.recorded, difference.repeated
    of = "" if entry.connection is None else f" of connection {entry.connection}"
    click.echo(
        f"different at input {difference.input_index}: {entry.what}{of} at {entry.now:.6f} "
        f"led to something else for connection {difference.connection}"
    )
    click.echo(f"  recorded  {recorded.sent} frames so far, running hash {recorded.hash}")
    click.echo(f"  now       {repeated.sent} frames so far, running hash {repeated.hash}")
    click.echo(f"  sent now  {len(difference.frames)} frames on this input; --trace shows them")
