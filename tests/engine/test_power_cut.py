from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.power_cut import run

__all__: list[str] = []


@pytest.mark.slow
def test_no_power_cut_loses_what_was_acknowledged() -> None:
    verdicts = [
        (cut.seed, cut.during, verdict) for cut, verdict in run(cut_count=500, durability="full", seed=1)
    ]
    assert len(verdicts) == 500
    assert [verdict for verdict in verdicts if verdict[2] != "kept"] == []


@pytest.mark.slow
def test_without_syncs_power_cuts_do_lose_so_that_this_test_can_see_loss() -> None:
    verdicts = Counter(verdict for _, verdict in run(cut_count=100, durability="relaxed", seed=1))
    assert verdicts.keys() == {"kept", "lost"}
    assert verdicts["lost"] > 10
