"""Paths as options. An empty one is most often a variable of a script that was not set."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["PathOption"]


class PathOption(click.Path):
    """A `pathlib.Path` that is not empty: `pathlib` takes an empty one for the present directory."""

    def __init__(self, *, dir_okay: bool = True, exists: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay, exists=exists)

    @override
    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not os.fspath(value):
            self.fail("the path is empty; name one, or . for this directory.", param, ctx)
        return super().convert(value, param, ctx)
