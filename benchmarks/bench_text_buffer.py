"""Edits of a text at LSP positions: `TextBuffer` beside what else one would use.

    python -m benchmarks.bench_text_buffer [--json] [--rounds N] [--quick]

All contestants make the same edits of the same texts in one process, in turns of a
few milliseconds (so that a slow second of the machine hits all), and their final
texts must be equal. Times are CPU time. What is timed is the call that edits, with
its arguments ready; each contestant gets positions of its own kind:

  streamctx   line and utf-16 character, checked, applied as a batch of one
  pygls       line and utf-16 character, as its `TextDocument.apply_change` takes them
  str + scan  line and utf-16 character; finds the line by searching, splices a `str`
  pycrdt      UTF-8 byte offsets: it has no lines, so this leaves out the conversion that an editor needs
  ropey-py    code point offsets: no utf-16 lines either; a rope in Rust

Peers that are not installed are reported so. pygls and the scan get fewer edits of
the large texts, as one of them takes up to 0.1 s.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import random
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.wire.changes import Change

__all__: list[str] = []

TRACE = Path(__file__).parents[2] / "shared" / "data" / "editing-traces" / "sveltecomponent.json.gz"
TURN_S = 0.003
CODE = (
    "def return self value index for in if else import class request response await None True count buffer "
    "line = == + ( ) [ ] : , . -> not and or position change document"
)
WORDS = CODE.split()


class Edit(NamedTuple):
    """One edit in every kind of position: LSP, UTF-8 bytes, code points."""

    change: Change
    byte_start: int
    byte_length: int
    start: int
    length: int


Editor = tuple[Callable[[Edit], None], Callable[[], str]]


def streamctx_editor(text: str) -> Editor:
    buffer = TextBuffer(text)
    apply = buffer.apply

    def edit(edit: Edit) -> None:
        apply((edit.change,))

    return edit, buffer.text


def scan_editor(text: str) -> Editor:
    def index_of(line: int, character: int) -> int:
        start = 0
        for _ in range(line):
            start = text.index("\n", start) + 1
        end = text.find("\n", start)
        content = text[start : len(text) if end < 0 else end]
        if content.isascii():
            return start + character
        return start + len(content.encode("utf-16-le")[: 2 * character].decode("utf-16-le"))

    def edit(edit: Edit) -> None:
        nonlocal text
        change = edit.change
        start = index_of(change.start_line, change.start_character)
        end = index_of(change.end_line, change.end_character) if edit.length else start
        text = text[:start] + change.text + text[end:]

    return edit, lambda: text


def pygls_editor(text: str) -> Editor:
    from lsprotocol import types
    from pygls.workspace import TextDocument

    document = TextDocument("file:///benchmark", text)

    def edit(edit: Edit) -> None:
        change = edit.change
        document.apply_change(
            types.TextDocumentContentChangePartial(
                range=types.Range(
                    types.Position(change.start_line, change.start_character),
                    types.Position(change.end_line, change.end_character),
                ),
                text=change.text,
            )
        )

    return edit, lambda: str(document.source)


def pycrdt_editor(text: str) -> Editor:
    from pycrdt import Doc, Text

    document: Any = Doc()
    document["text"] = shared = Text(text)

    def edit(edit: Edit) -> None:
        with document.transaction():
            if edit.byte_length:
                del shared[edit.byte_start : edit.byte_start + edit.byte_length]
            if edit.change.text:
                shared.insert(edit.byte_start, edit.change.text)

    return edit, lambda: str(shared)


def ropey_editor(text: str) -> Editor:
    from ropey_py import Rope

    rope: Any = Rope(text)

    def edit(edit: Edit) -> None:
        if edit.length:
            rope.remove(edit.start, edit.start + edit.length)
        if edit.change.text:
            rope.insert(edit.start, edit.change.text)

    return edit, lambda: str(rope.as_str())


CONTESTANTS: dict[str, tuple[str | None, Callable[[str], Editor]]] = {
    "streamctx": (None, streamctx_editor),
    "pygls": ("pygls", pygls_editor),
    "str + scan": (None, scan_editor),
    "pycrdt": ("pycrdt", pycrdt_editor),
    "ropey-py": ("ropey-py", ropey_editor),
}


def code(size: int, source: random.Random) -> str:
    """Make up code: 40 bytes a line, and one line in thirty not ASCII."""
    lines = []
    while size > 0:
        line = "    " * source.randrange(4) + " ".join(source.choices(WORDS, k=source.randrange(2, 13)))
        if source.random() < 1 / 30:
            line += "  # é 😀"
        lines.append(line + "\n")
        size -= len(lines[-1].encode())
    return "".join(lines)


def edit_at(text: str, start: int, length: int, inserted: str) -> tuple[Edit, str]:
    """Put an edit into every kind of position, by the plainest means; return the text after it."""
    line_start = text.rfind("\n", 0, start) + 1
    line = text.count("\n", 0, start)
    character = len(text[line_start:start].encode("utf-16-le")) // 2
    removed = text[start : start + length]
    line_feeds = removed.count("\n")
    tail = removed[removed.rfind("\n") + 1 :]
    end_character = len(tail.encode("utf-16-le")) // 2 + (0 if line_feeds else character)
    byte_start = len(text[:start].encode())
    change = Change(line, character, line + line_feeds, end_character, inserted)
    edit = Edit(change, byte_start, len(removed.encode()), start, length)
    return edit, text[:start] + inserted + text[start + length :]


def random_edits(text: str, count: int, source: random.Random) -> list[Edit]:
    """Single characters inserted and deleted anywhere; one insertion in five is a newline, é or 😀."""
    edits = []
    for _ in range(count):
        start = source.randrange(len(text) - 1)
        if source.random() < 0.5:
            edit, text = edit_at(text, start, 1, "")
        else:
            inserted = source.choice("abcdefgh" if source.random() < 0.8 else "\né😀")
            edit, text = edit_at(text, start, 0, inserted)
        edits.append(edit)
    return edits


def trace_edits() -> list[Edit]:
    session = json.loads(gzip.decompress(TRACE.read_bytes()))
    text = session["startContent"]
    edits = []
    for transaction in session["txns"]:
        for start, length, inserted in transaction["patches"]:
            edit, text = edit_at(text, start, length, inserted)
            edits.append(edit)
    return edits


class Result(NamedTuple):
    """CPU time of one edit, in microseconds: of all, and the median of single calls."""

    mean_us: float
    median_us: float
    edit_count: int


def measure(
    text: str, edits: Sequence[Edit], editors: dict[str, Editor], budget_s: float
) -> dict[str, Result]:
    """Let the contestants make the edits in turns, each until its budget is used up."""
    clock = time.process_time_ns
    done = dict.fromkeys(editors, 0)
    spent = dict.fromkeys(editors, 0)
    samples: dict[str, list[int]] = {name: [] for name in editors}
    waiting = list(editors)
    gc.collect()
    gc.disable()
    try:
        while waiting:
            for name in list(waiting):
                edit_one = editors[name][0]
                turn_end = clock() + int(TURN_S * 1e9)
                while done[name] < len(edits) and (before := clock()) < turn_end:
                    edit_one(edits[done[name]])
                    took = clock() - before
                    samples[name].append(took)
                    spent[name] += took
                    done[name] += 1
                if done[name] == len(edits) or spent[name] > budget_s * 1e9:
                    waiting.remove(name)
    finally:
        gc.enable()
    idle = statistics.median(-(clock() - clock()) for _ in range(1000))
    results = {}
    for name, taken in samples.items():
        mean = (spent[name] / done[name] - idle) / 1000
        results[name] = Result(mean, (statistics.median(taken) - idle) / 1000, done[name])
    complete = {name for name in editors if done[name] == len(edits)}
    if len({editors[name][1]() for name in complete}) > 1:
        raise SystemExit(f"the texts of {sorted(complete)} differ")
    return results


def installed() -> dict[str, str | None]:
    """Tell the version of each contestant, or `None` if it is not installed."""
    versions: dict[str, str | None] = {}
    for name, (distribution, _make) in CONTESTANTS.items():
        try:
            versions[name] = metadata.version(distribution) if distribution else "built in"
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


class Scenario(NamedTuple):
    """A text and edits of it; made when they are needed, the same each time."""

    make_text: Callable[[random.Random], str]
    edit_count: int

    def make(self, edit_count_max: int) -> tuple[str, list[Edit]]:
        source = random.Random(20_260_301)
        text = self.make_text(source)
        return text, random_edits(text, min(self.edit_count, edit_count_max), source)


LARGE = "10 MB of code, random"
SCENARIOS = {
    "18 kB of code, random": Scenario(lambda source: code(18_000, source), 6_000),
    "1 MB of code, random": Scenario(lambda source: code(1_000_000, source), 3_000),
    LARGE: Scenario(lambda source: code(10_000_000, source), 400),
    "5 MB in one line, 😀": Scenario(lambda source: "x" * 2_500_000 + "😀" + "y" * 2_500_000, 100),
}


def scenarios(*, quick: bool) -> dict[str, tuple[str, list[Edit]]]:
    made = {"sveltecomponent, 18 kB": ("", trace_edits())} if TRACE.exists() else {}
    for name, scenario in SCENARIOS.items():
        if not (quick and name == LARGE):
            made[name] = scenario.make(300 if quick else 1_000_000)
    return made


def memory_ratio(text: str, edits: Sequence[Edit]) -> float:
    """Return the memory of a `TextBuffer` after the edits, relative to the text's UTF-8."""
    tracemalloc.start()
    try:
        buffer = TextBuffer(text)
        for edit in edits:
            buffer.apply((edit.change,))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / max(1, buffer.byte_length)
    finally:
        tracemalloc.stop()


LONG_LINES = {
    "16 kB": lambda: "x" * 16_000,
    "60 kB, é": lambda: "é" * 30_000,
    "5 MB": lambda: "x" * 5_000_000,
    "48 MB": lambda: "x" * 48_000_000,
    "48 MB, 中": lambda: "中" * 16_000_000,
}


def place_times(make_line: Callable[[], str], rounds: int) -> dict[str, float]:
    """Return the CPU µs of finding a place, and of one of 1,000 insertions made together, late in a line."""
    buffer = TextBuffer("first\n" + make_line() + "\nlast")
    length = buffer.length - len("first\n\nlast")
    places = [random.Random(1).randrange(length * 9 // 10, length) for _ in range(1000)]
    changes = [Change(1, place, 1, place, "z") for place in places]
    found, edited = [], []
    for _ in range(rounds):
        before = time.process_time()
        for place in places:
            buffer.check_position(1, place)
        between = time.process_time()
        buffer.apply(changes)
        found.append(between - before)
        edited.append(time.process_time() - between)
    return {"place_us": statistics.median(found) * 1000, "insertion_us": statistics.median(edited) * 1000}


RSS_PROBE = """
import sys, resource
sys.path.insert(0, {root!r})
from benchmarks import bench_text_buffer as bench
name = {name!r}
text, edits = bench.SCENARIOS[bench.LARGE].make({count})
make = bench.CONTESTANTS[name][1]
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
make("warm")
before = rss()
editor = make(text)
for edit in edits:
    editor[0](edit)
print(rss() - before, len(editor[1]().encode()))
"""


def rss_ratio(name: str, count: int) -> float | None:
    """Return what a process grows by for a text and edits of it, relative to its UTF-8; needs /proc."""
    if not Path("/proc/self/statm").exists():
        return None
    program = RSS_PROBE.format(root=str(Path(__file__).parents[1]), name=name, count=count)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    growth, size = map(int, run.stdout.split())
    return growth / size


def run(*, rounds: int, quick: bool) -> dict[str, Any]:
    versions = installed()
    report: dict[str, Any] = {"versions": versions, "scenarios": {}, "memory": {}, "open_50_mb_s": None}
    report["long_lines"] = {
        name: place_times(make_line, rounds)
        for name, make_line in LONG_LINES.items()
        if not (quick and "48 MB" in name)
    }
    everything = scenarios(quick=quick)
    for scenario, (text, edits) in everything.items():
        rows: dict[str, list[Result]] = {}
        for _ in range(rounds):
            editors = {name: CONTESTANTS[name][1](text) for name in CONTESTANTS if versions[name]}
            for name, result in measure(text, edits, editors, 0.2 if quick else 2.0).items():
                rows.setdefault(name, []).append(result)
        report["scenarios"][scenario] = {
            name: {
                "mean_us": statistics.median(result.mean_us for result in results),
                "median_us": statistics.median(result.median_us for result in results),
                "edits": results[0].edit_count,
            }
            for name, results in rows.items()
        }
        report["memory"][scenario] = {"streamctx, objects": memory_ratio(text, edits)}
    if not quick:
        for name in CONTESTANTS:
            if versions[name]:
                count = 10 if name in {"pygls", "str + scan"} else 100
                report["memory"][LARGE][f"{name}, process"] = rss_ratio(name, count)
        text = code(1_000_000, random.Random(1)) * 50
        before = time.process_time()
        TextBuffer(text)
        report["open_50_mb_s"] = time.process_time() - before
    return report


def show(report: dict[str, Any]) -> None:
    for scenario, rows in report["scenarios"].items():
        print(f"\n{scenario}: CPU µs an edit")
        print(f"  {'':16} {'median':>11} {'mean':>11} {'edits':>7}   median, relative to streamctx")
        ours = rows["streamctx"]["median_us"]
        for name, version in report["versions"].items():
            if version is None:
                print(f"  {name:16} not installed")
                continue
            row = rows[name]
            print(
                f"  {name:16} {row['median_us']:11.2f} {row['mean_us']:11.2f} {row['edits']:7}"
                f"   {row['median_us'] / ours:.1f}x"
            )
    print("\nMemory after the edits, relative to the text as UTF-8")
    for scenario, ratios in report["memory"].items():
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio is not None)
        print(f"  {scenario}: {shown}")
    print("\nLong lines: CPU µs to find a place near the end, and for one of 1,000 insertions made together")
    for name, times in report["long_lines"].items():
        print(f"  {name:16} {times['place_us']:11.2f} {times['insertion_us']:11.2f}")
    if report["open_50_mb_s"] is not None:
        print(f"\nOpening 50 MB of code: {report['open_50_mb_s']:.2f} s CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs, of which medians are taken")
    parser.add_argument(
        "--quick", action="store_true", help="fewer edits and no 10 MB text, to try the script"
    )
    options = parser.parse_args()
    report = run(rounds=options.rounds, quick=options.quick)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)


if __name__ == "__main__":
    main()
