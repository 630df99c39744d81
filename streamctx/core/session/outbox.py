"""A client's events that have no number yet: order, coalescing, long texts, what gives way when it is full.

Durable events leave in the order in which they were made, except that a text in parts
holds back only the events of its own document (DOC-3). Of supersedable events the newest
value of each key waits. When the bound is reached, a document's waiting events
collapse into one snapshot: the editor's thread never blocks, and nothing is lost silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator
from dataclasses import dataclass
from itertools import chain

from streamctx.core.delivery.coalescer import Coalescer
from streamctx.core.documents.parts import PART_CHARACTERS, cut
from streamctx.core.documents.presence import Key
from streamctx.core.session.outbox_journal import OutboxJournal
from streamctx.wire.messages import (
    Close,
    DesignClose,
    DesignOpen,
    Mention,
    Message,
    Open,
    Part,
    Save,
    Snapshot,
    SupersedableEvent,
)

__all__ = ["Outbox", "Queued"]

_PART_EVERY = 16
"""So many queued events may go before one part must: a busy queue does not starve a long text."""


@dataclass(frozen=True, slots=True)
class Queued:
    """One durable event or request that waits.

    `alias` is its document's, 0 for requests. `text` follows the event in parts. `ticket`
    is what the journal knows it by, 0 if it does not.
    """

    message: Message
    alias: int
    made_at: float
    is_offline: bool
    weight: int
    text: str | None = None
    part_characters: int = PART_CHARACTERS
    ticket: int = 0


class _LongText:
    """A text that is going out in parts, and the events of its document that wait behind it."""

    __slots__ = ("held", "index", "message", "pieces")

    def __init__(self, message: Open | Snapshot, pieces: Iterator[str]) -> None:
        self.message = message
        self.pieces = pieces
        self.index = 0
        self.held: deque[Queued] = deque()


class Outbox:
    """What waits to be numbered.

    `snapshots_due` are the documents whose present text has to be sent, each with the events
    that follow its snapshot; the snapshot includes their edits. What leaves, and which texts are due, is
    noted in the journal; whoever lets something wait notes that.
    """

    __slots__ = (
        "_journal",
        "_long_texts",
        "_queue",
        "_since_part",
        "bytes",
        "events",
        "snapshots_due",
        "states",
    )

    def __init__(self, keys_max: int, journal: OutboxJournal | None = None) -> None:
        self._journal = OutboxJournal(is_kept=False) if journal is None else journal
        self._queue: deque[Queued] = deque()
        self._long_texts: dict[int, _LongText] = {}
        self._since_part = 0
        self.snapshots_due: dict[int, deque[Queued]] = {}
        self.states: Coalescer[Key, tuple[SupersedableEvent, float, bool]] = Coalescer(keys_max)
        self.events = 0
        """Durable events and requests that wait."""
        self.bytes = 0
        """What they weigh; a long text, of which a reference is held, is not counted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits at all."""
        return not (self._queue or self._long_texts or self.snapshots_due or self.states.has_dirty)

    @property
    def waiting(self) -> int:
        """How many things wait, for people."""
        return self.events + self.states.dirty_count + len(self.snapshots_due) + len(self._long_texts)

    def put(self, queued: Queued) -> None:
        """Let a durable event or a request wait."""
        self.events += 1
        self.bytes += queued.weight
        due = self.snapshots_due.get(queued.alias)
        long_text = self._long_texts.get(queued.alias)
        if due is not None:
            self._put_behind(due, queued)
        elif long_text is not None:
            long_text.held.append(queued)
        else:
            self._queue.append(queued)

    def next_queued(self) -> Queued | None:
        """Take the next event; `None` if none waits, or a part must go first.

        Where the event has a `text`, its parts begin with this.
        """
        if self._queue and (self._since_part < _PART_EVERY or not self._long_texts):
            queued = self._queue.popleft()
            self.events -= 1
            self.bytes -= queued.weight
            self._since_part += 1
            self._journal.gone((queued.ticket,))
            if queued.text is not None:
                self._begin_long_text(queued)
            return queued
        return None

    def next_part(self) -> Part | None:
        """Take the next part of some long text, each in turn; `None` if there is none."""
        self._since_part = 0
        if not self._long_texts:
            return None
        alias, long_text = next(iter(self._long_texts.items()))
        piece = next(long_text.pieces)
        message = long_text.message
        part = Part(document=alias, version=message.version, index=long_text.index, text=piece)
        long_text.index += 1
        del self._long_texts[alias]
        if long_text.index == message.parts:
            self._queue.extend(long_text.held)
            self._journal.done(alias)
        else:
            self._long_texts[alias] = long_text
        return part

    def _begin_long_text(self, queued: Queued) -> None:
        assert isinstance(queued.message, Open | Snapshot) and queued.text is not None
        long_text = self._long_texts[queued.alias] = _LongText(
            queued.message, cut(queued.text, queued.part_characters)
        )
        # Its edits may go on waiting, but another process could not go on with its parts.
        self._journal.due(queued.alias)
        behind = [other for other in self._queue if other.alias == queued.alias]
        if behind:
            self._queue = deque(other for other in self._queue if other.alias != queued.alias)
            long_text.held.extend(behind)

    def begin_snapshot(self, queued: Queued) -> None:
        """A snapshot that was due is being sent; what was to follow it is next, or follows its parts."""
        followers = self.snapshots_due.pop(queued.alias)
        if queued.text is not None:
            self._begin_long_text(queued)
            self._long_texts[queued.alias].held.extend(followers)
        else:
            self._queue.extendleft(reversed(followers))
            self._journal.done(queued.alias)

    def next_state(self) -> tuple[SupersedableEvent, float, bool] | None:
        """Take the next supersedable event whose document has nothing older waiting (COA-2)."""
        if self._queue or not self.states.has_dirty:
            return None
        for _ in range(self.states.dirty_count):
            popped = self.states.pop()
            assert popped is not None
            key, value = popped
            # Of the event, not of the key: a focus belongs to the session and names a document.
            alias = value[0].document
            if alias not in self._long_texts and alias not in self.snapshots_due:
                return value
            self.states.put(key, value)
        return None

    def collapse(self, alias: int, *, keep: Callable[[Message], bool]) -> int:
        """Drop a document's waiting events in favour of a snapshot, which is due from now on.

        Args:
            keep: Which of them a snapshot does not make superfluous, such as a mention; they follow it.

        Returns:
            How many were dropped.
        """
        long_text = self._long_texts.pop(alias, None)
        waiting = [other for other in self._queue if other.alias == alias]
        if waiting:
            self._queue = deque(other for other in self._queue if other.alias != alias)
        if long_text is not None:
            waiting += long_text.held
        dropped = [other for other in waiting if not keep(other.message)]
        self._journal.gone(other.ticket for other in dropped)
        self._journal.due(alias)
        due = self.snapshots_due.setdefault(alias, deque())
        for other in waiting:
            if keep(other.message):
                self._put_behind(due, other)
        self.events -= len(dropped)
        self.bytes -= sum(other.weight for other in dropped)
        return len(dropped)

    def abandon(self, alias: int) -> int:
        """Drop what waits of a document that was closed, but for the close of one that was announced.

        Returns:
            How many events were dropped.
        """
        long_text = self._long_texts.pop(alias, None)
        waiting = [other for other in self._queue if other.alias == alias]
        self._queue = deque(other for other in self._queue if other.alias != alias)
        if long_text is not None:
            waiting += long_text.held
        is_announced = not any(isinstance(other.message, Open | DesignOpen) for other in waiting)
        kept = [other for other in waiting if is_announced and isinstance(other.message, Close | DesignClose)]
        self._queue.extend(kept)
        tickets = {other.ticket for other in kept}
        self._journal.gone(other.ticket for other in waiting if other.ticket not in tickets)
        self._journal.done(alias)
        self.events -= len(waiting) - len(kept)
        self.bytes -= sum(other.weight for other in waiting) - sum(other.weight for other in kept)
        return len(waiting) - len(kept)

    def _put_behind(self, due: deque[Queued], queued: Queued) -> None:
        if isinstance(queued.message, Save):
            self._drop_from(due, Save)  # The last one says which version is on disk.
        due.append(queued)

    def _drop_from(self, waiting: deque[Queued], kind: type[Message]) -> None:
        found = [other for other in waiting if isinstance(other.message, kind)]
        self._journal.gone(other.ticket for other in found)
        for other in found:
            waiting.remove(other)
            self.events -= 1
            self.bytes -= other.weight

    def forget(self, alias: int) -> None:
        """Drop everything that waits of a document, its present values included."""
        self.collapse(alias, keep=lambda _message: False)
        followers = self.snapshots_due.pop(alias)
        self._journal.gone(other.ticket for other in followers)
        self._journal.done(alias)
        self.events -= len(followers)
        self.bytes -= sum(other.weight for other in followers)
        self.states.forget_where(lambda key: key[1] == alias)

    def heaviest(self, *, keep: Container[int] = ()) -> int:
        """The document that most waiting bytes belong to which can be given up; 0 if none does.

        Args:
            keep: Documents of which nothing is to be given up.
        """
        weights: dict[int, int] = {}
        for queued in chain(self._queue, *(long_text.held for long_text in self._long_texts.values())):
            if queued.alias in keep:
                continue
            if queued.alias and not isinstance(queued.message, Mention | Close | DesignClose):
                weights[queued.alias] = weights.get(queued.alias, 0) + queued.weight
        return max(weights, key=lambda alias: weights[alias], default=0)

    @property
    def long_texts(self) -> Collection[int]:
        """The documents whose texts are going out in parts."""
        return self._long_texts.keys()

    def every(self) -> Iterator[Queued]:
        """All that waits, each document's in order."""
        yield from self._queue
        for long_text in self._long_texts.values():
            yield from long_text.held
        for followers in self.snapshots_due.values():
            yield from followers

    def clear(self) -> list[Queued]:
        """Forget all durable events; return them in order. The present values of keys stay."""
        waiting = list(self.every())
        self._journal.gone(other.ticket for other in waiting)
        for alias in (*self._long_texts, *self.snapshots_due):
            self._journal.done(alias)
        self._queue.clear()
        self._long_texts.clear()
        self.snapshots_due.clear()
        self.events = self.bytes = 0
        return waiting

    def drop_saves(self, alias: int) -> None:
        """Drop the saves that follow a snapshot that is due."""
        self._drop_from(self.snapshots_due[alias], Save)
