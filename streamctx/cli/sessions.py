"""`streamctx sessions`: which sessions a server has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamctx.cli.output import age_text, echo_json, echo_table, printable
from streamctx.cli.target import find_target, target_options

if TYPE_CHECKING:
    from streamctx.cli.views import SessionView

__all__ = ["command", "session_rows", "short_id"]

_SHORT_ID_CHARACTERS = 8


@click.command(name="sessions", short_help="List the sessions of a server.")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print what the server tells, as a JSON array.")
def command(*, url: str | None, token_file: Path | None, as_json: bool) -> None:
    """List the sessions of a server: who is connected, and what is open."""
    from streamctx.cli.views import fetch_sessions, parse_sessions

    target = find_target(url, token_file)
    sessions = fetch_sessions(target)
    if as_json:
        echo_json(sessions)
    elif not sessions:
        click.echo(f"{target.http_url} has no sessions.")
    else:
        header = ("SESSION", "CLIENT", "ROLE", "STATE", "IDLE", "DOCUMENTS", "OBSERVERS")
        echo_table(header, session_rows(parse_sessions(sessions)))


def session_rows(sessions: Sequence[SessionView]) -> list[tuple[str, ...]]:
    """The table's rows; ids are cut to what tells them apart."""
    length = _telling_length([session.session for session in sessions])
    return [
        (
            session.session[:length],
            printable(" ".join(filter(None, (session.client.name, session.client.version)))),
            session.role,
            "connected" if session.connected else "detached",
            age_text(session.idle_ms / 1000),
            _documents_text(session),
            str(session.observers),
        )
        for session in sessions
    ]


def short_id(session_id: str) -> str:
    """The beginning of an id, which is nearly always enough to name it."""
    return session_id[:_SHORT_ID_CHARACTERS]


def _telling_length(ids: Sequence[str]) -> int:
    length = _SHORT_ID_CHARACTERS
    longest = max(map(len, ids), default=0)
    while length < longest and len({session_id[:length] for session_id in ids}) < len(ids):
        length += 1
    return length


def _documents_text(session: SessionView) -> str:
    count = len(session.documents) + len(session.designs)
    stale = sum(document.stale for document in session.documents)
    return f"{count} ({stale} stale)" if stale else str(count)
