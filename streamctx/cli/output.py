"""What commands print: tables and JSON, in colour on a terminal only, and no control character of others."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence

import click

__all__ = [
    "age_text",
    "echo_json",
    "echo_json_line",
    "echo_table",
    "is_styled",
    "printable",
    "styled",
]

# What JSON itself leaves as it is, and a terminal may obey.
_UNESCAPED_CONTROL = re.compile("[\x7f-\x9f]")

# Control characters (C0 but the tab, DEL, C1) would let a document's text or a file's name drive the
# terminal; the bidirectional controls would let them show in another order than they stand.
_CONTROLS = {
    **{code: 0x2400 + code for code in range(0x20) if code != 0x09},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
    **dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
    0x2028: 0x2424,
    0x2029: 0x2424,
    # A lone surrogate cannot be written at all.
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
}


def is_styled() -> bool:
    """Whether standard output is a terminal that wants colour (`NO_COLOR` is not set)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, **style: bool | str) -> str:
    """Style a text as `click.style` does, on a terminal that wants it."""
    return click.style(text, **style) if is_styled() else text  # type: ignore[arg-type]


def printable(text: object) -> str:
    """A text of somebody else's for one line of a terminal: each control character becomes a visible sign."""
    return str(text).translate(_CONTROLS)


def echo_json(value: object) -> None:
    """Print a value as JSON, for people and scripts."""
    click.echo(_escaped(json.dumps(value, ensure_ascii=False, indent=2)))


def echo_json_line(value: object) -> None:
    """Print a value as one line of JSON, at once."""
    click.echo(_escaped(json.dumps(value, ensure_ascii=False, separators=(",", ":"))))
    sys.stdout.flush()


def echo_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: aligned columns, with rich on a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console(highlight=False).print(table)
        return
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def age_text(seconds: float) -> str:
    """A duration for people: `3 s`, `4 min`, `2 h`, `5 d`."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // divisor)} {unit}"
    return f"{int(seconds // 86_400)} d"


def _escaped(text: str) -> str:
    return _UNESCAPED_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
