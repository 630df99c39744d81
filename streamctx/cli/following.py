"""Follows sessions as an observer and prints what they show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Literal

import anyio
import click
import msgspec
from anyio import to_thread

from streamctx import __version__
from streamctx.cli.event_line import event_summary
from streamctx.cli.output import echo_json_line, printable, styled
from streamctx.cli.rest import RequestFailed
from streamctx.cli.sessions import short_id
from streamctx.cli.target import Target
from streamctx.cli.tasks import end_at_signal
from streamctx.cli.views import fetch_sessions, name_of, parse_sessions
from streamctx.client.client import Client, connect
from streamctx.client.observation import ObservationChange
from streamctx.wire.messages import Attachment, DesignOpen, FeedEvent, Open, Part

__all__ = ["TailPrinter", "client_of", "follow"]

_STATUS_INTERVAL_S = 0.5


async def follow(target: Target, session_id: str, *, as_json: bool) -> None:
    """Print what a session shows, or every one (`*`), until a signal or the session's end.

    Raises:
        ConnectionError: If the server cannot be reached at first.
        SessionClosed: If it does not let us in.
        EventRefused: If it does not show the session.
    """
    printer = TailPrinter(as_json=as_json)
    # The client is outside, so that a signal ends the session too, and does not just drop the connection.
    async with (
        client_of(target, name="streamctx tail", role="observe") as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(end_at_signal, tasks.cancel_scope.cancel)
        await client.ready()
        tasks.start_soon(_tell_status, client)
        async for change in await client.observe(session_id):
            is_stored = change.is_ended and await to_thread.run_sync(_is_stored, target, change.session_id)
            printer.show(change, datetime.now(UTC), is_stored=is_stored)
            if change.is_ended and change.session_id == session_id:
                break
        tasks.cancel_scope.cancel()


def _is_stored(target: Target, session_id: str) -> bool:
    """Whether a session that is no longer shown has only left the server's memory."""
    try:
        sessions = parse_sessions(fetch_sessions(target))
    except RequestFailed:
        # As when the server itself ends.
        return False
    return any(session.session == session_id and not session.is_damaged for session in sessions)


class TailPrinter:
    """Prints changes, and remembers how documents are called."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._uris: dict[tuple[str, int], str] = {}
        self._known: set[str] = set()
        self._syncing: set[str] = set()

    def show(self, change: ObservationChange, now: datetime, *, is_stored: bool = False) -> None:
        """Print one change of a session; of one that ended, whether it can be read still."""
        for line in self.lines_of(change, now, is_stored=is_stored):
            if self._as_json:
                echo_json_line(line)
            else:
                click.echo(line)

    def lines_of(
        self, change: ObservationChange, now: datetime, *, is_stored: bool = False
    ) -> Iterator[object]:
        """The lines to print: texts, or objects for JSON."""
        session = change.session_id
        if change.missed:
            yield self._note(now, session, "missed", f"{change.missed} changes came too fast to be shown")
        if not change.is_synced and not change.is_ended and session not in self._syncing:
            self._syncing.add(session)
            if session in self._known:
                yield self._note(now, session, "sync", "in sync again; its state follows")
        for event in change.events:
            if isinstance(event, Open | DesignOpen):
                self._uris[session, event.document] = event.uri
            if self._as_json or not isinstance(event, Part):
                yield self._event(now, session, event)
        if change.is_synced:
            self._syncing.discard(session)
            self._known.add(session)
        if change.is_ended:
            self._known.discard(session)
            self._syncing.discard(session)
            self._uris = {key: uri for key, uri in self._uris.items() if key[0] != session}
            if is_stored:
                yield self._note(now, session, "stored", "session is away; it is stored")
            else:
                yield self._note(now, session, "ended", "session ended")

    def _event(self, now: datetime, session: str, event: FeedEvent) -> object:
        alias = None if isinstance(event, Attachment) else event.document
        uri = None if alias is None else self._uris.get((session, alias), f"document {alias}")
        if self._as_json:
            line: dict[str, object] = {"time": _json_time(now), "session": session}
            if uri is not None:
                line["uri"] = uri
            line["event"] = msgspec.to_builtins(event)
            return line
        name = "-" if uri is None else printable(name_of(uri))
        return f"{_time(now)} {short_id(session)} {styled(name, bold=True)} {event_summary(event)}"

    def _note(self, now: datetime, session: str, kind: str, text: str) -> object:
        if self._as_json:
            return {"time": _json_time(now), "session": session, "note": kind, "message": text}
        return f"{_time(now)} {short_id(session)} - {text}"


def client_of(
    target: Target, *, name: str, role: Literal["produce", "observe"]
) -> AbstractAsyncContextManager[Client]:
    """A client of a target."""
    return connect(
        target.url,
        target.token,
        uds=target.uds,
        name=name,
        version=__version__,
        role=role,
        flush_s=2.0,
    )


async def _tell_status(client: Client) -> None:
    """Say on standard error when the connection is lost and when it is back."""
    last = client.status
    while True:
        await anyio.sleep(_STATUS_INTERVAL_S)
        if client.status != last:
            last = client.status
            click.echo(f"({last})", err=True)


def _time(now: datetime) -> str:
    local = now.astimezone()
    return f"{local:%H:%M:%S}.{local.microsecond // 1000:03d}"


def _json_time(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
