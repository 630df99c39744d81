"""A session as the server holds it: delivery, live context, subscriptions; it outlives connections.

The hub gives it the frames of the connection that owns it, and sends what `flush`
returns. Ids, secrets and tokens are the hub's business.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from streamctx.core.session.delivery import (
    Addressed,
    Delivered,
    Delivery,
    Item,
    TooLarge,
)
from streamctx.core.session.feed_log import FeedLog
from streamctx.core.session.live_context import ContextCounters, LiveContext, TextBudget
from streamctx.core.session.observer_feed import Feed, FeedFilter
from streamctx.core.session.state import ServerInput, ServerState, server_transition
from streamctx.core.session.stored import (
    JournalBatch,
    JournalEntry,
    JournalItem,
    Refused,
    SessionRecord,
    SessionState,
    Spoilt,
    StoredSession,
)
from streamctx.errors import CloseCode, ErrorCode, RemoteProtocolError
from streamctx.limits import Limits
from streamctx.vocabulary import INTEGER_MAX, Encoding, Unit
from streamctx.wire.capabilities import Capabilities, limits_told
from streamctx.wire.codec import Malformed, UnknownType, client_decoder
from streamctx.wire.messages import (
    DURABLE_TYPES,
    ClientInfo,
    Close,
    DesignClose,
    DesignOpen,
    DocumentAction,
    Ended,
    ErrorMessage,
    Event,
    FeedEvent,
    GoAway,
    Hello,
    Message,
    Open,
    Resume,
    Skip,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Workspace,
)

__all__ = ["Directory", "Resumption", "ServerSession"]

_DURABLE = frozenset(DURABLE_TYPES)
_REPLIES_MAX = 1024
_PATTERN_CHARACTERS_MAX = 64 * 1024
"""Of all URI patterns of a session: so many are matched with the longest URI in some 40 ms."""
EVERY_SESSION = "*"
_NO_SESSION = "there is no such session, or it is not yours"


@dataclass(frozen=True, slots=True)
class Resumption:
    """What WELCOME says of a resume (SPEC 9.3)."""

    restored: bool
    verdict: Literal["resumed", "resynced"]
    lost: tuple[tuple[int, int], ...]
    documents: tuple[DocumentAction, ...]


class Directory(Protocol):
    """Where a session finds others that it may observe."""

    def find(self, observer: ServerSession, session_id: str) -> ServerSession | None:
        """A producer's session by id; `None` if it is unknown or not the observer's to see."""

    def visible(self, observer: ServerSession) -> Iterable[ServerSession]:
        """All producers' sessions that the observer may see, itself not included."""

    def is_stored(self, observer: ServerSession, session_id: str) -> bool:
        """Whether a session is not live, and can be recalled for that observer."""


class ServerSession:
    """One session. Its hub calls `receive` for each frame, then `flush` once per read.

    `feeds` are what it observes, by subscription and source id; `observers` are the
    sessions that observe it, with how many feeds each.
    """

    __slots__ = (
        "_capabilities",
        "_context",
        "_directory",
        "_feeds",
        "_is_confirmed",
        "_is_heard",
        "_is_restored",
        "_journal",
        "_journal_pending",
        "_journalled_stop",
        "_journals",
        "_replies",
        "_subscriptions",
        "_wanted",
        "attempt",
        "client",
        "client_errors",
        "delivery",
        "detached_at",
        "encoding",
        "epoch",
        "lease",
        "limits",
        "limits_told",
        "observers",
        "opened_at",
        "principal",
        "role",
        "session_id",
        "state",
        "workspace",
    )

    def __init__(
        self,
        record: SessionRecord,
        *,
        limits: Limits,
        jitter: Callable[[], float],
        is_excluded: Callable[[str], bool],
        budget: TextBudget,
        directory: Directory,
        journals: bool,
        now: float,
    ) -> None:
        """Make a session; `attach` then begins its first connection.

        Args:
            record: What its first handshake has settled.
            limits: Those of the server; the ones that the client was told are those of the record.
            journals: Whether durable events are held back from `durable` until `journal_done`.
        """
        self.session_id = record.session_id
        self.epoch = record.epoch
        self.principal = record.principal
        self.client: ClientInfo = record.client
        self.workspace: Workspace | None = record.workspace
        self.role = record.role
        self.encoding = encoding = Encoding(record.encoding)
        capabilities = record.capabilities
        self.limits_told = record.limits
        self.limits = limits = limits_told(limits, record.limits)
        self.state = ServerState.DETACHED
        self.attempt = record.attempt
        self.lease = record.lease
        self.opened_at = now
        self.detached_at = now
        self.client_errors = 0
        self.observers: dict[ServerSession, int] = {}
        self.delivery = Delivery(
            encoding=encoding,
            digest=capabilities.digest,
            decoder=client_decoder(encoding),
            limits=limits,
            jitter=jitter,
            now=now,
            ring_events_max=limits.window_events_max * 2,
            ring_bytes_max=limits.server_ring_bytes_max,
        )
        self._capabilities = capabilities
        self._directory = directory
        self._context = LiveContext(
            unit=capabilities.unit,
            hash_algorithm=capabilities.hash,
            limits=limits,
            is_excluded=is_excluded,
            budget=budget,
        )
        self._replies: deque[Message | Addressed] = deque()
        self._subscriptions: dict[int, Subscribe] = {}
        self._wanted: list[str] = []
        self._feeds: dict[tuple[int, str], Feed] = {}
        self._is_confirmed = False
        self._is_heard = False
        self._journals = journals
        self._journal: list[JournalEntry] = []
        self._journal_pending: deque[JournalBatch] = deque()
        self._journalled_stop = 1
        self._is_restored = False
        self.observers_changed()

    @classmethod
    def restore(
        cls,
        stored: StoredSession,
        *,
        limits: Limits,
        jitter: Callable[[], float],
        is_excluded: Callable[[str], bool],
        budget: TextBudget,
        directory: Directory,
        now: float,
    ) -> ServerSession:
        """Make the session that was stored, detached, as it was when the last batch was taken.

        Raises:
            ValueError: If what is stored cannot have been taken of a session.
        """
        # What was accepted once is not refused because others have taken the room since.
        session = cls(
            stored.record,
            limits=limits,
            jitter=jitter,
            is_excluded=is_excluded,
            budget=TextBudget(INTEGER_MAX),
            directory=directory,
            journals=True,
            now=now,
        )
        session._replay(stored)
        session._context.move_to(budget)
        return session

    def _replay(self, stored: StoredSession) -> None:
        stop, lost = 1, []
        if stored.state is not None:
            stop, lost = stored.state.stop, list(stored.state.lost)
            self._context.restore(stored.state)
        for batch in stored.batches:
            if batch.stop < stop:
                raise ValueError(f"a batch ends at {batch.stop}, after one that ends at {stop}")
            stop = batch.stop
            for sequence, item in batch.entries:
                if item is not None:
                    self._context.replay(sequence, item)
                if isinstance(item, Spoilt):
                    lost.extend(item.ranges)
        self._context.counters = ContextCounters()
        self.delivery.restart_receiving(stop, lost)
        self._journalled_stop = stop
        self._is_restored = self._is_confirmed = True

    # What it looks like.

    @property
    def capabilities(self) -> Capabilities:
        """What was settled by the first handshake."""
        return self._capabilities

    @property
    def context(self) -> LiveContext:
        """The documents and presence."""
        return self._context

    @property
    def produces(self) -> bool:
        """Whether it may push events, and so can be observed."""
        return self.role != "observe"

    @property
    def is_confirmed(self) -> bool:
        """Whether the client has shown that it got a WELCOME (HSK-8)."""
        return self._is_confirmed

    @property
    def is_heard(self) -> bool:
        """Whether a good frame, other than HELLO, has come on the present connection."""
        return self._is_heard

    @property
    def source_unit(self) -> Unit:
        """The unit of its positions."""
        return self._capabilities.unit

    @property
    def log(self) -> FeedLog:
        """What it has shown to observers."""
        return self._context.feed

    def state_events(self, unit: Unit) -> list[tuple[FeedEvent, str | None]]:
        """Its state now, for observers."""
        return self._context.state_events(unit)

    # Connections.

    def attach(self, now: float) -> None:
        """Begin a connection: the first, a resume or a takeover."""
        self.state = server_transition(self.state, ServerInput.ATTACH)
        self.lease += 1
        self._is_heard = False
        self.delivery.attach(now)
        if self.produces:
            self._context.set_connected(True)

    def can_resume(self, resume: Resume) -> bool:
        """Whether the two histories fit together: neither side has what the other never sent."""
        return (
            resume.next >= self.delivery.known_stop
            and (self._is_restored or self.delivery.can_resume_sending(resume.expects))
            and all(1 <= start < stop <= resume.next for start, stop in resume.lost)
        )

    def resume(self, resume: Resume, now: float) -> Resumption:
        """After `can_resume` and `attach`: take over what the client lacks and has lost."""
        delivery = self.delivery
        delivery.resume_receiving(resume.next)
        if self._is_restored:
            # What was sent from there on died with the server that sent it.
            self._forget_sent()
            delivery.restart_sending(resume.expects)
            self._replies.extend(self._context.refusals_again())
        else:
            delivery.resume_sending(resume.expects, (), now)
        lost = delivery.missing_within(resume.lost)
        if lost:
            # A client that does not say whose they were leaves no document to be trusted.
            self._spoil(resume.documents or None, lost, ask=False)
            self._apply_all(delivery.lose(lost))
        delivery.expect_welcome()
        return Resumption(
            restored=self._is_restored,
            verdict="resynced" if lost else "resumed",
            lost=lost,
            documents=tuple(
                DocumentAction(
                    document=alias,
                    action="snapshot" if document.is_stale else "keep",
                    version=document.version,
                )
                for alias, document in self._context.documents.items()
            ),
        )

    def _forget_sent(self) -> None:
        """A client that is told of a restored session subscribes anew (RSM-11)."""
        self._replies.clear()
        for subscription in list(self._subscriptions):
            self._unsubscribe(subscription)

    def exclude(self, is_excluded: Callable[[str], bool]) -> None:
        """Refuse from now on what is excluded, and what of it is open (SEC-3)."""
        for alias, refusal in self._context.exclude(is_excluded):
            self._replies.append(refusal)
            self._keep(self.delivery.expected, Refused(alias, refusal.code))

    def detach(self, now: float) -> None:
        """The connection is gone; the state stays."""
        self.state = server_transition(self.state, ServerInput.DETACH)
        self.detached_at = now
        if self.produces:
            self._context.set_connected(False)

    def end(self, reason: Literal["closed", "expired"]) -> None:
        """Forget the session, tell its observers, and stop observing."""
        self.state = server_transition(
            self.state, ServerInput.EXPIRE if reason == "expired" else ServerInput.END
        )
        for observer in list(self.observers):
            observer.source_ended(self, reason)
        for subscription in list(self._subscriptions):
            self._unsubscribe(subscription)
        self._context.end()

    # What happened outside.

    def receive(self, data: bytes, now: float) -> Hello | None:
        """Take one frame of the owning connection.

        Returns:
            A repeated HELLO, which the connection has to answer (HSK-2).

        Raises:
            RemoteProtocolError: The connection must end.
        """
        if len(self._replies) >= _REPLIES_MAX:
            # Before the frame is taken: what is taken is applied, whatever happens.
            raise RemoteProtocolError(
                ErrorCode.SLOW,
                CloseCode.SLOW,
                f"{len(self._replies)} answers wait for acknowledgements, limit {_REPLIES_MAX}",
            )
        if self._is_heard:
            return self._receive(data, now)
        before = self.delivery.counters.received
        repeated = self._receive(data, now)
        if repeated is None and self.delivery.counters.received > before:
            self._is_heard = self._is_confirmed = True
            self._is_restored = False
        return repeated

    def _receive(self, data: bytes, now: float) -> Hello | None:
        repeated: Hello | None = None
        for sequence, item, in_order in self.delivery.receive(data, now):
            if isinstance(item, Event):
                self._apply_event(sequence, item, in_order=in_order)
            elif isinstance(item, Hello):
                repeated = item
            else:
                self._apply(sequence, item, in_order=in_order)
        return repeated

    def handle_timeout(self, now: float) -> None:
        """Do what is due, giving up gaps for good included (NAK-4); then `take_journal` and `flush`.

        Raises:
            RemoteProtocolError: The connection must end.
        """
        delivery = self.delivery
        delivery.handle_timeout(now)
        self._give_up(delivery.expired(now))

    def journal_done(self) -> None:
        """The oldest batch that `take_journal` returned is safe."""
        self._journal_pending.popleft()
        if self._journal_pending:
            self.delivery.hold_durable(self._journal_pending[0].first)
        else:
            self.delivery.hold_durable(self._journal[0][0] if self._journal else None)

    def take_journal(self) -> JournalBatch | None:
        """What was applied since the last call and is to be made safe; `None` if there is nothing.

        Supersedable events are not journalled, but a batch says when `window_events_max` numbers of them have
        passed: what a restored session does not know of, its client has to skip, within bounds (SKP-3).
        """
        if not self._journals:
            return None
        stop = self.delivery.expected
        if not self._journal:
            if stop - self._journalled_stop < self.limits.window_events_max:
                return None
            if not self._journal_pending:
                # What comes behind it is not durable before it is.
                self.delivery.hold_durable(stop)
        entries, self._journal = tuple(self._journal), []
        batch = JournalBatch(first=entries[0][0] if entries else stop, stop=stop, entries=entries)
        self._journal_pending.append(batch)
        self._journalled_stop = stop
        return batch

    def take_purge(self) -> bool:
        """Whether the next state to be stored is to be all that is kept; `purge_failed` asks for it again."""
        is_due, self._context.has_excluded_past = self._context.has_excluded_past, False
        return is_due

    def purge_failed(self) -> None:
        """The older states could not be deleted."""
        self._context.has_excluded_past = True

    def stored_state(self) -> SessionState:
        """The state after the last batch that `take_journal` returned; call it directly after that."""
        return self._context.state(stop=self._journalled_stop, lost=self.delivery.given_up_ranges)

    def _give_up(self, lost: Sequence[tuple[int, int]]) -> None:
        """Go on without numbers that will not come; each gap spoils what was applied before it."""
        for index, gap in enumerate(lost):
            # Texts are asked for once, with the last gap: whatever was opened before it is known then.
            self._spoil(None, (gap,), ask=index == len(lost) - 1)
            self._apply_all(self.delivery.lose((gap,)))

    def _spoil(
        self, documents: tuple[int, ...] | None, lost: tuple[tuple[int, int], ...], *, ask: bool
    ) -> None:
        """Let documents, `None` for all, be stale because of numbers that are given up."""
        self._replies.extend(self._context.lose(documents, ask=ask))
        # What comes before the lost numbers may be missing still, and is to be durable for itself.
        self._keep(min(lost[0][0], self.delivery.expected), Spoilt(documents, lost))

    def _apply_all(self, delivered: Sequence[Delivered]) -> None:
        for sequence, item, in_order in delivered:
            self._apply(sequence, item, in_order=in_order)

    def _apply(self, sequence: int, item: Item, *, in_order: bool) -> None:
        if isinstance(item, Event):
            self._apply_event(sequence, item, in_order=in_order)
        elif isinstance(item, Subscribe):
            self._subscribe(sequence, item)
        elif isinstance(item, Unsubscribe):
            self._unsubscribe(item.subscription)
        elif isinstance(item, Malformed):
            self._refuse(ErrorCode.MALFORMED, item.message, sequence)
        elif isinstance(item, UnknownType):
            self._refuse(ErrorCode.UNSUPPORTED, f"the type {item.type!r} is not known", sequence)
        elif isinstance(item, TooLarge):
            limit = self.limits.frame_bytes_max
            message = f"a frame of {item.size_bytes} bytes, limit {limit}"
            self._refuse(ErrorCode.TOO_LARGE, message, sequence, expected=limit)
        elif isinstance(item, Skip):
            documents = item.documents or None
            self._replies.extend(self._context.lose(documents, ask=documents is None))
            # It applies at once, though what goes before its numbers may be missing still.
            self._keep(min(item.ranges[0][0], self.delivery.expected), Spoilt(documents))
            return
        elif isinstance(item, ErrorMessage):
            self.client_errors += 1
        if sequence:
            self._keep(sequence, None)

    def _apply_event(self, sequence: int, event: Event, *, in_order: bool) -> None:
        if self.role == "observe":
            self._refuse(ErrorCode.FORBIDDEN, "an observer sends no events", sequence)
            return
        if not self._journals or type(event) not in _DURABLE:
            self._replies.extend(self._context.apply(sequence, event, in_order=in_order))
            return
        alias: int = event.document  # type: ignore[attr-defined]
        was_refused = self._context.is_refused(alias)
        self._replies.extend(self._context.apply(sequence, event, in_order=in_order))
        self._keep(sequence, self._kept_of(alias, event, was_refused=was_refused))

    def _kept_of(self, alias: int, event: Event, *, was_refused: bool) -> JournalItem:
        """What is journalled of a durable event: nothing of a refused document, which is not stored (SEC-3).

        Nor of a document that is not known: its `open`, which is lost, might have been refused.
        """
        context = self._context
        if context.is_refused(alias):
            is_news = not was_refused or isinstance(event, Open | DesignOpen)
            return Refused(alias, context.refusals[alias]) if is_news else None
        is_known = alias in context.documents or alias in context.designs
        return event if is_known or isinstance(event, Close | DesignClose) else None

    def _keep(self, sequence: int, item: JournalItem) -> None:
        """Let something be journalled, and hold `durable` back until it is."""
        if not self._journals:
            return
        journal = self._journal
        if not journal:
            if not self._journal_pending:
                self.delivery.hold_durable(sequence)
        elif item is None and journal[-1][1] is None:
            return  # The batch says how far the numbers were used.
        journal.append((sequence, item))

    def _refuse(self, code: ErrorCode, message: str, sequence: int, *, expected: int | None = None) -> None:
        self._replies.append(
            ErrorMessage(code=code, message=message[:500], reference=sequence or None, expected=expected)
        )

    # Subscriptions.

    def _subscribe(self, sequence: int, subscribe: Subscribe) -> None:
        if self.role == "produce":
            self._refuse_subscription(
                ErrorCode.FORBIDDEN, "a producer does not subscribe", sequence, subscribe
            )
            return
        self._unsubscribe(subscribe.subscription)
        if len(self._subscriptions) >= self.limits.subscriptions_per_session_max:
            limit = self.limits.subscriptions_per_session_max
            self._refuse_subscription(
                ErrorCode.LIMIT, f"{limit} subscriptions, which is the limit", sequence, subscribe
            )
            return
        characters = sum(
            len(pattern)
            for each in (subscribe, *self._subscriptions.values())
            for pattern in each.documents or ()
        )
        if characters > _PATTERN_CHARACTERS_MAX:
            self._refuse_subscription(
                ErrorCode.LIMIT,
                f"patterns of {characters} characters, limit {_PATTERN_CHARACTERS_MAX}",
                sequence,
                subscribe,
            )
            return
        directory, session_id = self._directory, subscribe.session
        is_stored = False
        if session_id == EVERY_SESSION:
            sources = list(directory.visible(self))
        else:
            source = directory.find(self, session_id)
            is_stored = source is None and directory.is_stored(self, session_id)
            if source is None and not is_stored:
                self._refuse_subscription(ErrorCode.NOT_FOUND, _NO_SESSION, sequence, subscribe)
                return
            sources = [] if source is None else [source]
        self._subscriptions[subscribe.subscription] = subscribe
        shown = (session_id,) if is_stored else tuple(source.session_id for source in sources)
        self._replies.append(Subscribed(subscription=subscribe.subscription, sessions=shown))
        for source in sources:
            self._add_feed(subscribe, source)
        if is_stored:
            self._wanted.append(session_id)

    def take_wanted(self) -> Sequence[str]:
        """The stored sessions that subscriptions have asked for: recall them when all that came is applied.

        `source_appeared` or `source_missing` answers each.
        """
        wanted, self._wanted = self._wanted, []
        return wanted

    def _refuse_subscription(
        self, code: ErrorCode, message: str, sequence: int, subscribe: Subscribe
    ) -> None:
        self._replies.append(
            ErrorMessage(
                code=code,
                message=message,
                reference=sequence or None,
                subscription=subscribe.subscription,
                temporary=code in (ErrorCode.LIMIT, ErrorCode.UNAVAILABLE),
            )
        )

    def _add_feed(self, subscribe: Subscribe, source: ServerSession) -> None:
        self._feeds[subscribe.subscription, source.session_id] = Feed(
            source,
            subscription=subscribe.subscription,
            unit=self._capabilities.unit,
            encoding=self.encoding,
            filter_=FeedFilter(documents=subscribe.documents, presence=subscribe.presence),
            min_interval_s=subscribe.min_interval_ms / 1000,
            limits=self.limits,
        )
        source.observers[self] = source.observers.get(self, 0) + 1
        source.observers_changed()

    def _remove_feed(self, key: tuple[int, str]) -> None:
        feed = self._feeds.pop(key)
        feed.end()
        source = feed.source
        assert isinstance(source, ServerSession)
        source.observers[self] -= 1
        if not source.observers[self]:
            del source.observers[self]
        source.observers_changed()

    def _unsubscribe(self, subscription: int) -> None:
        if self._subscriptions.pop(subscription, None) is None:
            return
        for key in [key for key in self._feeds if key[0] == subscription]:
            self._remove_feed(key)

    def observers_changed(self) -> None:
        """Take over whether anything is to be kept for observers, and in which other units."""
        units = {observer.source_unit for observer in self.observers} - {self.source_unit}
        self.log.units = tuple(sorted(units))
        self.log.set_observed(bool(self.observers))

    def source_appeared(self, source: ServerSession) -> bool:
        """A session has come, or come back; whether any subscription, to it or to every session, shows it."""
        shown_by = (EVERY_SESSION, source.session_id)
        found = [each for each in self._subscriptions.values() if each.session in shown_by]
        for subscribe in found:
            self._add_feed(subscribe, source)
        return bool(found)

    def source_missing(self, session_id: str, *, is_temporary: bool) -> None:
        """A stored session cannot be recalled: the subscriptions to it end."""
        for subscribe in list(self._subscriptions.values()):
            if subscribe.session == session_id:
                self._unsubscribe(subscribe.subscription)
                code = ErrorCode.UNAVAILABLE if is_temporary else ErrorCode.NOT_FOUND
                self._refuse_subscription(code, _NO_SESSION, 0, subscribe)

    def source_ended(self, source: ServerSession, reason: Literal["closed", "expired"]) -> None:
        """A session that is observed has ended."""
        for key in [key for key in self._feeds if key[1] == source.session_id]:
            has_begun = self._feeds[key].has_begun
            self._remove_feed(key)
            if has_begun:  # Of a session that was never shown there is no end to tell.
                self._replies.append(Addressed(key[0], Ended(session=source.session_id, reason=reason)))

    # What goes out.

    def flush(self, now: float, *, is_writable: bool) -> list[bytes]:
        """All frames to be sent now.

        Args:
            is_writable: Whether the socket takes more; otherwise only what repairs itself goes out.
        """
        if is_writable and (self._replies or self._feeds):
            self._pump(now)
        return self.delivery.flush(now)

    def _pump(self, now: float) -> None:
        delivery = self.delivery
        room = self.limits.frame_bytes_max
        replies = self._replies
        while replies and delivery.can_send(room):
            message = replies.popleft()
            if isinstance(message, Addressed):
                delivery.send(message.message, now, stream=message.stream)
            else:
                delivery.send(message, now)
        if replies:
            return
        for feed in list(self._feeds.values()):
            while feed.has_more and delivery.can_send(room):
                body = feed.next_body(now)
                if body is None:
                    break
                delivery.send_body(body, now, stream=feed.subscription)

    def next_timeout(self, *, is_writable: bool) -> float:
        """When `handle_timeout` is due."""
        due = self.delivery.next_timeout()
        if not is_writable:
            return due
        for feed in self._feeds.values():
            if feed.has_more and feed.due_at < due and self.delivery.can_send(self.limits.frame_bytes_max):
                due = feed.due_at
        return due

    def drain(self, retry_ms: int) -> None:
        """Say GOAWAY."""
        self.delivery.send_unnumbered(GoAway(reason=ErrorCode.DRAINING, retry_ms=retry_ms))
