from __future__ import annotations

from streamctx.core.session.feed_log import FeedLog
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import Unit
from streamctx.wire.messages import Attachment, Save
from tests.core.session.feed_source import Source

__all__: list[str] = []


def shown(log: FeedLog, offset: int) -> list[object] | None:
    entries = log.since(offset)
    return None if entries is None else [entry.event for entry in entries]


def test_a_log_that_nobody_observes_counts_and_keeps_nothing() -> None:
    log = FeedLog(DEFAULT_LIMITS)
    log.append(Attachment(connected=True))
    log.bodies[0, 1, "key"] = b"encoded"
    assert shown(log, 0) == [Attachment(connected=True)]
    log.set_observed(False)
    assert not log.is_observed
    assert (log.first_offset, log.offset, log.bodies) == (1, 1, {})
    log.append(Save(document=1, version=1))
    assert (log.first_offset, log.offset) == (2, 2)
    assert shown(log, 1) is None
    assert shown(log, 2) == []


def test_a_log_keeps_events_from_when_it_is_observed_again() -> None:
    log = FeedLog(DEFAULT_LIMITS)
    log.set_observed(False)
    log.append(Attachment(connected=True))
    log.set_observed(True)
    assert log.is_observed
    log.append(Save(document=1, version=1))
    log.set_observed(True)
    log.append(Save(document=1, version=2))
    assert (log.first_offset, log.offset) == (1, 3)
    assert shown(log, 1) == [Save(document=1, version=1), Save(document=1, version=2)]


def test_what_was_let_go_of_weighs_nothing() -> None:
    source = Source(Unit.UTF_16, DEFAULT_LIMITS)
    source.open("x" * (DEFAULT_LIMITS.part_text_bytes_max - 1))
    for _ in range(DEFAULT_LIMITS.feed_log_bytes_max // 100):
        source.log.append(Attachment(connected=True))
        if source.log.first_offset:
            break
    source.log.set_observed(False)
    source.log.set_observed(True)
    before = source.log.offset
    for _ in range(100):
        source.log.append(Attachment(connected=True))
    assert source.log.first_offset == before
