"""`streamctx serve` as a process: what it says, what it writes, and how it ends."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import anyio
import pytest

from streamctx.client.client import connect
from tests.cli.running import Home, RunningServer

pytestmark = pytest.mark.e2e


def push_something(server: RunningServer, *, edits: int = 3) -> None:
    async def push() -> None:
        async with connect(server.url, server.token, name="test", role="both") as client:
            document = await client.open("file:///work/a.py", "text\n")
            for _ in range(edits):
                document.edit((0, 0, 0, 0, "x"))
                await client.flush()
            await client.observe("*")

    anyio.run(push)


def test_ready_file_says_where_the_server_is(home: Home) -> None:
    with home.serve() as server:
        assert server.ready["pid"] == server.process.pid
        assert server.ready["http_url"].startswith("http://127.0.0.1:")
        assert stat.S_IMODE(Path(server.ready["token_file"]).stat().st_mode) == 0o600
        push_something(server)
        server.stop()
    assert server.url in server.output
    assert server.ready["token_file"] in server.output
    assert f"{home.path / 'state/streamctx/data'}, kept for 7 days after the last change" in server.output
    assert "streamctx demo" in server.output
    assert server.token not in server.output + server.errors
    assert server.errors == ""
    assert list((home.runtime / "streamctx").iterdir()) == []


@pytest.mark.parametrize("arguments", [["--ephemeral"], ["--durability", "none"]])
def test_a_server_that_stores_nothing_says_so_and_leaves_nothing(home: Home, arguments: list[str]) -> None:
    with home.serve(*arguments) as server:
        assert home.run("sessions").returncode == 0
        push_something(server)
        server.stop()
    assert "in memory only" in server.output
    assert [path.name for path in (home.path / "state" / "streamctx").iterdir()] == ["token"]


def test_a_store_that_another_server_has_is_refused(home: Home) -> None:
    with home.serve():
        result = home.run("serve", "--port", "0")
    assert result.returncode == 2
    assert "is in use by another server" in result.stderr
    assert "--data DIR" in result.stderr


def test_port_in_use_names_the_server_that_holds_it(home: Home) -> None:
    with home.serve() as server:
        port = server.url.split(":")[2].split("/")[0]
        result = home.run("serve", "--port", port, "--ephemeral")
        assert result.returncode == 2
        log = home.path / "debug.log"
        assert home.run("serve", "--port", port, "--ephemeral", "--debug-log", str(log)).returncode == 2
        assert not log.exists()
        assert result.stderr == (
            f"Error: port: {port} is in use by the streamctx server with process id "
            f"{server.process.pid} ({server.ready['http_url']}); 0 takes a free one\n"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "set --tls-cert and --tls-key, or --insecure, or listen on 127.0.0.1"),
        (["--tls-key", "key.pem"], "--tls-key is set and --tls-cert is not; a key needs its certificate"),
        (["--allowed-origin", "nonsense"], "is not an origin"),
        (["--port", "65536"], "not in the range"),
        (["--ephemeral", "--debug-log", "/nowhere/log"], "a new file is needed"),
        (["--debug-log", "/nowhere/log"], "--ephemeral"),
        (["--ephemeral", "--data", "/nowhere"], "--data: /nowhere is set, and nothing is to be stored"),
    ],
)
def test_wrong_setting_is_status_2(home: Home, arguments: list[str], message: str) -> None:
    result = home.run("serve", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_commands_reach_a_server_on_a_unix_socket(home: Home) -> None:
    socket = home.path / "s"
    with home.serve("--uds", str(socket)):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert home.run("sessions").stdout.endswith("has no sessions.\n")
    assert not socket.exists()


def test_debug_log_runs_again_identically(home: Home) -> None:
    log = home.path / "debug.log"
    with home.serve("--ephemeral", "--debug-log", str(log)) as server:
        push_something(server)
        server.stop()
    assert "document text" in server.errors
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert server.token not in log.read_text()
    result = home.run("debug", "rerun", str(log))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("identical: ")
    traced = home.run("debug", "rerun", "--trace", str(log)).stdout.splitlines()
    assert any('"type": "edit"' in line for line in traced)
    assert traced[-1] == result.stdout.strip()


def test_debug_log_of_other_inputs_is_told_apart(home: Home) -> None:
    log = home.path / "debug.log"
    with home.serve("--ephemeral", "--debug-log", str(log)) as server:
        push_something(server)
    lines = log.read_text().splitlines()
    header = json.loads(lines[0])
    header["seed"] = "00" * 32
    log.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    result = home.run("debug", "rerun", str(log))
    assert result.returncode == 1
    assert result.stdout.startswith("different at input ")
    assert "message of connection 1" in result.stdout


def test_debug_log_stops_at_its_bound_with_a_warning(home: Home) -> None:
    log = home.path / "debug.log"
    with home.serve("--ephemeral", "--debug-log", str(log), "--debug-log-mb", "1") as server:

        async def push() -> None:
            async with connect(server.url, server.token, role="produce") as client:
                await client.open("file:///work/a.py", "text of two megabytes\n" * 100_000)

        anyio.run(push)
        server.stop()
    assert "the debug log ends here: it has reached 1 MB" in server.errors
    assert log.stat().st_size <= 1_000_000
    assert home.run("debug", "rerun", str(log)).returncode == 0


@pytest.mark.parametrize("option", ["--data", "--ready-file", "--token-file", "--uds"])
def test_an_empty_path_is_refused(home: Home, option: str) -> None:
    result = home.run("serve", "--port", "0", option, "")
    assert result.returncode == 2
    assert "the path is empty" in result.stderr


def test_no_file_is_written_into_a_data_directory(home: Home) -> None:
    with home.serve():
        pass
    store = home.path / "state" / "streamctx" / "data" / "store.db"
    before = store.read_bytes()
    for option, more in (("--ready-file", []), ("--debug-log", ["--ephemeral"])):
        result = home.run("serve", "--port", "0", *more, option, str(store))
        assert result.returncode == 2
        assert f"{store} is in a data directory" in result.stderr
    assert store.read_bytes() == before
