"""`streamctx get`: a resource of a server into a file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import click

from streamctx.cli.output import echo_json, printable
from streamctx.cli.path_option import PathOption
from streamctx.cli.sessions import bytes_text
from streamctx.cli.target import Target, find_target, target_options
from streamctx.errors import ConfigurationError

__all__ = ["command"]


@click.command(name="get", short_help="Fetch a resource into a file; again, to go on where it stopped.")
@click.argument("uri")
@click.option(
    "-o",
    "--output",
    type=PathOption(),
    metavar="FILE",
    help="Where to; by default a file with the resource's name here. - is standard output.",
)
@click.option(
    "--range", "asked_range", metavar="A-B", help="Only these bytes, as HTTP counts: 0-99, 100-, -5."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print what was written, as a JSON object.")
def command(
    *,
    uri: str,
    output: Path | None,
    asked_range: str | None,
    force: bool,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Fetch the resource URI, as `streamctx ls` names it, into a file that only you can read.

    After Ctrl-C, or when the connection breaks for long, what has come is kept beside the file; the same
    command goes on behind it, unless the resource has changed.
    """
    if asked_range is not None:
        _check_range(asked_range)
    if ":" not in uri:
        raise ConfigurationError(f"{printable(uri)} is not a URI: write one that `streamctx ls` shows")
    if output is not None and str(output) == "-":
        if as_json:
            raise click.UsageError("--json prints to the output that -o - sends the resource to")
        _write(find_target(url, token_file), uri, asked_range, sys.stdout.buffer)
        return
    file = output or Path(_name_in(uri))
    target = find_target(url, token_file)
    if asked_range is None:
        _fetch(target, uri, file, force=force, as_json=as_json)
        return
    from streamctx.cli.private_output import new_file

    with new_file(file, force=force) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            _write(target, uri, asked_range, opened)
    _tell(file, file.stat().st_size, 0, as_json=as_json)


def _fetch(target: Target, uri: str, file: Path, *, force: bool, as_json: bool) -> None:
    from streamctx.cli.fetching import fetch
    from streamctx.cli.progress import shown_progress

    try:
        with shown_progress(file.name) as on_progress:
            fetched = fetch(target, uri, file, force=force, on_progress=on_progress)
    except KeyboardInterrupt:
        click.echo("Stopped. The same command goes on behind what has come.", err=True)
        raise
    _tell(file, fetched.size_bytes, fetched.resumed_at, as_json=as_json)


def _write(target: Target, uri: str, asked_range: str | None, file: IO[bytes]) -> None:
    from streamctx.cli.fetching import path_of
    from streamctx.cli.rest import RequestFailed, asked

    headers = {} if asked_range is None else {"Range": f"bytes={asked_range}"}
    with asked(target, path_of(uri), headers) as answer:
        if asked_range is not None and not answer.header("content-range").startswith("bytes "):
            raise RequestFailed(f"{target.http_url} does not give ranges of {printable(uri)}", status=200)
        for piece in answer.pieces():
            file.write(piece)
    file.flush()


def _check_range(asked_range: str) -> None:
    """Refuse what is no single range, such as two, which would come in another form.

    Raises:
        ConfigurationError: If it is none.
    """
    match = re.fullmatch("([0-9]{1,18})?-([0-9]{1,18})?", asked_range)
    if match is None or asked_range == "-" or (match[1] and match[2] and int(match[1]) > int(match[2])):
        raise ConfigurationError(
            f"--range {printable(asked_range)} is no range of bytes: write such as 0-99, 100- or -5"
        )


def _tell(file: Path, size_bytes: int, resumed_at: int, *, as_json: bool) -> None:
    if as_json:
        echo_json({"file": str(file), "bytes": size_bytes, "resumed_at": resumed_at})
        return
    resumed = f", {bytes_text(resumed_at)} of it from before" if resumed_at else ""
    click.echo(f"{printable(file)}: {bytes_text(size_bytes)}{resumed}.")


def _name_in(uri: str) -> str:
    """The last part of a URI as the name of a file here.

    Raises:
        ConfigurationError: If it has none that could be one.
    """
    try:
        name = unquote(urlsplit(uri).path.rpartition("/")[2])
    except ValueError:
        name = ""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ConfigurationError("this resource has no name for a file: give one with -o")
    return name
