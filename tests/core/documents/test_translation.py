from __future__ import annotations

import pytest

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.documents.translation import translations
from streamctx.core.documents.units import length_in
from streamctx.vocabulary import Unit
from streamctx.wire.messages import Cursor, Diagnostic, Diagnostics, Mention, Selection

__all__: list[str] = []

BEFORE = "é😀"


@pytest.mark.parametrize("unit", Unit)
def test_positions_are_said_in_every_other_unit(unit: Unit) -> None:
    buffer = TextBuffer(f"{BEFORE}x", unit=unit)
    at = {each: length_in(BEFORE, each) for each in Unit}
    here = at[unit]
    events = (
        Cursor(document=1, version=1, position=(0, here)),
        Selection(document=1, version=1, ranges=((0, here, 0, 0),)),
        Mention(document=1, version=1, range=(0, 0, 0, here)),
        Diagnostics(
            document=1, version=1, items=(Diagnostic(range=(0, 0, 0, here), severity=1, message="m"),)
        ),
    )
    for event in events:
        found = translations(event, buffer, Unit)
        assert set(found) == set(Unit) - {unit}
        for other, translated in found.items():
            assert str(at[other]) in repr(translated)
            back = translations(translated, TextBuffer(f"{BEFORE}x", unit=other), [unit])
            assert back[unit] == event


def test_an_ascii_text_needs_no_translation() -> None:
    assert translations(Cursor(document=1, version=1, position=(0, 1)), TextBuffer("abc"), Unit) == {}
