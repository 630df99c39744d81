"""`TextBuffer` against the model, with batches, faults and layouts at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamctx.core.documents.blocks import Layout
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from tests.core.documents.text_model import LAYOUTS, PIECES, Refused, apply_to_model, positions, size, state

__all__: list[str] = []


class Plan(NamedTuple):
    """A change before it is known which positions there are: any numbers will do."""

    start: int
    end: int
    text: str
    states_length: bool = False
    fault: str = ""


TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
SHORT_TEXTS = st.one_of(
    st.sampled_from(["", "", "\n", "\r", "x"]), st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
)
FAULTS = st.sampled_from([""] * 30 + ["line", "character", "within", "reversed", "length", "surrogate"])
PLANS = st.builds(
    lambda at, span, text, states_length, fault: Plan(at, at + span, text, states_length, fault),
    st.integers(0, 200),
    st.one_of(st.integers(0, 4), st.integers(0, 200)),
    SHORT_TEXTS,
    st.booleans(),
    FAULTS,
)
INSERTS = st.builds(lambda at, text: Plan(at, at, text), st.integers(0, 200), SHORT_TEXTS)
BATCHES = st.lists(
    st.tuples(st.booleans(), st.lists(st.one_of(PLANS, INSERTS), min_size=1, max_size=5)), max_size=8
)


def _change(plan: Plan, text: str, unit: Unit) -> Change:
    table = list(positions(text, unit).items())
    (start, start_index), (end, end_index) = sorted(
        (table[plan.start % len(table)], table[plan.end % len(table)])
    )
    inserted = plan.text
    old_length = size(text[start_index:end_index], unit) if plan.states_length else None
    if plan.fault == "line":
        end = (end[0] + len(table), 0)
    elif plan.fault == "character":
        end = (end[0], end[1] + 1)
    elif plan.fault == "within":
        start = (start[0], start[1] + 1)
    elif plan.fault == "reversed":
        start, end = end, start
    elif plan.fault == "length":
        old_length = size(text[start_index:end_index], unit) + 1
    elif plan.fault == "surrogate":
        inserted += "\ud83d"
    return Change(*start, *end, inserted, old_length)


def _changes(plans: Sequence[Plan], text: str, unit: Unit, *, simultaneous: bool) -> list[Change]:
    changes: list[Change] = []
    for plan in plans:
        change = _change(plan, text, unit)
        changes.append(change)
        if not simultaneous:
            try:
                text = apply_to_model(text, [change], unit, simultaneous=False)
            except Refused:
                break
    return changes


@settings(max_examples=400)
@given(TEXTS, st.sampled_from(Unit), st.sampled_from(LAYOUTS), BATCHES)
@example("a\rb\n", Unit.UTF_16, LAYOUTS[1], [(False, [Plan(2, 3, ""), Plan(0, 0, "x", False, "line")])])
@example("a\r", Unit.UTF_16, LAYOUTS[0], [(False, [Plan(2, 2, "\n\n"), Plan(0, 0, "", False, "line")])])
@example("a\r\nb", Unit.UTF_16, LAYOUTS[2], [(True, [Plan(2, 3, "\n"), Plan(1, 2, "\r")])])
def test_every_batch_gives_the_text_of_the_model_or_is_refused_and_changes_nothing(
    text: str, unit: Unit, layout: Layout, batches: list[tuple[bool, list[Plan]]]
) -> None:
    buffer = TextBuffer(text, unit=unit, layout=layout)
    for simultaneous, plans in batches:
        changes = _changes(plans, text, unit, simultaneous=simultaneous)
        try:
            text = apply_to_model(text, changes, unit, simultaneous=simultaneous)
        except Refused as refused:
            with pytest.raises(EventRefused) as caught:
                buffer.apply(changes, simultaneous=simultaneous)
            assert caught.value.code is refused.args[0]
            assert caught.value.change_index is not None
            assert caught.value.change_index in refused.args[1:] or simultaneous
        else:
            buffer.apply(changes, simultaneous=simultaneous)
        expected = TextBuffer(text, unit=unit)
        assert state(buffer) == state(expected)
        assert buffer.text() == text
        assert buffer.length == size(text, unit)
        assert buffer.byte_length == size(text, Unit.UTF_8)
        for algorithm in HashAlgorithm:
            assert buffer.hash(algorithm) == text_hash(text, algorithm)


@settings(max_examples=300)
@given(
    TEXTS,
    st.sampled_from(Unit),
    st.sampled_from(Unit),
    st.sampled_from(LAYOUTS),
    st.booleans(),
    st.lists(st.one_of(PLANS, INSERTS), min_size=1, max_size=5),
)
def test_a_converted_batch_does_the_same_in_the_other_unit(
    text: str, unit: Unit, other: Unit, layout: Layout, simultaneous: bool, plans: list[Plan]
) -> None:
    changes = _changes(plans, text, unit, simultaneous=simultaneous)
    buffer = TextBuffer(text, unit=unit, layout=layout)
    before = state(buffer)
    try:
        after = apply_to_model(text, changes, unit, simultaneous=simultaneous)
    except Refused:
        with pytest.raises(EventRefused):
            buffer.convert_changes(changes, other, simultaneous=simultaneous)
        assert state(buffer) == before
        return

    converted = buffer.convert_changes(changes, other, simultaneous=simultaneous)

    assert state(buffer) == before
    assert apply_to_model(text, converted, other, simultaneous=simultaneous) == after
    stated = [change.old_length is None for change in changes]
    assert [change.old_length is None for change in converted] == stated
    assert buffer.apply_and_convert(changes, [other, unit], simultaneous=simultaneous) == {
        other: converted,
        unit: tuple(changes),
    }
    assert buffer.text() == after


@given(TEXTS, st.sampled_from(Unit), st.sampled_from(Unit), st.sampled_from(LAYOUTS))
def test_exactly_the_positions_of_the_model_exist_and_convert_to_each_other(
    text: str, unit: Unit, other: Unit, layout: Layout
) -> None:
    buffer = TextBuffer(text, unit=unit, layout=layout)
    table = positions(text, unit)
    in_other = {index: position for position, index in positions(text, other).items()}
    for line in range(buffer.line_count + 1):
        for character in range(size(text, unit) + 2):
            if (line, character) in table:
                buffer.check_position(line, character)
                buffer.apply([Change(line, character, line, character, "", 0)])
                converted = buffer.convert_character(line, character, other)
                assert (line, converted) == in_other[table[line, character]]
            else:
                with pytest.raises(EventRefused) as caught:
                    buffer.check_position(line, character)
                assert caught.value.code is ErrorCode.BAD_POSITION
                with pytest.raises(EventRefused) as caught:
                    buffer.apply([Change(line, character, line, character, "x")])
                assert caught.value.code is ErrorCode.BAD_POSITION
