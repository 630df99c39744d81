"""A few seeds of the storm, which is longer and less often checked than what `python -m tests.sim` runs."""

from __future__ import annotations

import pytest

from tests.sim.storm import storm

__all__: list[str] = []


@pytest.mark.parametrize("seed", range(4))
def test_everything_at_once_converges(seed: int) -> None:
    storm(seed, steps=40)


def test_a_document_closed_while_the_outbox_is_full_stays_closed() -> None:
    storm(31005)


@pytest.mark.parametrize("seed", [35, 41])
def test_a_snapshot_in_place_of_an_unfinished_open_reaches_observers_as_open(seed: int) -> None:
    storm(seed, steps=120)
