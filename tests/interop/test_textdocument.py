"""The text buffer against `vscode-languageserver-textdocument`, with which language servers apply changes.

Only legal input is compared. A position that does not exist, or is inside a character or a line end, the
package clamps, as LSP has it, or takes; the buffer refuses it (POS-3), since a clamped edit makes two copies
differ silently. Of insertions and a replacement at one place, the package wants the replacement last.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.core.documents.blocks import Layout
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.vocabulary import Unit
from streamctx.wire.changes import Change
from tests.core.documents.edit_plans import BATCHES, TEXTS, Plan, plan_batch
from tests.core.documents.text_model import LAYOUTS
from tests.core.documents.utf_16_model import UnitText, units_of
from tests.core.machines import machine_settings
from tests.interop.test_node import node

__all__: list[str] = []

SOURCE = Path(__file__).parent / "textdocument"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


class Batch(TypedDict):
    """What is asked of the package."""

    changes: list[tuple[int, int, int, int, str]]
    simultaneous: bool
    offsets: list[int]


class Shown(TypedDict):
    """What it makes of it."""

    text: str
    lines: list[str]
    positions: list[list[int]]
    offsets: list[int]


class Reference:
    """One process for all that is asked."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def results(self, text: str, batches: list[Batch]) -> list[Shown]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Escaped to ASCII, so that a text holds no line end.
        self._process.stdin.write(json.dumps({"text": text, "batches": batches}).encode() + b"\n")
        self._process.stdin.flush()
        results: list[Shown] = json.loads(self._process.stdout.readline())
        return results


def npm() -> list[str]:
    """The npm that came with Node, else the system's."""
    own = Path(node()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if own.exists():
        return [node(), str(own)]
    found = shutil.which("npm")
    if found is None:
        pytest.skip("there is a Node, but no npm to install vscode-languageserver-textdocument with")
    return [found]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    # Beside the tests, two sessions would install over each other; npm has a cache of its own.
    folder = tmp_path_factory.mktemp("textdocument")
    for name in ("package.json", "package-lock.json", "reference.mjs"):
        shutil.copy(SOURCE / name, folder)
    installed = subprocess.run(
        [*npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert installed.returncode == 0, installed.stdout[-2000:] + installed.stderr[-2000:]
    with subprocess.Popen(
        [node(), "reference.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield Reference(process)
        process.communicate(timeout=10)
        assert process.returncode == 0


def in_accepted_order(changes: list[Change]) -> list[Change]:
    """Insertions first, which leaves their order and the result as they are."""

    def replaces(change: Change) -> bool:
        return (change.start_line, change.start_character) != (change.end_line, change.end_character)

    return sorted(changes, key=replaces)


@machine_settings(examples=150)
@given(
    text=TEXTS,
    layout=st.sampled_from(LAYOUTS),
    batches=st.lists(st.tuples(BATCHES, st.booleans()), min_size=1, max_size=10),
)
def test_legal_changes_give_what_they_give_in_editors(
    reference: Reference, text: str, layout: Layout, batches: list[tuple[list[Plan], bool]]
) -> None:
    buffer = TextBuffer(text, unit=Unit.UTF_16, layout=layout)
    model = UnitText(units_of(text))
    asked: list[Batch] = []
    made: list[list[Change]] = []
    for plans, simultaneous in batches:
        changes, model = plan_batch(plans, model, Unit.UTF_16, simultaneous=simultaneous)
        if simultaneous:
            changes = in_accepted_order(changes)
        made.append(changes)
        asked.append(
            {
                "changes": [
                    (c.start_line, c.start_character, c.end_line, c.end_character, c.text) for c in changes
                ],
                "simultaneous": simultaneous,
                "offsets": [place.at for place in model.boundaries()],
            }
        )
    results = reference.results(text, asked)
    assert len(results) == len(asked)
    for changes, batch, shown in zip(made, asked, results, strict=True):
        buffer.apply(changes, simultaneous=batch["simultaneous"])
        assert buffer.text() == shown["text"]
        assert buffer.length == len(units_of(shown["text"]))
        assert [buffer.line(index) for index in range(buffer.line_count)] == shown["lines"]
        # The places of the two are the same, both ways.
        assert shown["offsets"] == batch["offsets"]
        for line, character in shown["positions"]:
            buffer.check_position(line, character)
