"""What a text in the smallest of parts takes while it comes."""

from __future__ import annotations

import tracemalloc

import pytest

from streamctx.core.documents.document import Document
from streamctx.limits import DEFAULT_LIMITS
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.messages import Open, Part
from tests.hostile.raw import hash_of

__all__: list[str] = []

_COUNT = 50_000


@pytest.mark.parametrize("piece", ["", "ab", "é"])
def test_small_parts_take_little_more_than_their_text(piece: str) -> None:
    text = piece * _COUNT
    announced = Open(document=1, uri="/a", version=1, length=len(text), hash=hash_of(text), parts=_COUNT)
    document = Document(
        announced, unit=Unit.UTF_16, hash_algorithm=HashAlgorithm.XXH3_64, limits=DEFAULT_LIMITS
    )
    document.begin_text(announced)
    tracemalloc.start()
    for index in range(_COUNT - 1):
        # Each a string of its own, as a decoder makes it.
        assert not document.add_part(
            Part(document=1, version=1, index=index, text=str(piece.encode(), "utf-8"))
        )
    grown_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert grown_bytes < 3 * len(text.encode()) + 150_000
    assert document.add_part(Part(document=1, version=1, index=_COUNT - 1, text=piece))
    assert document.buffer is not None
    assert document.buffer.text() == text
