"""Nothing of a secret document is in any file that a server, an export or a backup leaves (SEC-3)."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec
import pytest

from streamctx.client.client import connect
from streamctx.errors import StreamctxError
from streamctx.wire.changes import Change
from streamctx.wire.messages import Close, DesignClose, Edit, Open, Part, Workspace
from tests.cli.running import Home, RunningServer
from tests.hostile.arena import Arena
from tests.hostile.canaries import CANARY, Canaries, design_of, events_of
from tests.hostile.raw import HELLO, hash_of, opening

__all__: list[str] = []

pytestmark = pytest.mark.e2e

_SHOWN = "shown-to-all"
_CANARY_BYTES = re.compile(CANARY.pattern.encode())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def found_in(*places: Path) -> dict[str, list[bytes]]:
    """Which canaries are in which files, byte for byte, whatever they are."""
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*"))]
    assert files
    found = {file.name: _CANARY_BYTES.findall(file.read_bytes()) for file in files if file.is_file()}
    return {name: canaries for name, canaries in found.items() if canaries}


def has_shown(*places: Path) -> bool:
    """Whether what is no secret is found the same way."""
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*"))]
    return any(_SHOWN.encode() in file.read_bytes() for file in files if file.is_file())


class Planter:
    """Pushes everything that is to be stored, and everything that is not."""

    def __init__(self, work: Path) -> None:
        self.canaries = canaries = Canaries()
        self.folder = work.as_uri()
        self.workspace = Workspace(folders=(self.folder,), trusted=True)
        self.secrets: list[str] = []
        self.names = [
            f"{self.folder}/{canaries.new('path')}/.env",
            f"{self.folder}/.env.{canaries.new('path')}",
            f"{self.folder}/{canaries.new('path')}/id_rsa",
            f"{self.folder}/{canaries.new('path')}/prod-credentials.json",
            f"{self.folder}/{canaries.new('path')}/server.PEM",
            f"{self.folder}/{canaries.new('path')}.plan",
            f"{self.folder}/private/{canaries.new('path')}.py",
            f"C:\\{canaries.new('path')}\\.ENV",
        ]

    def text(self) -> str:
        """So long and so often the same that no page of a file can cut each of them in two."""
        return f"{self.canaries.new('text')} " * 400

    async def push_raw(self, server: RunningServer) -> str:
        """Every kind of event about documents that are excluded, before and after their opens."""
        port = urlsplit(server.url).port
        assert port is not None
        canaries = self.canaries
        async with Arena(port, server.token).raw() as raw:
            welcome = await raw.greet(msgspec.structs.replace(HELLO, workspace=self.workspace))
            self.secrets.append(welcome.secret)
            await raw.push(opening(100, f"{_SHOWN} " * 400))
            for alias, name in enumerate(self.names, 1):
                # Nothing is known of the alias yet.
                await raw.push(*events_of(alias, canaries))
                await raw.push(opening(alias, self.text(), uri=name))
                await raw.push(*events_of(alias, canaries))
            await raw.push(
                design_of(50, f"figma:///{canaries.new('path')}/.env.design", "x", canaries),
                *events_of(50, canaries),
                DesignClose(document=50, reason="plugin_closed"),
            )
            # What comes of an alias ahead of the open that is refused waits behind the gap.
            first = next(raw.numbers)
            ahead = [raw.frame_of(event, sequence=next(raw.numbers)) for event in events_of(60, canaries)]
            await raw.send_frames(*ahead)
            await raw.send(opening(60, self.text(), uri=f"/{canaries.new('path')}/.env"), sequence=first)
            # An alias that was a document's which is no secret.
            edit = Edit(document=61, base=1, version=2, changes=(Change(0, 0, 0, 0, _SHOWN),))
            await raw.push(opening(61, _SHOWN), edit)
            await raw.push(opening(61, self.text(), uri=f"/{canaries.new('path')}/.env"))
            await raw.push(*events_of(61, canaries))
            whole = self.text()
            await raw.push(
                Open(
                    document=62,
                    uri=f"/{canaries.new('path')}/.env",
                    version=1,
                    length=len(whole),
                    hash=hash_of(whole),
                    parts=2,
                    language=canaries.new("language"),
                ),
                Part(document=62, version=1, index=0, text=whole[:2000]),
                Part(document=62, version=1, index=1, text=whole[2000:]),
                *events_of(62, canaries),
            )
            await raw.push(*(Close(document=alias) for alias in (1, 2, 60)))
            await raw.applied(await raw.push(opening(101, _SHOWN)))
        return welcome.session

    async def push_by_client(self, server: RunningServer) -> str:
        """As an editor would, with our own client, until the server is killed."""
        async with connect(server.url, server.token, role="produce", workspace=self.workspace) as client:
            shown = await client.open(f"{self.folder}/shown.py", _SHOWN)
            for name in self.names:
                try:
                    document = await client.open(name, self.text())
                    document.edit((0, 0, 0, 0, self.canaries.new("edit")))
                    document.save()
                    client.focus(document)
                except StreamctxError:
                    continue
            shown.edit((0, 0, 0, 0, "x"))
            await client.flush()
            assert client.session_id is not None
            server.process.send_signal(signal.SIGKILL)
            await anyio.to_thread.run_sync(server.process.wait)
            return client.session_id


def test_no_byte_of_an_excluded_document_is_in_any_file(home: Home, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / ".streamctxignore").write_text("*.plan\nprivate/\n")
    planter = Planter(work)
    data = home.path / "state" / "streamctx" / "data"
    with home.serve_to_death() as server:
        raw_session = anyio.run(planter.push_raw, server)
        # Its log has not been copied into the file.
        assert (data / "store.db-wal").stat().st_size > 0
        assert has_shown(data)
        assert found_in(data) == {}
        session = anyio.run(planter.push_by_client, server)
    assert has_shown(data)
    assert found_in(data) == {}

    export, backup = tmp_path / "export", tmp_path / "backup"
    with home.serve() as server:
        for name in planter.names:
            assert home.run("show", session[:10], name, "--history").returncode == 1
        for session_id in (session, raw_session):
            shown = home.run("show", session_id[:10], "--json")
            assert (shown.returncode, CANARY.findall(shown.stdout)) == (0, [])
            written = home.run("sessions", "export", session_id[:10], "-o", str(export), "--force")
            assert written.returncode == 0, written.stderr
            assert has_shown(export)
            assert found_in(export) == {}
        assert home.run("backup", str(backup)).returncode == 0
        assert found_in(data) == {}
    assert has_shown(backup)
    assert found_in(backup, home.path) == {}
    for secret in planter.secrets:
        for file in (backup, export, *data.iterdir()):
            assert secret.encode() not in file.read_bytes()

    assert json.loads(home.run("sessions", "prune", "--all", "--yes", "--json").stdout)["sessions"]
    assert found_in(home.path) == {}
    # What is deleted is not only forgotten.
    assert not has_shown(data)


def test_the_search_finds_what_was_stored_before_it_was_excluded(home: Home, tmp_path: Path) -> None:
    planter = Planter(tmp_path)
    data = home.path / "state" / "streamctx" / "data"
    name = f"{planter.folder}/{planter.canaries.new('path')}.plan"

    async def push(server: RunningServer) -> str:
        async with connect(server.url, server.token, role="produce", workspace=planter.workspace) as client:
            await client.open(name, planter.text())
            await client.flush()
            assert client.session_id is not None
            server.process.send_signal(signal.SIGKILL)
            await anyio.to_thread.run_sync(server.process.wait)
            return client.session_id

    with home.serve_to_death() as server:
        session = anyio.run(push, server)
    assert found_in(data)
    (tmp_path / ".streamctxignore").write_text("*.plan\n")
    with home.serve():
        for arguments in (["--json"], ["1", "--at", "0"], ["1", "--history"], [name, "--at", "0"]):
            result = home.run("show", session[:10], *arguments)
            assert CANARY.findall(result.stdout) == []
