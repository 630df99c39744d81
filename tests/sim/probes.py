"""Where the product tells the watch what it does: calls put around a few of its methods, once per process.

They are put around whatever stands there, so a mutant (`tests.sim.mutants`) is installed first.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any

from streamctx.core.delivery.receive_window import ReceiveWindow
from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.delivery import Delivery
from streamctx.core.session.server_session import ServerSession
from streamctx.hub.connection import Connection
from streamctx.hub.hub import Hub
from tests.sim.ledger import Violation
from tests.sim.watch import Watch

__all__ = ["install", "is_installed", "observe"]

_active: Watch | None = None
_is_installed = False


def observe(watch: Watch | None) -> None:
    """Let a watch hear of everything from now on."""
    global _active
    _active = watch


def is_installed() -> bool:
    """Whether `install` has been called in this process."""
    return _is_installed


def install() -> None:
    """Put the probes in place, once."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    _wrap(ServerSession, "_apply_event", _apply)
    _wrap(ServerSession, "_apply", _apply_other)
    _wrap(ServerSession, "_replay", _replay)
    _wrap(ReceiveWindow, "skip", functools.partial(_fill, is_loss=False))
    _wrap(ReceiveWindow, "lose", functools.partial(_fill, is_loss=True))
    _wrap(Delivery, "_take_skip", _take_skip)
    _wrap(Delivery, "_take_ack", _take_ack)
    _wrap(Delivery, "resume_sending", _resume_sending)
    _wrap(Delivery, "restart_sending", _restart_sending)
    _wrap(Delivery, "_watermarks", _watermarks)
    _wrap(Delivery, "evict", _evict)
    _wrap(Delivery, "_evict_given_up", _evict_given_up)
    _wrap(Delivery, "_send_nack", _send_nack)
    _wrap(Delivery, "attach", _attach)
    _wrap(Hub, "greet", _greet)
    _wrap(Connection, "establish", _establish)
    _wrap(Connection, "_fail_internally", _fail_internally)
    _wrap(ClientSession, "_welcome", _welcome)
    _wrap(ClientSession, "_take", _take)
    _wrap(ClientSession, "_take_feed", _take_feed)
    _wrap(ClientSession, "_ask_for", _ask_for)


def _wrap(owner: type, name: str, probe: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def probed(*arguments: Any, **named: Any) -> Any:
        if _active is None:
            return original(*arguments, **named)
        return probe(_active, original, *arguments, **named)

    setattr(owner, name, probed)


def _apply(watch: Watch, original: Any, session: Any, sequence: int, event: Any, *, in_order: bool) -> None:
    before = watch.effects.before(session, event)
    original(session, sequence, event, in_order=in_order)
    watch.applied(session, sequence, event, in_order=in_order)
    if sequence:
        watch.effects.after(watch.epochs[session.epoch], session, sequence, event, before)


def _apply_other(
    watch: Watch, original: Any, session: Any, sequence: int, item: Any, *, in_order: bool
) -> None:
    from streamctx.wire.messages import Event

    original(session, sequence, item, in_order=in_order)
    if not isinstance(item, Event):
        watch.applied(session, sequence, item, in_order=in_order)


def _replay(watch: Watch, original: Any, session: Any, stored: Any) -> None:
    original(session, stored)
    watch.restarts.restored(session, stored)


def _fill(watch: Watch, original: Any, window: Any, start: int, stop: int, *, is_loss: bool) -> Any:
    filled = original(window, start, stop)
    if filled:
        watch.filled(window, filled, is_loss=is_loss)
    return filled


def _take_skip(watch: Watch, original: Any, delivery: Any, skip: Any) -> Any:
    watch.skipping(skip)
    delivered = original(delivery, skip)
    watch.skipping(None)
    return delivered


def _take_ack(watch: Watch, original: Any, delivery: Any, ack: Any, now: float) -> None:
    watch.acknowledged(delivery, ack)
    original(delivery, ack, now)
    watch.released(delivery, ack)


def _resume_sending(
    watch: Watch, original: Any, delivery: Any, received: int, ranges: Any, now: float
) -> None:
    watch.resuming(delivery, received, ranges)
    original(delivery, received, ranges, now)


def _restart_sending(watch: Watch, original: Any, delivery: Any, next_sequence: int) -> None:
    watch.restarting(delivery, next_sequence)
    original(delivery, next_sequence)


def _watermarks(watch: Watch, original: Any, delivery: Any) -> Any:
    result = original(delivery)
    watch.marked(delivery, result[0], result[1], delivery._limit)
    return result


def _evict(watch: Watch, original: Any, delivery: Any, document_of: Any) -> Any:
    entries = delivery._ring._entries
    held = {sequence for sequence, entry in entries.items() if entry[0] is not None}
    gone = original(delivery, document_of)
    held.difference_update(sequence for sequence, entry in entries.items() if entry[0] is not None)
    watch.evicted(delivery, gone, held)
    return gone


def _evict_given_up(watch: Watch, original: Any, delivery: Any, numbers: Any) -> None:
    entries = delivery._ring._entries
    held = {sequence for sequence, entry in entries.items() if entry[0] is not None}
    original(delivery, numbers)
    held.difference_update(sequence for sequence, entry in entries.items() if entry[0] is not None)
    watch.evicted_as_told(delivery, held)


def _greet(watch: Watch, original: Any, hub: Any, connection: Any, hello: Any, now: float) -> None:
    watch.greeting(connection, hello)
    original(hub, connection, hello, now)


def _send_nack(watch: Watch, original: Any, delivery: Any, ranges: Any, reason: str) -> None:
    original(delivery, ranges, reason)
    watch.claims.asked(delivery, ranges, reason)


def _attach(watch: Watch, original: Any, delivery: Any, now: float) -> None:
    watch.claims.attached(delivery)
    original(delivery, now)


def _ask_for(watch: Watch, original: Any, session: Any, subscribe: Any, now: float) -> None:
    watch.claims.subscribing(session, subscribe)
    original(session, subscribe, now)


def _establish(watch: Watch, original: Any, connection: Any, held: Any, welcome: Any) -> None:
    watch.welcoming(connection, held.session, welcome)
    original(connection, held, welcome)


def _fail_internally(watch: Watch, _original: Any, _connection: Any, _now: float) -> None:
    error = sys.exc_info()[1]
    raise Violation("Quiet", "".join(traceback.format_exception(error))[-2000:])


def _welcome(watch: Watch, original: Any, session: Any, welcome: Any, now: float) -> None:
    original(session, welcome, now)
    watch.welcomed(session, welcome)


def _take(watch: Watch, original: Any, session: Any, sequence: int, item: Any, now: float) -> None:
    watch.taken(session, sequence)
    original(session, sequence, item, now)


def _take_feed(
    watch: Watch, original: Any, session: Any, subscription: int, message: Any, now: float
) -> None:
    resubscribed = session.resubscribed
    original(session, subscription, message, now)
    if session.resubscribed > resubscribed:
        watch.views.did_not_fit(session, message)
    if subscription in session.subscriptions:
        watch.views.fed(session, subscription, message)
