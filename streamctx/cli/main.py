"""The command `streamctx`: finds its subcommands by name and imports only the one that runs."""

from __future__ import annotations

import importlib
import sys
from typing import NoReturn

import click

from streamctx import __version__

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("streamctx.cli.serve:command", "Run the server."),
    "demo": ("streamctx.cli.demo:command", "See a lossy connection lose nothing."),
    "sessions": (
        "streamctx.cli.sessions:command",
        "List sessions; prune, export and import what is stored.",
    ),
    "show": ("streamctx.cli.show:command", "Show what is open in an editor, and where the person is."),
    "tail": ("streamctx.cli.tail:command", "Follow what editors push, one line an event."),
    "record": ("streamctx.cli.record:command", "Follow files on disk as an editor would, and record it."),
    "replay": ("streamctx.cli.replay:command", "Play a recording into a server."),
    "ls": ("streamctx.cli.ls:command", "List the resources of a server."),
    "get": (
        "streamctx.cli.get:command",
        "Fetch a resource into a file; again, to go on where it stopped.",
    ),
    "backup": ("streamctx.cli.backup:command", "Copy all that is stored into a file."),
    "doctor": ("streamctx.cli.doctor:command", "Check this installation and the servers that run."),
    "debug": ("streamctx.cli.debug:command", "Look into what a server did."),
}
"""Where each command is, and what its own help says in short; listing them imports none."""


class _LazyGroup(click.Group):
    """A group that knows its commands from `COMMANDS`."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


@click.group(
    name="streamctx",
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The other commands find the server that `streamctx serve` started; --url names another one.",
)
@click.version_option(__version__, prog_name="streamctx", message="%(prog)s %(version)s")
def cli() -> None:
    """One server that editors stream their live context into, and that agents read it from."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    The status is 0, 1 for a failure, 2 for wrong usage or configuration, and 130 for an interruption.
    Every error that is foreseen is one line on standard error.
    """
    from streamctx.errors import ConfigurationError, StreamctxError

    try:
        status = cli.main(args=arguments, prog_name="streamctx", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except ConfigurationError as error:
        _fail(str(error), status=2)
    except StreamctxError as error:
        _fail(str(error), status=1)
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        _fail(named or type(error).__name__, status=1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, *, status: int) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(status)
