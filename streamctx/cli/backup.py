"""`streamctx backup`: a copy of all that is stored."""

from __future__ import annotations

from pathlib import Path

import click

from streamctx.cli.output import echo_json, printable
from streamctx.cli.path_option import PathOption
from streamctx.cli.sessions import bytes_text, data_option
from streamctx.cli.target import target_options

__all__ = ["command"]


@click.command(name="backup", short_help="Copy all that is stored into a file.")
@click.argument("file", type=PathOption())
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@target_options
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was written, as a JSON object.")
def command(
    *,
    file: Path,
    force: bool,
    url: str | None,
    token_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Copy all that is stored into a file that only you can read, while the server goes on.

    The file is a whole store: put it into a directory of mode 0700 as store.db, with mode 0600, and
    `streamctx serve --data` that directory. It holds the texts of documents, and the hashes of what resumes
    their sessions.
    """
    from streamctx.cli.private_output import new_file
    from streamctx.cli.progress import shown_progress
    from streamctx.cli.stores import open_sessions

    with (
        open_sessions(url, token_file, data) as stored,
        new_file(file, force=force) as temporary,
        shown_progress("backup") as on_progress,
    ):
        stored.backup(temporary, on_progress)
    written_bytes = file.stat().st_size
    if as_json:
        echo_json({"file": str(file), "bytes": written_bytes})
    else:
        click.echo(f"What {stored.where} stores is in {printable(file)}, {bytes_text(written_bytes)}.")
