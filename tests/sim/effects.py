"""What an event may do to a session: checked against what the session was before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from streamctx.core.session.server_session import ServerSession
from streamctx.wire.messages import Close, Edit, Event, Snapshot
from tests.sim.ledger import Epoch, Lineage

if TYPE_CHECKING:
    from tests.sim.watch import Watch

__all__ = ["Before", "Effects"]

Before: TypeAlias = tuple[int, int] | None
"""Of an edit's document: its version, and how many edits it has had."""


_ROOMY_EVENTS = 1000
"""No outbox of so many becomes full in a run, and has texts collapse that nobody has asked for."""


class Effects:
    """The checkers of effects. `before` is called, then the event applied, then `after` called."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def before(self, session: ServerSession, event: Event) -> Before:
        """What the event's document is now."""
        if not isinstance(event, Edit):
            return None
        document = session.context.documents.get(event.document)
        return None if document is None else (document.version, document.edit_count)

    def after(
        self, epoch: Epoch, session: ServerSession, sequence: int, event: Event, before: Before
    ) -> None:
        """What has become of it."""
        if before is not None and isinstance(event, Edit):
            self._check_base(session, event, before)
        refused = session.context.counters.refused
        if refused > epoch.refused:
            epoch.refused = refused
            alias = getattr(event, "document", None) or 0
            epoch.refused_at[alias] = sequence
            # A client closes also what it gave the open of up for, and what a restored session has open
            # and does not trust: that may have come before.
            has_given_up = any(lineage.evicted for lineage in epoch.lineages)
            is_to_be_sure = isinstance(event, Close) and (has_given_up or epoch.life > 0)
            is_told = session.context.is_refused(alias) or is_to_be_sure
            if epoch.is_undisturbed and not epoch.rotted and not is_told:
                self._watch.fail("Accepted", f"number {sequence} of an honest client is refused: {event!r}")

    def _check_base(self, session: ServerSession, event: Edit, before: tuple[int, int]) -> None:
        version, edit_count = before
        document = session.context.documents.get(event.document)
        if document is not None and document.edit_count > edit_count and event.base != version:
            self._watch.fail("EditBase", f"{event!r} is applied to version {version}")

    def sends(self, epoch: Epoch, lineage: Lineage, sequence: int, message: object) -> None:
        """A client numbers a message: one snapshot on its way is enough, while nothing is lost."""
        if not isinstance(message, Snapshot):
            return
        version, before = lineage.snapshots.get(message.document, (-1, 0))
        # What was refused after it asks for another one.
        is_seen = epoch.refused_at.get(message.document, 0) < before
        is_needless = version == message.version and is_seen and lineage.sender.is_under_way(before)
        has_room = self._watch.world.plan.limits.ring_events_max > _ROOMY_EVENTS
        if is_needless and has_room and epoch.is_undisturbed:
            self._watch.fail("HealedOnce", f"{message!r:.200}, and so was {before}")
        lineage.snapshots[message.document] = message.version, sequence
