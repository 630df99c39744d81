"""`TextBuffer` in all units beside one list of UTF-16 units, through a session of edits and refusals."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamctx.core.documents.blocks import Layout
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.text_digest import text_hash
from streamctx.errors import ErrorCode, EventRefused
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from tests.core.documents.edit_plans import BATCHES, PLANS, TEXTS, Plan, change_of, plan_batch, span_of
from tests.core.documents.text_model import LAYOUTS
from tests.core.documents.utf_16_model import UnitText, overlap, units_of
from tests.core.machines import machine_settings

__all__: list[str] = []

UNITS = st.sampled_from(list(Unit))
FAULTS = st.sampled_from(["line", "character", "within", "reversed", "longer", "shorter", "surrogate"])


def spoil(fault: str, plan: Plan, model: UnitText, unit: Unit) -> tuple[Change, ErrorCode]:
    """A change with one thing wrong, and what it is refused for."""
    boundaries = model.boundaries()
    low, high = span_of(plan, model)
    start, end, text = low.position(unit), high.position(unit), plan.text
    old_length = model.length(unit, low.at, high.at)
    if fault == "surrogate":
        return Change(*start, *end, text + "\udc00"), ErrorCode.BAD_TEXT
    if fault == "longer" or (fault == "shorter" and old_length):
        stated = old_length + (1 if fault == "longer" else -1)
        return Change(*start, *end, text, stated), ErrorCode.OLD_LENGTH_MISMATCH
    if fault == "reversed" and start != end:
        return Change(*end, *start, text, old_length), ErrorCode.BAD_CHANGE
    if fault == "within":
        places = itertools.pairwise(boundaries)
        within = [
            Change(*place.position(unit), place.line, place.columns[unit] + 1, text)
            for place, following in places
            if place.line == following.line and following.columns[unit] > place.columns[unit] + 1
        ]
        if within:
            return within[plan.start % len(within)], ErrorCode.BAD_POSITION
    if fault != "line":
        # Where the line has an end of two characters, this is between them.
        last = max(boundary.columns[unit] for boundary in boundaries if boundary.line == high.line)
        at = (high.line, last + 1)
        return Change(*(start if plan.states_length else at), *at, text), ErrorCode.BAD_POSITION
    return Change(*start, boundaries[-1].line + 1, 0, text), ErrorCode.BAD_POSITION


class TextBufferMachine(RuleBasedStateMachine):
    """Any of three buffers is edited, and the two in other units follow by what it says of its changes."""

    @initialize(text=TEXTS, layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * len(Unit)))
    def start(self, text: str, layouts: tuple[Layout, ...]) -> None:
        self.model = UnitText(units_of(text))
        self.buffers = {
            unit: TextBuffer(text, unit=unit, layout=layout)
            for unit, layout in zip(Unit, layouts, strict=True)
        }

    @rule(batches=st.lists(st.tuples(UNITS, BATCHES, st.booleans(), st.booleans()), min_size=1, max_size=4))
    def edit(self, batches: list[tuple[Unit, list[Plan], bool, bool]]) -> None:
        for unit, plans, simultaneous, asks_before in batches:
            changes, after = plan_batch(plans, self.model, unit, simultaneous=simultaneous)
            buffer = self.buffers[unit]
            others = [other for other in Unit if other is not unit]
            if asks_before:
                converted = {
                    other: buffer.convert_changes(changes, other, simultaneous=simultaneous)
                    for other in others
                }
                buffer.apply(changes, simultaneous=simultaneous)
            else:
                converted = buffer.apply_and_convert(changes, others, simultaneous=simultaneous)
            for other in others:
                # It states the lengths of what it replaces, so that one counted wrongly is refused.
                stated = [change.old_length is not None for change in converted[other]]
                assert stated == [change.old_length is not None for change in changes]
                self.buffers[other].apply(converted[other], simultaneous=simultaneous)
            self.model = after
            assert [each.text() for each in self.buffers.values()] == [after.text()] * len(Unit)

    @rule(
        unit=UNITS,
        before=st.lists(PLANS, max_size=3),
        simultaneous=st.booleans(),
        spoilt=st.lists(st.tuples(PLANS, FAULTS, st.booleans()), min_size=1, max_size=4),
    )
    def refuse(
        self, unit: Unit, before: list[Plan], simultaneous: bool, spoilt: list[tuple[Plan, str, bool]]
    ) -> None:
        """A batch of which one change is wrong, and those before it are made in vain."""
        changes, after = plan_batch(before, self.model, unit, simultaneous=simultaneous)
        buffer = self.buffers[unit]
        for plan, fault, converts in spoilt:
            wrong, code = spoil(fault, plan, self.model if simultaneous else after, unit)
            with pytest.raises(EventRefused) as refused:
                if converts:
                    buffer.apply_and_convert([*changes, wrong], list(Unit), simultaneous=simultaneous)
                else:
                    buffer.apply([*changes, wrong], simultaneous=simultaneous)
            assert (refused.value.code, refused.value.change_index) == (code, len(changes))

    @rule(unit=UNITS, plans=st.lists(PLANS, min_size=2, max_size=4))
    def refuse_what_overlaps(self, unit: Unit, plans: list[Plan]) -> None:
        made = [change_of(plan, self.model, unit) for plan in plans]
        spans = [span for _, span in made]
        if not any(overlap(one, other) for n, one in enumerate(spans) for other in spans[:n]):
            return
        with pytest.raises(EventRefused) as refused:
            self.buffers[unit].apply([change for change, _ in made], simultaneous=True)
        assert refused.value.code is ErrorCode.BAD_CHANGE
        index = refused.value.change_index
        assert index is not None
        assert any(overlap(spans[index], other) for n, other in enumerate(spans) if n != index)

    @rule(unit=UNITS, line=st.integers(0, 20), character=st.integers(0, 40))
    def ask_for_a_position(self, unit: Unit, line: int, character: int) -> None:
        buffer = self.buffers[unit]
        line %= buffer.line_count + 1
        named = [place for place in self.model.boundaries() if place.position(unit) == (line, character)]
        if named:
            buffer.check_position(line, character)
            for other in Unit:
                assert buffer.convert_character(line, character, other) == named[0].columns[other]
            return
        with pytest.raises(EventRefused) as refused:
            buffer.check_position(line, character)
        assert refused.value.code is ErrorCode.BAD_POSITION
        with pytest.raises(EventRefused):
            buffer.convert_character(line, character, unit)

    @invariant()
    def all_buffers_are_the_text_of_the_model(self) -> None:
        text, lines = self.model.text(), self.model.lines()
        for unit, buffer in self.buffers.items():
            assert buffer.text() == text
            assert buffer.line_count == len(lines)
            assert [buffer.line(index) for index in range(len(lines))] == lines
            assert buffer.length == self.model.length(unit)
            assert buffer.byte_length == self.model.length(Unit.UTF_8)
            assert buffer.hash(HashAlgorithm.XXH3_64) == text_hash(text, HashAlgorithm.XXH3_64)


TestTextBuffer = TextBufferMachine.TestCase
TestTextBuffer.settings = machine_settings(examples=70, steps=30)
