from __future__ import annotations

import hashlib

import pytest

from streamctx.load.report import Latencies, Report, percentile, sha256_of_texts

__all__: list[str] = []


def _report(**fields: object) -> Report:
    digest = sha256_of_texts({1: "text"})
    values: dict[str, object] = {
        "edits": 10,
        "events": 21,
        "seconds": 2.0,
        "ack": Latencies([0.001, 0.002]),
        "observer": Latencies(),
        "sha256_expected": digest,
        "sha256_server": digest,
    }
    return Report(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "fraction", "rank"),
    [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (100, 0.9, 90), (100, 0.99, 99), (101, 0.99, 100), (10, 1.0, 10)],
)
def test_a_percentile_is_the_value_of_the_nearest_rank(count: int, fraction: float, rank: int) -> None:
    assert percentile([float(value) for value in range(1, count + 1)], fraction) == rank


def test_latencies_are_reported_in_milliseconds_whatever_their_order() -> None:
    latencies = Latencies([0.3, 0.1])
    latencies.add(0.2)
    assert latencies.summary_ms() == {"p50": 200.0, "p90": 300.0, "p99": 300.0, "max": 300.0}


def test_no_latency_is_none() -> None:
    assert Latencies().summary_ms() == {"p50": None, "p90": None, "p99": None, "max": None}


def test_the_hash_of_one_text_is_that_of_its_utf8() -> None:
    assert sha256_of_texts({7: "é"}) == hashlib.sha256("é".encode()).hexdigest()


def test_the_hash_of_several_texts_tells_where_each_ends() -> None:
    assert sha256_of_texts({1: "ab", 2: "c"}) != sha256_of_texts({1: "a", 2: "bc"})
    assert sha256_of_texts({2: "c", 1: "ab"}) == sha256_of_texts({1: "ab", 2: "c"})


def test_the_json_has_exactly_the_promised_keys() -> None:
    assert list(_report().to_json()) == [
        "edits",
        "events",
        "seconds",
        "edits_per_s",
        "ack_ms",
        "observer_ms",
        "retransmitted",
        "nacks",
        "skipped",
        "duplicates",
        "corrupt",
        "resumes",
        "sha256_expected",
        "sha256_server",
        "sha256_observer",
        "verified",
    ]
    assert _report().to_json()["edits_per_s"] == 5.0


@pytest.mark.parametrize(
    ("fields", "is_verified"),
    [
        ({}, True),
        ({"sha256_server": None}, False),
        ({"sha256_server": "0"}, False),
        ({"is_observed": True}, False),
        ({"is_observed": True, "sha256_observer": sha256_of_texts({1: "text"})}, True),
        ({"is_observed": True, "sha256_observer": sha256_of_texts({1: "other"})}, False),
        ({"problems": ["the server lost events"]}, False),
    ],
)
def test_it_is_verified_only_if_every_copy_is_equal(fields: dict[str, object], is_verified: bool) -> None:
    report = _report(**fields)
    assert report.verified is is_verified
    assert report.lines()[-1] == ("verified" if is_verified else "NOT VERIFIED")
