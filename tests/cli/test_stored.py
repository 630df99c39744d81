"""`sessions prune|export|import`, `backup` and `show --at`: through a server, and without one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from streamctx.client.client import connect
from streamctx.engine.base import Damaged
from streamctx.engine.sqlite import SqliteStore
from tests.cli.running import Home, RunningServer
from tests.engine.samples import record

pytestmark = pytest.mark.e2e

TEXTS = {0: "text \x1b[31m\r\n", 1: "atext \x1b[31m\r\n", 2: "batext \x1b[31m\r\n"}
NEWEST = TEXTS[2]


def left_by_an_editor(server: RunningServer, *, uri: str = "file:///work/a.py") -> str:
    """Push three versions, then let the server die; the session stays in its store."""

    async def push() -> str:
        async with connect(server.url, server.token, name="test editor", role="produce") as client:
            document = await client.open(uri, TEXTS[0], language="python")
            for sign in "ab":
                document.edit((0, 0, 0, 0, sign))
                await client.flush()
            session_id = client.session_id
            assert session_id is not None
            server.process.send_signal(signal.SIGKILL)
            await anyio.to_thread.run_sync(server.process.wait)
        return session_id

    return anyio.run(push)


@pytest.fixture
def session_id(home: Home) -> str:
    """The only session in the store of a home."""
    with home.serve_to_death() as server:
        return left_by_an_editor(server)


def listed(home: Home, *arguments: str) -> list[str]:
    result = home.run("sessions", "--json", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return [session["session"] for session in json.loads(result.stdout)]


def store_of(home: Home) -> Path:
    return home.path / "state" / "streamctx" / "data"


def test_stored_sessions_are_listed_and_marked(home: Home, session_id: str) -> None:
    with home.serve():
        output = home.run("sessions").stdout
        assert output.splitlines()[1].split()[:4] == [session_id[:8], "test", "editor", "-"]
        assert "stored" in output
        [session] = json.loads(home.run("sessions", "--json").stdout)
        assert (session["session"], session["live"], session["stored"]) == (session_id, False, True)
    result = home.run("sessions", "--data", str(store_of(home)))
    assert (result.returncode, result.stderr) == (0, "")
    assert session_id[:8] in result.stdout


def test_a_stored_session_is_shown(home: Home, session_id: str) -> None:
    with home.serve():
        output = home.run("show", session_id[:8]).stdout
        assert output.startswith("test editor: stored, last heard ")
        assert "1  file:///work/a.py  python" in output
        assert "version 2" in output
        assert "batext ␛[31m" in output
        shown = json.loads(home.run("show", session_id[:8], "a.py", "--json").stdout)
        assert shown["text"] == NEWEST
        whole = json.loads(home.run("show", session_id[:8], "--json").stdout)
        assert whole["documents"][0]["version"] == 2
        assert whole["changed"] >= whole["opened"]


def test_a_stored_session_is_followed(home: Home, session_id: str) -> None:
    with home.serve(), home.start("tail", session_id[:8]) as process:
        assert process.stdout is not None
        while "a.py open at version 2" not in (line := process.stdout.readline()):
            assert line, process.communicate()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("version", TEXTS)
def test_a_text_of_the_past_is_printed_byte_for_byte(home: Home, session_id: str, version: int) -> None:
    with home.serve():
        result = home.run("show", session_id[:8], "a.py", "--at", str(version), text=False)
        assert (result.returncode, result.stdout) == (0, TEXTS[version].encode())
        told = result.stderr.decode()
        assert told.startswith(f"version {version} of file:///work/a.py: ")
        assert " s ago, " in told
        view = json.loads(home.run("show", session_id[:8], "1", "--at", str(version), "--json").stdout)
        assert (view["text"], view["version"], view["stale"]) == (TEXTS[version], version, False)


def test_the_versions_are_listed(home: Home, session_id: str) -> None:
    with home.serve():
        result = home.run("show", session_id[:8], "a.py", "--history")
        assert (result.returncode, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert [line.split()[0] for line in lines[:3]] == ["2", "1", "0"]
        assert lines[2].endswith("verified")
        assert lines[-1] == "This is all since the session began."
        view = json.loads(home.run("show", session_id[:8], "1", "--history", "--json").stdout)
        assert [moment["version"] for moment in view["versions"]] == [2, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["1", "--at", "9"], 1, "Error: the document has not been at version 9; nearest is 2\n"),
        (["7", "--at", "1"], 1, "Error: no such document is in what is kept of the session\n"),
        (["file:///gone", "--history"], 1, "Error: there is nothing here, or it is not yours\n"),
        (["1", "--at", "1", "--opened", "2"], 1, "was opened 1 times in what is kept; 2 is asked for"),
        (["gone.py", "--at", "1"], 1, "no document 'gone.py' is open"),
        (["--at", "1"], 2, "--at and --history need a DOCUMENT"),
        (["1", "--at", "1", "--history"], 2, "exclude each other"),
        (["1", "--opened", "1"], 2, "--opened needs --at"),
    ],
)
def test_what_cannot_be_read_back_is_told(
    home: Home, session_id: str, arguments: list[str], status: int, message: str
) -> None:
    with home.serve():
        result = home.run("show", session_id[:8], *arguments)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr


def test_an_ephemeral_server_says_that_it_stores_nothing(home: Home) -> None:
    with home.serve("--ephemeral") as server:

        async def ask() -> None:
            async with connect(server.url, server.token, role="produce") as client:
                await client.open("file:///a.py", "text")
                await client.flush()
                assert client.session_id is not None
                for arguments in (
                    ["show", client.session_id, "1", "--at", "1"],
                    ["show", client.session_id, "1", "--history"],
                    ["sessions", "prune", "--all", "--yes"],
                    ["sessions", "export", client.session_id, "-o", str(home.path / "out")],
                    ["backup", str(home.path / "out")],
                ):
                    result = await anyio.to_thread.run_sync(partial(home.run, *arguments))
                    assert (result.returncode, result.stdout) == (1, ""), arguments
                    assert "this server stores nothing" in result.stderr
                    assert not (home.path / "out").exists()

        anyio.run(ask)


@pytest.mark.parametrize("is_served", [True, False], ids=["server", "file"])
class TestBothWays:
    """What works alike through a server and without one."""

    @pytest.fixture(autouse=True)
    def started(self, home: Home, session_id: str, is_served: bool) -> object:
        if not is_served:
            yield None
            return
        with home.serve() as server:
            yield server

    def test_what_is_young_is_pruned_only_if_one_is_sure(self, home: Home, session_id: str) -> None:
        nothing = home.run("sessions", "prune")
        assert (nothing.returncode, nothing.stdout[:18]) == (0, "Nothing to delete ")
        assert "Nothing to delete" in home.run("sessions", "prune", "--older-than", "1").stdout
        tried = home.run("sessions", "prune", "--all", "--dry-run")
        assert (tried.returncode, tried.stderr) == (0, "")
        assert f"  {session_id[:8]}  test editor, " in tried.stdout
        assert "1 session would be deleted from " in tried.stdout
        refused = home.run("sessions", "prune", "--all")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "a session that is not past retention would be deleted" in refused.stderr
        assert "give --yes" in refused.stderr
        done = home.run("sessions", "prune", "--all", "--yes", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        pruned = json.loads(done.stdout)
        assert [session["session"] for session in pruned["sessions"]] == [session_id]
        assert "Nothing to delete" in home.run("sessions", "prune", "--all").stdout

    def test_one_is_pruned_by_name(self, home: Home, session_id: str) -> None:
        unknown = home.run("sessions", "prune", "nothing")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "no session begins with 'nothing'" in unknown.stderr
        both = home.run("sessions", "prune", "--all", session_id[:8])
        assert both.returncode == 2
        done = home.run("sessions", "prune", session_id[:8], "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("1 session deleted from ")

    def test_a_session_is_exported_and_imported(self, home: Home, session_id: str) -> None:
        file = home.path / "session"
        result = home.run("sessions", "export", session_id[:8], "-o", str(file), "--json")
        assert (result.returncode, result.stderr) == (0, "")
        assert json.loads(result.stdout) == {
            "session": session_id,
            "file": str(file),
            "bytes": file.stat().st_size,
        }
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        home.run("sessions", "prune", "--all", "--yes")
        imported = home.run("sessions", "import", str(file), "--json")
        assert (imported.returncode, imported.stderr) == (0, "")
        assert json.loads(imported.stdout) == {"session": session_id}
        again = home.run("sessions", "import", str(file))
        assert (again.returncode, again.stdout[:8]) == (0, session_id[:8])
        file.write_bytes(file.read_bytes()[:-1])
        broken = home.run("sessions", "import", str(file))
        assert (broken.returncode, broken.stdout) == (1, "")
        assert f"{file}: this is no exported session" in broken.stderr

    def test_a_file_is_not_overwritten_unless_forced(self, home: Home, session_id: str) -> None:
        file = home.path / "there"
        for command in (["sessions", "export", session_id[:8], "-o", str(file)], ["backup", str(file)]):
            file.write_text("mine")
            file.chmod(0o644)
            refused = home.run(*command)
            assert (refused.returncode, refused.stdout, file.read_text()) == (2, "", "mine")
            assert "exists already: name a new file, or give --force" in refused.stderr
            forced = home.run(*command, "--force")
            assert (forced.returncode, forced.stderr) == (0, "")
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert file.read_bytes() != b"mine"
            assert [path.name for path in home.path.iterdir() if path.name.startswith(".there")] == []

    def test_no_store_is_overwritten(self, home: Home, session_id: str) -> None:
        for name in ("store.db", "store.db-wal", "new"):
            file = store_of(home) / name
            for command in (["sessions", "export", session_id[:8], "-o", str(file)], ["backup", str(file)]):
                result = home.run(*command, "--force")
                assert (result.returncode, result.stdout) == (2, "")
                assert f"{file} is in a data directory" in result.stderr

    def test_nothing_is_the_beginning_of_no_id(self, home: Home, session_id: str) -> None:
        for command in (["prune", "", "--yes"], ["export", "", "-o", str(home.path / "out")]):
            result = home.run("sessions", *command)
            assert (result.returncode, result.stdout) == (1, "")
            assert "the beginning of an id is empty" in result.stderr

    def test_a_failed_export_leaves_nothing(self, home: Home) -> None:
        file = home.path / "out"
        result = home.run("sessions", "export", "nothing", "-o", str(file))
        assert result.returncode == 1
        assert not file.exists()
        assert [path.name for path in home.path.iterdir() if path.name.startswith(".out")] == []

    def test_a_backup_is_a_store(self, home: Home, session_id: str) -> None:
        copy = home.path / "copy"
        copy.mkdir(mode=0o700)
        result = home.run("backup", str(copy / "store.db"), "--json")
        assert (result.returncode, result.stderr) == (0, "")
        assert json.loads(result.stdout)["bytes"] == (copy / "store.db").stat().st_size
        assert stat.S_IMODE((copy / "store.db").stat().st_mode) == 0o600
        assert listed(home, "--data", str(copy)) == [session_id]
        assert sorted(path.name for path in store_of(home).iterdir() if "backup" in path.name) == []


@pytest.fixture
def damaged_id(home: Home, session_id: str) -> str:
    """The only session in the store of a home, which was set aside."""
    with contextlib.closing(sqlite3.connect(store_of(home) / "store.db")) as connection, connection:
        connection.execute("UPDATE journal SET payload = x'00'")
    store = SqliteStore.open(store_of(home))
    assert isinstance(store.load(session_id), Damaged)
    store.close()
    return session_id


@pytest.mark.parametrize("is_served", [True, False], ids=["server", "file"])
def test_what_was_set_aside_is_listed_and_deleted_only_if_one_is_sure(
    home: Home, damaged_id: str, is_served: bool
) -> None:
    with home.serve() if is_served else contextlib.nullcontext():
        where = [] if is_served else ["--data", str(store_of(home))]
        assert " damaged " in home.run("sessions", *where).stdout
        [told] = json.loads(home.run("sessions", "--json", *where).stdout)
        assert (told["session"], told["state"]) == (damaged_id, "damaged")
        tried = home.run("sessions", "prune", "--all", "--dry-run")
        assert f"  {damaged_id[:8]}  damaged (" in tried.stdout
        assert "1 session would be deleted from " in tried.stdout
        assert tried.stdout.endswith(" B, 1 of them damaged.\n")
        refused = home.run("sessions", "prune", "--all")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "Nothing to delete" in home.run("sessions", "prune").stdout
        exported = home.run("sessions", "export", damaged_id, "-o", str(home.path / "out"))
        assert (exported.returncode, exported.stdout) == (1, "")
        assert "is damaged and was set aside" in exported.stderr
        done = home.run("sessions", "prune", damaged_id[:8], "--yes", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        pruned = json.loads(done.stdout)
        assert (pruned["sessions"], pruned["damaged"], pruned["left_out"]) == ([], [told], [])
        again = home.run("sessions", "prune", "--all", "--json")
        assert json.loads(again.stdout)["damaged"] == []


def test_a_connected_session_is_not_pruned(home: Home) -> None:
    with home.serve() as server:

        async def prune() -> None:
            async with connect(server.url, server.token, role="produce") as client:
                await client.open("file:///a.py", "text")
                await client.flush()
                assert client.session_id is not None
                session_id = client.session_id
                for arguments, status in ((["--all"], 0), ([session_id], 1)):
                    result = await anyio.to_thread.run_sync(
                        partial(home.run, "sessions", "prune", "--yes", *arguments)
                    )
                    assert result.returncode == status
                    assert f"{session_id[:8]} is in use, and stays." in result.stderr
                assert session_id in await anyio.to_thread.run_sync(lambda: listed(home))

        anyio.run(prune)


def test_a_store_that_a_server_has_cannot_be_opened_beside_it(home: Home, session_id: str) -> None:
    with home.serve():
        directory = str(store_of(home))
        beside = home.run("sessions", "prune", "--data", directory)
        assert (beside.returncode, beside.stdout) == (2, "")
        assert f"a server has the store in {directory}: leave --data out to go through it" in beside.stderr
        hidden = home.run("backup", str(home.path / "out"), XDG_RUNTIME_DIR=str(home.path / "elsewhere"))
        assert (hidden.returncode, hidden.stdout) == (2, "")
        assert "name it with --url if it is not found" in hidden.stderr
        both = home.run("sessions", "--url", "ws://127.0.0.1:1", "--data", directory)
        assert both.returncode == 2


def test_without_server_and_store_nothing_is_made(home: Home) -> None:
    for command in (["sessions", "prune"], ["backup", str(home.path / "out")]):
        result = home.run(*command)
        assert (result.returncode, result.stdout) == (2, "")
        assert "no server runs here, and there is no store in " in result.stderr
    assert not store_of(home).exists()


@pytest.mark.parametrize(("reply", "status", "is_left"), [("n\n", 130, True), ("y\n", 0, False)])
def test_a_person_is_asked(home: Home, session_id: str, reply: str, status: int, is_left: bool) -> None:
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "streamctx", "sessions", "prune", "--all"],
            env=home.environ,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.write(ours, reply.encode())
            output, errors = process.communicate(timeout=20)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == status
    assert f"  {session_id[:8]}  test editor, " in errors
    assert "Delete a session that is not past retention, from " in errors
    assert ("Nothing deleted.\n" in errors) is is_left
    assert bool(output) is not is_left
    assert listed(home, "--data", str(store_of(home))) == ([session_id] if is_left else [])


def test_what_is_past_retention_goes_without_a_question(home: Home) -> None:
    week_ago = time.time() - 7.1 * 86_400
    (home.path / "state" / "streamctx").mkdir(parents=True, mode=0o700)
    store = SqliteStore.open(store_of(home), clock=lambda: week_ago)
    store.fence(record("old"))
    store.close()
    store = SqliteStore.open(store_of(home))
    store.fence(record("young"))
    store.close()
    tried = json.loads(home.run("sessions", "prune", "--dry-run", "--json").stdout)
    assert [session["session"] for session in tried["sessions"]] == ["old"]
    result = home.run("sessions", "prune")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("1 session deleted from ")
    assert listed(home, "--data", str(store_of(home))) == ["young"]
    assert "would be deleted" in home.run("sessions", "prune", "--older-than", "0").stderr


def test_a_session_is_shown_as_the_import_says(home: Home, session_id: str) -> None:
    file, other = home.path / "session", home.path / "another store"
    home.run("sessions", "export", session_id, "-o", str(file), "--data", str(store_of(home)))
    result = home.run("sessions", "import", str(file), "--data", str(other))
    assert result.returncode == 0
    assert f"; start `streamctx serve --data '{other}'`, then `streamctx show " in result.stdout
    with home.serve("--data", str(other)):
        *_, command, _ = result.stdout.split("`")
        shown = home.run(*command.split()[1:])
        assert (shown.returncode, shown.stderr) == (0, "")
        again = home.run("sessions", "import", str(file))
        assert "is stored; `streamctx show " in again.stdout


def test_without_a_server_the_store_is_named(home: Home, session_id: str) -> None:
    result = home.run("sessions")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"`streamctx sessions --data {store_of(home)}` lists what is stored" in result.stderr


@pytest.mark.parametrize(
    "command", [["show"], ["tail"], ["sessions", "prune"], ["sessions", "export", "-o", "out"]]
)
def test_an_option_that_is_none_is_no_session(home: Home, command: list[str]) -> None:
    for arguments in (["--bogus"], ["--bogus=1"], ["--bogus", "abc"]):
        result = home.run(*command, *arguments)
        assert (result.returncode, result.stdout) == (2, "")
        assert "No such option" in result.stderr
    with home.serve():
        for arguments in (["-x"], ["--", "--bogus"]):
            result = home.run(*command, *arguments)
            assert (result.returncode, result.stdout) == (1, "")
            assert f"no session begins with '{arguments[-1]}'" in result.stderr


def test_options_before_the_subcommand_count(home: Home, session_id: str) -> None:
    result = home.run("sessions", "--json", "--data", str(store_of(home)), "prune", "--all", "--dry-run")
    assert [session["session"] for session in json.loads(result.stdout)["sessions"]] == [session_id]
