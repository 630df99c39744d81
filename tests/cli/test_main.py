"""The command line as a whole: what it lists, what it imports, and how errors look."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import click
import pytest
from click.testing import CliRunner

from streamctx import __version__
from streamctx.cli.main import COMMANDS, cli, main

PRESENT = [name for name, (where, _) in COMMANDS.items() if find_spec(where.partition(":")[0])]


def test_version_is_printed() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert (result.exit_code, result.output) == (0, f"streamctx {__version__}\n")


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name, (_, help_text) in COMMANDS.items():
        assert name in result.output
        assert help_text in result.output


@pytest.mark.parametrize("name", PRESENT)
def test_command_says_of_itself_what_the_list_says(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=100) == COMMANDS[name][1]


@pytest.mark.parametrize("name", PRESENT)
def test_command_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_help_imports_no_server_and_no_client() -> None:
    program = (
        "import sys\n"
        "from streamctx.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'asyncio', 'anyio', 'msgspec', 'rich', 'uvicorn', 'websockets', 'streamctx.hub.hub'}\n"
        "print('imported:', sorted(heavy & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert result.stderr == ""
    assert result.stdout.endswith("imported: []\n")


def test_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nothing"])
    assert ended.value.code == 2
    assert "No such command 'nothing'" in capsys.readouterr().err


def test_wrong_configuration_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sessions", "--url", "ftp://there"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "Error: --url: 'ftp://there'; write ws://host:port or wss://host:port\n"
    )


def test_file_that_is_not_there_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["debug", "rerun", "/nowhere/log"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "Error: /nowhere/log: No such file or directory\n"
