"""`streamctx sessions`: which sessions there are, and what is to be done with those that are stored."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamctx.cli.id_command import IdCommand
from streamctx.cli.output import age_text, echo_json, echo_table, printable
from streamctx.cli.path_option import PathOption
from streamctx.cli.target import NoServerError, find_target, target_options
from streamctx.discovery import state_directory
from streamctx.errors import ConfigurationError, StreamctxError

if TYPE_CHECKING:
    from streamctx.cli.stores import Pruned, Sessions
    from streamctx.cli.views import SessionView

__all__ = ["bytes_text", "command", "data_option", "session_rows", "short_id"]

F = TypeVar("F", bound=Callable[..., object])

_SHORT_ID_CHARACTERS = 8
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class _Given:
    """Options before a subcommand, which it takes for its own."""

    url: str | None
    token_file: Path | None
    data: Path | None
    as_json: bool


def data_option(function: F) -> F:
    """Give a command the option `--data`."""
    return click.option(
        "--data",
        type=PathOption(),
        metavar="DIR",
        help="Look into the store in DIR, without a server.",
    )(function)


@click.group(
    name="sessions",
    short_help="List sessions; prune, export and import what is stored.",
    invoke_without_command=True,
)
@target_options
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what the server tells, as a JSON array.")
@click.pass_context
def command(
    context: click.Context, *, url: str | None, token_file: Path | None, data: Path | None, as_json: bool
) -> None:
    """List the sessions of a server: who is connected, what is open, what is stored."""
    context.obj = _Given(url, token_file, data, as_json)
    if context.invoked_subcommand is None:
        _list(context.obj)


def _list(given: _Given) -> None:
    from streamctx.cli.views import fetch_sessions, parse_sessions

    if given.data is None:
        try:
            target = find_target(given.url, given.token_file)
        except NoServerError as error:
            directory = state_directory() / "data"
            if not (directory / "store.db").exists():
                raise
            raise NoServerError(
                f"{error}; `streamctx sessions --data {shlex.quote(str(directory))}` lists what is stored"
            ) from error
        where, sessions = target.http_url, fetch_sessions(target)
    else:
        with _opened(given) as stored:
            where, sessions = stored.where, stored.listed()
    if given.as_json:
        echo_json(sessions)
    elif not sessions:
        click.echo(f"{where} has no sessions.")
    else:
        header = ("SESSION", "CLIENT", "ROLE", "STATE", "IDLE", "DOCUMENTS", "OBSERVERS")
        echo_table(header, session_rows(parse_sessions(sessions)))


@command.command(name="prune", short_help="Delete stored sessions.", cls=IdCommand)
@click.argument("sessions", metavar="[SESSION]...", nargs=-1)
@click.option(
    "--older-than",
    "older_than_days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Those of which nothing was written for so long.",
)
@click.option("--all", "is_all", is_flag=True, help="All that are not in use.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask.")
@target_options
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was deleted, as a JSON object.")
@click.pass_obj
def _prune(
    given: _Given,
    *,
    sessions: tuple[str, ...],
    older_than_days: float | None,
    is_all: bool,
    dry_run: bool,
    is_sure: bool,
    url: str | None,
    token_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Delete stored sessions: those named by the beginnings of their ids, or those that are old.

    Without anything these are the ones that are past the server's retention. A session whose client is
    connected is left alone. What was set aside as damaged is listed and deleted with them: there its age
    counts from then.
    """
    if sum((bool(sessions), older_than_days is not None, is_all)) > 1:
        raise click.UsageError("SESSION, --older-than and --all exclude each other.")
    older_than_s = 0.0 if is_all else None if older_than_days is None else older_than_days * _DAY_S
    given = _merged(given, url, token_file, data, as_json)
    with _opened(given) as stored:
        named = _find(stored, sessions) if sessions else None
        found = stored.prune(older_than_s=older_than_s, sessions=named, dry_run=True)
        if not dry_run:
            going = found["sessions"] + found["damaged"]
            if going and not is_sure:
                _confirm(going, found["retention_s"], stored.where)
            if named is None and older_than_s is None:
                older_than_s = found["retention_s"]
            # What was shown, and no more; a session that was written to meanwhile has to be old still.
            ids = list(dict.fromkeys(named or [session["session"] for session in going]))
            pruned = stored.prune(older_than_s=older_than_s, sessions=ids, dry_run=False) if ids else found
            in_use = list(dict.fromkeys([*found["in_use"], *pruned["in_use"]]))
            found = pruned | {"in_use": in_use, "dry_run": False}
    if given.as_json:
        echo_json(found)
    else:
        _tell_pruned(found, stored.where)
    if named and found["in_use"]:
        sys.exit(1)


@command.command(name="export", short_help="Write a stored session into a file.", cls=IdCommand)
@click.argument("session")
@click.option("-o", "--output", type=PathOption(), required=True, metavar="FILE", help="Where to.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@target_options
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was written, as a JSON object.")
@click.pass_obj
def _export(
    given: _Given,
    *,
    session: str,
    output: Path,
    force: bool,
    url: str | None,
    token_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Write a stored session into a file that only you can read.

    The file holds the texts of its documents, and nothing that lets anybody go on with the session.
    """
    from streamctx.cli.private_output import new_file
    from streamctx.cli.progress import shown_progress
    from streamctx.cli.stores import created

    given = _merged(given, url, token_file, data, as_json)
    with _opened(given) as stored, new_file(output, force=force) as temporary:
        [session_id] = _find(stored, [session], is_sound=True)
        with shown_progress("export") as on_progress, created(temporary) as file:
            stored.export(session_id, file, on_progress)
    written_bytes = output.stat().st_size
    if given.as_json:
        echo_json({"session": session_id, "file": str(output), "bytes": written_bytes})
    else:
        click.echo(f"{short_id(session_id)} is in {printable(output)}, {bytes_text(written_bytes)}.")


@command.command(name="import", short_help="Store a session from a file.")
@click.argument("file", type=click.File("rb"))
@target_options
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what was stored, as a JSON object.")
@click.pass_obj
def _import(
    given: _Given,
    *,
    file: Any,
    url: str | None,
    token_file: Path | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Store a session from a file that `streamctx sessions export` wrote.

    It can be read then, until it is past retention; its client cannot go on with it.
    """
    from streamctx.cli.progress import shown_progress
    from streamctx.cli.rest import RequestFailed
    from streamctx.engine.sqlite.archive import ImportRefused

    given = _merged(given, url, token_file, data, as_json)
    with (
        file,
        _opened(given, may_create=True) as stored,
        shown_progress("import") as on_progress,
    ):
        try:
            session_id = stored.import_session(file, on_progress)
        except ImportRefused as error:
            raise StreamctxError(f"{file.name}: {error}") from error
        except RequestFailed as error:
            if error.status != HTTPStatus.BAD_REQUEST or error.told is None:
                raise
            raise StreamctxError(f"{file.name}: {error.told}") from error
    if given.as_json:
        echo_json({"session": session_id})
    else:
        start = "" if stored.start_command is None else f"start `{stored.start_command}`, then "
        separator = "-- " if session_id.startswith("--") else ""
        show = f"streamctx show {separator}{short_id(session_id)}"
        click.echo(f"{short_id(session_id)} is stored; {start}`{show}` shows it.")


def session_rows(sessions: Sequence[SessionView]) -> list[tuple[str, ...]]:
    """The table's rows; ids are cut to what tells them apart."""
    length = _telling_length([session.session for session in sessions])
    return [
        (
            session.session[:length],
            printable(" ".join(filter(None, (session.client.name, session.client.version)))) or "-",
            session.role or "-",
            session.standing,
            age_text(session.idle_s),
            _documents_text(session),
            str(session.observers) if session.live else "-",
        )
        for session in sessions
    ]


def short_id(session_id: str) -> str:
    """The beginning of an id, which is nearly always enough to name it."""
    return session_id[:_SHORT_ID_CHARACTERS]


def bytes_text(byte_count: int) -> str:
    """A size for people: `340 B`, `12 kB`, `3.4 MB`."""
    for limit, divisor, unit in ((1_000, 1, "B"), (1_000_000, 1_000, "kB"), (1_000_000_000, 1_000_000, "MB")):
        if byte_count < limit:
            return f"{byte_count / divisor:.3g} {unit}"
    return f"{byte_count / 1_000_000_000:.3g} GB"


def _opened(given: _Given, *, may_create: bool = False) -> Any:
    from streamctx.cli.stores import open_sessions

    return open_sessions(given.url, given.token_file, given.data, may_create=may_create)


def _merged(
    given: _Given, url: str | None, token_file: Path | None, data: Path | None, as_json: bool
) -> _Given:
    return _Given(
        url or given.url, token_file or given.token_file, data or given.data, as_json or given.as_json
    )


def _find(stored: Sessions, prefixes: Sequence[str], *, is_sound: bool = False) -> list[str]:
    from streamctx.cli.views import demand_sound, find_by_prefix, parse_sessions

    sessions = parse_sessions(stored.listed())
    found = [find_by_prefix(sessions, prefix) for prefix in prefixes]
    if is_sound:
        for session in found:
            demand_sound(session)
    return list(dict.fromkeys(session.session for session in found))


def _confirm(going: Sequence[dict[str, Any]], retention_s: float, where: str) -> None:
    """Ask, if anything is to go that would not go by itself.

    Raises:
        ConfigurationError: If there is nobody to ask.
        click.Abort: If the answer is no.
    """
    import time

    kept = [session for session in going if _since(session) > time.time() - retention_s]
    if not kept:
        return
    many = f"{len(kept)} sessions that are" if len(kept) > 1 else "a session that is"
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{many} not past retention would be deleted from {where}: give --yes")
    for line in _pruned_lines(kept):
        click.echo(line, err=True)
    if not click.confirm(f"Delete {many} not past retention, from {where}?", err=True):
        click.echo("Nothing deleted.", err=True)
        raise click.Abort


def _tell_pruned(found: Pruned, where: str) -> None:
    sessions = found["sessions"] + found["damaged"]
    damaged = f", {len(found['damaged'])} of them damaged" if found["damaged"] else ""
    count = f"{len(sessions)} session{'' if len(sessions) == 1 else 's'}"
    size = bytes_text(sum(session["stored_bytes"] for session in sessions))
    if not sessions:
        click.echo(f"Nothing to delete in {where}.")
    elif found["dry_run"]:
        for line in _pruned_lines(sessions):
            click.echo(line)
        click.echo(f"{count} would be deleted from {where}, {size}{damaged}.")
    else:
        click.echo(f"{count} deleted from {where}, {size}{damaged}.")
    for session_id in found["in_use"]:
        click.echo(f"{short_id(session_id)} is in use, and stays.", err=True)


def _pruned_lines(sessions: Sequence[dict[str, Any]]) -> list[str]:
    import time

    return [
        f"  {short_id(session['session'])}  {_name_of(session)}, "
        f"{age_text(max(0.0, time.time() - _since(session)))} old, {bytes_text(session['stored_bytes'])}"
        for session in sessions
    ]


def _name_of(session: dict[str, Any]) -> str:
    if session.get("state") == "damaged":
        return f"damaged ({printable(session['reason'])})"
    return printable(session["client"]["name"])


def _since(session: dict[str, Any]) -> float:
    """From when on its age counts."""
    return float(session["set_aside"] if session.get("state") == "damaged" else session["changed"])


def _telling_length(ids: Sequence[str]) -> int:
    length = _SHORT_ID_CHARACTERS
    longest = max(map(len, ids), default=0)
    while length < longest and len({session_id[:length] for session_id in ids}) < len(ids):
        length += 1
    return length


def _documents_text(session: SessionView) -> str:
    if not session.live:
        return "-"
    count = len(session.documents) + len(session.designs)
    stale = sum(document.stale for document in session.documents)
    return f"{count} ({stale} stale)" if stale else str(count)
