"""What other users of the machine, and other servers of the same one, can make of our files."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from streamctx.cli.serve import command
from streamctx.discovery import ServerRecord, list_servers
from streamctx.errors import ConfigurationError
from streamctx.server.announcement import announce
from streamctx.server.config import ServerConfig
from streamctx.server.embedding import hub_for
from streamctx.server.private_files import create_private, make_private_directory
from streamctx.server.security import check_request, policy_of
from streamctx.server.serve import serve
from streamctx.server.tokens import resolve_token
from tests.server.raw_client import RawClient

__all__: list[str] = []

_RECORD = ServerRecord(
    protocol=1,
    url="ws://127.0.0.1:1/v1/stream",
    http_url="http://127.0.0.1:1",
    pid=os.getpid(),
    started=2e9,
    version="1",
)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def _together(call: Callable[[int], object], count: int = 16) -> list[object]:
    """Call it from many threads in one instant."""
    barrier = threading.Barrier(count)

    def one(index: int) -> object:
        barrier.wait()
        return call(index)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_servers_that_start_together_have_one_token(tmp_path: Path) -> None:
    for round_ in range(10):
        config = ServerConfig(token_file=tmp_path / str(round_) / "token")
        assert len(set(_together(lambda _, config=config: resolve_token(config)))) == 1  # type: ignore[misc]
        assert [path.name for path in (tmp_path / str(round_)).iterdir()] == ["token"]


def test_private_file_is_whole_and_private_from_its_first_instant(tmp_path: Path) -> None:
    content = b"t" * 4000
    seen: list[tuple[int, int]] = []
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            for path in tmp_path.iterdir():
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                seen.append((stat.S_IMODE(status.st_mode), status.st_size))
                if not path.name.startswith("."):
                    assert status.st_size == len(content)

    watching = threading.Thread(target=watch)
    # The widest umask there is.
    before = os.umask(0)
    watching.start()
    try:
        for index in range(200):
            assert create_private(tmp_path / str(index), content)
    finally:
        os.umask(before)
        is_over.set()
        watching.join()
    assert {mode for mode, _ in seen} == {0o600}


def test_only_one_of_many_creates_a_file_and_nobody_follows_a_link(tmp_path: Path) -> None:
    for round_ in range(10):
        path = tmp_path / str(round_)
        created = _together(lambda index, path=path: create_private(path, b"%d" % index))  # type: ignore[misc]
        assert created.count(True) == 1
        assert path.read_bytes() == b"%d" % created.index(True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for target in (victim, tmp_path / "none"):
        link = tmp_path / "link"
        link.symlink_to(target)
        assert not create_private(link, b"mine")
        with pytest.raises(ConfigurationError, match="link"):
            resolve_token(ServerConfig(token_file=link))
        link.unlink()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "mode", [0o602, 0o606, 0o620, 0o640, 0o644, 0o660, 0o666, 0o604, 0o601, 0o610, 0o777]
)
def test_token_file_that_anybody_else_can_touch_starts_no_server(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    create_private(path, b"t" * 40)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"{mode:04o}"):
        hub_for(ServerConfig(token_file=path))


def test_directory_of_another_or_writable_for_others_is_refused(tmp_path: Path) -> None:
    for mode, is_refused in ((0o700, False), (0o755, False), (0o770, True), (0o702, True), (0o1777, False)):
        directory = tmp_path / f"{mode:o}"
        directory.mkdir()
        directory.chmod(mode)
        if is_refused:
            with pytest.raises(ConfigurationError, match=f"{mode:04o}"):
                make_private_directory(directory)
        else:
            make_private_directory(directory)
    if os.geteuid() != 0:
        with pytest.raises(ConfigurationError, match="belongs to user 0"):
            make_private_directory(Path("/usr"))


def test_token_file_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(ConfigurationError, match=name):
                resolve_token(ServerConfig(token_file=tmp_path / name))


def test_records_of_others_and_of_no_server_are_never_believed(tmp_path: Path) -> None:
    announce(_RECORD, tmp_path)
    forged = msgspec.structs.replace(_RECORD, url="ws://evil.example/v1/stream").to_json()
    (tmp_path / "elsewhere").write_bytes(forged)
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "none")
    (tmp_path / "directory.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json", 0o600)
    for mode in (0o604, 0o620, 0o644, 0o666):
        path = tmp_path / f"{mode:o}.json"
        path.write_bytes(forged)
        path.chmod(mode)
    for index, content in enumerate(
        (
            b"[" * 100_000,
            b'{"x":' + b"[" * 16_000,
            b"{" * 20_000,
            b'{"pid":' + b"9" * 5000 + b"}",
            forged[:-20],
            b" " * 20_000 + forged,
        )
    ):
        (tmp_path / f"bad-{index}.json").write_bytes(content)
        (tmp_path / f"bad-{index}.json").chmod(0o600)
    for pid in (0, -1, 2**31, 2**63 - 1):
        path = tmp_path / f"pid{pid}.json"
        path.write_bytes(
            msgspec.structs.replace(_RECORD, pid=pid, url="ws://evil.example/v1/stream").to_json()
        )
        path.chmod(0o600)
    assert {record.url for record in list_servers(tmp_path) if record.pid == os.getpid()} == {_RECORD.url}
    assert {record.pid for record in list_servers(tmp_path)} <= {os.getpid(), 2**31, 2**63 - 1}


def test_reader_of_records_sees_each_server_whole_while_they_come_and_go(tmp_path: Path) -> None:
    is_over = threading.Event()
    numbers = itertools.count(1)

    def come_and_go() -> None:
        while not is_over.is_set():
            started = _RECORD.started + next(numbers)
            path = announce(msgspec.structs.replace(_RECORD, started=started), tmp_path)
            path.unlink(missing_ok=True)

    announce(_RECORD, tmp_path)
    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            assert all(record.url == _RECORD.url for record in list_servers(tmp_path))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.asyncio
async def test_files_of_a_server_hold_no_secret_but_the_token_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = ServerConfig(token_file=tmp_path / "state" / "token", ready_file=tmp_path / "ready.json")
    async with serve(hub_for(config), config) as server:
        token = server.token
        files = _files_in(tmp_path)
        assert {path.name for path in files} == {"token", "ready.json", f"{os.getpid()}.json"}
        assert {_mode(path) for path in files} == {0o600}
        assert [path.name for path in files if token in path.read_text()] == ["token"]
        assert json.loads((tmp_path / "ready.json").read_bytes())["token_file"] == str(config.token_file)
        for path in ("/", "/healthz", "/version", "/readyz"):
            async with RawClient.open(server.port) as client:
                await client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert token.encode() not in (await client.response()).body
    # What tells where it was is gone; the token stays, so that clients may come back.
    assert [path.name for path in _files_in(tmp_path)] == ["token"]
    assert resolve_token(config) == token


def _files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_command_takes_no_token_on_its_command_line() -> None:
    options = [option for parameter in command.params for option in parameter.opts]
    assert [option for option in options if "token" in option] == ["--token-file"]


def test_nothing_is_served_beyond_this_machine_by_default() -> None:
    config = ServerConfig()
    assert config.host == "127.0.0.1"
    assert not config.allow_insecure_bind
    assert (config.allowed_hosts, config.allowed_origins, config.trusted_proxies) == ((), (), ())
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.com", "::ffff:127.0.0.1"):
        with pytest.raises(ConfigurationError, match="TLS"):
            ServerConfig(host=host)
    for wildcard in ("*", "*.example", "*:80", ""):
        with pytest.raises(ConfigurationError, match="allowed_hosts"):
            ServerConfig(allowed_hosts=(wildcard,))
    for wildcard in ("*", "*://a", "http://", "https://a/*", "https://a?"):
        with pytest.raises(ConfigurationError, match="allowed_origins"):
            ServerConfig(allowed_origins=(wildcard,))
    # An asterisk within a name is the name of nobody.
    policy = policy_of(ServerConfig(allowed_origins=("https://*.example",)))
    headers = [(b"host", b"localhost"), (b"origin", b"https://a.example")]
    refusal = check_request(policy, headers, scheme="http", query=b"")
    assert refusal is not None
    assert refusal.status == 403


@pytest.mark.asyncio
async def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    )
    made = subprocess.run(  # noqa: ASYNC221
        [*command.split(), "-keyout", str(key), "-out", str(certificate)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("makes a certificate with openssl")
    config = ServerConfig(token="t" * 40, discovery=False, tls_cert=certificate, tls_key=key)
    async with serve(hub_for(config), config) as server:
        for version, is_spoken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = ssl.create_default_context(cafile=str(certificate))
            context.check_hostname = False
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = version
            request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert (await _over_tls(server.port, context, request)).startswith(b"HTTP/1.1 200") is is_spoken
        # Clear text on the same port is answered by nothing.
        async with RawClient.open(server.port) as client:
            await client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await client.is_closed()


async def _over_tls(port: int, context: ssl.SSLContext, request: bytes) -> bytes:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except (ssl.SSLError, ConnectionError):
        return b""
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def test_nothing_in_the_environment_holds_the_token(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path;"
        "from streamctx.server.config import ServerConfig; from streamctx.server.tokens import resolve_token;"
        "token = resolve_token(ServerConfig(token_file=Path(sys.argv[1])));"
        "assert token not in repr(dict(os.environ)) + repr(sys.argv) + repr(sys.orig_argv)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s" / "token")], check=True, timeout=30)
