"""The HTTP side of stored sessions: listed, read, looked back at, deleted, taken elsewhere, backed up."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sqlite3
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio.to_thread
import pytest

from streamctx import __version__
from streamctx.client.client import Client, connect
from streamctx.engine.base import Damaged, StoreError
from streamctx.hub.history import SessionPast
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.server.config import ServerConfig
from streamctx.server.serve import Server, serve
from streamctx.server.store import open_engine, served_store
from streamctx.server.stored import IMPORT_BYTES_MAX, IMPORT_PATH
from streamctx.server.turns import PASTS_MAX, WAITING_MAX

__all__: list[str] = []

pytestmark = [pytest.mark.asyncio, pytest.mark.e2e]

TOKENS = {
    "anna-token-of-enough-characters": Principal("anna", frozenset({"produce", "observe", "admin"})),
    "anna-reader-of-enough-characters": Principal("anna", frozenset({"observe"})),
    "bert-token-of-enough-characters": Principal("bert", frozenset({"produce", "observe", "admin"})),
}
ANNA, READER, BERT = TOKENS
URI = "file:///work/a.py"


@dataclass
class Answer:
    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Running:
    server: Server
    hub: Hub

    async def ask(
        self, path: str, *, method: str = "GET", token: str = ANNA, body: bytes | None = None
    ) -> Answer:
        def run() -> Answer:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
            try:
                connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
                response = connection.getresponse()
                return Answer(response.status, response.read(), dict(response.getheaders()))
            finally:
                connection.close()

        return await anyio.to_thread.run_sync(run)

    async def prune(self, **asked: object) -> Answer:
        return await self.ask("/v1/sessions/prune", method="POST", body=json.dumps(asked).encode())

    async def listed(self, token: str = ANNA) -> dict[str, dict[str, Any]]:
        answer = await self.ask("/v1/sessions?stored=true", token=token)
        return {session["session"]: session for session in answer.json["sessions"]}

    @asynccontextmanager
    async def editor(self, token: str = ANNA, text: str = "text\n") -> AsyncIterator[Client]:
        """An editor that has opened a document and typed three times."""
        async with connect(self.server.url, token, name="editor", role="produce") as client:
            document = await client.open(URI, text)
            for sign in "abc":
                document.edit((0, 0, 0, 0, sign))
                await client.flush()
            yield client


@asynccontextmanager
async def running(directory: Path | None, *, limits: Limits = DEFAULT_LIMITS) -> AsyncIterator[Running]:
    config = ServerConfig(
        port=0, data=directory, discovery=False, ephemeral=directory is None, token=ANNA, limits=limits
    )
    engine = open_engine(config)
    hub = Hub(tokens=TOKENS, version=__version__, limits=limits, engine=engine)
    async with serve(hub, config, store=served_store(engine, config)) as server:
        yield Running(server, hub)


async def stored_session(directory: Path, token: str = ANNA) -> str:
    """Let a server die, for its client, with a session; its client does not come back."""
    async with running(directory) as first, first.editor(token) as client:
        assert client.session_id is not None
        session_id = client.session_id
        await first.server.stop()
    return session_id


async def test_a_stored_session_is_listed_as_such_and_only_if_asked_for(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        assert (await after.ask("/v1/sessions")).json == {"sessions": []}
        listed = await after.listed()
        session = listed[session_id]
        assert (session["stored"], session["live"], session["connected"]) == (True, False, False)
        assert session["client"] == {"name": "editor"}
        assert 0 < session["opened"] <= session["changed"]
        assert session["stored_bytes"] > 0
        assert await after.listed(BERT) == {}
        assert (await after.ask("/v1/sessions?stored=perhaps")).status == 400
        async with after.editor() as client:
            listed = await after.listed()
            assert client.session_id is not None
            live = listed[client.session_id]
            assert (live["stored"], live["live"], live["connected"]) == (True, True, True)
            assert live["changed"] > session["changed"]


async def test_a_stored_session_is_read_on_demand(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        document = await after.ask(f"/v1/sessions/{session_id}/documents/{quote(URI, safe='')}")
        assert (document.status, document.json["text"]) == (200, "cbatext\n")
        session = (await after.ask(f"/v1/sessions/{session_id}")).json
        assert (session["session"], session["connected"], session["live"]) == (session_id, False, True)
        assert session["documents"][0]["version"] == document.json["version"]
        assert len(after.hub.registry) == 1


async def test_what_belongs_to_another_is_not_found_and_not_loaded(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        for path in ("", "/documents/1", "/documents/1/history", "/documents/1?at=1", "/export"):
            answer = await after.ask(f"/v1/sessions/{session_id}{path}", token=BERT)
            assert (answer.status, answer.code) == (404, "not_found")
            unknown = await after.ask(f"/v1/sessions/{'x' * 43}{path}", token=BERT)
            assert (unknown.status, unknown.body) == (answer.status, answer.body)
        assert (await after.ask(f"/v1/sessions/{session_id}", method="DELETE", token=BERT)).status == 404
        assert len(after.hub.registry) == 0
        assert session_id in await after.listed()


async def test_a_damaged_session_is_gone_and_the_store_that_fails_says_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        for found, status, code in (
            (Damaged("a page is missing", None), 410, "damaged"),
            (StoreError("/secret/path is full", is_fatal=False, retry_after_s=6.5), 503, "unavailable"),
        ):
            monkeypatch.setattr(after.hub.storage._engine, "load", lambda _, done, found=found: done(found))
            answer = await after.ask(f"/v1/sessions/{session_id}")
            assert (answer.status, answer.code) == (status, code)
            assert "secret" not in answer.body.decode()
        assert answer.headers["retry-after"] == "7"


async def test_a_session_whose_rows_were_damaged_is_gone_once_and_then_unknown(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    database = sqlite3.connect(tmp_path / "data" / "store.db")
    database.execute("UPDATE journal SET payload = x'00'")
    database.commit()
    database.close()
    async with running(tmp_path / "data") as after:
        answer = await after.ask(f"/v1/sessions/{session_id}")
        assert (answer.status, answer.code) == (410, "damaged")
        assert (await after.ask(f"/v1/sessions/{session_id}")).status == 404
        [damaged] = (await after.ask("/v1/sessions?stored=true")).json["damaged"]
        assert (damaged["session"], damaged["state"]) == (session_id, "damaged")
        assert damaged["reason"]
        assert 0 < damaged["set_aside"] <= time.time()
        assert damaged["stored_bytes"] > 0
        assert "damaged" not in (await after.ask("/v1/sessions")).json
        other = (await after.prune(older_than_s=0, sessions=["other"])).json
        assert (other["damaged"], other["left_out"]) == ([], ["other"])
        assert (await after.prune(older_than_s=3600)).json["damaged"] == []
        # What was set aside goes with what is old.
        assert (await after.prune(older_than_s=0, dry_run=True)).json["damaged"] == [damaged]
        assert (await after.prune(sessions=[session_id])).json["damaged"] == [damaged]
        assert (await after.ask("/v1/sessions?stored=true")).json["damaged"] == []
    database = sqlite3.connect(tmp_path / "data" / "store.db")
    assert database.execute("SELECT count(*) FROM quarantine").fetchone() == (0,)
    database.close()


async def test_what_was_set_aside_goes_when_it_is_past_retention(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    database = sqlite3.connect(tmp_path / "data" / "store.db", isolation_level=None)
    database.execute("UPDATE journal SET payload = x'00'")
    database.close()
    async with running(tmp_path / "data") as after:
        assert (await after.ask(f"/v1/sessions/{session_id}")).status == 410
    for retention_s, count in ((3600.0, 1), (0.001, 0)):
        async with running(tmp_path / "data", limits=replace(DEFAULT_LIMITS, retention_s=retention_s)):
            pass
        database = sqlite3.connect(tmp_path / "data" / "store.db")
        assert database.execute("SELECT count(*) FROM quarantine").fetchone() == (count,)
        database.close()


async def test_every_version_is_read_back_live_and_stored(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as first, first.editor() as client:
        live = await first.ask(f"/v1/sessions/{client.session_id}/documents/1/history")
        assert live.status == 200
        versions = [moment["version"] for moment in live.json["versions"]]
        assert versions == sorted(versions, reverse=True)
        assert live.json["count"] == len(versions) == 4
        assert live.json["complete"] is True
        path = f"/v1/sessions/{client.session_id}/documents/{quote(URI, safe='')}"
        texts = {
            version: (await first.ask(f"{path}?at={version}", token=READER)).json["text"]
            for version in versions
        }
        assert sorted(texts.values(), key=len) == ["text\n", "atext\n", "batext\n", "cbatext\n"]
        await first.server.stop()
    async with running(tmp_path / "data") as after:
        for version, text in texts.items():
            found = (await after.ask(f"{path}?at={version}")).json
            assert (found["text"], found["stale"], found["openings"]) == (text, False, [1])
            assert found["at"] > 0
        newest = await after.ask(f"{path}/history?limit=1")
        assert [moment["version"] for moment in newest.json["versions"]] == versions[:1]
        assert newest.json["count"] == 4


class GatedPasts:
    """Holds back the pasts that a hub has read, and counts how many are in memory at a time."""

    def __init__(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = hub.past
        self._held: list[Callable[[], None]] = []
        self._present: weakref.WeakSet[SessionPast] = weakref.WeakSet()
        self.asked = 0
        self.present_max = 0
        monkeypatch.setattr(hub, "past", self._past)

    def _past(
        self,
        principal: Principal,
        session_id: str,
        done: Callable[[SessionPast | StoreError | None], None],
    ) -> None:
        self.asked += 1

        def hold(past: SessionPast | StoreError | None) -> None:
            if isinstance(past, SessionPast):
                self._present.add(past)
                self.present_max = max(self.present_max, len(self._present))
            self._held.append(lambda: done(past))

        self._read(principal, session_id, hold)

    def release(self) -> None:
        held, self._held = self._held, []
        for give in held:
            give()


async def test_few_pasts_are_in_memory_however_many_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data") as first, first.editor() as anna, first.editor(BERT) as bert:
        pasts = GatedPasts(first.hub, monkeypatch)
        answers: list[Answer] = []

        async def ask(client: Client, query: str, token: str) -> None:
            path = f"/v1/sessions/{client.session_id}/documents/1{query}"
            answers.append(await first.ask(path, token=token))

        async with asyncio.timeout(20), anyio.create_task_group() as tasks:
            for query in ["/history", "?at=1"] * 6:
                tasks.start_soon(ask, anna, query, ANNA)
            while len(answers) < 12 - 1 - WAITING_MAX:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert pasts.asked == 1
            assert {(each.status, each.code, each.headers["retry-after"]) for each in answers} == {
                (503, "limit", "5")
            }
            # Who asks often takes nobody else's turn.
            tasks.start_soon(ask, bert, "/history", BERT)
            while len(answers) < 13:
                pasts.release()
                await asyncio.sleep(0.01)
        assert [each.status for each in answers[-2 - WAITING_MAX :]] == [200] * (2 + WAITING_MAX)
        assert pasts.asked == 2 + WAITING_MAX
        assert pasts.present_max <= PASTS_MAX


@pytest.mark.parametrize(
    ("query", "status", "reason"),
    [
        ("/documents/1?at=99", 404, "never"),
        ("/documents/7?at=1", 404, "unknown"),
        ("/documents/1?at=1&opened=2", 404, "opening"),
        ("/documents/1?at=-1", 400, None),
        ("/documents/1?at=", 400, None),
        ("/documents/1?at=9007199254740992", 400, None),
        ("/documents/1?at=1&opened=0", 400, None),
        ("/documents/1/history?limit=0", 400, None),
        ("/documents/1/history?limit=10001", 400, None),
        ("/documents/7/history", 404, None),
    ],
)
async def test_what_cannot_be_read_back_says_why(
    tmp_path: Path, query: str, status: int, reason: str | None
) -> None:
    async with running(tmp_path / "data") as first, first.editor() as client:
        answer = await first.ask(f"/v1/sessions/{client.session_id}{query}")
        assert answer.status == status
        assert answer.json["error"].get("reason") == reason


async def test_a_document_whose_uri_ends_in_history_is_a_document(tmp_path: Path) -> None:
    uri = "file:///work/history"
    async with (
        running(tmp_path / "data") as first,
        connect(first.server.url, ANNA, role="produce") as client,
    ):
        await client.open(uri, "text")
        await client.flush()
        path = f"/v1/sessions/{client.session_id}/documents/{quote(uri, safe='')}"
        assert (await first.ask(path)).json["text"] == "text"
        assert (await first.ask(f"{path}/history")).json["count"] == 1


async def test_a_server_that_stores_nothing_says_so(tmp_path: Path) -> None:
    async with running(None) as first, first.editor() as client:
        session = f"/v1/sessions/{client.session_id}"
        for method, path in (
            ("GET", f"{session}/documents/1/history"),
            ("GET", f"{session}/documents/1?at=1"),
            ("GET", f"{session}/export"),
            ("DELETE", session),
            ("POST", "/v1/sessions/prune"),
            ("POST", "/v1/sessions/import"),
            ("GET", "/v1/backup"),
        ):
            answer = await first.ask(path, method=method)
            assert (answer.status, answer.code) == (501, "unsupported"), path
            assert "this server stores nothing" in answer.json["error"]["message"]
        assert (await first.ask("/v1/sessions?stored=true")).json["sessions"][0]["live"] is True


async def test_what_changes_the_store_needs_the_scope_admin(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as first, first.editor() as client:
        session = f"/v1/sessions/{client.session_id}"
        for method, path in (
            ("GET", f"{session}/export"),
            ("DELETE", session),
            ("POST", "/v1/sessions/prune"),
            ("POST", "/v1/sessions/import"),
            ("GET", "/v1/backup"),
        ):
            refused = await first.ask(path, method=method, token=READER)
            assert (refused.status, refused.code) == (403, "forbidden"), path
            assert (await first.ask(path, method=method, token="wrong")).status == 401, path


async def test_a_session_in_use_is_not_deleted_and_one_that_is_not_is(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        async with after.editor() as client:
            answer = await after.ask(f"/v1/sessions/{client.session_id}", method="DELETE")
            assert (answer.status, answer.code) == (409, "conflict")
            pruned = (await after.prune(sessions=[client.session_id, session_id, "nobody"])).json
            assert [session["session"] for session in pruned["sessions"]] == [session_id]
            assert (pruned["in_use"], pruned["left_out"]) == ([client.session_id], ["nobody"])
            assert list(await after.listed()) == [client.session_id]
        async with asyncio.timeout(10):
            # It has ended, and goes with the next commit.
            while await after.listed():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


class ReturningClients:
    """Clients that come back in the next turn of the loop after a session was asked for."""

    def __init__(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_in_use = hub.is_in_use
        self._back: set[str] = set()
        monkeypatch.setattr(hub, "is_in_use", self._is_back)

    def _is_back(self, session_id: str) -> bool:
        asyncio.get_running_loop().call_soon(self._back.add, session_id)
        return session_id in self._back or self._is_in_use(session_id)


async def test_whether_a_session_is_in_use_is_asked_in_the_step_that_deletes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = await stored_session(tmp_path / "data")
    pruned = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        ReturningClients(after.hub, monkeypatch)
        assert (await after.ask(f"/v1/sessions/{deleted}", method="DELETE")).status == 200
        gone = await after.prune(sessions=[pruned])
        assert (gone.status, [each["session"] for each in gone.json["sessions"]]) == (200, [pruned])
        assert await after.listed() == {}


async def test_a_session_that_is_in_use_by_now_is_left_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        ReturningClients(after.hub, monkeypatch)
        tried = (await after.prune(sessions=[session_id], dry_run=True)).json
        assert [each["session"] for each in tried["sessions"]] == [session_id]
        pruned = (await after.prune(sessions=[session_id])).json
        assert (pruned["sessions"], pruned["in_use"]) == ([], [session_id])
        assert (await after.ask(f"/v1/sessions/{session_id}", method="DELETE")).status == 409
        assert session_id in await after.listed()


async def test_a_session_that_was_only_looked_at_can_be_deleted(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        assert (await after.ask(f"/v1/sessions/{session_id}")).status == 200
        answer = await after.ask(f"/v1/sessions/{session_id}", method="DELETE")
        assert (answer.status, answer.json) == (200, {"session": session_id})
        assert (await after.ask(f"/v1/sessions/{session_id}")).status == 404
    async with running(tmp_path / "data") as again:
        assert await again.listed() == {}


async def test_prune_without_conditions_deletes_what_is_past_retention(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        pruned = (await after.prune()).json
        assert (pruned["sessions"], pruned["retention_s"]) == ([], 7 * 86_400)
        tried = (await after.prune(older_than_s=0, dry_run=True)).json
        assert [session["session"] for session in tried["sessions"]] == [session_id]
        assert session_id in await after.listed()
        assert (await after.prune(older_than_s=3600)).json["sessions"] == []
        assert (await after.ask("/v1/sessions/prune", method="POST", token=BERT)).json["sessions"] == []
        await after.prune(older_than_s=0)
        assert await after.listed() == {}


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"older": 1}', b'{"older_than_s": "1"}', b"\xff"])
async def test_prune_takes_nothing_that_it_does_not_know(tmp_path: Path, body: bytes) -> None:
    async with running(tmp_path / "data") as first:
        answer = await first.ask("/v1/sessions/prune", method="POST", body=body)
        assert (answer.status, answer.code) == (400, "malformed")


async def test_a_session_goes_to_another_server_as_a_file(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "one")
    async with running(tmp_path / "one") as one:
        exported = await one.ask(f"/v1/sessions/{session_id}/export")
        assert (exported.status, exported.headers["content-type"]) == (200, "application/octet-stream")
    async with running(tmp_path / "two") as two:
        imported = await two.ask("/v1/sessions/import", method="POST", token=BERT, body=exported.body)
        assert (imported.status, imported.json) == (200, {"session": session_id})
        assert list(await two.listed(BERT)) == [session_id]
        assert await two.listed() == {}
        document = await two.ask(f"/v1/sessions/{session_id}/documents/1", token=BERT)
        assert document.json["text"] == "cbatext\n"


async def test_an_import_does_not_tell_that_another_has_the_session(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        exported = await after.ask(f"/v1/sessions/{session_id}/export")
        own = await after.ask(IMPORT_PATH, method="POST", body=exported.body)
        assert (own.status, own.json) == (200, {"session": session_id})
        refused = await after.ask(IMPORT_PATH, method="POST", token=BERT, body=exported.body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "60")
        assert refused.json["error"] == {
            "code": "unavailable",
            "message": "the store cannot do that now; try again in 60 s",
        }
        assert await after.listed(BERT) == {}
        assert session_id in await after.listed()


async def test_an_import_that_is_none_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as first:
        for body in (b"", b"nonsense", bytes(200_000)):
            answer = await first.ask("/v1/sessions/import", method="POST", body=body)
            assert (answer.status, answer.code) == (400, "malformed")


async def test_a_backup_is_a_store_and_leaves_nothing_behind(tmp_path: Path) -> None:
    session_id = await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        before = sorted(path.name for path in (tmp_path / "data").iterdir())
        backup = await after.ask("/v1/backup")
        assert (backup.status, backup.headers["content-length"]) == (200, str(len(backup.body)))
        assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
    (tmp_path / "copy").mkdir(mode=0o700)
    copy = tmp_path / "copy" / "store.db"
    copy.touch(mode=0o600)
    copy.write_bytes(backup.body)
    async with running(tmp_path / "copy") as restored:
        document = await restored.ask(f"/v1/sessions/{session_id}/documents/1")
        assert document.json["text"] == "cbatext\n"


async def test_a_backup_that_a_server_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    await stored_session(tmp_path / "data")
    left = tmp_path / "data" / "backup-0123"
    left.write_bytes(b"left")
    async with running(tmp_path / "data"):
        assert not left.exists()


async def test_a_backup_that_nobody_reads_leaves_room_for_the_next(tmp_path: Path) -> None:
    await stored_session(tmp_path / "data")
    async with running(tmp_path / "data") as after:
        head = f"GET /v1/backup HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANNA}\r\n\r\n".encode()
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", after.server.port), timeout=10) as client:
                client.sendall(head)
        async with asyncio.timeout(10):
            while (await after.ask("/v1/backup")).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_metrics_have_the_counters_of_the_store(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as first, first.editor():
        lines = (await first.ask("/metrics")).body.decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines)
        assert int(values["streamctx_store_commits"]) >= 4
        assert int(values["streamctx_store_sessions"]) == 1
        assert int(values["streamctx_store_bytes"]) > 0
        assert float(values["streamctx_store_commit_s_max"]) > 0
    async with running(None) as first:
        assert "streamctx_store" not in (await first.ask("/metrics")).body.decode()


class Upload:
    """An upload in pieces, on a connection of its own."""

    def __init__(self, port: int, length: int | None, *, token: str = ANNA, path: str = IMPORT_PATH) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{size}\r\n\r\n"
        self._socket.sendall(head.encode())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def answer(self) -> Answer:
        response = http.client.HTTPResponse(self._socket)
        response.begin()
        with self._socket:
            return Answer(response.status, response.read())


SLOW = replace(DEFAULT_LIMITS, request_head_timeout_s=0.4)


async def test_an_upload_may_take_longer_than_a_request_as_long_as_it_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path / "data", limits=SLOW) as first:

        def upload() -> Answer:
            upload = Upload(first.server.port, 80_000)
            for _ in range(8):
                time.sleep(0.1)
                upload.send(bytes(10_000))
            return upload.answer()

        answer = await anyio.to_thread.run_sync(upload)
        assert (answer.status, answer.code) == (400, "malformed")


async def test_an_upload_that_stands_still_is_cut_off(tmp_path: Path) -> None:
    async with running(tmp_path / "data", limits=SLOW) as first:

        def upload() -> Answer:
            upload = Upload(first.server.port, 80_000)
            upload.send(bytes(10_000))
            return upload.answer()

        assert (await anyio.to_thread.run_sync(upload)).status == 408
        # Nothing of it is in the way of the next.
        assert (await first.ask(IMPORT_PATH, method="POST", body=b"x")).status == 400


@pytest.mark.parametrize(
    ("path", "length", "token", "status"),
    [
        (IMPORT_PATH, IMPORT_BYTES_MAX + 1, ANNA, 413),
        (IMPORT_PATH, IMPORT_BYTES_MAX, "wrong", 401),
        (IMPORT_PATH, IMPORT_BYTES_MAX, READER, 403),
        (f"{IMPORT_PATH}?x=1", 65_537, ANNA, 413),
        ("/v1/sessions/prune", 65_537, ANNA, 413),
    ],
)
async def test_an_upload_that_is_not_allowed_is_refused_before_it_comes(
    tmp_path: Path, path: str, length: int, token: str, status: int
) -> None:
    async with running(tmp_path / "data") as first:
        answer = await anyio.to_thread.run_sync(
            lambda: Upload(first.server.port, length, token=token, path=path).answer()
        )
        assert answer.status == status


async def test_one_import_or_backup_is_under_way_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as first:
        upload = await anyio.to_thread.run_sync(lambda: Upload(first.server.port, 4))
        async with asyncio.timeout(10):
            while (answer := await first.ask("/v1/backup")).status == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "limit", "5")
        await anyio.to_thread.run_sync(upload.send, b"none")
        assert (await anyio.to_thread.run_sync(upload.answer)).status == 400
        assert (await first.ask("/v1/backup")).status == 200
