"""The Python client: one object an application pushes its context into and observes others with."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

from streamctx import __version__
from streamctx.client.document import Document, Eol
from streamctx.client.driver import Driver, Status
from streamctx.client.faults import MessageFaults
from streamctx.client.observation import Observation
from streamctx.client.outbox import Outbox, OutboxStatus
from streamctx.client.outbox_file import OutboxFile
from streamctx.client.target import Target, find_target
from streamctx.client.valid import valid
from streamctx.core.session.client_events import (
    ClientEvent,
    ClientSettings,
    DocumentRefusal,
    FeedChanged,
    Refusal,
    Welcomed,
)
from streamctx.core.session.client_session import ClientSession
from streamctx.errors import EventRefused, LocalProtocolError, SessionClosed
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import DigestAlgorithm, Encoding, HashAlgorithm, Unit
from streamctx.wire.messages import (
    ClientInfo,
    DesignClose,
    DesignNode,
    DesignOpen,
    DesignSelection,
    Focus,
    Subscribed,
    SupersedableEvent,
    Workspace,
)

__all__ = ["Client", "ClientCounters", "connect"]

logger = logging.getLogger("streamctx.client")

Arguments = TypeVarTuple("Arguments")

_CLOCK = time.monotonic
_ERRORS_KEPT = 100
_FLUSH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCounters:
    """What happened so far, in frames unless said otherwise."""

    connections: int
    failed_connections: int
    resumes: int
    resets: int
    """How often everything was opened anew because the server had lost the session."""
    collapsed: int
    """Waiting events that a snapshot replaced because the outbox was full."""
    resubscribed: int
    received: int
    corrupt: int
    ignored: int
    sent: int
    retransmitted: int
    nacks_sent: int
    nacks_received: int
    skips_sent: int
    lost: int


class Client:
    """A session with a server, connected in the background; `connect` makes it.

    Use it in the thread of its event loop; `call_soon` is the way in from others. What is opened, edited and
    subscribed while there is no connection waits, and is sent with the next one.
    """

    def __init__(
        self, settings: ClientSettings, find: Callable[[], Target], ssl_context: ssl.SSLContext | None,
        faults: MessageFaults | None, outbox: Outbox | None,
    ) -> None:  # fmt: skip
        """Made by `connect`."""
        self.session = ClientSession(settings, jitter=random.random) if outbox is None else outbox.session
        """The state machine; not to be changed from outside."""
        self.errors: deque[Refusal | DocumentRefusal] = deque(maxlen=_ERRORS_KEPT)
        """What the server refused, the newest last. Documents heal by themselves."""
        self.now = _CLOCK
        self._outbox = outbox
        self._observations: dict[int, Observation] = {}
        self._failures_told = 0
        self._loop: Any = anyio.lowlevel.current_token().native_token
        self._driver = Driver(
            self.session,
            find=find,
            limits=settings.limits,
            ssl_context=ssl_context,
            faults=faults,
            outbox=outbox,
            clock=self.now,
            jitter=random.random,
            on_event=self._take,
        )

    # What it looks like.

    @property
    def status(self) -> Status:
        """`connecting` until the first WELCOME, then `connected` or `reconnecting`, and `closed` for good."""
        return self._driver.status

    @property
    def session_id(self) -> str | None:
        """The public id of the session, once there is one. A server that has lost it gives another."""
        return self.session.session_id

    @property
    def pending(self) -> int:
        """Events that wait to be sent or acknowledged."""
        return self.session.pending

    @property
    def documents(self) -> int:
        """How many documents are open."""
        return len(self.session.documents)

    @property
    def restored(self) -> tuple[Document, ...]:
        """The documents of a process that died, with all that it had typed, until they are opened again.

        `open` of the same URI goes on with one. Close those that your editor has no longer; agents see them
        as long as they are open. Empty without an outbox.
        """
        return tuple(Document(self, document) for document in self.session.unclaimed)

    @property
    def outbox(self) -> OutboxStatus | None:
        """How the outbox on disk fares; `None` if there is none."""
        return None if self._outbox is None else self._outbox.status

    @property
    def counters(self) -> ClientCounters:
        """Counts over all connections."""
        delivery = self.session.counters
        return ClientCounters(
            connections=self._driver.connections,
            failed_connections=self._driver.failures,
            resumes=self.session.resumes,
            resets=self.session.resets,
            collapsed=self.session.collapsed,
            resubscribed=self.session.resubscribed,
            **{name: getattr(delivery, name) for name in type(delivery).__dataclass_fields__},
        )

    # What to wait for.

    async def ready(self) -> None:
        """Wait for the first WELCOME.

        Raises:
            SessionClosed: If the server does not take this client.
            ConnectionError: If an attempt to connect failed. The client goes on trying; call again to wait.
        """
        driver = self._driver
        while not driver.is_welcomed:
            self.open_session()
            if driver.failures > self._failures_told:
                self._failures_told = driver.failures
                raise ConnectionError(str(driver.last_failure)) from driver.last_failure
            await driver.wait_changed()
        self.open_session()

    async def flush(self) -> None:
        """Wait until the server has applied everything, and made it as durable as it promises.

        Raises:
            SessionClosed: If the session ends before.
        """
        while not self.session.is_settled:
            self.open_session()
            self.wake()
            await self._driver.wait_changed()
        if self._driver.end is not None:
            self.open_session()

    # Documents.

    async def open(
        self, uri: str, text: str, *, language: str | None = None, version: int = 0, eol: Eol | None = None
    ) -> Document:
        """Open a document; returns once it is queued.

        One of `restored` with that URI is gone on with: what is given here takes the place of what it was.

        Raises:
            SessionClosed: If the session has ended.
            LocalProtocolError: If too many documents are open, or the role does not allow it.
        """
        await anyio.lowlevel.checkpoint()
        return self.open_nowait(uri, text, language=language, version=version, eol=eol)

    def open_nowait(
        self, uri: str, text: str, *, language: str | None = None, version: int = 0, eol: Eol | None = None
    ) -> Document:
        """As `open`, for callers that cannot wait."""
        opened = self.open_session().open(uri, text, self.now(), language=language, version=version, eol=eol)
        self.wake()
        return Document(self, opened)

    def focus(self, document: Document | None, *, view: str = "") -> None:
        """Say which document has the focus; `None`: none has."""
        self.put(Focus(document=None if document is None else document.alias, view=view))

    def open_design(self, design: DesignOpen) -> int:
        """Open a design document; returns its alias, which replaces the one in `design`."""
        opened = self.open_session().open_design(design, self.now())
        self.wake()
        return opened.document

    def select_nodes(
        self, alias: int, page: str, nodes: Sequence[DesignNode], *, total: int | None = None
    ) -> None:
        """Say which nodes of a design document are selected; the first 100 are sent."""
        count = len(nodes) if total is None else total
        shown = tuple(nodes[:100])
        self.put(
            DesignSelection(document=alias, page=page, nodes=shown, total=count, truncated=count > len(shown))
        )

    def close_design(
        self, alias: int, reason: Literal["plugin_closed", "file_closed"] = "file_closed"
    ) -> None:
        """Close a design document."""
        self.open_session().close_design(DesignClose(document=alias, reason=reason), self.now())
        self.wake()

    # Observing.

    async def observe(
        self,
        session_id: str = "*",
        *,
        documents: Sequence[str] | None = None,
        presence: bool = True,
        min_interval_ms: int = 0,
    ) -> Observation:
        """Observe a session, or all that may be seen; returns once the server has agreed.

        Args:
            session_id: Which one; `*` is all, now and later.
            documents: URI patterns with `*` and `?`; `None` is all.
            presence: Whether cursors, selections and the like are wanted.
            min_interval_ms: At most one batch of changes in so long.

        Raises:
            EventRefused: If the server does not show it, such as `not_found`.
            SessionClosed: If our session has ended.
        """
        subscription = self.open_session().subscribe(
            session_id,
            self.now(),
            documents=None if documents is None else tuple(documents),
            presence=presence,
            min_interval_ms=min_interval_ms,
        )
        observation = self._observations[subscription] = Observation(self, subscription)
        try:
            while not observation.is_subscribed:
                if observation.refusal is not None:
                    raise EventRefused(observation.refusal.code, observation.refusal.message)
                self.open_session()
                self.wake()
                await self._driver.wait_changed()
        except BaseException:
            observation.close()
            raise
        return observation

    def forget_observation(self, observation: Observation) -> None:
        """Stop observing; `Observation.close` calls it."""
        self._observations.pop(observation.subscription, None)
        if self._driver.status != "closed":
            self.session.unsubscribe(observation.subscription, self.now())
            self.wake()

    # From outside.

    def call_soon(self, function: Callable[[*Arguments], object], *args: *Arguments) -> None:
        """Call a function in the thread of the client's event loop; may be called in any thread.

        What the function raises is logged.

        Raises:
            LocalProtocolError: If the event loop has ended.
        """
        call = functools.partial(_call_logged, function, *args)
        try:
            if hasattr(self._loop, "call_soon_threadsafe"):
                self._loop.call_soon_threadsafe(call)  # asyncio
            else:
                self._loop.run_sync_soon(call)  # trio
        except RuntimeError as error:
            raise LocalProtocolError("the client's event loop has ended") from error

    def abort(self) -> None:
        """Drop the TCP connection without a close, for tests; the session resumes on the next one."""
        self._driver.abort()

    # What documents and observations use.

    def open_session(self) -> ClientSession:
        """The session, if it has not ended.

        Raises:
            SessionClosed: If it has.
        """
        end = self._driver.end
        if end is not None:
            raise SessionClosed(end.code, end.message)
        if self._driver.status == "closed":
            raise SessionClosed(None, "the client was closed")
        return self.session

    def put(self, event: SupersedableEvent) -> None:
        """Send a value of which only the newest matters.

        Raises:
            LocalProtocolError: If a field of it cannot be sent, or its document is not open.
        """
        self.open_session().put(valid(event), self.now())
        self.wake()

    def wake(self) -> None:
        """Let the writer look for what is new."""
        self._driver.wake()

    def _take(self, event: ClientEvent) -> None:
        if isinstance(event, FeedChanged):
            observation = self._observations.get(event.subscription)
            if observation is not None:
                observation.take(event)
        elif isinstance(event, Subscribed):
            observation = self._observations.get(event.subscription)
            if observation is not None:
                observation.is_subscribed = True
        elif isinstance(event, Refusal | DocumentRefusal):
            self.errors.append(event)
            if isinstance(event, Refusal) and event.error.subscription in self._observations:
                self._observations[event.error.subscription].refuse(event.error)
        elif isinstance(event, Welcomed):
            for observation in self._observations.values():
                observation.renewed()

    async def _run(self) -> None:
        try:
            await self._driver.run()
        finally:
            for observation in self._observations.values():
                observation.wake()

    async def _close(self, flush_s: float) -> None:
        with anyio.move_on_after(flush_s), contextlib.suppress(SessionClosed):
            await self.flush()
        is_settled, is_connected = self.session.is_settled, self.status == "connected"
        if not is_settled and self._driver.end is None:
            logger.warning(
                "closed with %d events that the server has not confirmed%s",
                self.pending,
                "" if self._outbox is None else "; they stay in the outbox",
            )
        await self._driver.close(ends=is_settled or self._outbox is None)
        if self._outbox is not None and is_settled and is_connected:
            self._outbox.end()


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    uds: str | os.PathLike[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    name: str = "streamctx-python",
    version: str | None = None,
    encoding: Encoding = Encoding.MSGPACK,
    digest: DigestAlgorithm = DigestAlgorithm.XXH3_64,
    unit: Unit = Unit.UTF_16,
    hash: HashAlgorithm = HashAlgorithm.XXH3_64,
    role: Literal["produce", "observe", "both"] = "both",
    workspace: Workspace | None = None,
    limits: Limits = DEFAULT_LIMITS,
    flush_s: float = _FLUSH_TIMEOUT_S,
    outbox: str | os.PathLike[str] | None = None,
    outbox_fsync: bool = False,
    faults: MessageFaults | None = None,
) -> AsyncIterator[Client]:
    """Be a client for the length of the block, on asyncio or trio.

    Entering does not wait for the server; `Client.ready` does. Leaving waits for what is pending, at most
    `flush_s`, and ends the session. An exception or a cancellation in the block drops the connection at once.

    With an outbox, what this process has typed survives it. Each call that opens, edits, saves, mentions or
    closes has its event on disk when it returns, and each frame is there before it is sent. Whatever ends the
    process, the next one with the same outbox goes on with the session: it sends again what the server lacks,
    the same bytes, then what had not been sent. Its `Client.restored` are the documents that were open, with
    their texts as of the last call. A plugin opens its documents as at any start, since what the editor has
    now is the authority, and then says which of the others are gone (or shows their texts to the person
    first):

        async with streamctx.connect(name="my editor", outbox=state_directory / "streamctx") as client:
            for buffer in editor.buffers:
                await client.open(buffer.uri, buffer.text)
            for document in client.restored:
                document.close()

    Cursors and the like are put anew, design documents are closed and opened anew, subscriptions end with the
    process. Edits behind a long text that was going out in parts are sent as one snapshot with it. A new
    session with the same documents begins where going on cannot be proved right: with another server,
    encoding, unit, hash or role, and without `outbox_fsync` after the machine was started anew. One without
    documents begins if the file is damaged; that is logged. A block that is left with everything confirmed
    ends the session and empties the outbox; otherwise the next process goes on.

    Args:
        url: `ws://…` or `wss://…`; `None` takes `STREAMCTX_URL`, then this user's server that started last.
        token: `None` takes `STREAMCTX_TOKEN`, `STREAMCTX_TOKEN_FILE`, then the file that the server names.
        token_file: A file with the token, read before each attempt to connect.
        uds: A Unix socket to connect to instead of TCP.
        ssl_context: For `wss`; `None` trusts what the system trusts.
        name: Of this program, for people.
        version: Of this program; `None` is that of streamctx, if the name was left out too.
        encoding: Of message bodies.
        digest: Of frames, if the server has it.
        unit: What characters of positions count.
        hash: Of whole texts.
        role: What this client is going to do; a token may not allow everything.
        workspace: What the editor has open, for observers.
        limits: Of this client.
        flush_s: How long leaving waits for what is pending.
        outbox: A directory, made if need be, for this client alone: of two processes each has its own. It
            holds texts and the secret of the session, so only this user can read it. At most
            `limits.outbox_bytes_max` bytes; with more to keep, or a disk that takes nothing, it is emptied
            and the session goes on without until there is room (`Client.outbox` tells). `None` keeps nothing.
        outbox_fsync: Whether the outbox survives a power cut: the disk is waited for before anything is sent.
        faults: Made between session and socket, for tests.

    Raises:
        ConfigurationError: If an argument or an environment variable is wrong, or another client has the
        outbox.
    """
    find = functools.partial(find_target, url=url, token=token, token_file=token_file, uds=uds)
    # What is wrong with the arguments is said here; a server that is not there yet is waited for.
    with contextlib.suppress(ConnectionError):
        await anyio.to_thread.run_sync(find)
    settings = ClientSettings(
        client=ClientInfo(
            name=name, version=version or (__version__ if name == "streamctx-python" else None)
        ),
        encoding=encoding,
        digest=digest,
        unit=unit,
        hash=hash,
        role=role,
        workspace=workspace,
        limits=limits,
    )
    kept: Outbox | None = None
    if outbox is not None:
        # Nothing else knows it yet, so a thread may read it.
        kept = await anyio.to_thread.run_sync(_open_outbox, Path(outbox), settings, outbox_fsync)
    try:
        client = Client(settings, find, ssl_context, faults, kept)
        async with anyio.create_task_group() as group:
            group.start_soon(client._run)
            yield client
            await client._close(flush_s)
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        if len(failed.exceptions) > 1:
            raise
        # The block raised; that a task group was around it is nobody's business.
        raise failed.exceptions[0] from failed.exceptions[0].__cause__
    finally:
        if kept is not None:
            kept.close()


def _open_outbox(directory: Path, settings: ClientSettings, fsync: bool) -> Outbox:
    file = OutboxFile(directory, fsync=fsync)
    try:
        return Outbox(file, settings, fsync=fsync, clock=_CLOCK, jitter=random.random)
    except BaseException:
        file.close()
        raise


def _call_logged(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except Exception:
        logger.exception("a function that was passed to call_soon failed")
