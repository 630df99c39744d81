"""What tests of files beneath directories share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamctx.resources.beneath import Way
from tests.resources.ways import WAYS, descriptor_count

__all__: list[str] = []


@pytest.fixture
def no_descriptor_is_left() -> Iterator[None]:
    before = descriptor_count()
    yield
    assert descriptor_count() <= before


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen
