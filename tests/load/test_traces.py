from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from streamctx.load.traces import TraceError, parse_trace, read_trace

__all__: list[str] = []

SMALL = {
    "startContent": "a\n",
    "endContent": "ab\nc",
    "txns": [
        {"time": "2024-01-01T00:00:01.000Z", "patches": [[1, 0, "b"]]},
        {"time": "2024-01-01T00:00:01.250Z", "patches": [[3, 0, "c"]]},
    ],
}


def _write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "small.json", SMALL))
    assert (trace.start, trace.end, trace.patch_count) == ("a\n", "ab\nc", 2)
    assert [transaction.at_s for transaction in trace.transactions] == [0.0, 0.25]
    assert list(trace.transactions[1].patches) == [(3, 0, "c")]


def test_a_gzipped_trace_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(gzip.compress(json.dumps(SMALL).encode()))
    assert read_trace(path).end == "ab\nc"


def test_times_may_be_missing_or_go_back(tmp_path: Path) -> None:
    content = {
        "startContent": "",
        "endContent": "abcd",
        "txns": [
            {"time": 5000, "patches": [[0, 0, "a"]]},
            {"patches": [[1, 0, "b"]]},
            {"time": 4000, "patches": [[2, 0, "c"]]},
            {"time": "yesterday", "patches": []},
            {"time": 6000, "patches": [[3, 0, "d"]]},
        ],
    }
    trace = parse_trace(json.dumps(content).encode(), "times")
    assert [transaction.at_s for transaction in trace.transactions] == [0.0, 0.0, 0.0, 1.0]


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    content = r'{"startContent": "", "endContent": "a\ud800😀", "txns": [{"patches": [[0, 0, "a\ud800"]]}]}'
    trace = parse_trace(content.encode(), "surrogate")
    assert trace.end == "a�😀"
    assert trace.transactions[0].patches[0][2] == "a�"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not an editing trace"),
        ("[]", "is not an editing trace"),
        ({"startContent": "", "txns": []}, "endContent"),
        ({"startContent": "", "endContent": "", "txns": [{}]}, "patches"),
        ({"startContent": "", "endContent": "", "txns": [{"patches": [[0, "x", ""]]}]}, r"txns\[0\]"),
        ({"startContent": "", "endContent": "", "txns": [{"patches": [[0, 0]]}]}, "length 3"),
        ({"startContent": "", "endContent": "", "txns": [{"patches": [[0, -1, ""]]}]}, "transaction 0"),
        ("[" * 100_000, "is not an editing trace"),
    ],
)
def test_another_form_is_refused_with_what_is_wrong(content: object, message: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "bad.json", content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SMALL).encode() * 50)[:60])
    with pytest.raises(TraceError, match="damaged"):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.json cannot be read: No such file"):
        read_trace(tmp_path / "none.json")
