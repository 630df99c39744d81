"""`streamctx tail`: what editors push, as it comes."""

from __future__ import annotations

from pathlib import Path

import click

from streamctx.cli.id_command import IdCommand
from streamctx.cli.target import find_target, target_options

__all__ = ["command"]


@click.command(
    name="tail",
    cls=IdCommand,
    short_help="Follow what editors push, one line an event.",
)
@click.argument("session", required=False)
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON, with its text.")
def command(*, session: str | None, url: str | None, token_file: Path | None, as_json: bool) -> None:
    """Follow what editors push, one line an event: first what is there, then what changes.

    SESSION is the beginning of a session's id, as `streamctx sessions` lists it; without it, every session is
    followed, also those to come. Ctrl-C ends it.
    """
    from streamctx.cli.following import follow
    from streamctx.cli.tasks import run_async
    from streamctx.cli.views import (
        demand_sound,
        fetch_session,
        fetch_sessions,
        find_by_prefix,
        parse_sessions,
    )

    target = find_target(url, token_file)
    session_id = "*"
    if session is not None:
        found = find_by_prefix(parse_sessions(fetch_sessions(target)), session)
        demand_sound(found)
        session_id = found.session
        if not found.live:
            # To look at it makes it live, and so it can be followed when its client comes back.
            fetch_session(target, found)
    run_async(lambda: follow(target, session_id, as_json=as_json))
