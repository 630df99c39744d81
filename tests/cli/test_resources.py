"""`serve --root`, `ls` and `get`, as people use them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from streamctx.cli.fetching import part_of
from tests.chaos.faults import Fault, random_plan
from tests.chaos.proxy import fault_proxy
from tests.cli.running import Home, RunningServer, wait_until

__all__: list[str] = []

pytestmark = pytest.mark.e2e

BYTES = bytes(index * 7 % 251 for index in range(3_000_000))


@pytest.fixture
def root(home: Home) -> Path:
    made = home.path / "root"
    made.mkdir()
    (made / "film.mp4").write_bytes(BYTES)
    (made / ".env").write_text("canary")
    time.sleep(0.06)
    return made


def get(home: Home, root: Path, *arguments: str) -> dict[str, object]:
    result = home.run("get", (root / "film.mp4").as_uri(), "--json", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    told: dict[str, object] = json.loads(result.stdout)
    return told


def test_what_there_is_is_listed(home: Home, root: Path) -> None:
    with home.serve("--root", str(root)):
        result = home.run("ls")
        assert (result.returncode, result.stderr) == (0, "")
        assert (root / "film.mp4").as_uri() in result.stdout
        assert ".env" not in result.stdout
        (told,) = json.loads(home.run("ls", "--json").stdout)
    assert (told["name"], told["size_bytes"], told["mime"]) == ("film.mp4", 3_000_000, "video/mp4")


def test_where_there_is_nothing_it_says_how_to_give_something(home: Home) -> None:
    with home.serve():
        assert "--root" in home.run("ls").stdout


def test_a_resource_is_fetched_into_a_private_file(home: Home, root: Path) -> None:
    output = home.path / "copy"
    with home.serve("--root", str(root)):
        assert get(home, root, "-o", str(output)) == {
            "file": str(output),
            "bytes": 3_000_000,
            "resumed_at": 0,
        }
    assert output.read_bytes() == BYTES
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert not list(home.path.glob("*.part"))


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(home: Home, root: Path) -> None:
    output = home.path / "copy"
    output.write_text("mine")
    with home.serve("--root", str(root)):
        result = home.run("get", (root / "film.mp4").as_uri(), "-o", str(output))
        assert (result.returncode, output.read_text()) == (2, "mine")
        assert "--force" in result.stderr
        get(home, root, "-o", str(output), "--force")
    assert output.read_bytes() == BYTES


def test_a_range_goes_to_a_file_or_to_the_output(home: Home, root: Path) -> None:
    output = home.path / "copy"
    uri = (root / "film.mp4").as_uri()
    with home.serve("--root", str(root)):
        get(home, root, "-o", str(output), "--range", "1000-1999")
        assert output.read_bytes() == BYTES[1000:2000]
        assert home.run("get", uri, "-o", "-", "--range", "-5", text=False).stdout == BYTES[-5:]
        assert home.run("get", uri, "-o", "-", text=False).stdout == BYTES
        result = home.run("get", uri, "-o", "-", "--range", "x")
    assert (result.returncode, result.stdout) == (2, "")
    assert "no range of bytes" in result.stderr


@pytest.mark.parametrize(
    ("uri", "words"), [("film.mp4", "streamctx ls"), ("file:///", "-o"), ("file:///x/y", "streamctx ls")]
)
def test_a_resource_that_cannot_be_had_is_an_error_of_one_line(
    home: Home, root: Path, uri: str, words: str
) -> None:
    with home.serve("--root", str(root)):
        result = home.run("get", uri)
    assert result.returncode in (1, 2)
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "asked", ["0-3,9-12", "abc", "5-2", "", "-", "0-1\nX: y", "\uff10-\uff19", "1-2-3", "bytes=0-1"]
)
def test_what_is_no_single_range_is_refused_before_anything_is_asked(home: Home, asked: str) -> None:
    result = home.run("get", "file:///x", "--url", "ws://127.0.0.1:9", "--range", asked, "-o", "x")
    assert result.returncode == 2
    assert "no range of bytes" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "output",
    [
        ".",
        "..",
        "/",
        "new/",
        "new/.",
        "directory",
        "fifo",
        "dangling",
        "link",
        "nowhere/x",
        "data/x",
        "n" * 256,
    ],
)
def test_what_cannot_be_a_file_is_refused_before_anything_is_asked(home: Home, output: str) -> None:
    (home.path / "directory").mkdir()
    os.mkfifo(home.path / "fifo")
    (home.path / "dangling").symlink_to("nothing")
    (home.path / "other").write_text("other")
    (home.path / "link").symlink_to("other")
    (home.path / "data").mkdir(mode=0o700)
    (home.path / "data" / "store.db").write_text("a store")
    where = output if output in (".", "..", "/") else f"{home.path}/{output}"
    for more in ((), ("--range", "0-1")):
        result = home.run("get", "file:///x", "--url", "ws://127.0.0.1:9", "--force", "-o", where, *more)
        assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert (home.path / "fifo").is_fifo()
    assert (home.path / "link").is_symlink()
    assert not (home.path / "new").exists()


@pytest.mark.parametrize("uri", ["x://[", "file:///\udcff"])
def test_what_is_no_uri_is_an_error_of_one_line(home: Home, uri: str) -> None:
    result = home.run("get", uri, "--url", "ws://127.0.0.1:9")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


@contextlib.contextmanager
def liar(head: str, *bodies: str) -> Iterator[str]:
    """A server that answers every HEAD the same, and each GET with the next body, at last the same again."""
    left = list(bodies)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    is_head = connection.recv(65536).startswith(b"HEAD")
                    answer = head if is_head else left.pop(0) if len(left) > 1 else left[0]
                    connection.sendall(f"HTTP/1.1 {answer}".replace("\n", "\r\n").encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


HEAD = '200 OK\nETag: "e"\nContent-Length: 5\n\n'


@pytest.mark.parametrize(
    "body",
    [
        '200 OK\nETag: "e"\nContent-Length: 6\n\nhello!',
        '200 OK\nETag: "e"\n\nhello and more',
        '200 OK\nETag: "f"\nContent-Length: 5\n\nhello',
        '206 Partial Content\nETag: "e"\nContent-Range: bytes 2-6/90\nContent-Length: 5\n\nllo w',
        '206 Partial Content\nETag: "e"\nContent-Range: bytes 0-4/5\nContent-Length: 10\n\nhellohello',
        '206 Partial Content\nETag: "f"\nContent-Range: bytes 0-4/5\nContent-Length: 5\n\nhello',
        "206 Partial Content\nContent-Length: 5\n\nhello",
    ],
)
def test_a_server_that_gives_something_else_is_left_after_a_while(home: Home, body: str) -> None:
    output = home.path / "copy"
    with liar(HEAD, body) as url:
        result = home.run("get", "file:///x", "--url", url, "-o", str(output), STREAMCTX_TOKEN="t" * 20)
    assert result.returncode == 1
    assert "does not give" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not output.exists()
    assert all(part.stat().st_size <= 5 for part in home.path.glob("*.part"))


def get_of(home: Home, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return home.run("get", "file:///x", "--url", url, *arguments, STREAMCTX_TOKEN="t" * 20)


@pytest.mark.parametrize("kept", [b"", b"HE"])
def test_a_server_without_ranges_is_as_good(home: Home, kept: bytes) -> None:
    output = home.path / "copy"
    part = part_of(output, "file:///x", '"e"')
    part.touch(0o600)
    part.write_bytes(kept)
    with liar(HEAD, '200 OK\nETag: "e"\nContent-Length: 5\n\nhello') as url:
        result = get_of(home, url, "-o", str(output))
    assert (result.returncode, result.stderr) == (0, "")
    assert output.read_bytes() == kept + b"hello"[len(kept) :]


def test_behind_a_weak_etag_nothing_is_believed(home: Home) -> None:
    output = home.path / "copy"
    part = part_of(output, "file:///x", 'W/"e"')
    part.touch(0o600)
    part.write_bytes(b"HE")
    answer = '200 OK\nETag: W/"e"\nContent-Length: 5\n\n'
    with liar(answer, answer + "hello") as url:
        assert get_of(home, url, "-o", str(output)).returncode == 0
    assert output.read_bytes() == b"hello"


def refusal(status: str, message: str) -> str:
    """An answer with an error, as a server writes it."""
    body = json.dumps({"error": {"code": "refused", "message": message}})
    return f"{status}\nContent-Length: {len(body)}\n\n{body}"


def test_a_server_that_is_busy_is_asked_again_when_it_says(home: Home) -> None:
    output = home.path / "copy"
    whole = '200 OK\nETag: "e"\nContent-Length: 5\n\nhello'
    started = time.monotonic()
    with liar(HEAD, refusal("503 Busy\nRetry-After: 1", "busy"), whole) as url:
        result = get_of(home, url, "-o", str(output))
    assert (result.returncode, result.stderr) == (0, "")
    assert time.monotonic() - started > 1
    assert output.read_bytes() == b"hello"


def test_what_the_server_says_to_get_is_shown_when_head_fails(home: Home) -> None:
    with liar("403 Forbidden\n\n", refusal("403 Forbidden", "not\x1b you")) as url:
        result = get_of(home, url, "-o", str(home.path / "copy"))
    assert result.returncode == 1
    assert "not\u241b you" in result.stderr


@pytest.mark.parametrize(
    ("asked", "content_range", "is_right"),
    [
        ("1-2", "1-2/5", True),
        ("1-9", "1-4/5", True),
        ("1-", "1-4/5", True),
        ("-2", "3-4/5", True),
        ("-9", "0-4/5", True),
        ("1-2", "0-1/5", False),
        ("1-9", "1-3/5", False),
        ("1-", "0-4/5", False),
        ("-2", "0-1/5", False),
        ("1-2", "1-2/*", False),
    ],
)
def test_an_answer_is_about_the_range_that_was_asked_for(
    home: Home, asked: str, content_range: str, is_right: bool
) -> None:
    first, last = content_range.partition("/")[0].split("-")
    body = "x" * (int(last) - int(first) + 1)
    answer = f"206 Partial Content\nContent-Range: bytes {content_range}\n\n{body}"
    with liar(HEAD, answer) as url:
        result = get_of(home, url, "-o", "-", "--range", asked)
    assert (result.returncode, result.stdout) == ((0, body) if is_right else (1, ""))
    assert is_right or "answered others" in result.stderr


@pytest.mark.parametrize("sent", ["x", "xxx"])
def test_a_range_of_another_length_is_an_error(home: Home, sent: str) -> None:
    output = home.path / "copy"
    with liar(HEAD, f"206 Partial Content\nContent-Range: bytes 1-2/5\n\n{sent}") as url:
        result = get_of(home, url, "-o", str(output), "--range", "1-2")
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert [path.name for path in home.path.iterdir()] == ["runtime"]


def test_a_range_past_the_end_is_told_with_the_size(home: Home, root: Path) -> None:
    with home.serve("--root", str(root)):
        result = home.run("get", (root / "film.mp4").as_uri(), "-o", "-", "--range", "3000000-")
    assert (result.returncode, result.stdout) == (1, "")
    assert "has 3,000,000 bytes" in result.stderr


def test_a_name_may_be_as_long_as_names_can_be(home: Home, root: Path) -> None:
    output = home.path / ("n" * 255)
    with home.serve("--root", str(root)):
        get(home, root, "-o", str(output))
        get(home, root, "-o", str(output), "--force", "--range", "0-9")
    assert output.read_bytes() == BYTES[:10]


def test_what_a_server_lists_oddly_is_a_question_mark(home: Home) -> None:
    resource = f'{{"uri": "x:y", "size_bytes": 1{"0" * 400}, "modified": 1e300}}'
    body = f'{{"resources": [{resource}], "truncated": true}}'
    with liar(HEAD, f"200 OK\nContent-Length: {len(body)}\n\n{body}") as url:
        result = home.run("ls", "--url", url, STREAMCTX_TOKEN="t" * 20)
        as_json = home.run("ls", "--url", url, "--json", STREAMCTX_TOKEN="t" * 20)
    assert result.stdout.splitlines()[1].split() == ["?", "?", "x:y"]
    assert "more than these 1" in as_json.stderr
    assert len(json.loads(as_json.stdout)) == 1


def test_json_does_not_go_where_the_resource_goes(home: Home) -> None:
    result = home.run("get", "file:///x", "--url", "ws://127.0.0.1:9", "-o", "-", "--json")
    assert (result.returncode, result.stdout) == (2, "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits")
def test_a_full_disk_is_told_with_the_file_and_what_is_kept(home: Home, root: Path) -> None:
    output = home.path / "copy"
    code = (
        "import resource, signal, sys; from streamctx.cli.main import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)); main(sys.argv[1:])"
    )
    with home.serve("--root", str(root)):
        command = [sys.executable, "-c", code, "get", (root / "film.mp4").as_uri(), "-o", str(output)]
        result = subprocess.run(command, env=home.environ, capture_output=True, text=True, check=False)
        assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
        assert f"{output} cannot be written" in result.stderr
        assert "is kept" in result.stderr
        assert get(home, root, "-o", str(output))["resumed_at"] == 1_000_000
    assert output.read_bytes() == BYTES


@pytest.mark.parametrize("kind", ["readable", "fifo", "link", "two names"])
def test_a_part_that_is_not_ours_alone_is_begun_anew(home: Home, root: Path, kind: str) -> None:
    output = home.path / "copy"
    with home.serve("--root", str(root)):
        part = part_of(output, (root / "film.mp4").as_uri(), etag_of(home, root))
        if kind == "fifo":
            os.mkfifo(part)
        elif kind == "link":
            (home.path / "other").write_bytes(b"?" * 3_000_000)
            part.symlink_to("other")
        elif kind == "two names":
            (home.path / "other").touch(0o600)
            (home.path / "other").write_bytes(b"?" * 1000)
            os.link(home.path / "other", part)
        else:
            part.write_bytes(b"?" * 3_000_000)
            part.chmod(0o666)
        assert get(home, root, "-o", str(output))["resumed_at"] == 0
    assert output.read_bytes() == BYTES
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_a_directory_in_the_place_of_the_part_is_named(home: Home, root: Path) -> None:
    output = home.path / "copy"
    with home.serve("--root", str(root)):
        part = part_of(output, (root / "film.mp4").as_uri(), etag_of(home, root))
        part.mkdir()
        result = home.run("get", (root / "film.mp4").as_uri(), "-o", str(output))
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert f"{part} is in the way" in result.stderr


def test_two_do_not_fetch_into_the_same_file(home: Home, root: Path) -> None:
    output = home.path / "copy"
    with home.serve("--root", str(root)):
        part = part_of(output, (root / "film.mp4").as_uri(), etag_of(home, root))
        part.touch(0o600)
        with part.open("ab") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            result = home.run("get", (root / "film.mp4").as_uri(), "-o", str(output))
        assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
        assert "another" in result.stderr
        get(home, root, "-o", str(output))
    assert output.read_bytes() == BYTES


def test_a_root_that_is_not_there_is_an_error_of_one_line(home: Home) -> None:
    result = home.run("serve", "--port", "0", "--root", str(home.path / "nothing"))
    assert result.returncode == 2
    assert "nothing" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def etag_of(home: Home, root: Path) -> str:
    (told,) = json.loads(home.run("ls", "--json").stdout)
    return f'"{told["etag"]}"'


def test_what_was_there_is_not_fetched_again(home: Home, root: Path) -> None:
    output = home.path / "copy"
    with home.serve("--root", str(root)):
        part = part_of(output, (root / "film.mp4").as_uri(), etag_of(home, root))
        part.touch(0o600)
        part.write_bytes(b"?" * 1000)
        assert get(home, root, "-o", str(output))["resumed_at"] == 1000
    assert output.read_bytes() == b"?" * 1000 + BYTES[1000:]


def test_of_a_resource_that_has_changed_nothing_old_is_used(home: Home, root: Path) -> None:
    output = home.path / "copy"
    with home.serve("--root", str(root)):
        part = part_of(output, (root / "film.mp4").as_uri(), etag_of(home, root))
        part.touch(0o600)
        part.write_bytes(BYTES[:1000])
        (root / "film.mp4").write_bytes(BYTES[::-1])
        assert get(home, root, "-o", str(output))["resumed_at"] == 0
    assert output.read_bytes() == BYTES[::-1]


@pytest.mark.parametrize("seed", range(3))
def test_a_connection_that_breaks_again_and_again_costs_nothing(home: Home, root: Path, seed: int) -> None:
    output = home.path / "copy"

    async def run(server: RunningServer) -> tuple[dict[str, object], int]:
        port = urlsplit(server.url).port
        assert port is not None
        plan = random_plan(seed, {Fault.CUT: 600_000, Fault.RESET: 600_000})
        async with fault_proxy(port, plan) as proxy:
            token_file = str(server.ready["token_file"])
            where = ("--url", proxy.url, "--token-file", token_file, "-o", str(output))
            return await anyio.to_thread.run_sync(lambda: get(home, root, *where)), proxy.connections

    with home.serve("--root", str(root)) as server:
        told, connections = anyio.run(run, server)
    assert told["bytes"] == len(BYTES)
    assert connections > 4
    assert output.read_bytes() == BYTES


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_after_an_interruption_the_same_command_goes_on(home: Home, root: Path) -> None:
    output = home.path / "copy"
    with (root / "film.mp4").open("ab") as file:
        # Nobody fetches so much before the signal comes.
        file.truncate(1 << 40)
    time.sleep(0.06)
    uri = (root / "film.mp4").as_uri()
    with home.serve("--root", str(root)):
        part = part_of(output, uri, etag_of(home, root))
        with home.start("get", uri, "-o", str(output)) as process:
            wait_until(lambda: part.exists() and part.stat().st_size > 5_000_000)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "goes on" in errors
        there = part.stat().st_size
        assert 5_000_000 < there < 1 << 40
        assert not output.exists()
        os.truncate(part, (1 << 40) - 1000)
        assert get(home, root, "-o", str(output))["resumed_at"] == (1 << 40) - 1000
    assert output.stat().st_size == 1 << 40
