"""What `import streamctx` gives, and what it does not load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamctx

__all__: list[str] = []


def test_every_public_name_can_be_had() -> None:
    for name in streamctx.__all__:
        assert getattr(streamctx, name) is not None
    assert set(streamctx.__all__) <= set(dir(streamctx))


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        streamctx.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    stub = Path(streamctx.__file__).with_suffix(".pyi").read_text("utf-8")
    names = set(re.findall(r"^from \S+ import (\w+) as \1$", stub, re.MULTILINE))
    assert names | {"__version__"} == set(streamctx.__all__)


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import streamctx", {"anyio", "asyncio", "msgspec", "uvicorn", "websockets"}),
        (
            "import streamctx; streamctx.connect",
            {"uvicorn", "starlette", "asyncio", "trio", "streamctx.server"},
        ),
    ],
)
def test_import_loads_no_more_than_it_needs(statement: str, absent: set[str]) -> None:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    root = Path(streamctx.__file__).parents[1]
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=root, text=True
    ).stdout.split()
    assert absent.isdisjoint(loaded)
