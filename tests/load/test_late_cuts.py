from __future__ import annotations

import pytest

from streamctx.client.faults import FaultKind, FaultRates
from streamctx.load.late_cuts import LateCuts

__all__: list[str] = []


def _until_cut(faults: LateCuts) -> list[bytes]:
    passed: list[bytes] = []
    for number in range(1000):
        faulted = faults.outgoing(b"%d" % number, 0.0, is_text=False)
        assert not faulted.is_cut
        passed += faulted.messages
    return passed


def test_a_cut_spares_what_came_before_and_ends_the_connection_after() -> None:
    faults = LateCuts(FaultRates({FaultKind.CUT: 0.05}), seed=1)
    assert faults.next_timeout() is None
    passed = _until_cut(faults)
    assert 0 < len(passed) < 1000
    assert passed == [b"%d" % number for number in range(len(passed))]
    assert faults.next_timeout() == 0.0
    with pytest.raises(ConnectionResetError):
        faults.due_incoming(0.0)
    faults.disconnected()
    assert faults.next_timeout() is None
    assert faults.due_incoming(0.0) == []
    assert _until_cut(faults)


def test_other_faults_are_those_of_the_client() -> None:
    faults = LateCuts(FaultRates({FaultKind.DROP: 1.0}), seed=1)
    assert _until_cut(faults) == []
    assert faults.next_timeout() is None
