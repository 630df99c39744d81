"""`streamctx ls`: which resources a server gives."""

from __future__ import annotations

import time
from pathlib import Path

import click

from streamctx.cli.output import echo_json, echo_table, printable
from streamctx.cli.sessions import bytes_text
from streamctx.cli.target import find_target, target_options

__all__ = ["command"]


@click.command(name="ls", short_help="List the resources of a server.")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print what the server tells, as a JSON array.")
def command(*, url: str | None, token_file: Path | None, as_json: bool) -> None:
    """List the files that a server gives: those below each `--root` of `streamctx serve`, but for secrets."""
    from streamctx.cli.rest import RequestFailed, get_json

    target = find_target(url, token_file)
    match get_json(target, "/v1/resources", is_long=True):
        case {"resources": list(resources), "truncated": bool(is_truncated)}:
            pass
        case _:
            raise RequestFailed(f"{target.http_url} answered what is no list of resources", status=200)
    if is_truncated:
        click.echo(f"There are more than these {len(resources):,}.", err=True)
    if as_json:
        echo_json(resources)
        return
    if not resources:
        click.echo("There are none. `streamctx serve --root DIR` gives the files below DIR.")
        return
    echo_table(("SIZE", "CHANGED", "URI"), [_row(resource) for resource in resources])


def _row(resource: object) -> tuple[str, str, str]:
    match resource:
        case {"uri": str(uri), "size_bytes": size_bytes, "modified": modified}:
            return _size_text(size_bytes), _time_text(modified), printable(uri)
        case _:
            return "?", "?", "?"


def _size_text(size_bytes: object) -> str:
    # No file is larger, and no float holds every number that JSON can.
    return bytes_text(size_bytes) if isinstance(size_bytes, int) and 0 <= size_bytes < 2**63 else "?"


def _time_text(modified: object) -> str:
    if not isinstance(modified, (int, float)):
        return "?"
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(modified))
    except (OverflowError, ValueError, OSError):
        return "?"
