from __future__ import annotations

import pytest

from streamctx.client.reconnect import ReconnectPolicy
from streamctx.errors import CloseCode

__all__: list[str] = []


def policy(jitter: float = 0.999) -> ReconnectPolicy:
    return ReconnectPolicy(lambda: jitter)


def test_first_reconnect_is_immediate_and_the_next_ones_are_not() -> None:
    reconnect = policy(1.0)
    assert reconnect.lost(None, 0.0) == 0.0
    assert [reconnect.lost(None, 60.0) for _ in range(8)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_nobody_waits_longer_than_it_has_been_away_already() -> None:
    reconnect = policy(1.0)
    assert reconnect.lost(None, 5.0) == 0.0
    assert [reconnect.failed(5.0 + away) for away in (0.0, 0.1, 0.3, 0.8, 1.2, 90.0)] == pytest.approx(
        [0.25, 0.25, 0.3, 0.8, 1.2, 8.0]
    )
    reconnect.welcomed()
    assert reconnect.lost(None, 100.0) == 0.0
    assert reconnect.failed(100.3) == 0.25
    assert reconnect.failed(100.3) == pytest.approx(0.3)


def test_failed_attempts_count_like_lost_connections() -> None:
    reconnect = policy(1.0)
    reconnect.failed(0.0)
    assert [reconnect.failed(60.0) for _ in range(2)] == [0.5, 1.0]
    assert reconnect.lost(None, 60.0) == 2.0


def test_welcome_resets_the_bound() -> None:
    reconnect = policy(1.0)
    for _ in range(5):
        reconnect.failed(60.0)
    reconnect.welcomed()
    assert reconnect.lost(1006, 0.0) == 0.0
    assert reconnect.failed(60.0) == 0.25


def test_jitter_is_full() -> None:
    assert policy(0.0).failed(0.0) == 0.0
    assert policy(0.5).failed(0.0) == 0.125


@pytest.mark.parametrize("code", [4100, 4101, 4103, 4110, 4199])
def test_codes_that_ask_for_a_pause_get_it_the_first_time(code: int) -> None:
    assert policy(1.0).lost(code, 0.0) == 0.25


@pytest.mark.parametrize("code", [None, 1000, 1001, 1006, 1009, 3000, 4200, 4204, 4299])
def test_codes_that_do_not_are_followed_at_once(code: int | None) -> None:
    assert policy(1.0).lost(code, 0.0) == 0.0


@pytest.mark.parametrize("code", [1008, 4000, 4003, 4010, 4099])
def test_terminal_codes_end_it(code: int) -> None:
    assert policy().lost(code, 0.0) is None
    assert policy().lost(code, 0.0, retry_ms=100) is None


def test_conflict_is_followed_by_a_new_session() -> None:
    assert policy(1.0).lost(CloseCode.CONFLICT, 0.0) == 0.25


def test_clients_of_a_draining_server_spread() -> None:
    assert policy(0.5).lost(None, 0.0, retry_ms=10_000) == 5.0
    assert policy(0.0).lost(4200, 0.0, retry_ms=10_000) == 0.0


def test_server_that_welcomes_and_drops_is_not_hammered() -> None:
    reconnect = policy(1.0)
    delays = []
    for _ in range(25):
        delays.append(reconnect.lost(None, 1.0))
        reconnect.welcomed()
    assert delays == [0.0] * 20 + [0.25] * 5
    assert reconnect.lost(None, 11.0) == 0.0
