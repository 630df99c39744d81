"""`streamctx doctor`: is this installation sound, and are the servers that run here?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from streamctx.cli.output import echo_json, printable, styled
from streamctx.cli.path_option import PathOption
from streamctx.errors import StreamctxError

__all__ = ["command"]

_COLOURS = {"ok": "green", "warning": "yellow", "broken": "red"}


@click.command(name="doctor", short_help="Check this installation and the servers that run.")
@click.option("--data", type=PathOption(), metavar="DIR", help="Look at the store in DIR.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a JSON object.")
def command(*, data: Path | None, as_json: bool) -> None:
    """Check this installation and the servers that run here.

    Nothing is changed, and nothing is sent to other machines. The exit status is 1 if something is broken;
    a warning does not count.
    """
    try:
        from streamctx.cli.checks import all_findings
    except ModuleNotFoundError as error:
        raise StreamctxError(f"{error.name} is missing: reinstall streamctx-server") from error

    findings = all_findings(data)
    is_sound = all(finding.status != "broken" for finding in findings)
    if as_json:
        listed = [
            {"check": finding.check, "status": finding.status, "message": finding.message}
            for finding in findings
        ]
        echo_json({"ok": is_sound, "findings": listed})
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            status = styled(f"{finding.status:<7}", fg=_COLOURS[finding.status])
            click.echo(f"{status}  {finding.check:<{width}}  {printable(finding.message)}")
    if not is_sound:
        sys.exit(1)
