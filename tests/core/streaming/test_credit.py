from __future__ import annotations

from collections import deque

import pytest

from streamctx.core.streaming.credit import CreditExceeded, ReceiveCredit, SendCredit
from streamctx.errors import LocalProtocolError
from streamctx.limits import KIB, MIB

__all__: list[str] = []

RTT_S = 0.01


def receiver(initial: int = 256 * KIB) -> ReceiveCredit:
    return ReceiveCredit(initial_bytes=initial, min_bytes=64 * KIB, max_bytes=4 * MIB)


def test_no_more_is_sent_than_was_granted() -> None:
    credit = SendCredit(100)
    credit.spend(60)
    with pytest.raises(LocalProtocolError):
        credit.spend(41)
    credit.spend(40)
    assert credit.available_bytes == 0


def test_a_limit_that_comes_late_or_twice_changes_nothing() -> None:
    credit = SendCredit(100)
    assert credit.grant(150)
    assert not credit.grant(150)
    assert not credit.grant(120)
    assert credit.available_bytes == 150


def test_what_was_not_granted_is_refused_and_not_counted() -> None:
    credit = receiver(64 * KIB)
    credit.receive(64 * KIB)
    with pytest.raises(CreditExceeded):
        credit.receive(1)
    assert credit.buffered_bytes == 64 * KIB


def test_what_has_not_arrived_cannot_be_consumed() -> None:
    credit = receiver()
    credit.receive(10)
    with pytest.raises(LocalProtocolError):
        credit.consume(11, 0.0, RTT_S)
    assert credit.buffered_bytes == 10


def test_credit_is_granted_by_eighths_of_the_window() -> None:
    credit = receiver(64 * KIB)
    credit.receive(64 * KIB)
    assert credit.consume(8 * KIB - 1, 0.0, RTT_S) is None
    assert credit.consume(1, 0.0, RTT_S) == 72 * KIB
    assert credit.limit_bytes == 72 * KIB


def test_an_application_that_takes_nothing_is_sent_no_more_than_the_window() -> None:
    credit = receiver()
    credit.receive(256 * KIB)
    assert credit.consume(0, 60.0, RTT_S) is None
    assert credit.limit_bytes == 256 * KIB


@pytest.mark.parametrize(("initial", "least", "most"), [(63, 64, 128), (129, 64, 128), (64, 0, 128)])
def test_a_window_out_of_its_bounds_is_refused(initial: int, least: int, most: int) -> None:
    with pytest.raises(ValueError, match="window"):
        ReceiveCredit(initial_bytes=initial, min_bytes=least, max_bytes=most)


def stream(rate: float, rtt_s: float, *, seconds: float = 4.0) -> tuple[float, float, ReceiveCredit]:
    """Send chunks over a link of so many bytes a second.

    Returns:
        Of the second half: what share of the link was used, and how long a byte waited for it at most.
    """
    chunk = 16 * KIB
    receive = receiver()
    send = SendCredit(receive.limit_bytes)
    grants: deque[tuple[float, int]] = deque()
    now = link_free_at = worst_s = 0.0
    arrivals: deque[float] = deque()
    arrived = 0
    while now < seconds:
        while send.available_bytes >= chunk:
            send.spend(chunk)
            link_free_at = max(link_free_at, now) + chunk / rate
            arrivals.append(link_free_at + rtt_s / 2)
            if now > seconds / 2:
                worst_s = max(worst_s, link_free_at - now)
        events = [queue[0] for queue in (arrivals,) if queue] + [at for at, _ in list(grants)[:1]]
        now = min(events)
        if arrivals and arrivals[0] == now:
            arrivals.popleft()
            receive.receive(chunk)
            if now > seconds / 2:
                arrived += chunk
            limit = receive.consume(chunk, now, rtt_s)
            if limit is not None:
                grants.append((now + rtt_s / 2, limit))
        while grants and grants[0][0] <= now:
            send.grant(grants.popleft()[1])
    return arrived / (rate * seconds / 2), worst_s, receive


@pytest.mark.parametrize("rtt_s", [0.0005, 0.01, 0.08])
@pytest.mark.parametrize("megabits", [20, 100, 400])
def test_a_transfer_fills_the_link_and_lets_little_wait_before_it(megabits: int, rtt_s: float) -> None:
    used, worst_s, credit = stream(megabits * 125_000, rtt_s)
    assert used >= 0.9 or credit.window_bytes == 4 * MIB
    # At 20 Mbit/s the least window of all takes 26 ms.
    assert worst_s <= 0.035


def test_the_window_falls_to_the_rate_of_a_slow_application() -> None:
    credit = receiver()
    now, received = 0.0, 0
    for _ in range(400):
        credit.receive(credit.limit_bytes - received)
        received = credit.limit_bytes
        now += 0.01
        credit.consume(min(20 * KIB, credit.buffered_bytes), now, RTT_S)
    assert credit.window_bytes == 64 * KIB
