"""Commands whose arguments are ids, which may begin with a hyphen."""

from __future__ import annotations

import sys
from itertools import takewhile

import click

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["IdCommand"]


class IdCommand(click.Command):
    """A command that takes `-x1f` for an id, and `--bogus` for the option that it has not.

    An id that begins with two hyphens, one of 4096, has to come after `--`.
    """

    @override
    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        return super().make_context(info_name, args, parent, ignore_unknown_options=True, **extra)

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        for argument in takewhile(lambda each: each != "--", args):
            name = argument.partition("=")[0]
            if name.startswith("--") and name not in known:
                raise click.NoSuchOption(name, ctx=ctx)
        return super().parse_args(ctx, args)
