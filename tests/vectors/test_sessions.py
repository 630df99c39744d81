"""Every session script holds for a hub, with both encodings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from streamctx.vocabulary import Encoding
from tests.vectors.reading import VECTORS
from tests.vectors.script import Script, ScriptFailed

__all__: list[str] = []

RUNS = [
    pytest.param(path, encoding, id=f"{path.stem}-{encoding.name.lower()}")
    for path in sorted((VECTORS / "sessions").glob("*.json"))
    for encoding in Encoding
]


@pytest.mark.parametrize(("path", "encoding"), RUNS)
def test_script(path: Path, encoding: Encoding, caplog: pytest.LogCaptureFixture) -> None:
    failure = ""
    try:
        Script(path, encoding).run()
    except ScriptFailed as failed:
        failure = f"{failed}"
    if failure:
        pytest.fail(failure, pytrace=False)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
