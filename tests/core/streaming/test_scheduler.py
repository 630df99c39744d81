from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.streaming.scheduler import ChunkScheduler, Lanes

__all__: list[str] = []

CHUNK = 128


def scheduler(*keys: str, urgency: int = 3, is_incremental: bool = True) -> ChunkScheduler[str]:
    made = ChunkScheduler[str](CHUNK)
    for key in keys:
        made.add(key, urgency=urgency, is_incremental=is_incremental)
        made.set_ready(key, True)
    return made


def take(made: ChunkScheduler[str], count: int) -> str:
    return "".join(made.next(lambda key: CHUNK) or "-" for _ in range(count))


def test_nothing_is_chosen_where_nothing_is_ready() -> None:
    made = scheduler("a")
    made.set_ready("a", False)
    assert take(made, 1) == "-"
    assert not made.has_ready


def test_incremental_transfers_take_turns() -> None:
    assert take(scheduler("a", "b", "c"), 9) == "abcabcabc"


def test_another_transfer_goes_to_its_end_before_the_next() -> None:
    made = scheduler("a", "b", is_incremental=False)
    assert take(made, 3) == "aaa"
    made.remove("a")
    assert take(made, 2) == "bb"


def test_an_urgent_transfer_goes_first() -> None:
    made = scheduler("a", "b")
    made.add("u", urgency=2)
    made.set_ready("u", True)
    assert take(made, 3) == "uuu"
    made.set_ready("u", False)
    assert set(take(made, 2)) == {"a", "b"}


def test_a_transfer_that_becomes_more_urgent_goes_first_from_then_on() -> None:
    made = scheduler("a", "b")
    made.add("b", urgency=0)
    assert take(made, 3) == "bbb"


def test_one_that_waits_for_its_source_loses_nothing_but_its_turn() -> None:
    made = scheduler("a", "b")
    made.set_ready("a", False)
    assert take(made, 2) == "bb"
    made.set_ready("a", True)
    made.set_ready("a", True)
    assert Counter(take(made, 10)) == {"a": 5, "b": 5}


@pytest.mark.parametrize("urgency", [-1, 8])
def test_an_urgency_that_there_is_not_is_refused(urgency: int) -> None:
    with pytest.raises(ValueError, match="urgency"):
        scheduler().add("a", urgency=urgency)


@given(sizes=st.lists(st.integers(min_value=1, max_value=CHUNK), min_size=2, max_size=64))
def test_equally_urgent_transfers_get_equally_many_bytes(sizes: list[int]) -> None:
    """Whatever their chunks are: none is more than a chunk and a quantum behind another."""
    made = scheduler(*(str(index) for index in range(len(sizes))))
    sent: Counter[str] = Counter()
    for _ in range(40 * len(sizes)):
        key = made.next(lambda key: sizes[int(key)])
        assert key is not None
        sent[key] += sizes[int(key)]
        if len(sent) == len(sizes):
            assert max(sent.values()) - min(sent.values()) <= 2 * CHUNK + max(sizes)


def test_a_chunk_waits_for_everything_else() -> None:
    lanes = Lanes()
    assert not lanes.is_turn_of_chunk(0.0, others_wait=True)
    assert lanes.is_turn_of_chunk(0.0, others_wait=False)


def test_a_chunk_goes_after_sixteen_other_frames() -> None:
    lanes = Lanes()
    for _ in range(16):
        assert not lanes.is_turn_of_chunk(0.0, others_wait=True)
        lanes.sent_other()
    assert lanes.is_turn_of_chunk(0.0, others_wait=True)
    lanes.sent_chunk()
    assert not lanes.is_turn_of_chunk(0.0, others_wait=True)


def test_a_chunk_goes_after_fifty_milliseconds() -> None:
    lanes = Lanes()
    assert not lanes.is_turn_of_chunk(1.0, others_wait=True)
    assert not lanes.is_turn_of_chunk(1.049, others_wait=True)
    assert lanes.is_turn_of_chunk(1.051, others_wait=True)


def test_frames_that_went_while_no_chunk_waited_do_not_count() -> None:
    lanes = Lanes()
    for _ in range(100):
        lanes.sent_other()
    assert not lanes.is_turn_of_chunk(0.0, others_wait=True)
