from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.client.faults import Direction, FaultKind, FaultRates, MessageFaults
from streamctx.errors import ConfigurationError

__all__: list[str] = []

MESSAGES = [b"message %d" % number for number in range(400)]
ALL = FaultRates.parse("drop=0.1,dup=0.1,reorder=0.1,corrupt=0.1,cut=0.05")


def sent(faults: MessageFaults, *, until: int = len(MESSAGES)) -> list[list[bytes]]:
    return [faults.outgoing(message, 0.0, is_text=False).messages for message in MESSAGES[:until]]


def test_rates_are_read_and_written() -> None:
    rates = FaultRates.parse(" drop=0.02, cut = 1 ,")
    assert rates.rates == {FaultKind.DROP: 0.02, FaultKind.CUT: 1.0}
    assert str(rates) == "drop=0.02,cut=1"
    assert FaultRates.parse(str(rates)) == rates
    assert FaultRates.parse("").rates == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lose=0.1", "'lose' is not one of drop, dup, reorder, corrupt, cut"),
        ("drop", "write drop=0.01"),
        ("drop=", "drop= is not a number from 0 to 1"),
        ("drop=x", "drop=x is not"),
        ("drop=-0.1", "drop=-0.1 is not"),
        ("drop=1.01", "drop=1.01 is not"),
        ("drop=nan", "drop=nan is not"),
        ("drop=0.1,drop=0.1", "drop is given twice"),
    ],
)
def test_wrong_rates_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FaultRates.parse(text)


def test_no_rates_change_nothing() -> None:
    assert sent(MessageFaults(FaultRates(), seed=1)) == [[message] for message in MESSAGES]


def test_seed_direction_and_count_decide() -> None:
    first, second = MessageFaults(ALL, seed=1), MessageFaults(ALL, seed=1)
    for message in MESSAGES:
        # The other direction does not disturb the first.
        second.incoming(message, 0.0, is_text=False)
        assert first.outgoing(message, 0.0, is_text=False) == second.outgoing(message, 0.0, is_text=False)
    assert sent(MessageFaults(ALL, seed=1)) != sent(MessageFaults(ALL, seed=2))


def test_every_fault_is_made_and_counted_by_direction() -> None:
    faults = MessageFaults(ALL, seed=1)
    sent(faults)
    assert all(count > 0 for count in faults.counts[Direction.OUTGOING].values())
    assert set(faults.counts[Direction.INCOMING].values()) == {0}
    assert faults.total == sum(faults.counts[Direction.OUTGOING].values())


def test_drop_and_dup() -> None:
    assert sent(MessageFaults(FaultRates.parse("drop=1"), seed=1)) == [[]] * len(MESSAGES)
    assert sent(MessageFaults(FaultRates.parse("dup=1"), seed=1)) == [[m, m] for m in MESSAGES]


def test_cut_loses_the_message() -> None:
    faulted = MessageFaults(FaultRates.parse("cut=1"), seed=1).incoming(b"x", 0.0, is_text=False)
    assert faulted == ([], True)


def test_corrupt_changes_one_bit() -> None:
    faults = MessageFaults(FaultRates.parse("corrupt=1"), seed=1)
    for message, (damaged,) in zip(MESSAGES, sent(faults), strict=True):
        difference = int.from_bytes(message, "big") ^ int.from_bytes(damaged, "big")
        assert difference.bit_count() == 1
        assert len(message) == len(damaged)


@given(st.text(min_size=1), st.integers())
def test_damaged_text_is_valid_and_different(text: str, seed: int) -> None:
    faults = MessageFaults(FaultRates.parse("corrupt=1"), seed=seed)
    (damaged,) = faults.outgoing(text.encode(), 0.0, is_text=True).messages
    assert damaged != text.encode()
    damaged.decode()


def test_reordered_message_arrives_behind_one_to_eight_others() -> None:
    rates = FaultRates.parse("reorder=0.05")
    faults = MessageFaults(rates, seed=3)
    arrived = [message for passed in sent(faults) for message in passed]
    arrived += faults.due_outgoing(10.0)
    assert sorted(arrived) == sorted(MESSAGES)
    # How many later messages went before each.
    overtaken = [
        sum(1 for other in arrived[: arrived.index(message)] if MESSAGES.index(other) > index)
        for index, message in enumerate(MESSAGES)
    ]
    assert max(overtaken) <= 8
    assert sum(1 for count in overtaken if count) == faults.counts[Direction.OUTGOING][FaultKind.REORDER] > 5


def test_held_message_is_due_between_50_and_200_ms() -> None:
    faults = MessageFaults(FaultRates.parse("reorder=1"), seed=1)
    assert faults.next_timeout() is None
    assert faults.outgoing(b"x", 5.0, is_text=False).messages == []
    assert faults.incoming(b"y", 6.0, is_text=False).messages == []
    due = faults.next_timeout()
    assert due is not None and 5.05 <= due <= 5.2
    assert faults.due_outgoing(due - 0.001) == []
    assert faults.due_outgoing(due) == [b"x"]
    assert faults.due_incoming(6.2) == [b"y"]


def test_connection_takes_with_it_what_is_held() -> None:
    faults = MessageFaults(FaultRates.parse("reorder=1"), seed=1)
    faults.outgoing(b"x", 0.0, is_text=False)
    faults.disconnected()
    assert faults.next_timeout() is None
    assert faults.due_outgoing(10.0) == []


def test_pause_lets_everything_through() -> None:
    faults = MessageFaults(FaultRates.parse("drop=1"), seed=1)
    faults.is_paused = True
    assert faults.outgoing(b"x", 0.0, is_text=False) == ([b"x"], False)
    assert faults.total == 0
