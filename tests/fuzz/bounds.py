"""What holds of every session at every moment: bounds, and books that agree.

These are the only tests that look into private fields: a bound that only shows when it is broken by megabytes
would cost a fuzzer too many bytes to reach.
"""

from __future__ import annotations

from streamctx.core.session.delivery import Delivery
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.state import ServerState
from streamctx.hub.hub import Hub
from streamctx.limits import Limits
from tests.fuzz.program import Violation

__all__ = ["check_delivery", "check_hub"]

_REPLIES_MAX = 1024


def check_hub(hub: Hub) -> None:
    """Check all sessions of a hub, and that it holds no others."""
    limits = hub.limits
    held = list(hub.registry)
    _at_most(len(held), limits.sessions_max, "sessions")
    sessions = [each.session for each in held]
    for each in held:
        session = each.session
        if (each.owner is not None) is not (session.state is ServerState.ATTACHED):
            raise Violation(f"a session with the owner {each.owner} is {session.state}")
        _check_session(session, sessions, limits)
    used = hub.budget.used_bytes
    _at_most(used, limits.documents_bytes_max, "bytes of all documents")
    texts = sum(document.byte_length for each in sessions for document in each.context.documents.values())
    if used != texts:
        raise Violation(f"the budget counts {used} bytes of text, the documents hold {texts}")


def check_delivery(delivery: Delivery, limits: Limits, *, ring_events_max: int, ring_bytes_max: int) -> None:
    """Check the bounds of one end of a session."""
    window, gaps, ring = delivery._window, delivery._gaps, delivery._ring
    _at_most(window.held_count, limits.reorder_events_max, "events held behind a gap")
    _at_most(window.held_bytes, limits.reorder_bytes_max, "bytes held behind a gap")
    _at_most(len(window._present), limits.reorder_span_max, "ranges present above the first gap")
    _at_most(len(window._number_of_slot), limits.digest_history, "digests kept")
    _at_most(len(gaps._gaps), limits.reorder_span_max + 1, "gaps")
    _at_most(len(ring._entries), ring_events_max, "numbers kept")
    _at_most(delivery.kept_events, ring_events_max, "frames kept")
    _at_most(delivery.kept_bytes, ring_bytes_max, "bytes kept")
    _at_most(len(ring._received_above), ring_events_max, "ranges acknowledged above the first gap")
    _at_most(len(ring._answered_at), ring_events_max, "times of answers")
    # A server that was restored need not know of supersedable numbers that were released (RSM-11).
    if not 1 <= ring.safe_stop <= ring.received <= ring.next_sequence:
        raise Violation(f"released {ring.released}, received {ring.received}, next {ring.next_sequence}")


def _check_session(session: ServerSession, sessions: list[ServerSession], limits: Limits) -> None:
    context = session.context
    check_delivery(
        session.delivery,
        limits,
        ring_events_max=2 * limits.window_events_max,
        ring_bytes_max=limits.server_ring_bytes_max,
    )
    # A frame is refused at the limit; the last one before it may let through all that waited for it.
    answers = 2 * (1 + limits.reorder_events_max) + 2 * limits.documents_per_session_max
    _at_most(len(session._replies), _REPLIES_MAX + answers, "answers that wait")
    documents = len(context.documents) + len(context.designs)
    _at_most(documents, limits.documents_per_session_max, "documents")
    for document in context.documents.values():
        _at_most(document.byte_length, 2 * limits.document_bytes_max, "bytes of a document and its next text")
    _at_most(len(context._refused), limits.supersedable_keys_max, "refused documents remembered")
    _at_most(len(context._presence), limits.supersedable_keys_max, "keys")
    if {*context.documents, *context.designs} & {*context._refused} or (
        context.documents.keys() & context.designs.keys()
    ):
        raise Violation("an alias is of two kinds at once")
    feed = context.feed
    _at_most(len(feed._entries), max(1, limits.feed_log_events_max), "events of the feed log")
    if len(feed._entries) > 1:
        _at_most(feed._bytes, limits.feed_log_bytes_max, "bytes of the feed log")
    _at_most(len(session._subscriptions), limits.subscriptions_per_session_max, "subscriptions")
    _check_feeds(session, sessions)


def _check_feeds(session: ServerSession, sessions: list[ServerSession]) -> None:
    counts: dict[ServerSession, int] = {}
    for (subscription, session_id), feed in session._feeds.items():
        source = feed.source
        if subscription not in session._subscriptions or source not in sessions:
            raise Violation(f"a feed of {session_id} without its subscription or session")
        assert isinstance(source, ServerSession)
        if source.principal != session.principal:
            raise Violation("one principal observes another")
        counts[source] = counts.get(source, 0) + 1
    for source in sessions:
        if source.observers.get(session, 0) != counts.get(source, 0):
            raise Violation("a session and its observer disagree on their feeds")
    if not session.observers.keys() <= set(sessions):
        raise Violation("a session that is gone observes")


def _at_most(found: int, limit: int, what: str) -> None:
    if found > limit:
        raise Violation(f"{found} {what}, limit {limit}")
