"""Plays a script into a server, watches what becomes of it, and proves that every copy is equal.

One client produces, and with `is_observed` a second one observes, each over its own
connection with its own faults. Nothing is printed here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import anyio.lowlevel
import anyio.to_thread

from streamctx.client.client import Client, connect
from streamctx.client.faults import FaultKind, FaultRates, MessageFaults
from streamctx.errors import StreamctxError
from streamctx.load.performer import Performer
from streamctx.load.report import Latencies, Report, sha256_of_texts
from streamctx.load.script import Script
from streamctx.load.watcher import Watcher
from streamctx.vocabulary import DigestAlgorithm, Encoding, Unit

__all__ = ["Fetch", "PlayOptions", "Player", "unwrapped"]

Fetch = Callable[[str], object]
"""Returns the JSON that the server has at a path; it may block."""

_PENDING_EVENTS_MAX = 2000
_PENDING_BYTES_MAX = 4 * 1024 * 1024
"""Far below what the outbox takes before it gives up single edits for a snapshot."""
_BURST_EVENTS = 64
"""So many events are made in one go; then the connection has its turn."""
_POLL_S = 0.001
_PARTING_S = 0.5
"""What has to arrive was waited for before; this is for the farewell."""
_STALL_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """How to play.

    Without `rate` and `speed` it goes as fast as the server acknowledges.
    """

    url: str
    token: str = field(repr=False)
    uds: str | None = None
    encoding: Encoding = Encoding.MSGPACK
    digest: DigestAlgorithm = DigestAlgorithm.XXH3_64
    unit: Unit = Unit.UTF_16
    rate: float | None = None
    """Edits a second."""
    speed: float | None = None
    """How much faster than it was recorded."""
    faults: FaultRates | None = None
    seed: int = 1
    is_observed: bool = False
    observer_unit: Unit | None = None
    """`None` is that of the producer."""
    timeout_s: float = 60.0
    """So long without any progress ends it."""


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Let what one of several tasks raised on purpose come out as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        foreseen: BaseException | None = group.subgroup((StreamctxError, OSError))
        while isinstance(foreseen, BaseExceptionGroup):
            foreseen = foreseen.exceptions[0]
        if foreseen is None:
            raise
        raise foreseen from group


class Player:
    """Plays one script once; its attributes show how far it is.

    `producer` and `watcher` are there from `run` on.
    """

    def __init__(self, script: Script, options: PlayOptions, fetch: Fetch) -> None:
        self.script = script
        self.options = options
        self.performer: Performer | None = None
        self.watcher: Watcher | None = None
        self.producer: Client | None = None
        self.observer: Client | None = None
        self.faults: list[MessageFaults] = []
        self.lost = 0
        """Events that an end gave up; every one was replaced by a snapshot."""
        self.before_closing: Callable[[], None] = lambda: None
        """Called when all is judged and the clients are still there."""
        self._fetch = fetch
        self._is_pacing = False
        self._edited = anyio.Event()
        self._problems: list[str] = []
        self._started_at = 0.0

    @property
    def fault_counts(self) -> Mapping[FaultKind, int]:
        """Faults made so far, on both connections and in both directions."""
        counts = dict.fromkeys(FaultKind, 0)
        for faults in self.faults:
            for direction in faults.counts.values():
                for kind, count in direction.items():
                    counts[kind] += count
        return counts

    async def run(self) -> Report:
        """Play to the end and compare the copies.

        Raises:
            ConnectionError: If there is no server.
            SessionClosed: If the server ends a session.
            TraceError, RecordingError: If the script does not fit itself.
        """
        with unwrapped():
            return await self._run_connected()

    async def _run_connected(self) -> Report:
        options = self.options
        async with contextlib.AsyncExitStack() as stack:
            producer = self.producer = await stack.enter_async_context(
                self._connect("produce", options.unit, 2 * options.seed)
            )
            await producer.ready()
            self.performer = Performer(producer)
            if options.is_observed:
                unit = options.observer_unit or options.unit
                self.observer = await stack.enter_async_context(
                    self._connect("observe", unit, 2 * options.seed + 1)
                )
                await self.observer.ready()
                self.watcher = Watcher(self.observer, producer)
            return await self._run(producer, self.performer)

    def _connect(
        self, role: Literal["produce", "observe"], unit: Unit, seed: int
    ) -> contextlib.AbstractAsyncContextManager[Client]:
        options = self.options
        faults = None
        if options.faults is not None:
            faults = MessageFaults(options.faults, seed=seed)
            self.faults.append(faults)
        return connect(
            options.url,
            options.token,
            uds=options.uds,
            name="streamctx-replay",
            encoding=options.encoding,
            digest=options.digest,
            unit=unit,
            role=role,
            flush_s=_PARTING_S,
            faults=faults,
        )

    async def _run(self, producer: Client, performer: Performer) -> Report:
        async with anyio.create_task_group() as group:
            if self.watcher is not None:
                group.start_soon(self.watcher.run)
            group.start_soon(self._poll, producer, performer)
            group.start_soon(self._time_last_ack, producer, performer)
            with anyio.CancelScope() as scope:
                group.start_soon(self._end_a_stall, producer, performer, scope)
                self._started_at = producer.now()
                await self._play(producer, performer)
                await self._wait_until_settled(producer)
                performer.acks.settle(producer.now())
                await self._wait_for_observer(performer)
            seconds = producer.now() - self._started_at
            with anyio.CancelScope(shield=True):
                report = await self._report(producer, performer, seconds)
            self.before_closing()
            for faults in self.faults:
                faults.is_paused = True
            group.cancel_scope.cancel()
        return report

    # Playing.

    async def _play(self, producer: Client, performer: Performer) -> None:
        options = self.options
        made_in_turn = 0
        for recorded in self.script.events(options.unit):
            due = None
            if options.rate:
                due = performer.edits / options.rate
            elif options.speed:
                due = recorded.at_s / options.speed
            if due is not None and producer.now() - self._started_at < due:
                await self._pause(producer, due)
                made_in_turn = 0
            elif made_in_turn >= _BURST_EVENTS:
                made_in_turn = 0
                await anyio.lowlevel.checkpoint()
                performer.acks.settle(producer.now())
                await self._wait_for_room(producer, performer)
            made_in_turn += 1
            made_at = producer.now()
            document = performer.perform(recorded.event)
            if document is None:
                continue
            self._edited.set()
            if self.watcher is not None:
                self.watcher.edited(document.alias, document.version, made_at)

    async def _pause(self, producer: Client, due: float) -> None:
        self._is_pacing = True
        await anyio.sleep(max(0.0, due - (producer.now() - self._started_at)))
        self._is_pacing = False

    async def _wait_for_room(self, producer: Client, performer: Performer) -> None:
        while producer.pending > _PENDING_EVENTS_MAX or performer.acks.bytes > _PENDING_BYTES_MAX:
            producer.open_session()
            await anyio.sleep(_POLL_S)
            performer.acks.settle(producer.now())

    async def _poll(self, producer: Client, performer: Performer) -> None:
        """Look for acknowledgements every millisecond, which is exact enough while edits come faster."""
        while True:
            await anyio.sleep(_POLL_S)
            performer.acks.settle(producer.now())
            if self.watcher is not None:
                self.watcher.check_session()

    async def _time_last_ack(self, producer: Client, performer: Performer) -> None:
        """See at once that everything has been acknowledged, as between two slow edits."""
        while True:
            self._edited = anyio.Event()
            await self._edited.wait()
            await producer.flush()
            performer.acks.settle(producer.now())

    async def _wait_until_settled(self, producer: Client) -> None:
        # By looking, so that the proof does not rest on what it is to prove; `_end_a_stall` bounds this.
        while not producer.session.is_settled:
            producer.open_session()
            await anyio.sleep(_POLL_S)

    async def _wait_for_observer(self, performer: Performer) -> None:
        watcher = self.watcher
        if watcher is None:
            return
        documents = performer.documents.values()
        # A copy has no event to wait for; `_end_a_stall` bounds this.
        while not all(watcher.has(one.alias, one.version) for one in documents):  # noqa: ASYNC110
            await anyio.sleep(_POLL_S)

    async def _end_a_stall(self, producer: Client, performer: Performer, scope: anyio.CancelScope) -> None:
        """Give up when nothing goes on any more."""
        last: tuple[int, ...] = ()
        since = producer.now()
        while True:
            await anyio.sleep(_STALL_POLL_S)
            observed = None if self.watcher is None else self.watcher.observed
            offset = 0 if observed is None else observed.offset
            present = (performer.events, len(performer.acks.latencies.values), offset)
            if present != last or self._is_pacing:
                last, since = present, producer.now()
            elif producer.now() - since > self.options.timeout_s:
                self._problems.append(
                    f"nothing went on for {self.options.timeout_s:g} s; {producer.pending} events are pending"
                )
                scope.cancel()
                return

    # Judging.

    async def _report(self, producer: Client, performer: Performer, seconds: float) -> Report:
        expected = self.script.expected_texts()
        if not self._problems and performer.texts() != expected:
            self._problems.append("our own text is not the one expected")
        for document in performer.documents.values():
            if document.refused is not None:
                self._problems.append(f"the server refused a document: {document.refused}")
        server_texts = await self._server_texts(producer, performer)
        report = Report(
            edits=performer.edits,
            events=performer.events,
            seconds=seconds,
            ack=performer.acks.latencies,
            observer=Latencies() if self.watcher is None else self.watcher.latencies,
            sha256_expected=sha256_of_texts(expected),
            sha256_server=None if server_texts is None else sha256_of_texts(server_texts),
            sha256_observer=self._observer_hash(performer),
            is_observed=self.watcher is not None,
            problems=self._problems,
        )
        for client in filter(None, (producer, self.observer)):
            await self._count(report, client)
        return report

    async def _server_texts(self, producer: Client, performer: Performer) -> dict[int, str] | None:
        texts = {}
        for alias, document in performer.documents.items():
            found = await self._get(f"/v1/sessions/{producer.session_id}/documents/{document.alias}")
            text = found.get("text")
            if not isinstance(text, str):
                return None
            if found.get("stale"):
                self._problems.append("the server says that its copy is stale")
            texts[alias] = text
        return texts

    def _observer_hash(self, performer: Performer) -> str | None:
        if self.watcher is None:
            return None
        texts = {}
        for alias, document in performer.documents.items():
            copy = self.watcher.document(document.alias)
            if copy is None or copy.buffer is None:
                return None
            texts[alias] = copy.buffer.text()
        return sha256_of_texts(texts)

    async def _count(self, report: Report, client: Client) -> None:
        """Add what both ends of a connection have counted."""
        ours = client.counters
        counters = (await self._get(f"/v1/sessions/{client.session_id}")).get("counters")
        theirs = counters if isinstance(counters, dict) else {}
        report.retransmitted += ours.retransmitted + theirs.get("frames_retransmitted", 0)
        report.nacks += ours.nacks_sent + theirs.get("frames_nacks_sent", 0)
        report.skipped += ours.skips_sent + theirs.get("frames_skips_sent", 0)
        report.duplicates += client.session.duplicates + theirs.get("duplicates", 0)
        report.corrupt += ours.corrupt + theirs.get("frames_corrupt", 0)
        # A session that had to be opened anew counts too: the connection was lost all the same.
        report.resumes += ours.resumes + ours.resets
        if ours.resubscribed:
            self._problems.append(f"a feed did not fit the copy, {ours.resubscribed} times")
        self.lost += ours.lost + theirs.get("frames_lost", 0)

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            found = await anyio.to_thread.run_sync(self._fetch, path)
        except StreamctxError as error:
            self._problems.append(str(error))
            return {}
        return found if isinstance(found, dict) else {}
