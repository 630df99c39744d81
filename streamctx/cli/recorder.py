"""Follows files until a signal: every change goes into a recording, and to a server if there is one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from pathlib import Path

import anyio
import click

from streamctx import __version__
from streamctx.cli.event_line import event_summary
from streamctx.cli.followed_file import FollowedFile, UnreadableFile
from streamctx.cli.following import client_of
from streamctx.cli.output import printable
from streamctx.cli.target import Target
from streamctx.cli.tasks import end_at_signal
from streamctx.client.client import Client
from streamctx.client.document import Document
from streamctx.errors import ConfigurationError, SessionClosed
from streamctx.load.recording import RecordableEvent, RecordingWriter
from streamctx.wire.messages import Close, Edit, Focus, Open, Save, Version

__all__ = ["record"]

_LOOK_INTERVAL_MS = 500
"""How often files are looked at even if nothing was told, since a watch can miss a change at its start."""
_QUIET_MS = 50
_BUSY_MAX_MS = 400
_GONE_S = 0.3
"""A file may be away for a moment while an editor replaces it."""


async def record(
    files: Sequence[FollowedFile], output: Path, target: Target | None, *, is_overwriting: bool = False
) -> int:
    """Follow files until SIGINT or SIGTERM.

    Returns:
        How many events were recorded.

    Raises:
        ConfigurationError: If the output is there already.
        UnreadableFile: If a file cannot be followed at the start.
        ConnectionError: If the server cannot be reached at the start.
        SessionClosed: If it does not let us in.
    """
    texts = [(file, file.look()) for file in files]
    source = f"streamctx record {__version__}"
    try:
        writer = RecordingWriter(output, source=source, is_overwriting=is_overwriting)
    except FileExistsError as error:
        raise ConfigurationError(f"{output} is there already; --overwrite replaces it") from error
    with writer:
        async with _producer(target) as producer:
            recorder = _Recorder(writer, producer)
            for file, events in texts:
                recorder.take(file, events)
            # At the end nothing is closed: the following stops, the files do not. So a replay of the
            # recording has texts at its end to compare.
            await _follow(files, recorder)
    return writer.event_count


class _Producer:
    """Pushes recorded events through a client, which numbers and proves them itself."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._documents: dict[int, Document] = {}

    def push(self, event: RecordableEvent) -> None:
        """Send what an event says.

        Raises:
            SessionClosed: If the server has ended the session.
        """
        match event:
            case Open():
                assert event.text is not None
                self._documents[event.document] = self._client.open_nowait(
                    event.uri, event.text, language=event.language, version=event.version, eol=event.eol
                )
            case Edit():
                document = self._documents[event.document]
                document.edit(event.changes, version=event.version, mode=event.mode)
            case Save():
                self._documents[event.document].save()
            case Focus(document=int(alias)):
                self._client.focus(self._documents[alias])
            case Close():
                self._documents.pop(event.document).close()
            case _:
                # The client sends `version` by itself.
                pass


class _Recorder:
    """Writes and pushes events, and tells of them."""

    def __init__(self, writer: RecordingWriter, producer: _Producer | None) -> None:
        self._writer = writer
        self._producer = producer
        self._started = time.monotonic()
        self._focused: int | None = None

    def take(self, file: FollowedFile, events: Sequence[RecordableEvent]) -> None:
        """Take what has become of a file; the one that changed last has the focus."""
        at_s = time.monotonic() - self._started
        for event in events:
            self._put(file, at_s, event)
            if isinstance(event, Open | Edit) and self._focused != file.alias:
                self._focused = file.alias
                self._put(file, at_s, Focus(document=file.alias))

    def _put(self, file: FollowedFile, at_s: float, event: RecordableEvent) -> None:
        self._writer.write(at_s, event)
        if not isinstance(event, Version | Focus):
            now = datetime.now().astimezone()
            click.echo(f"{now:%H:%M:%S} {printable(file.path.name)} {event_summary(event)}")
        if self._producer is not None:
            try:
                self._producer.push(event)
            except SessionClosed as error:
                self._producer = None
                click.echo(f"The server has ended the session ({error}); going on to record.", err=True)


@contextlib.asynccontextmanager
async def _producer(target: Target | None) -> AsyncIterator[_Producer | None]:
    if target is None:
        yield None
        return
    async with client_of(target, name="streamctx record", role="produce") as client:
        await client.ready()
        click.echo(f"Pushing to {target.url}.", err=True)
        yield _Producer(client)


async def _follow(files: Sequence[FollowedFile], recorder: _Recorder) -> None:
    from watchfiles import awatch

    # Editors replace a file by another one, so it is the folder that is watched.
    folders = {file.path.parent for file in files}
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_at_signal, stop.set)
        async for _ in awatch(
            *folders,
            watch_filter=None,
            debounce=_BUSY_MAX_MS,
            step=_QUIET_MS,
            rust_timeout=_LOOK_INTERVAL_MS,
            yield_on_timeout=True,
            recursive=False,
            stop_event=stop,
        ):
            for file in files:
                await _look(file, recorder)
        tasks.cancel_scope.cancel()


async def _look(file: FollowedFile, recorder: _Recorder) -> None:
    if file.text is not None and not file.path.exists():
        await anyio.sleep(_GONE_S)
    try:
        recorder.take(file, file.look())
    except UnreadableFile as error:
        click.echo(f"Not followed for now: {error}", err=True)
