"""`streamctx show`: the live context of a session, as a person would read it, and its documents' past."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streamctx.cli.id_command import IdCommand
from streamctx.cli.output import echo_json, printable
from streamctx.cli.target import Target, find_target, target_options

if TYPE_CHECKING:
    from streamctx.cli.views import SessionView

__all__ = ["command"]

_AROUND_IN_DOCUMENT = 6


@click.command(
    name="show",
    cls=IdCommand,
    short_help="Show what is open in an editor, and where the person is.",
)
@click.argument("session")
@click.argument("document", required=False)
@click.option(
    "--at", "version", type=click.IntRange(min=0), metavar="VERSION", help="Print the text at that version."
)
@click.option(
    "--opened",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --at: in which opening of the document, 1 for the newest.",
)
@click.option("--history", "is_history", is_flag=True, help="List the versions that can be read back.")
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print what the server tells, as a JSON object.")
def command(
    *,
    session: str,
    document: str | None,
    version: int | None,
    opened: int | None,
    is_history: bool,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
) -> None:
    """Show what is open in an editor, and where the person is.

    SESSION is the beginning of a session's id, as `streamctx sessions` lists it. DOCUMENT is a number, a URI
    or the end of one; with it, more lines are shown, and --json has the whole text.

    With --at the text of an earlier version is printed, as it was, and what it is on standard error.
    """
    from streamctx.cli.views import (
        demand_sound,
        fetch_session,
        fetch_sessions,
        find_by_prefix,
        parse_sessions,
    )

    if document is None and (version is not None or is_history):
        raise click.UsageError("--at and --history need a DOCUMENT.")
    if version is not None and is_history:
        raise click.UsageError("--at and --history exclude each other.")
    if opened is not None and version is None:
        raise click.UsageError("--opened needs --at.")
    target = find_target(url, token_file)
    told = fetch_sessions(target)
    sessions = parse_sessions(told)
    found = find_by_prefix(sessions, session)
    demand_sound(found)
    view = told[sessions.index(found)] if found.live else fetch_session(target, found)
    [found] = parse_sessions([view])
    if document is None:
        if as_json:
            echo_json(view)
        else:
            _show_session(target, found)
    elif is_history:
        _show_history(target, found, document, as_json=as_json)
    elif version is not None:
        _show_text_at(target, found, document, version, opened=opened, as_json=as_json)
    else:
        _show_document(target, found, document, as_json=as_json)


def _show_session(target: Target, session: SessionView) -> None:
    from streamctx.cli.describe import describe_session
    from streamctx.cli.views import fetch_document

    texts = {head.document: fetch_document(target, session.session, head) for head in session.documents}
    _echo(describe_session(session, texts))


def _show_document(target: Target, session: SessionView, name: str, *, as_json: bool) -> None:
    from streamctx.cli.describe import describe_document
    from streamctx.cli.views import NotFound, fetch_document, find_document

    head = find_document(session, name)
    view = fetch_document(target, session.session, head)
    if view is None:
        raise NotFound(f"the text of {printable(head.uri)} is not there yet, or it was closed")
    if as_json:
        import msgspec

        echo_json(msgspec.to_builtins(view))
    else:
        _echo(describe_document(view, view, view.presence, around=_AROUND_IN_DOCUMENT))


def _show_history(target: Target, session: SessionView, name: str, *, as_json: bool) -> None:
    import msgspec

    from streamctx.cli.describe import describe_history
    from streamctx.cli.views import fetch_history

    history = fetch_history(target, session.session, _past_name(session, name))
    if as_json:
        echo_json(msgspec.to_builtins(history))
    else:
        _echo(describe_history(history, now=time.time()))


def _show_text_at(
    target: Target, session: SessionView, name: str, version: int, *, opened: int | None, as_json: bool
) -> None:
    import msgspec

    from streamctx.cli.describe import describe_moment
    from streamctx.cli.views import fetch_text_at
    from streamctx.core.documents.lines import split_lines

    view = fetch_text_at(target, session.session, _past_name(session, name), version=version, opened=opened)
    if as_json:
        echo_json(msgspec.to_builtins(view))
        return
    click.echo(describe_moment(view, view.openings, now=time.time()), err=True)
    if sys.stdout.isatty():
        for line in split_lines(view.text):
            click.echo(printable(line.rstrip("\r\n")))
        return
    # Byte for byte, for a file or another program.
    sys.stdout.buffer.write(view.text.encode())
    sys.stdout.flush()


def _past_name(session: SessionView, name: str) -> str:
    """How the server knows a document, which need not be open any more."""
    from streamctx.cli.views import NotFound, find_document

    try:
        head = find_document(session, name)
    except NotFound:
        # Numbers and URIs of the past are the server's to find; of other names nobody knows the whole.
        if name.isdigit() or ":" in name:
            return name
        raise
    return name if str(head.document) == name else head.uri


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
