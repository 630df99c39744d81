"""Batches of changes at random, planned before it is known which places there are in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from tests.core.documents.text_model import PIECES
from tests.core.documents.utf_16_model import Boundary, Span, UnitText, overlap

__all__ = ["BATCHES", "PLANS", "TEXTS", "Plan", "change_of", "plan_batch", "span_of"]

LINE_ENDS = st.sampled_from(["\n", "\r", "\r\n"])
PIECE = LINE_ENDS | st.sampled_from(["x", "😀", "é", "a long word"]) | st.sampled_from(PIECES)
TEXTS = st.just("") | st.lists(PIECE, min_size=6, max_size=15).map("".join)
SHORT_TEXTS = st.just("") | LINE_ENDS | st.lists(PIECE, min_size=1, max_size=4).map("".join)
LENGTHS = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 99])


class Plan(NamedTuple):
    """A change before it is known which places there are: any numbers will do."""

    is_at_line_end: bool
    start: int
    length: int
    text: str
    states_length: bool


PLANS = st.builds(
    Plan,
    is_at_line_end=st.booleans(),
    start=st.integers(0, 99),
    length=LENGTHS,
    text=SHORT_TEXTS,
    states_length=st.booleans(),
)
BATCHES = st.lists(PLANS, min_size=1, max_size=3)


def span_of(plan: Plan, model: UnitText) -> tuple[Boundary, Boundary]:
    """Two places in the text; beside a line end is where editors differ."""
    boundaries = model.boundaries()
    starts: Sequence[int] = range(len(boundaries))
    if plan.is_at_line_end:
        units = [0, *model.units, 0]
        beside = [n for n, place in enumerate(boundaries) if {10, 13} & {*units[place.at : place.at + 2]}]
        starts = beside or starts
    start = starts[plan.start % len(starts)]
    return boundaries[start], boundaries[min(start + plan.length, len(boundaries) - 1)]


def change_of(plan: Plan, model: UnitText, unit: Unit) -> tuple[Change, Span]:
    """The change in a unit, and what of the text it replaces."""
    start, end = span_of(plan, model)
    old_length = model.length(unit, start.at, end.at) if plan.states_length else None
    change = Change(*start.position(unit), *end.position(unit), plan.text, old_length)
    return change, (start.at, end.at)


def plan_batch(
    plans: Sequence[Plan], model: UnitText, unit: Unit, *, simultaneous: bool
) -> tuple[list[Change], UnitText]:
    """Changes that are all legal, and the text that they lead to; of simultaneous ones, none overlap."""
    changes: list[Change] = []
    if not simultaneous:
        for plan in plans:
            change, span = change_of(plan, model, unit)
            changes.append(change)
            model = model.replace([span], [plan.text])
        return changes, model
    spans: list[Span] = []
    for plan in plans:
        change, span = change_of(plan, model, unit)
        if not any(overlap(span, other) for other in spans):
            changes.append(change)
            spans.append(span)
    return changes, model.replace(spans, [change.text for change in changes])
