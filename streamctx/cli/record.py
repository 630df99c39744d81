"""`streamctx record`: push files as they change on disk, and write what was pushed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from streamctx.cli.path_option import PathOption
from streamctx.cli.target import NoServerError, find_target, target_options
from streamctx.errors import ConfigurationError, StreamctxError

__all__ = ["command"]


@click.command(name="record", short_help="Follow files on disk as an editor would, and record it.")
@click.argument("uris", nargs=-1, required=True, metavar="FILE…")
@click.option(
    "-o",
    "--output",
    type=PathOption(dir_okay=False),
    required=True,
    help="The recording, a new file of JSON Lines.",
)
@click.option("--overwrite", is_flag=True, help="Replace the recording if it is there.")
@click.option("--offline", is_flag=True, help="Only record; push nothing to a server.")
@target_options
def command(
    *,
    uris: tuple[str, ...],
    output: Path,
    overwrite: bool,
    offline: bool,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Follow files on disk as an editor would, and record it.

    Whenever one of the files changes, the difference becomes an edit. It is pushed to the server that runs
    here, if one does, or to --url; and it is written to the recording, which `streamctx replay` plays. Files
    are named by path or file: URI. The recording holds their whole text, so only you can read it.

    Ctrl-C ends it.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise StreamctxError("record needs watchfiles; install streamctx-server[watch]")
    from streamctx.cli.followed_file import followed_files
    from streamctx.cli.recorder import record
    from streamctx.cli.tasks import run_async
    from streamctx.engine.sqlite.place import demand_elsewhere

    demand_elsewhere(output)
    files = followed_files(uris)
    if any(file.path == output.absolute() for file in files):
        raise ConfigurationError(f"{output} is both followed and written; name another output")
    target = None
    if not offline:
        try:
            target = find_target(url, token_file)
        except NoServerError:
            click.echo("No server runs here: nothing is pushed, only recorded.", err=True)
    count = run_async(lambda: record(files, output, target, is_overwriting=overwrite))
    click.echo(f"{count} events in {output}; play them with: streamctx replay {output}")
