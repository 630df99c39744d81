"""HTTP as no honest client speaks it: what two parsers read in two ways, floods, odd targets."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from streamctx.limits import KIB
from streamctx.vocabulary import Encoding
from tests.hostile.arena import Arena, until
from tests.hostile.raw import binary_frame, body_of
from tests.server.raw_client import RawClient, Response, frame, upgrade_head

__all__: list[str] = []

pytestmark = pytest.mark.asyncio

_SMUGGLED = b"GET /v1/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n"


async def _all(arena: Arena, data: bytes) -> bytes:
    """All that the server answers until it closes, or is silent for a while."""
    answer = b""
    async with arena.tcp() as client:
        with contextlib.suppress(ConnectionError, TimeoutError):
            await client.send(data)
            while True:
                async with asyncio.timeout(0.5):
                    more = await client.reader.read(1 << 16)
                if not more:
                    break
                answer += more
    return answer


def _request(line: str, *headers: str, host: str | None = "localhost") -> bytes:
    lines = [f"{line} HTTP/1.1", *([] if host is None else [f"Host: {host}"]), *headers, "Connection: close"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


async def _answer(arena: Arena, data: bytes) -> Response:
    async with arena.tcp() as client:
        await client.send(data)
        return await client.response()


_TWO_WAYS = (
    b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
    b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET /v1/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: \r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x1\r\n\r\nx",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
)


async def test_request_that_can_be_read_in_two_ways_is_answered_with_400(arena: Arena) -> None:
    for head in _TWO_WAYS:
        answer = await _all(arena, head + _SMUGGLED % arena.token.encode())
        assert answer.startswith(b"HTTP/1.1 400 "), head
        assert answer.count(b"HTTP/1.1 ") == 1, head


async def test_upgrade_with_a_body_is_answered_with_400(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    for header, body in (
        ("Content-Length: 5", b"hello"),
        ("Content-Length: 5", b""),
        ("Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: gzip, chunked", b"0\r\n\r\n"),
    ):
        answer = await _all(arena, upgrade_head(token, header) + body + _SMUGGLED % arena.token.encode())
        assert answer.startswith(b"HTTP/1.1 400 "), header
        assert answer.count(b"HTTP/1.1 ") == 1
    # No body at all, said in so many words, is none.
    async with arena.tcp() as client:
        assert (await client.upgrade(token, "Content-Length: 0")).status == 101


async def test_handshake_with_odd_fields_is_refused_or_taken_whole(arena: Arena) -> None:
    head = upgrade_head(f"Authorization: Bearer {arena.token}").decode()
    key = next(line for line in head.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
    for old, new, status in (
        (key + "\r\n", "", 400),
        (key, "Sec-WebSocket-Key:", 400),
        (key, "Sec-WebSocket-Key: eA==", 400),
        (key, "Sec-WebSocket-Key: ****", 400),
        (key, "Sec-WebSocket-Key: " + "A" * 20_000, 400),
        (key, f"{key}\r\n{key}", 400),
        ("Version: 13", "Version: 8", 400),
        ("Version: 13", "Version: 13, 8", 400),
        ("Version: 13", "Version: 13\r\nSec-WebSocket-Version: 13", 400),
        ("Connection: Upgrade\r\n", "", 426),
        ("Connection: Upgrade", "Connection: close", 426),
        ("Connection: Upgrade", "Connection: keep-alive, UPGRADE", 101),
        ("Upgrade: websocket", "Upgrade: websocket, h2c", 426),
        ("Upgrade: websocket", "Upgrade: WebSocket", 101),
        ("streamctx.v1", ",,;", 400),
        ("streamctx.v1", "strëam", 400),
        ("streamctx.v1", "x, " * 9000 + "streamctx.v1", 101),
        ("streamctx.v1", "mqtt\r\nSec-WebSocket-Protocol: streamctx.v1.json", 101),
    ):
        assert old in head
        answer = await _answer(arena, head.replace(old, new).encode("latin-1"))
        assert answer.status == status, new[:60]


async def test_connection_that_breaks_anywhere_in_its_handshake_is_counted_out(arena: Arena) -> None:
    chooser = random.Random(8)

    async def visit(index: int) -> None:
        token = f"Authorization: Bearer {arena.token}"
        hello = body_of(
            Encoding.MSGPACK,
            type="hello",
            attempt=1,
            client={"name": "x"},
            digests=["crc32"],
            auth=arena.token,
        )
        data = upgrade_head(*[token] * (index % 2)) + frame(0x82, binary_frame(hello)) * 2 + frame(0x88)
        with contextlib.suppress(ConnectionError):
            async with arena.tcp() as client:
                await client.send(data[: chooser.randrange(len(data) + 1)])
                if index % 3 == 0:
                    client.writer.write_eof()
                await asyncio.sleep(chooser.random() * 0.01)

    for _ in range(10):
        await asyncio.gather(*map(visit, range(40)))

    async def are_gone() -> bool:
        names = {"connections_open": 3, "websockets_open": 2, "websockets_unauthenticated": 0, "sessions": 2}
        return all([await arena.metric(name) <= count for name, count in names.items()])

    await until(are_gone)
    assert await arena.metric("handler_failures") == 0


async def test_nothing_behind_a_refused_upgrade_is_read_as_a_request(arena: Arena) -> None:
    smuggled = _SMUGGLED % arena.token.encode()
    for head in (
        upgrade_head(target="/nowhere"),
        upgrade_head("Authorization: Bearer x"),
        upgrade_head(host="evil.example"),
        upgrade_head().replace(b"Version: 13", b"Version: 12"),
        upgrade_head().replace(b"HTTP/1.1", b"HTTP/1.0"),
        upgrade_head().replace(b"GET ", b"POST "),
        upgrade_head().replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        upgrade_head().replace(b"GET ", b"CONNECT "),
    ):
        answer = await _all(arena, head + smuggled)
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        assert b'"sessions"' not in answer
    # A request that is still being answered has no upgrade behind it.
    assert b"101 " not in await _all(arena, _request("GET /healthz").replace(b"close", b"x") + upgrade_head())


async def test_target_in_absolute_form_is_held_to_our_hosts_on_every_path(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    for target in (
        "http://evil.example/healthz",
        "http://evil.example/v1/sessions",
        "http://localhost@evil.example/healthz",
        "http://localhost.evil.example/healthz",
        "HTTP://EVIL.EXAMPLE:80/v1/sessions",
        "http://evil.example",
        "http:///healthz",
        "http://localhost:99999/healthz",
    ):
        answer = await _all(arena, _request(f"GET {target}", token))
        assert answer.split(b" ", 2)[1] in (b"421", b"400"), target
        assert b"sessions" not in answer
        assert b'"ok"' not in answer
    assert (await _answer(arena, _request("GET http://localhost:1/healthz"))).status == 200
    async with arena.tcp() as client:
        assert (await client.upgrade(token, target="http://evil.example/v1/stream")).status == 421


_NOT_OURS = (
    "localhost.", "LOCALHOST.", "127.0.0.1.", "127.1", "0x7f.0.0.1", "0177.0.0.1", "017700000001",
    "127.0.0.2", "0.0.0.0", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::1%25lo]",
    "local%68ost", "localhost,evil", "evil.example#localhost", "localhost:80:80", "user@localhost",
    "localhost\\", "xn--localhost-", "ⓛocalhost",
)  # fmt: skip


async def test_name_that_only_resembles_ours_is_refused_on_every_path(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    for host in _NOT_OURS:
        for path in ("/healthz", "/v1/sessions", "/nowhere"):
            raw = _request(f"GET {path}", token, host=None)
            request = raw.replace(b"\r\n", b"\r\nHost: " + host.encode() + b"\r\n", 1)
            assert (await _answer(arena, request)).status in (400, 421), host
        async with arena.tcp() as client:
            assert (await client.upgrade(token, host=host)).status in (400, 421), host


async def test_own_names_are_known_in_any_case_and_with_any_port(arena: Arena) -> None:
    for host in ("LOCALHOST", "127.0.0.1:1", "[::1]", "[::1]:65535", " localhost "):
        assert (await _answer(arena, _request("GET /healthz", host=host))).status == 200, host


async def test_origins_that_resemble_ours_are_refused(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    own = f"localhost:{arena.port}"
    for origin in (
        f"http://LOCALHOST.:{arena.port}",
        f"http://{own}.evil.example",
        f"http://{own}/",
        f"http://{own}?",
        f"http://user@{own}",
        f"http://127.0.0.1:{arena.port}",
        f"http://[::1]:{arena.port}",
        f"https://{own}",
        f"ws://{own}",
        f"http://{own}, http://evil.example",
        f"http://evil.example http://{own}",
        f"http://{own}\t",
        "http://127.0.0.1",
        "http://192.168.0.1",
        "http://[::1",
        "chrome-extension://abcdef",
        "vscode-webview://abc",
        "*",
        "NULL",
        "http://",
        "file:///",
    ):
        async with arena.tcp() as client:
            response = await client.upgrade(token, f"Origin: {origin}", host=own)
            # White space around a value is not part of it.
            assert response.status == (101 if origin.endswith("\t") else 403), origin
        request = _request("GET /v1/sessions", token, f"Origin: {origin}", host=own)
        assert (await _answer(arena, request)).status == (200 if origin.endswith("\t") else 403), origin


async def test_request_without_origin_earns_nothing(arena: Arena) -> None:
    assert (await arena.get("/v1/sessions", token=None)).status == 401
    cookie = f"Cookie: token={arena.token}; access_token={arena.token}; Authorization=Bearer {arena.token}"
    for header in (cookie, f"X-Auth-Token: {arena.token}", f"Proxy-Authorization: Bearer {arena.token}"):
        assert (await _answer(arena, _request("GET /v1/sessions", header))).status == 401
    async with arena.tcp() as client:
        # A cookie is no token, so this is a stranger, whom HELLO has to tell.
        assert (await client.upgrade(cookie)).status == 101
    assert await arena.metric("websockets_unauthenticated") == 0


async def test_token_of_any_other_form_is_answered_with_401(arena: Arena) -> None:
    token = arena.token
    for value in (
        f"Bearer {token[:-1]}",
        f"Bearer {token}x",
        f"Bearer {token}=",
        f"Bearer {token.swapcase()}",
        f"Bearer {token}, Bearer {token}",
        f'Bearer "{token}"',
        f"Bearer\t{token}",
        f"Token {token}",
        token,
        "Bearer " + "x" * 20_000,
        "Bearer é",
    ):
        header = f"Authorization: {value}"
        assert (await _answer(arena, _request("GET /v1/sessions", header))).status == 401, value
        async with arena.tcp() as client:
            assert (await client.upgrade(header)).status == 401, value
    good = f"Authorization: Bearer {token}"
    for others in ((good, good), (good, "Authorization: Bearer x"), ("Authorization: Basic eDp4", good)):
        assert (await _answer(arena, _request("GET /v1/sessions", *others))).status == 401
        async with arena.tcp() as client:
            assert (await client.upgrade(*others)).status == 401


async def test_token_in_the_url_is_refused_however_it_is_spelled(arena: Arena) -> None:
    for query in (
        "%74oken=x",
        "a=1&Access_Token=x",
        "a;token=x",
        "token",
        "&&token=",
        "api_key=x#y",
        "+token=x",
    ):
        answer = await _answer(
            arena, _request(f"GET /v1/sessions?{query}", f"Authorization: Bearer {arena.token}")
        )
        assert answer.status == 400, query


async def test_odd_methods_and_bodies_are_answered_and_harm_nothing(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    paths = (
        "/healthz",
        "/v1/sessions",
        "/v1/sessions/x",
        "/v1/sessions/x/documents/1",
        "/metrics",
        "/v1/stream",
    )
    for path in paths:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "M-SEARCH", "PROPFIND"):
            answer = await _answer(
                arena, _request(f"{method} {path}", token, "Content-Length: 3") + b"\xff\0{"
            )
            # To delete a session is allowed, and this server stores none.
            is_known = (method, path) == ("DELETE", "/v1/sessions/x")
            assert answer.status == (501 if is_known else 405), (method, path)
            assert answer.error_code == "unsupported"
    for body in (b"", b"x" * (64 * KIB)):
        head = _request("GET /healthz", f"Content-Length: {len(body)}", "Expect: 100-continue")
        assert (await _answer(arena, head + body)).status == 200
    head = _request("HEAD /v1/sessions", token)
    answer_bytes = await _all(arena, head)
    assert answer_bytes.startswith(b"HTTP/1.1 200 ")
    assert answer_bytes.endswith(b"\r\n\r\n")


_NO_PATHS = (
    "/v1/sessions/", "/v1/sessions/%2e%2e", "/v1/sessions/..%2f..%2fetc", "/v1/sessions/%00",
    "/v1/sessions/%ff", "/v1/sessions/%zz", "/v1/sessions/x/documents/",
    "/v1/sessions/x/documents/%0d%0aX:%20y", "//v1/sessions", "/v1/./sessions", "/v1/sessions/x/../y",
    "/V1/SESSIONS", "/v1/sessions;x", "/v1/%73essions%2f", "/\\healthz", "/healthz/",
    "/v1/sessions/" + "x" * 30_000, "/" + "a/" * 15_000, "/v1/sessions/x/documents/" + "9" * 5000,
    "/v1/stream/", "/v1/%73tream", "*",
)  # fmt: skip


async def test_path_that_is_none_is_answered_in_json(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    for path in _NO_PATHS:
        answer = await _answer(arena, _request(f"GET {path}", token))
        # Percent-encoding is undone once, so one of these is our own WebSocket; a slash may be taken off.
        assert answer.status in (404, 426, 307, 400), path[:50]
        assert b"Traceback" not in answer.body
        assert "x" not in answer.headers
        async with arena.tcp() as client:
            assert (await client.upgrade(token, target=path)).status in (404, 400), path[:50]


async def test_head_of_many_fields_is_answered_with_431(arena: Arena) -> None:
    for fields, status in ((127, 200), (128, 431), (8000, 431)):
        request = _request("GET /healthz")[:-2] + b"a:\r\n" * (fields - 1) + b"\r\n"
        assert (await _answer(arena, request)).status == status
    async with arena.tcp() as client:
        await client.send(upgrade_head()[:-2] + b"a:\r\n" * 7000)
        assert (await client.response()).status == 431


async def test_fields_behind_a_body_are_not_kept(arena: Arena) -> None:
    head = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    for trailers in (b"a: b\r\n" * 100_000, b"a: " + b"b" * 1000 * KIB):
        async with arena.tcp() as client:
            with contextlib.suppress(ConnectionError):
                await client.send(head + trailers)
            assert await client.is_closed()


async def test_flood_of_pipelined_requests_is_cut_off(arena: Arena) -> None:
    flood = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(arena.tcp()) for _ in range(20)]
        for client in clients:
            with contextlib.suppress(ConnectionError):
                await client.send(flood)
        for client in clients:
            answers = await _read_all(client)
            assert answers.count(b"HTTP/1.1 200 ") <= 64

    # A few are answered in order.
    answers = await _all(arena, flood[: len(flood) // 5000] * 7 + _request("GET /nowhere"))
    assert answers.count(b"HTTP/1.1 200 ") == 7
    assert answers.count(b"HTTP/1.1 404 ") == 1


async def _read_all(client: RawClient) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            while more := await client.reader.read(1 << 16):
                answer += more
    return answer


async def test_half_open_heads_are_cheap_and_end(arena: Arena) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(arena.tcp()) for _ in range(150)]
        for client in clients:
            await client.send(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 120)
        # Everybody else is served meanwhile.
        assert (await arena.get("/healthz")).status == 200
        for client in clients:
            assert (await client.response()).status == 408

    async def are_gone() -> bool:
        return await arena.metric("connections_open") <= 3

    await until(are_gone)


async def test_deflate_is_never_agreed_to_and_its_bomb_is_a_protocol_error(arena: Arena) -> None:
    token = f"Authorization: Bearer {arena.token}"
    for offer in (
        "permessage-deflate",
        "permessage-deflate; server_no_context_takeover; client_max_window_bits",
        "x-webkit-deflate-frame, permessage-bzip2, permessage-deflate; server_max_window_bits=8",
    ):
        async with arena.tcp() as client:
            response = await client.upgrade(token, f"Sec-WebSocket-Extensions: {offer}")
            assert response.status == 101
            assert "sec-websocket-extensions" not in response.headers
            # A thousand times a mebibyte of zeroes, if anybody unpacked it.
            await client.send(frame(0xC2, b"\xec\xc1\x01\x01" + bytes(60 * KIB)))
            assert await client.close_code() == 1002
    async with arena.tcp() as client:
        # Fields built to cost a careless parser much.
        for name in ("Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol"):
            async with arena.tcp() as costly:
                started = asyncio.get_running_loop().time()
                response = await costly.upgrade(token, f"{name}: " + "a" + " " * 20_000 + ", b" * 2000 + ";")
                assert response.status in (101, 400)
                assert asyncio.get_running_loop().time() - started < 0.5
