"""What a stranger, and a client before WELCOME, can do: get an answer, and nothing else."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from streamctx.limits import KIB
from streamctx.vocabulary import Encoding
from streamctx.wire.messages import ClientInfo, Workspace
from tests.hostile.arena import Arena, until
from tests.hostile.raw import HELLO, Raw, binary_frame, body_of
from tests.server.raw_client import upgrade_head

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_WRONG = "w" * 43


async def test_wrong_token_in_the_request_is_answered_with_401(arena: Arena) -> None:
    for header in (f"Bearer {_WRONG}", "Bearer", f"Basic {arena.token}", f"Bearer {arena.token} x", ""):
        async with arena.tcp() as client:
            response = await client.upgrade(f"Authorization: {header}")
            assert (response.status, response.error_code) == (401, "unauthorized")
    for path in ("/v1/sessions", "/v1/sessions/x", "/v1/sessions/x/documents/1", "/metrics"):
        assert (await arena.get(path, token=_WRONG)).status == 401
        assert (await arena.get(path, token=None)).status == 401


async def test_wrong_token_in_hello_is_answered_with_4003(arena: Arena) -> None:
    for auth in (None, "", _WRONG, "é\x00\x1b", "x" * 4096, arena.token[:-1], arena.token + " "):
        async with arena.raw(token=None) as raw:
            await raw.send(msgspec.structs.replace(HELLO, auth=auth))
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4003, "unauthorized")


async def test_token_in_the_url_is_answered_with_400(arena: Arena) -> None:
    for query in (
        f"token={arena.token}",
        f"access_token={arena.token}",
        f"x=1;auth={arena.token}",
        "TOKEN=x",
    ):
        async with arena.tcp() as client:
            response = await client.upgrade(target=f"/v1/stream?{query}")
            assert response.status == 400
            assert arena.token.encode() not in response.body
        assert (await arena.get(f"/v1/sessions?{query}")).status == 400


async def test_wrong_host_is_answered_with_421(arena: Arena) -> None:
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "2130706433"):
        async with arena.tcp() as client:
            assert (await client.upgrade(f"Authorization: Bearer {arena.token}", host=host)).status == 421
    bad: tuple[str | None, ...] = (None, "", "a b", "localhost:99999", "é")
    for name in bad:
        async with arena.tcp() as client:
            assert (await client.upgrade(f"Authorization: Bearer {arena.token}", host=name)).status == 400


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "file://",
        "http://localhost.evil.example",
        "http://localhost:1",
        "http://[",
        "",
    ],
)
async def test_foreign_origin_is_answered_with_403(arena: Arena, origin: str) -> None:
    async with arena.tcp() as client:
        response = await client.upgrade(f"Authorization: Bearer {arena.token}", f"Origin: {origin}")
        assert response.status == 403


async def test_unknown_subprotocol_is_answered_with_400_that_names_both(arena: Arena) -> None:
    for offered in (None, "streamctx.v2", "STREAMCTX.V1", "mqtt, graphql-ws", "streamctx.v1.json.x"):
        async with arena.tcp() as client:
            response = await client.upgrade(f"Authorization: Bearer {arena.token}", subprotocol=offered)
            assert response.status == 400
            assert b"streamctx.v1 " in response.body
            assert b"streamctx.v1.json" in response.body


async def test_head_of_200_mib_is_cut_off_early(arena: Arena) -> None:
    async with arena.tcp() as client:
        line = b"X-Filler: " + b"f" * (64 * KIB) + b"\r\n"
        await client.send(upgrade_head()[:-2])
        sent = 0
        try:
            for _ in range(200 * 16):
                await client.send(line)
                sent += len(line)
        except ConnectionError:
            pass
        # What the kernel's buffers and the lingering close take.
        assert sent < 24 * 1024 * KIB
        assert await client.is_closed()


async def test_slow_head_is_answered_with_408(arena: Arena) -> None:
    async with arena.tcp() as client:
        head = upgrade_head()
        started = asyncio.get_running_loop().time()
        for byte in head[:15]:
            await client.send(bytes([byte]))
            await asyncio.sleep(0.05)
        assert (await client.response()).status == 408
        assert asyncio.get_running_loop().time() - started < 3


async def test_no_hello_is_answered_with_4101(arena: Arena) -> None:
    async with arena.raw(token=None) as silent, arena.raw() as busy:
        # Frames that are not HELLO, and frames that are corrupt, buy no time.
        await busy.send_frames(
            binary_frame(body_of(Encoding.MSGPACK, type="focus"), sequence=1), b"", b"x" * 50
        )
        for raw in (silent, busy):
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4101, "hello_timeout")


@pytest.mark.parametrize("encoding", list(Encoding))
async def test_malformed_hello_is_answered_with_4000(arena: Arena, encoding: Encoding) -> None:
    good = msgspec.to_builtins(HELLO)
    changes: tuple[dict[str, object], ...] = (
        {"attempt": 0},
        {"attempt": 2**53},
        {"attempt": -1},
        {"attempt": "1"},
        {"attempt": 1.5},
        {"role": "root\x1b[2J"},
        {"client": {}},
        {"client": {"name": "n" * 201}},
        {"digests": "crc32"},
        {"digests": ["d"] * 17},
        {"auth": 1},
        {"auth": "a" * 4097},
        {"resume": {}},
        {"resume": {"session": "s", "secret": "", "epoch": "e", "expects": 1, "next": 1}},
        {"resume": {"session": "s", "secret": "x", "epoch": "e", "expects": 0, "next": 1}},
        {"workspace": {"folders": ["f"] * 101}},
        {"workspace": {"folders": ["f" * 4097]}},
    )
    for change in changes:
        async with arena.raw(encoding) as raw:
            await raw.send(body_of(encoding, **(good | change)))
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4000, "malformed"), change


async def test_numbered_hello_is_answered_with_4102(arena: Arena) -> None:
    async with arena.raw() as raw:
        await raw.send(HELLO, sequence=1)
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4102, "bad_sequence")


async def test_no_common_digest_and_unknown_hash_are_answered_with_4000(arena: Arena) -> None:
    for hello in (
        msgspec.structs.replace(HELLO, digests=()),
        msgspec.structs.replace(HELLO, digests=("md5", "CRC32")),
        msgspec.structs.replace(HELLO, hash="md5"),
        msgspec.structs.replace(HELLO, hash="xxh3-64\x00"),
    ):
        async with arena.raw() as raw:
            await raw.send(hello)
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4000, "unsupported")


async def test_more_than_64_kib_before_welcome_is_answered_with_4000(arena: Arena) -> None:
    for token in ("", None):
        async with arena.raw(token=token) as raw:
            await raw.send_frames(*[b"\0" * (30 * KIB)] * 3)
            closed = await raw.closed()
            assert (closed.code, closed.last_error) == (4000, "too_large")


async def test_one_message_over_64_kib_before_welcome_ends_the_connection(arena: Arena) -> None:
    async with arena.raw() as raw:
        await raw.send_frames(b"\0" * (64 * KIB + 1))
        closed = await raw.closed()
        assert (closed.code, closed.last_error) == (4000, "too_large")
    # Of one without a token the server does not even take the message in.
    async with arena.raw(token=None) as raw:
        await raw.send_frames(b"\0" * (64 * KIB + 1))
        assert (await raw.closed()).code == 1009


async def test_repeated_hello_makes_no_second_session(arena: Arena) -> None:
    async with arena.raw() as raw:
        welcome = await raw.greet()
        for _ in range(20):
            await raw.send(HELLO)
        again = await raw.find(type(welcome))
        assert again == welcome
        # Another HELLO on the same connection is no way to another session.
        await raw.send(msgspec.structs.replace(HELLO, attempt=2, client=ClientInfo(name="other")))
        await raw.applied(0)
        await arena.has_connected(1)


async def test_names_with_control_characters_do_not_reach_the_log(arena: Arena) -> None:
    for name in ("a\x00b", "a\nINFO forged line", "\x1b[2J\x1b]0;title\x07", "\u2028\x85\x9b2J", "%s%n"):
        async with arena.raw() as raw:
            await raw.greet(msgspec.structs.replace(HELLO, client=ClientInfo(name=name, version=name)))


@pytest.mark.parametrize(
    "folder",
    [
        "file://[",
        "file:///a\x00b",
        "/a\x00b",
        "file:///" + "a/" * 2000,
        "http://[::1",
        "//℀",
        "/dev",
        "\x1b[2J",
        "file:///%00",
    ],
)
async def test_workspace_folder_that_is_no_path_harms_nothing(arena: Arena, folder: str) -> None:
    async with arena.raw() as raw:
        await raw.greet(msgspec.structs.replace(HELLO, workspace=Workspace(folders=(folder,))))


async def test_thousands_of_connects_leave_nothing(arena: Arena) -> None:
    async def visit(index: int) -> None:
        if index % 2:
            async with arena.tcp() as client:
                await client.upgrade(f"Authorization: Bearer {arena.token}")
            return
        async with Raw.connect(arena.port, arena.token) as raw:
            await raw.send(HELLO)
            if index % 4:
                await raw.next()

    for start in range(0, 2000, 50):
        await asyncio.gather(*(visit(index) for index in range(start, start + 50)))

    async def are_gone() -> bool:
        # Who never showed that WELCOME came has no session.
        return await arena.metric("connections_open") <= 3 and await arena.metric("sessions") == 2

    await until(are_gone)


async def test_connections_without_token_are_bounded(arena: Arena) -> None:
    clients = [arena.tcp() for _ in range(arena.limits.unauthenticated_connections_max + 4)]
    statuses = []
    for client in clients:
        raw = await client.__aenter__()
        statuses.append((await raw.upgrade()).status)
    assert statuses[-1] == 503
    assert statuses.count(101) <= arena.limits.unauthenticated_connections_max
    # Who has the token is not kept out by them.
    async with arena.greeted():
        pass
    for client in clients:
        await client.__aexit__(None, None, None)
