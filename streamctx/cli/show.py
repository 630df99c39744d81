"""`streamctx show`: the live context of a session, as a person would read it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from streamctx.cli.output import echo_json, printable
from streamctx.cli.target import find_target, target_options

__all__ = ["command"]

_AROUND_IN_DOCUMENT = 6


# An id may begin with a hyphen.
@click.command(
    name="show",
    short_help="Show what is open in an editor, and where the person is.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("session")
@click.argument("document", required=False)
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print what the server tells, as a JSON object.")
def command(
    *, session: str, document: str | None, url: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Show what is open in an editor, and where the person is.

    SESSION is the beginning of a session's id, as `streamctx sessions` lists it. DOCUMENT is a number, a URI
    or the end of one; with it, more lines are shown, and --json has the whole text.
    """
    from streamctx.cli.describe import describe_document, describe_session
    from streamctx.cli.views import (
        NotFound,
        fetch_document,
        fetch_sessions,
        find_by_prefix,
        find_document,
        parse_sessions,
    )

    target = find_target(url, token_file)
    told = fetch_sessions(target)
    sessions = parse_sessions(told)
    found = find_by_prefix(sessions, session)
    if document is None:
        if as_json:
            echo_json(told[sessions.index(found)])
            return
        texts = {head.document: fetch_document(target, found.session, head) for head in found.documents}
        _echo(describe_session(found, texts))
        return
    head = find_document(found, document)
    view = fetch_document(target, found.session, head)
    if view is None:
        raise NotFound(f"the text of {printable(head.uri)} is not there yet, or it was closed")
    if as_json:
        import msgspec

        echo_json(msgspec.to_builtins(view))
    else:
        _echo(describe_document(view, view, view.presence, around=_AROUND_IN_DOCUMENT))


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
