"""`sessions`, `show` and `tail` against a real server that an editor pushes into."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from streamctx.client.client import Client, connect
from streamctx.client.document import Document
from streamctx.wire.messages import Diagnostic, Workspace
from tests.cli.running import Home, RunningServer, wait_until

pytestmark = pytest.mark.e2e

TEXT = "".join(f"line {number}\n" for number in range(1, 31))


@contextlib.asynccontextmanager
async def editor(server: RunningServer) -> AsyncIterator[tuple[Client, Document]]:
    """An editor with two documents, a selection, a cursor and a diagnostic."""
    workspace = Workspace(folders=("file:///work",))
    async with connect(
        server.url, server.token, name="test editor", version="9", role="produce", workspace=workspace
    ) as client:
        await client.open("file:///work/b.md", "# other\n", language="markdown")
        document = await client.open("file:///work/a.py", TEXT, language="python")
        document.edit((9, 4, 9, 5, " \x1b[31m🙂"))
        client.focus(document)
        document.select([(11, 0, 12, 4)])
        document.cursor((12, 4))
        document.diagnostics([Diagnostic(range=(2, 0, 2, 4), severity=1, message="bad", source="lint")])
        await client.flush()
        yield client, document


def with_editor(server: RunningServer, *arguments: str) -> tuple[int, str, str, str]:
    """Run a command, with `{}` replaced by the editor's session, while the editor is there."""

    async def run() -> tuple[int, str, str, str]:
        async with editor(server) as (client, _):
            assert client.session_id is not None
            session_id = client.session_id
            filled = [argument.format(session_id[:12]) for argument in arguments]
            result = await anyio.to_thread.run_sync(lambda: server.home.run(*filled))
            return result.returncode, result.stdout, result.stderr, session_id

    return anyio.run(run)


def test_sessions_are_listed(server: RunningServer) -> None:
    status, output, errors, session_id = with_editor(server, "sessions")
    assert (status, errors) == (0, "")
    head, line = output.splitlines()
    assert head.split() == ["SESSION", "CLIENT", "ROLE", "STATE", "IDLE", "DOCUMENTS", "OBSERVERS"]
    assert line.startswith(session_id[:8])
    assert "test editor 9" in line
    assert "produce  connected" in line


def test_sessions_are_listed_as_json(server: RunningServer) -> None:
    _, output, _, session_id = with_editor(server, "sessions", "--json")
    [session] = json.loads(output)
    assert session["session"] == session_id
    assert [document["uri"] for document in session["documents"]] == [
        "file:///work/b.md",
        "file:///work/a.py",
    ]


def test_url_and_token_file_name_a_server(server: RunningServer) -> None:
    result = server.home.run(
        "sessions",
        "--url",
        server.url,
        "--token-file",
        server.ready["token_file"],
        XDG_RUNTIME_DIR="/nowhere",
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_wrong_token_is_one_line_and_status_1(server: RunningServer) -> None:
    result = server.home.run("sessions", STREAMCTX_TOKEN="wrong-token-of-nobody")
    assert result.returncode == 1
    assert "answered 401: unauthorized" in result.stderr
    assert result.stderr.count("\n") == 1


def test_server_that_is_not_there_is_one_line_and_status_1(server: RunningServer) -> None:
    result = server.home.run("sessions", "--url", "ws://127.0.0.1:1", STREAMCTX_TOKEN=server.token)
    assert result.returncode == 1
    assert result.stderr == "Error: http://127.0.0.1:1 cannot be reached: Connection refused\n"


def test_session_is_shown_as_a_person_reads_it(server: RunningServer) -> None:
    status, output, errors, session_id = with_editor(server, "show", "{}")
    assert (status, errors) == (0, "")
    assert output.startswith("test editor 9: connected, last heard ")
    assert session_id in output
    assert "folder  file:///work" in output
    # The document with the focus comes first.
    assert output.index("* 2  file:///work/a.py  python") < output.index("  1  file:///work/b.md  markdown")
    assert "version 1" in output
    assert "cursor at 13:5" in output
    assert "selected from 12:1 to 13:5" in output
    lines = output.splitlines()
    place = next(index for index, line in enumerate(lines) if line.endswith("13 | line 13"))
    assert lines[place + 1].endswith("   | ~~~~^")
    # Two lines around; the escape sequence of line 10 cannot act.
    assert "10 | line ␛[31m🙂10" in output
    assert "\x1b" not in output
    assert "16 |" not in output
    assert "error at 3:1: bad (lint)" in output


def test_document_is_shown_with_more_lines(server: RunningServer) -> None:
    _, output, _, _ = with_editor(server, "show", "{}", "a.py")
    assert "19 | line 19" in output
    assert "b.md" not in output


def test_document_is_shown_whole_as_json(server: RunningServer) -> None:
    _, output, _, _ = with_editor(server, "show", "{}", "2", "--json")
    view = json.loads(output)
    assert view["text"] == TEXT.replace("line 10", "line \x1b[31m🙂10")
    assert view["stale"] is False
    assert {event["type"] for event in view["presence"]} >= {"selection", "cursor", "diagnostics"}


def test_session_is_shown_as_json(server: RunningServer) -> None:
    _, output, _, session_id = with_editor(server, "show", "{}", "--json")
    assert json.loads(output)["session"] == session_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nothing"], "no session begins with 'nothing'"),
        (["show", "{}", "c.py"], "no document 'c.py' is open"),
        (["tail", "nothing"], "no session begins with 'nothing'"),
    ],
)
def test_what_is_not_there_is_one_line_and_status_1(
    server: RunningServer, arguments: list[str], message: str
) -> None:
    status, output, errors, _ = with_editor(server, *arguments)
    assert status == 1
    assert message in errors
    assert errors.count("\n") == 1
    assert output == ""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_one", [True, False], ids=["one", "all"])
def test_tail_follows_and_ends_cleanly(server: RunningServer, end: signal.Signals, is_one: bool) -> None:
    lines: list[str] = []

    async def run() -> None:
        async with editor(server) as (client, document):
            assert client.session_id is not None
            arguments = ["tail", client.session_id[:12]] if is_one else ["tail"]
            with server.home.start(*arguments) as process:
                stdout = process.stdout
                assert stdout is not None

                def read_until(text: str) -> None:
                    while text not in (line := stdout.readline()):
                        assert line, process.communicate()
                        lines.append(line)
                    lines.append(line)

                await anyio.to_thread.run_sync(read_until, "a.py cursor at 13:5")
                document.edit((0, 0, 0, 4, "LINE"))
                await client.flush()
                await anyio.to_thread.run_sync(read_until, "edit to version 2")
                process.send_signal(end)
                _, errors = await anyio.to_thread.run_sync(process.communicate)
                assert (process.returncode, errors) == (0, "")
                sessions = await anyio.to_thread.run_sync(server.home.run, "sessions")
                assert "streamctx tail" not in sessions.stdout

    anyio.run(run)
    text = "".join(lines)
    assert "a.py open at version 1" in text
    assert "edit to version 2: 1:1-1:5 replace by 'LINE'" in text


def test_tail_of_one_session_ends_with_it_and_prints_json(server: RunningServer) -> None:
    async def run(processes: contextlib.ExitStack) -> tuple[str, list[dict[str, Any]]]:
        async with editor(server) as (client, document):
            assert client.session_id is not None
            session_id = client.session_id
            process = processes.enter_context(server.home.start("tail", session_id, "--json"))
            assert process.stdout is not None
            first = await anyio.to_thread.run_sync(process.stdout.readline)
            document.save()
            document.close()
        output, errors = await anyio.to_thread.run_sync(process.communicate)
        assert (process.returncode, errors) == (0, "")
        return session_id, [json.loads(line) for line in [first, *output.splitlines()]]

    with contextlib.ExitStack() as processes:
        session_id, lines = anyio.run(run, processes)
    assert {line["session"] for line in lines} == {session_id}
    assert lines[0]["event"] == {"type": "attachment", "connected": True}
    assert [line["event"]["type"] for line in lines[:-1] if line.get("uri") == "file:///work/a.py"][-2:] == [
        "save",
        "close",
    ]
    assert lines[-1]["note"] == "ended"


def test_tail_says_that_the_connection_is_lost(home: Home) -> None:
    with home.serve() as server, home.start("tail") as process:
        wait_until(lambda: "streamctx tail" in home.run("sessions").stdout)
        server.stop()
        assert process.stderr is not None
        assert process.stderr.readline() == "(reconnecting)\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10) == ("", "")
        assert process.returncode == 0


@pytest.mark.parametrize("arguments", [["tail"], ["tail", "nothing"]])
def test_tail_without_the_right_token_is_one_line_and_status_1(
    server: RunningServer, arguments: list[str]
) -> None:
    result = server.home.run(*arguments, STREAMCTX_TOKEN="wrong-token-of-nobody")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_tail_of_a_server_that_is_not_there_is_one_line_and_status_1(server: RunningServer) -> None:
    result = server.home.run("tail", "--url", "ws://127.0.0.1:1", STREAMCTX_TOKEN=server.token)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def test_tail_ends_quietly_when_nobody_reads_it_any_more(server: RunningServer) -> None:
    async def run() -> None:
        async with editor(server) as (client, document):
            with server.home.start("tail") as process:
                assert process.stdout is not None
                await anyio.to_thread.run_sync(process.stdout.readline)
                process.stdout.close()
                while process.poll() is None:
                    document.edit((0, 0, 0, 0, "x"))
                    await client.flush()
                    await anyio.sleep(0.02)
                assert process.stderr is not None
                assert (process.returncode, process.stderr.read()) == (1, "")

    anyio.run(run)
