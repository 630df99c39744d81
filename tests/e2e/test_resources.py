"""Files of a root over HTTP, as programs read them: whole, in ranges, again, and with curl."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.to_thread
import pytest

import streamctx
from streamctx.errors import ConfigurationError
from streamctx.hub.hub import Hub
from streamctx.hub.ports import Principal
from streamctx.server.config import ServerConfig
from streamctx.server.serve import Server
from streamctx.server.serve import serve as serve_hub
from streamctx.server.tokens import resolve_token

__all__: list[str] = []

pytestmark = [pytest.mark.asyncio, pytest.mark.e2e]

TOKEN = "a-token-of-enough-characters"
BYTES = bytes(index * 7 % 251 for index in range(1_000_000))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    (made / "picture.png").write_bytes(BYTES)
    return aged(made)


def aged(root: Path) -> Path:
    """Let no file look as if it were being written."""
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (1_700_000_000, 1_700_000_000))
    # The time of the last change of a file's times cannot be set.
    time.sleep(0.06)
    return root


@asynccontextmanager
async def serving(*roots: Path) -> AsyncIterator[Server]:
    async with streamctx.serve(token=TOKEN, roots=roots) as server:
        yield server


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


def path_of(file: Path | str) -> str:
    return "/v1/resources/" + quote(file.as_uri() if isinstance(file, Path) else file, safe="")


async def ask(
    server: Server, path: str, *, method: str = "GET", token: str | None = TOKEN, **headers: str
) -> Answer:
    def run() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if token is not None:
                sent["Authorization"] = f"Bearer {token}"
            connection.request(method, path, headers=sent)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    return await anyio.to_thread.run_sync(run)


# What is given.


async def test_a_file_is_given_whole_with_what_is_known_of_it(root: Path) -> None:
    async with serving(root) as server:
        got = await ask(server, path_of(root / "picture.png"))
    assert (got.status, got.body) == (200, BYTES)
    assert got.headers["content-type"] == "image/png"
    assert got.headers["content-length"] == str(len(BYTES))
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["last-modified"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert got.headers["etag"].startswith('"')


async def test_head_tells_the_same_without_the_bytes(root: Path) -> None:
    async with serving(root) as server:
        whole = await ask(server, path_of(root / "picture.png"))
        head = await ask(server, path_of(root / "picture.png"), method="HEAD")
    dates = {"date": ""}
    assert (head.status, head.body) == (200, b"")
    assert head.headers | dates == whole.headers | dates


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("0-0", 0, 1),
        ("10-99", 10, 100),
        ("999999-", 999_999, 1_000_000),
        ("-5", 999_995, 1_000_000),
        ("262143-524288", 262_143, 524_289),
        ("0-99999999", 0, 1_000_000),
    ],
)
async def test_a_range_is_given(root: Path, asked: str, start: int, stop: int) -> None:
    async with serving(root) as server:
        got = await ask(server, path_of(root / "picture.png"), Range=f"bytes={asked}")
    assert (got.status, got.body) == (206, BYTES[start:stop])
    assert got.headers["content-range"] == f"bytes {start}-{stop - 1}/1000000"


async def test_several_ranges_are_given_in_parts(root: Path) -> None:
    async with serving(root) as server:
        got = await ask(server, path_of(root / "picture.png"), Range="bytes=0-9,500000-500009")
    assert got.status == 206
    boundary = got.headers["content-type"].partition("boundary=")[2].encode()
    assert len(got.body) == int(got.headers["content-length"])
    parts = got.body.split(b"--" + boundary)
    assert [part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for part in parts[1:3]] == [
        BYTES[:10],
        BYTES[500_000:500_010],
    ]


async def test_a_range_past_the_end_is_told_the_size(root: Path) -> None:
    async with serving(root) as server:
        got = await ask(server, path_of(root / "picture.png"), Range="bytes=1000000-")
    assert (got.status, got.headers["content-range"]) == (416, "bytes */1000000")


async def test_what_is_known_already_is_not_sent_again(root: Path) -> None:
    async with serving(root) as server:
        etag = (await ask(server, path_of(root / "picture.png"))).headers["etag"]
        got = await ask(server, path_of(root / "picture.png"), If_None_Match=etag)
    assert (got.status, got.body) == (304, b"")


async def test_of_a_file_that_has_changed_no_range_is_given_for_the_old_etag(root: Path) -> None:
    async with serving(root) as server:
        etag = (await ask(server, path_of(root / "picture.png"))).headers["etag"]
        same = await ask(server, path_of(root / "picture.png"), Range="bytes=5-9", If_Range=etag)
        (root / "picture.png").write_bytes(BYTES[::-1])
        other = await ask(server, path_of(root / "picture.png"), Range="bytes=5-9", If_Range=etag)
    assert (same.status, same.body) == (206, BYTES[5:10])
    assert (other.status, other.body) == (200, BYTES[::-1])


async def test_an_empty_file_is_given(root: Path) -> None:
    (root / "empty").touch()
    aged(root)
    async with serving(root) as server:
        got = await ask(server, path_of(root / "empty"))
    assert (got.status, got.body, got.headers["content-length"]) == (200, b"", "0")


async def test_a_range_beyond_4_gib_is_given(root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.seek(5 << 30)
        file.write(b"the end")
    aged(root)
    async with serving(root) as server:
        got = await ask(server, path_of(root / "sparse"), Range="bytes=-10")
    assert (got.status, got.body) == (206, b"\0\0\0the end")


async def test_a_name_of_any_characters_is_found(root: Path) -> None:
    file = root / "ein Bild, 100 % größer?.txt"
    file.write_text("here")
    aged(root)
    async with serving(root) as server:
        assert (await ask(server, path_of(file))).body == b"here"


async def test_all_that_there_is_is_listed(root: Path) -> None:
    (root / "below").mkdir()
    (root / "below" / "notes.txt").write_text("here")
    async with serving(root) as server:
        got = json.loads((await ask(server, "/v1/resources")).body)
        found = {each["name"]: each for each in got["resources"]}
        assert set(found) == {"picture.png", "notes.txt"}
        assert not got["truncated"]
        assert found["picture.png"] | {"etag": "", "modified": 0} == {
            "uri": (root / "picture.png").as_uri(),
            "name": "picture.png",
            "mime": "image/png",
            "size_bytes": 1_000_000,
            "etag": "",
            "modified": 0,
        }
        assert (await ask(server, path_of(found["notes.txt"]["uri"]))).body == b"here"


async def test_a_list_that_is_not_whole_says_so(root: Path) -> None:
    deep = root.joinpath(*"abcdefghijklmnopqrst")
    deep.mkdir(parents=True)
    (deep / "file").write_text("here")
    async with serving(root) as server:
        got = json.loads((await ask(server, "/v1/resources")).body)
    assert ([each["name"] for each in got["resources"]], got["truncated"]) == (["picture.png"], True)


async def test_version_tells_whether_there_are_resources(root: Path) -> None:
    async with serving(root) as server:
        assert "resources" in json.loads((await ask(server, "/version")).body)["features"]
    async with serving() as server:
        assert "resources" not in json.loads((await ask(server, "/version")).body)["features"]
        assert json.loads((await ask(server, "/v1/resources")).body)["resources"] == []
        assert (await ask(server, path_of(root / "picture.png"))).status == 404


# What is not.


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        "id_rsa",
        "server.pem",
        "ignored.txt",
        "link-to-secret",
        "link-out",
        "nothing-here",
        "directory",
    ],
)
async def test_what_is_secret_outside_or_not_there_looks_the_same(root: Path, name: str) -> None:
    (root.parent / "outside").write_text("canary")
    for each in (".env", "id_rsa", "server.pem", "ignored.txt"):
        (root / each).write_text("canary")
    (root / ".streamctxignore").write_text("ignored.txt\n")
    (root / "link-to-secret").symlink_to(".env")
    (root / "link-out").symlink_to(root.parent / "outside")
    (root / "directory").mkdir()
    aged(root)
    async with serving(root) as server:
        got = await ask(server, path_of(root / name))
        nothing = await ask(server, path_of(root / "never-was"))
        assert (got.status, got.body) == (404, nothing.body)
        assert b"canary" not in got.body
        listed = json.loads((await ask(server, "/v1/resources")).body)["resources"]
    assert {each["name"] for each in listed} <= {"picture.png", ".streamctxignore"}


@pytest.mark.parametrize(
    "below", ["../outside", "%2e%2e/outside", "..%2foutside", "x/../../outside", "%2e%2e%2foutside"]
)
async def test_no_path_leads_out(root: Path, below: str) -> None:
    (root.parent / "outside").write_text("canary")
    aged(root.parent)
    async with serving(root) as server:
        assert (await ask(server, path_of(root / "picture.png") + "%0A")).status == 404
        for path in (path_of(f"{root.as_uri()}/{below}"), f"/v1/resources/{root.as_uri()}/{below}"):
            got = await ask(server, path)
            assert b"canary" not in got.body
            assert got.status == 404


async def test_the_servers_own_files_are_not_given(root: Path, tmp_path: Path) -> None:
    token_file = root / "token.txt"
    config = ServerConfig(
        token_file=token_file,
        data=root / "data",
        roots=(tmp_path,),
        private_files=(root / "debug.log",),
        discovery=False,
    )
    (root / "debug.log").write_text("canary")
    principal = Principal("owner", frozenset({"resource"}))
    token = resolve_token(config)
    (root / "data").mkdir(mode=0o700)
    (root / "data" / "store.db").write_text("canary")
    os.link(token_file, root / "another name")
    aged(root)
    async with serve_hub(Hub(tokens={token: principal}, version="1"), config) as server:
        for path in (
            token_file,
            root / "data" / "store.db",
            root / "debug.log",
            root / "another name",
        ):
            assert (await ask(server, path_of(path), token=token)).status == 404
        listed = json.loads((await ask(server, "/v1/resources", token=token)).body)["resources"]
    assert [each["name"] for each in listed] == ["picture.png"]


@pytest.mark.parametrize("path", ["/v1/resources", path_of("file:///x")])
async def test_a_token_with_the_scope_is_needed(root: Path, path: str) -> None:
    config = ServerConfig(token=TOKEN, ephemeral=True, roots=(root,), discovery=False)
    hub = Hub(tokens={TOKEN: Principal("anna", frozenset({"observe"}))}, version="1")
    async with serve_hub(hub, config) as server:
        assert (await ask(server, path, token=None)).status == 401
        got = await ask(server, path)
    assert (got.status, got.code) == (403, "forbidden")


async def test_a_root_that_is_no_directory_is_an_error_at_the_start(root: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"picture\.png"):
        async with serving(root / "picture.png"):
            pass


# What goes wrong.


async def slow_readers(
    server: Server, path: str, count: int, *, behind: str = ""
) -> list[tuple[socket.socket, bytes]]:
    """Clients that have read the beginning of an answer, and take no more for now."""
    return [await anyio.to_thread.run_sync(slow_reader, server, path, behind) for _ in range(count)]


PIPELINED = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def slow_reader(server: Server, path: str, behind: str = "") -> tuple[socket.socket, bytes]:
    """A client that has read the beginning of an answer, and takes no more for now."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    sock.settimeout(20)
    sock.connect(("127.0.0.1", server.port))
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    sock.sendall(request.encode() + behind.encode())
    got = b""
    while not got.partition(b"\r\n\r\n")[2]:
        got += sock.recv(1000)
    return sock, got


def rest_of(sock: socket.socket) -> bytes:
    got = bytearray()
    try:
        while data := sock.recv(1 << 20):
            got += data
    except ConnectionResetError:
        pass
    sock.close()
    return bytes(got)


async def test_of_a_file_that_changes_on_the_way_the_rest_is_not_sent(root: Path) -> None:
    old, new = b"old " * 8_000_000, b"new " * 8_000_000
    (root / "large").write_bytes(old)
    aged(root)
    async with serving(root) as server:
        sock, first = await anyio.to_thread.run_sync(slow_reader, server, path_of(root / "large"))
        (root / "large").write_bytes(new)
        got = first + await anyio.to_thread.run_sync(rest_of, sock)
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"content-length: 32000000" in head
    assert 0 < len(body) < len(old)
    assert body == old[: len(body)]


async def test_a_client_that_leaves_leaves_nothing_behind(root: Path) -> None:
    (root / "large").write_bytes(bytes(100_000_000))
    aged(root)
    async with serving(root) as server:
        before = len(os.listdir("/proc/self/fd"))
        socks = [sock for sock, _ in await slow_readers(server, path_of(root / "large"), 10)]
        for sock in socks:
            sock.close()

        async def is_as_before() -> bool:
            return len(os.listdir("/proc/self/fd")) == before

        await eventually(is_as_before)
        assert (await ask(server, path_of(root / "picture.png"))).body == BYTES


async def test_a_client_that_leaves_with_another_request_leaves_nothing_behind(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (root / "large").open("wb") as file:
        file.truncate(1 << 40)
    aged(root)
    async with serving(root) as server:
        before = len(os.listdir("/proc/self/fd"))
        for sock, _ in await slow_readers(server, path_of(root / "large"), 10, behind=PIPELINED):
            sock.close()

        async def is_as_before() -> bool:
            return len(os.listdir("/proc/self/fd")) == before

        await eventually(is_as_before)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_resource_that_is_cut_off_is_let_go_of_whatever_waits_behind_it(root: Path) -> None:
    (root / "large").write_bytes(bytes(100_000_000))
    aged(root)
    async with serving(root) as server:
        before = len(os.listdir("/proc/self/fd"))
        readers = await slow_readers(server, path_of(root / "large"), 5, behind=PIPELINED)
        (root / "large").write_bytes(b"other")
        for sock, _ in readers:
            await anyio.to_thread.run_sync(rest_of, sock)

        async def is_as_before() -> bool:
            return len(os.listdir("/proc/self/fd")) == before

        await eventually(is_as_before)
        assert server.measurements()["resources_cut"] == 5


async def test_a_file_that_was_just_written_is_given_a_moment_later(root: Path) -> None:
    async with serving(root) as server:
        (root / "new").write_text("here")
        got = await ask(server, path_of(root / "new"))
    assert (got.status, got.body) == (200, b"here")


async def test_a_file_that_never_rests_is_told_to_be_asked_for_later(root: Path) -> None:
    async with serving(root) as server, anyio.create_task_group() as tasks:

        async def write() -> None:
            while True:
                (root / "log").write_text("a line\n")
                await anyio.sleep(0.005)

        tasks.start_soon(write)
        await anyio.sleep(0.05)
        got = await ask(server, path_of(root / "log"))
        other = await ask(server, path_of(root / "picture.png"))
        tasks.cancel_scope.cancel()
    assert (got.status, got.code, got.headers["retry-after"]) == (503, "unavailable", "1")
    assert other.body == BYTES


async def test_more_readers_than_may_be_are_told_to_come_back(root: Path) -> None:
    (root / "large").write_bytes(bytes(20_000_000))
    aged(root)
    async with serving(root) as server:
        socks = [sock for sock, _ in await slow_readers(server, path_of(root / "large"), 128)]
        got = await ask(server, path_of(root / "picture.png"))
        assert (got.status, got.code, got.headers["retry-after"]) == (503, "limit", "1")
        for sock in socks:
            sock.close()

        async def is_served() -> bool:
            return (await ask(server, path_of(root / "picture.png"))).status == 200

        await eventually(is_served)


async def eventually(is_so: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + 10
    while not await is_so():
        assert time.monotonic() < deadline
        await anyio.sleep(0.02)


# A real client.


async def test_curl_resumes_a_download(root: Path, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    (root / "large").write_bytes(BYTES * 20)
    aged(root)
    output = tmp_path / "copy"
    output.write_bytes((BYTES * 20)[:7_654_321])
    async with serving(root) as server:
        command = [curl, "--silent", "--show-error", "--fail", "-C", "-", "-o", str(output)]
        command += ["-H", f"Authorization: Bearer {TOKEN}", server.http_url + path_of(root / "large")]
        done = await anyio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, text=True))
    assert (done.returncode, done.stderr) == (0, "")
    assert output.read_bytes() == BYTES * 20
