"""How far long work is: on a terminal only, and on standard error, so that output stays clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streamctx.cli.output import printable

__all__ = ["shown_progress"]


@contextmanager
def shown_progress(label: str) -> Iterator[Callable[[int, int | None], object]]:
    """Show a bar while the block runs, which is to tell how many bytes are done, and of how many."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with progress:
        bar = progress.add_task(escape(printable(label)), total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)
