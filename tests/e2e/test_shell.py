"""The server shell over real sockets, around a hub that echoes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import websockets
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamctx.discovery import list_servers
from streamctx.errors import ConfigurationError
from streamctx.limits import DEFAULT_LIMITS, KIB, MIB, Limits
from streamctx.server.config import ServerConfig
from streamctx.server.serve import Server, serve
from streamctx.vocabulary import Encoding
from tests.server.echo_hub import TOKEN, EchoHandler, EchoHub
from tests.server.raw_client import RawClient, frame, upgrade_head

__all__: list[str] = []

_BEARER = f"Authorization: Bearer {TOKEN}"
_ROOT = Path(__file__).parents[2]


class Echo:
    """A running server, its hub and shortcuts."""

    def __init__(self, server: Server, hub: EchoHub) -> None:
        self.server = server
        self.hub = hub

    @property
    def handler(self) -> EchoHandler:
        return self.hub.handlers[-1]

    def count(self, name: str) -> int:
        return self.server.measurements()[name]

    def open(self) -> contextlib.AbstractAsyncContextManager[RawClient]:
        return RawClient.open(self.server.port)

    @contextlib.asynccontextmanager
    async def websocket(self, *headers: str) -> AsyncIterator[RawClient]:
        async with self.open() as client:
            assert (await client.upgrade(*headers)).status == 101
            yield client

    async def get(
        self, target: str, *headers: str, host: str = "localhost", method: str = "GET"
    ) -> tuple[int, bytes]:
        async with self.open() as client:
            head = "\r\n".join((f"{method} {target} HTTP/1.1", f"Host: {host}", *headers))
            await client.send(head.encode() + b"\r\n\r\n")
            response = await client.response()
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["x-content-type-options"] == "nosniff"
            return response.status, response.body


@contextlib.asynccontextmanager
async def _echo(
    limits: Limits = DEFAULT_LIMITS, routes: Sequence[Route] = (), **settings: object
) -> AsyncIterator[Echo]:
    hub = EchoHub()
    config = ServerConfig(token=TOKEN, discovery=False, limits=limits, **settings)  # type: ignore[arg-type]
    async with serve(hub, config, routes=routes) as server:
        yield Echo(server, hub)


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# The handshake


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("extra", "changes", "status"),
    [
        ((), {}, 101),
        ((_BEARER,), {}, 101),
        (("Authorization: Bearer wrong",), {}, 401),
        (("Authorization: Basic eA==",), {}, 401),
        ((_BEARER, _BEARER), {}, 401),
        ((), {"target": f"/v1/stream?token={TOKEN}"}, 400),
        ((), {"target": "/v1/stream?access_token="}, 400),
        ((), {"target": "/v1/stream?x=1"}, 101),
        ((), {"target": "/v1/other"}, 404),
        ((), {"target": "/"}, 404),
        ((), {"target": "http://evil.example/v1/stream"}, 421),
        ((), {"host": "evil.example"}, 421),
        ((), {"host": None}, 400),
        ((), {"host": "dev.example:1"}, 101),
        (("Origin: http://localhost",), {}, 101),
        (("Origin: https://app.example",), {}, 101),
        (("Origin: http://evil.example",), {}, 403),
        (("Origin: null",), {}, 403),
        ((), {"subprotocol": None}, 400),
        ((), {"subprotocol": "streamctx.v2"}, 400),
        ((), {"subprotocol": "other, streamctx.v1.json"}, 101),
        (("Sec-WebSocket-Key: eA==",), {}, 400),
    ],
)
async def test_handshake(extra: tuple[str, ...], changes: dict[str, str | None], status: int) -> None:
    async with (
        _echo(allowed_hosts=("dev.example",), allowed_origins=("https://app.example",)) as echo,
        echo.open() as client,
    ):
        response = await client.upgrade(*extra, **changes)

        assert response.status == status
        assert len(echo.hub.handlers) == (status == 101)
        if status != 101:
            assert response.error_code
            assert TOKEN.encode() not in response.body
            assert await client.is_closed()


@pytest.mark.asyncio
async def test_listed_null_origin_may_connect() -> None:
    async with _echo(allowed_origins=("null",)) as echo, echo.websocket("Origin: null"):
        pass


@pytest.mark.asyncio
async def test_subprotocol_is_chosen_in_the_order_of_the_client() -> None:
    async with _echo() as echo:
        for offered, encoding in (
            ("streamctx.v1.json, streamctx.v1", Encoding.JSON),
            ("x, streamctx.v1, streamctx.v1.json", Encoding.MSGPACK),
        ):
            async with echo.open() as client:
                response = await client.upgrade(subprotocol=offered)

                assert response.headers["sec-websocket-protocol"] in offered.split(", ")
                assert echo.handler.info.encoding is encoding


@pytest.mark.asyncio
async def test_unknown_subprotocol_is_told_both_names() -> None:
    async with _echo() as echo, echo.open() as client:
        response = await client.upgrade(subprotocol="chat")

        assert b"streamctx.v1 or streamctx.v1.json" in response.body


@pytest.mark.asyncio
async def test_compression_is_never_agreed_to() -> None:
    async with _echo() as echo, echo.open() as client:
        response = await client.upgrade("Sec-WebSocket-Extensions: permessage-deflate")

        assert response.status == 101
        assert "sec-websocket-extensions" not in response.headers


@pytest.mark.asyncio
async def test_header_decides_the_principal_and_each_connection_has_its_own_number() -> None:
    async with _echo() as echo, echo.websocket(_BEARER), echo.websocket():
        first, second = (handler.info for handler in echo.hub.handlers)

        assert first.principal is not None
        assert first.principal.name == "me"
        assert second.principal is None
        assert first.address == second.address == "127.0.0.1"
        assert first.connection_id != second.connection_id


@pytest.mark.asyncio
async def test_trusted_proxy_states_address_and_scheme() -> None:
    async with (
        _echo(trusted_proxies=("127.0.0.1",)) as echo,
        echo.websocket(
            "X-Forwarded-For: 6.6.6.6, 7.7.7.7", "X-Forwarded-Proto: https", "Origin: https://localhost"
        ),
    ):
        assert echo.handler.info.address == "7.7.7.7"


@pytest.mark.asyncio
async def test_frames_behind_the_upgrade_in_one_packet_are_not_lost() -> None:
    async with _echo() as echo, echo.open() as client:
        await client.send(upgrade_head() + frame(0x82, b"hello"))

        assert (await client.response()).status == 101
        assert await client.frame() == (0x82, b"hello")


@pytest.mark.asyncio
async def test_hub_that_fails_to_connect_costs_that_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async with _echo() as echo:
        echo.hub.is_connect_failing = True
        async with echo.open() as client:
            await client.send(upgrade_head())
            assert await client.is_closed()
        await _until(lambda: echo.count("connections_open") == 0)
        echo.hub.is_connect_failing = False
        async with echo.websocket():
            assert echo.count("websockets_unauthenticated") == 1
    assert "did not take" in caplog.text


# Messages


@pytest.mark.asyncio
async def test_websockets_client_gets_its_messages_back() -> None:
    async with _echo() as echo:
        async with websockets.connect(
            echo.server.url,
            subprotocols=[websockets.Subprotocol("streamctx.v1")],
            additional_headers={"Authorization": f"Bearer {TOKEN}"},
            proxy=None,
        ) as client:
            for size in (0, 1, 125, 126, 16 * KIB - 1, 16 * KIB, 65535, 65536, MIB):
                message = os.urandom(size)
                await client.send(message)
                assert await client.recv() == message
            await client.send("zwölf")
            assert await client.recv() == "zwölf"
            await client.send(["a", "ö", "", "c"])
            assert await client.recv() == "aöc"
            await client.send("large")
            assert await client.recv() == bytes(200 * KIB)
            assert await client.recv() == "after"
            await (await client.ping())
        await _until(lambda: not echo.count("websockets_open"))
        assert echo.handler.calls.count("closed") == 1


@pytest.mark.asyncio
async def test_all_messages_of_a_read_are_followed_by_one_read_done() -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(b"".join(frame(0x82, bytes((index,))) for index in range(100)))

        assert [await client.frame() for _ in range(100)] == [(0x82, bytes((index,))) for index in range(100)]
        assert echo.handler.calls == ["read_done"]


@pytest.mark.asyncio
async def test_bytes_that_come_one_at_a_time_are_the_same_messages() -> None:
    stream = (
        frame(0x82, b"one") + frame(0x89, b"p") + frame(0x01, b"t") + frame(0x80, b"wo") + frame(0x81, b"x")
    )
    async with _echo() as echo, echo.websocket() as client:
        for byte in stream:
            await client.send(bytes((byte,)))
            await asyncio.sleep(0)

        received = [await client.frame() for _ in range(4)]

        assert received == [(0x82, b"one"), (0x8A, b"p"), (0x81, b"two"), (0x81, b"x")]
        assert echo.handler.received == [b"one", "two", "x"]


@pytest.mark.asyncio
async def test_pong_comes_before_the_answer_to_a_message_that_ended_after_the_ping() -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(frame(0x01, b"lar") + frame(0x89, b"p") + frame(0x80, b"ge"))

        assert await client.frame() == (0x8A, b"p")
        assert await client.frame() == (0x82, bytes(200 * KIB))


@pytest.mark.asyncio
async def test_message_between_fragments_is_an_error_in_a_read_of_its_own_too() -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(frame(0x01, b"begun") + frame(0x89))
        assert await client.frame() == (0x8A, b"")

        await client.send(frame(0x81, b"another"))

        assert await client.close_code() == 1002
        assert echo.handler.received == []


@pytest.mark.asyncio
async def test_answered_close_frees_the_connection_without_waiting_for_the_client() -> None:
    async with _echo(Limits(close_wait_s=60)) as echo, echo.websocket() as client:
        await client.send(frame(0x88, b"\x03\xe8"))

        assert await client.close_code() == 1000
        await _until(lambda: not echo.count("websockets_open"))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(0x82, b"x", is_masked=False), 1002),
        (frame(0x81, b"\xff"), 1007),
        (frame(0x01, b"\xc3") + frame(0x80, b"\x28"), 1007),
        (frame(0x80, b"x"), 1002),
        (frame(0x02) + frame(0x82), 1002),
        (frame(0xC2), 1002),
        (frame(0x83), 1002),
        (frame(0x89, bytes(126)), 1002),
        (frame(0x88, b"\x00\x01"), 1002),
        (frame(0x82, bytes(MIB + 1)), 1009),
        (frame(0x02, bytes(MIB)) + frame(0x80, b"x"), 1009),
    ],
)
async def test_broken_stream_is_closed_with_its_code_after_what_came_before(data: bytes, code: int) -> None:
    async with _echo() as echo, echo.websocket(_BEARER) as client:
        await client.send(frame(0x82, b"before") + data + frame(0x82, b"after"))

        assert await client.frame() == (0x82, b"before")
        assert await client.close_code() == code
        await client.send(frame(0x88, code.to_bytes(2, "big")))
        client.writer.write_eof()
        assert await client.is_closed()
        await _until(lambda: "closed" in echo.handler.calls)
        assert echo.handler.received == [b"before"]
        assert echo.count("websockets_failed") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("payload", [b"", b"x"])
async def test_flood_of_fragments_is_cut_off_at_the_limit(payload: bytes) -> None:
    limit = DEFAULT_LIMITS.websocket_fragment_count_max
    async with _echo() as echo:
        async with echo.websocket(_BEARER) as client:
            await client.send(
                frame(0x02, payload) + frame(0x00, payload) * (limit - 2) + frame(0x80, payload)
            )
            assert await client.frame() == (0x82, payload * limit)

            await client.send(frame(0x02, payload) + frame(0x00, payload) * limit)
            assert await client.close_code() == 1009
        async with echo.websocket(_BEARER) as client:
            with contextlib.suppress(ConnectionError):
                await client.send(frame(0x02, payload) + frame(0x00, payload) * 200_000)
            assert await client.close_code() == 1009


@pytest.mark.asyncio
async def test_stranger_cannot_send_a_large_message() -> None:
    limit = DEFAULT_LIMITS.before_welcome_bytes_max
    async with _echo() as echo:
        async with echo.websocket() as client:
            await client.send(frame(0x82, bytes(limit + 1)))
            assert await client.close_code() == 1009
        async with echo.websocket() as client:
            await client.send(frame(0x82, bytes(limit)))
            assert (await client.frame())[1] == bytes(limit)
            # The echo hub takes its first message for a HELLO.
            await client.send(frame(0x82, bytes(MIB)))
            assert (await client.frame())[1] == bytes(MIB)


@pytest.mark.asyncio
async def test_failure_of_the_hub_closes_with_4111(caplog: pytest.LogCaptureFixture) -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(frame(0x81, b"fail"))

        assert await client.close_code() == 4111
    assert "told to fail" in caplog.text


# Closing and time


@pytest.mark.asyncio
async def test_hub_closes_after_what_it_has_sent_and_a_long_reason_is_cut() -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(frame(0x82, b"x"))
        await client.frame()
        await client.send(frame(0x81, b"close") + frame(0x82, b"ignored"))

        first, payload = await client.frame()

        assert first == 0x88
        assert payload[:2] == (4101).to_bytes(2, "big")
        assert len(payload) == 125
        await client.send(frame(0x88, payload[:2]))
        assert await client.is_closed()
        assert echo.handler.received == [b"x", "close"]


@pytest.mark.asyncio
async def test_peer_that_does_not_answer_a_close_is_aborted() -> None:
    async with _echo(Limits(close_wait_s=0.05)) as echo, echo.websocket() as client:
        await client.send(frame(0x81, b"close"))

        assert await client.is_closed()
        await _until(lambda: "closed" in echo.handler.calls)


@pytest.mark.asyncio
async def test_abort_is_followed_by_closed_once() -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(frame(0x81, b"abort"))

        assert await client.is_closed()
        await _until(lambda: "closed" in echo.handler.calls)
        assert echo.handler.calls == ["closed"]


@pytest.mark.asyncio
async def test_earlier_timer_replaces_the_later_one() -> None:
    async with _echo() as echo, echo.websocket() as client:
        await client.send(frame(0x81, b"timer"))

        assert await client.frame() == (0x81, b"timeout")
        assert echo.handler.calls == ["read_done", "handle_timeout"]


@pytest.mark.asyncio
async def test_silent_peer_is_aborted_and_one_that_sends_is_not() -> None:
    limits = Limits(heartbeat_s=0.05, dead_s=0.2)
    async with _echo(limits) as echo, echo.websocket() as silent, echo.websocket() as talking:
        for _ in range(15):
            await talking.send(frame(0x8A))
            await asyncio.sleep(0.02)

        assert await silent.is_closed()
        await talking.send(frame(0x82, b"x"))
        assert await talking.frame() == (0x82, b"x")
        assert echo.count("websockets_dead") == 1


@pytest.mark.asyncio
async def test_bulk_that_waits_for_a_slow_reader_does_not_keep_its_messages_from_being_read() -> None:
    async with _echo() as echo, echo.websocket(_BEARER) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(frame(0x81, b"flood"))
        await _until(lambda: echo.handler.received and not echo.handler.peer.is_writable)

        await client.send(frame(0x82, b"edit"))
        await _until(lambda: echo.handler.received == ["flood", b"edit"])

        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while (await client.frame())[1] != b"edit":
            pass
        assert "writable" in echo.handler.calls


@pytest.mark.asyncio
async def test_peer_that_does_not_read_its_answers_is_not_read_from_and_loses_nothing() -> None:
    sent = 0
    async with _echo() as echo, echo.websocket(_BEARER) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    client.writer.write(frame(0x82, sent.to_bytes(4, "big") + bytes(16 * KIB)))
                    sent += 1
                    await client.writer.drain()
        received_count = len(echo.handler.received)
        await asyncio.sleep(0.1)
        assert len(echo.handler.received) == received_count < sent

        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(sent):
            assert (await client.frame())[1][:4] == number.to_bytes(4, "big")


@pytest.mark.asyncio
async def test_reader_that_takes_nothing_is_aborted_at_the_send_deadline() -> None:
    async with _echo(Limits(send_deadline_s=0.2)) as echo, echo.websocket() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(frame(0x81, b"flood"))

        await _until(lambda: "closed" in echo.handler.calls)

        assert echo.count("websockets_stalled") == 1


@pytest.mark.asyncio
async def test_hub_that_ignores_is_writable_is_stopped_at_the_bound() -> None:
    async with _echo() as echo, echo.websocket() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(frame(0x81, b"overrun"))

        await _until(lambda: "closed" in echo.handler.calls)

        assert echo.count("websockets_flooded") == 1


# HTTP


@pytest.mark.asyncio
async def test_public_endpoints_need_no_token() -> None:
    async with _echo() as echo:
        assert await echo.get("/healthz") == (200, b'{"status":"ok"}')
        assert await echo.get("/readyz") == (200, b'{"status":"ready"}')
        status, body = await echo.get("/version")
        assert status == 200
        assert json.loads(body)["subprotocols"] == ["streamctx.v1", "streamctx.v1.json"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "target", ["/metrics", "/v1/sessions", "/v1/sessions/s1", "/v1/sessions/s1/documents/x"]
)
async def test_everything_else_needs_the_token(target: str) -> None:
    async with _echo() as echo:
        for headers in ((), ("Authorization: Bearer wrong",), (f"Authorization: {TOKEN}",)):
            status, body = await echo.get(target, *headers)
            assert status == 401
            assert json.loads(body)["error"]["code"] == "unauthorized"


@pytest.mark.asyncio
async def test_read_side_of_the_hub_is_served() -> None:
    async with _echo() as echo:
        assert await echo.get("/v1/sessions", _BEARER) == (200, b'{"sessions":[{"id":"s1","owner":"me"}]}')
        assert await echo.get("/v1/sessions/s1", _BEARER) == (200, b'{"id":"s1"}')
        assert (await echo.get("/v1/sessions/s1/documents/src%2Fa.py", _BEARER))[0] == 200
        assert (await echo.get("/v1/sessions/s1/documents/src/a.py", _BEARER))[0] == 200
        unknown = await echo.get("/v1/sessions/s2", _BEARER)
        assert unknown[0] == 404
        assert unknown == await echo.get("/v1/sessions/s1/documents/other", _BEARER)
        assert unknown == await echo.get("/nothing")


@pytest.mark.asyncio
async def test_metrics_are_text_with_the_counters_of_hub_and_shell() -> None:
    async with _echo() as echo, echo.websocket():
        status, body = await echo.get("/metrics", _BEARER)

        assert status == 200
        lines = body.decode().splitlines()
        assert "streamctx_sessions_open 1" in lines
        assert "streamctx_websockets_open 1" in lines


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["/healthz", "/v1/sessions", "/nothing"])
async def test_policy_holds_on_every_path(target: str) -> None:
    async with _echo() as echo:
        assert (await echo.get(target, host="evil.example"))[0] == 421
        assert (await echo.get(target, "Origin: http://evil.example"))[0] == 403
        assert (await echo.get(f"{target}?token=x"))[0] == 400
        assert (await echo.get(target, "Host: localhost"))[0] == 400


@pytest.mark.asyncio
async def test_wrong_method_and_missing_upgrade_say_so_in_json() -> None:
    async with _echo() as echo:
        status, body = await echo.get("/v1/sessions", _BEARER, "Content-Length: 0", method="POST")
        assert (status, json.loads(body)["error"]["code"]) == (405, "unsupported")
        status, body = await echo.get("/v1/stream")
        assert (status, json.loads(body)["error"]["code"]) == (426, "unsupported")


@pytest.mark.asyncio
async def test_pipelined_requests_are_answered_in_order() -> None:
    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with _echo() as echo, echo.open() as client:
        await client.send(request % b"/healthz" + request % b"/nothing" + request % b"/readyz")

        assert [(await client.response()).status for _ in range(3)] == [200, 404, 200]


@pytest.mark.asyncio
async def test_upgrade_to_something_else_is_ignored() -> None:
    async with _echo() as echo:
        assert (await echo.get("/healthz", "Connection: Upgrade", "Upgrade: h2c"))[0] == 200


@pytest.mark.asyncio
async def test_what_is_not_http_is_a_bad_request() -> None:
    async with _echo() as echo, echo.open() as client:
        await client.send(b"\x16\x03\x01\x02\x00\x01\x00")

        assert (await client.response()).status == 400
        assert await client.is_closed()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 65537\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n8000\r\n%s\r\n8001\r\n%s\r\n" % (bytes(0x8000), bytes(0x8001)),
    ],
)
async def test_large_body_is_refused(body: bytes) -> None:
    async with _echo() as echo, echo.open() as client:
        await client.send(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n" + body)

        assert (await client.response()).status == 413
        assert echo.count("bodies_refused") == 1


async def _large(_: Request) -> Response:
    return Response(bytes(32 * MIB))


@pytest.mark.asyncio
async def test_reader_of_a_response_that_takes_nothing_is_cut_off() -> None:
    routes = [Route("/large", _large)]
    async with _echo(Limits(send_deadline_s=0.1), routes) as echo:
        assert len((await echo.get("/large"))[1]) == 32 * MIB
        assert (await echo.get("/large", host="evil.example"))[0] == 421
        async with echo.open() as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await _until(lambda: echo.count("connections_open") == 1)
            await _until(lambda: echo.count("connections_open") == 0)


@pytest.mark.asyncio
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_tls_carries_both_sides(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(
        subprocess.run, ["openssl", *command.split(), *names], check=True, capture_output=True
    )
    context = ssl.create_default_context(cafile=certificate)
    async with _echo(tls_cert=certificate, tls_key=key) as echo:
        assert echo.server.url.startswith("wss://")
        async with websockets.connect(
            echo.server.url,
            ssl=context,
            origin=websockets.Origin(echo.server.http_url),
            subprotocols=[websockets.Subprotocol("streamctx.v1")],
            proxy=None,
        ) as client:
            for message in (b"x", bytes(MIB // 32), bytes(MIB)):
                await client.send(message)
                assert await client.recv() == message
            await client.send("large")
            assert await client.recv() == bytes(200 * KIB)
    with pytest.raises(ConfigurationError, match="tls_cert"):
        await Server(EchoHub(), ServerConfig(token=TOKEN, discovery=False, tls_cert=key)).start()


# Limits on heads and connections


@pytest.mark.asyncio
async def test_head_at_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    limit = DEFAULT_LIMITS.request_head_bytes_max
    start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
    async with _echo() as echo:
        for excess, status in ((0, 200), (1, 431)):
            async with echo.open() as client:
                await client.send(start + b"x" * (limit - len(start) - 4 + excess) + b"\r\n\r\n")
                assert (await client.response()).status == status


@pytest.mark.asyncio
@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: loc"])
async def test_slow_head_is_cut_off(start: bytes) -> None:
    async with _echo(Limits(request_head_timeout_s=0.1)) as echo, echo.open() as client:
        await client.send(start)
        response = asyncio.create_task(client.response())
        while not response.done():
            await asyncio.sleep(0.01)
            with contextlib.suppress(ConnectionError):
                await client.send(start[-1:])

        assert (await response).status == 408
        assert echo.count("heads_refused") == 1


@pytest.mark.asyncio
async def test_slow_second_head_is_cut_off() -> None:
    async with _echo(Limits(request_head_timeout_s=0.1)) as echo, echo.open() as client:
        await client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.response()).status == 200
        await client.send(b"GET /healthz HTTP/1.1\r\n")

        assert (await client.response()).status == 408


@pytest.mark.asyncio
async def test_connections_over_a_limit_are_refused_until_others_leave() -> None:
    for limits in (Limits(connections_max=2), Limits(connections_per_address_max=2)):
        async with _echo(limits) as echo:
            async with echo.websocket(_BEARER), echo.websocket(_BEARER), echo.open() as third:
                assert (await third.response()).status == 503
                assert await third.is_closed()
            await _until(lambda echo=echo: echo.count("connections_open") == 0)
            async with echo.websocket(_BEARER):
                assert echo.count("connections_refused") == 1


@pytest.mark.asyncio
async def test_clients_of_a_proxy_are_counted_by_their_own_address() -> None:
    limits = Limits(connections_per_address_max=1)
    async with _echo(limits, trusted_proxies=("127.0.0.1",)) as echo:
        async with (
            echo.websocket("X-Forwarded-For: 1.1.1.1"),
            echo.websocket("X-Forwarded-For: 2.2.2.2"),
            echo.websocket("X-Forwarded-For: 1.1.1.1") as second,
        ):
            assert await second.close_code() == 4006
        await _until(lambda: echo.count("websockets_open") == 0)
        async with echo.websocket("X-Forwarded-For: 1.1.1.1") as again:
            await again.send(frame(0x82, b"x"))
            assert await again.frame() == (0x82, b"x")


@pytest.mark.asyncio
async def test_only_so_many_websockets_may_be_unauthenticated() -> None:
    async with _echo(Limits(unauthenticated_connections_max=1)) as echo, echo.websocket() as first:
        async with echo.open() as second:
            response = await second.upgrade()
            assert (response.status, response.error_code) == (503, "limit")
        async with echo.websocket(_BEARER):
            pass
        await first.send(frame(0x82, b"hello"))
        await first.frame()
        async with echo.websocket():
            assert echo.count("websockets_unauthenticated") == 1
        await _until(lambda: echo.count("websockets_unauthenticated") == 0)


# Starting and stopping


@pytest.mark.asyncio
async def test_drain_says_goaway_then_closes_and_refuses_newcomers() -> None:
    async with contextlib.AsyncExitStack() as stack:
        echo = await stack.enter_async_context(_echo())
        client = await stack.enter_async_context(echo.websocket())
        stop = asyncio.ensure_future(echo.server.stop())
        assert await client.frame() == (0x81, b"goaway")
        assert echo.server.is_draining
        assert (await echo.get("/readyz"))[0] == 503
        async with echo.open() as late:
            response = await late.upgrade()
            assert (response.status, response.error_code) == (503, "draining")

        # What is under way is still answered.
        await client.send(frame(0x82, b"last"))
        assert await client.frame() == (0x82, b"last")
        assert await client.close_code() == 4200
        await client.send(frame(0x88, (4200).to_bytes(2, "big")))
        await stop
        assert echo.handler.calls == ["drain", "read_done", "closed"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", echo.server.port)


@pytest.mark.asyncio
async def test_drain_aborts_what_is_left_at_the_deadline() -> None:
    async with _echo(Limits(drain_s=0.3, close_wait_s=60)) as echo, echo.websocket() as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        started = time.monotonic()

        await echo.server.stop()

        assert 0.25 < time.monotonic() - started < 2
        assert echo.handler.calls == ["drain", "closed"]


@pytest.mark.asyncio
async def test_cancelled_drain_closes_everything_at_once() -> None:
    async with _echo(Limits(close_wait_s=60)) as echo, echo.websocket():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await echo.server.stop()

        await _until(lambda: "closed" in echo.handler.calls)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", echo.server.port)


@pytest.mark.asyncio
async def test_hub_is_swept_about_once_a_second() -> None:
    async with _echo() as echo:
        await _until(lambda: echo.hub.sweep_count >= 2)


@pytest.mark.asyncio
async def test_port_in_use_names_the_server_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = ServerConfig(token=TOKEN)
    async with serve(EchoHub(), config) as server:
        assert [record.url for record in list_servers()] == [server.url]
        with pytest.raises(ConfigurationError, match=rf"port: {server.port} is in use by.*{os.getpid()}"):
            await Server(EchoHub(), ServerConfig(token=TOKEN, port=server.port)).start()
        async with serve(EchoHub(), config) as second:
            assert second.port != server.port
            assert len(list_servers()) == 2
    assert list_servers() == []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port: {port} is in use by another program"):
            await Server(EchoHub(), ServerConfig(token=TOKEN, port=port)).start()


@pytest.mark.asyncio
async def test_unix_socket_is_private_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s.sock"
    async with _echo(uds=path, port=None) as echo:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with RawClient.open(path) as client:
            assert (await client.upgrade()).status == 101
            await client.send(frame(0x82, b"x"))
            assert await client.frame() == (0x82, b"x")
            assert echo.handler.info.address == "unix"
        with pytest.raises(ConfigurationError, match="running"):
            await Server(EchoHub(), ServerConfig(token=TOKEN, discovery=False, uds=path, port=None)).start()
        assert path.exists()
        with pytest.raises(LookupError):
            _ = echo.server.port
    assert not path.exists()


@pytest.mark.asyncio
async def test_stale_unix_socket_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    async with _echo(uds=path):
        pass
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="not a socket"):
        await Server(EchoHub(), ServerConfig(token=TOKEN, discovery=False, uds=path)).start()
    assert path.read_text() == "precious"


# The process


class Process:
    def __init__(self, tmp_path: Path, **settings: object) -> None:
        self.ready_file = tmp_path / "ready.json"
        self.environ = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-m",
                "tests.server.echo_server",
                json.dumps(settings | {"ready_file": str(self.ready_file)}),
            ],
            cwd=_ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    @property
    def records(self) -> list[Path]:
        return list((self.ready_file.parent / "streamctx").glob("*.json"))

    def memory_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@contextlib.contextmanager
def _process(tmp_path: Path, **settings: object) -> Iterator[Process]:
    process = Process(tmp_path, **settings)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.communicate()


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_drains_and_exits_0_and_logs_no_secret(tmp_path: Path, number: signal.Signals) -> None:
    with _process(tmp_path) as process:
        assert len(process.records) == 1
        assert json.loads(process.ready_file.read_bytes())["pid"] == process.process.pid
        async with RawClient.open(process.port) as client:
            assert (await client.upgrade(_BEARER)).status == 101
            await client.send(frame(0x81, b"a-secret-document"))
            await client.frame()
            async with RawClient.open(process.port) as other:
                await other.send(
                    f"GET /a-secret-path HTTP/1.1\r\nHost: localhost\r\n{_BEARER}\r\n\r\n".encode()
                )
                await other.response()
            process.process.send_signal(number)
            assert await client.frame() == (0x81, b"goaway")
            assert await client.close_code() == 4200
            await client.send(frame(0x88, (4200).to_bytes(2, "big")))
            status, errors = await asyncio.to_thread(process.end)

        assert status == 0
        assert process.records == []
        assert not process.ready_file.exists()
        assert [word for word in ("secret", TOKEN, "Traceback") if word in errors] == []


@pytest.mark.asyncio
async def test_second_signal_exits_1_at_once(tmp_path: Path) -> None:
    with _process(tmp_path, close_wait_s=60.0, drain_s=60.0) as process:
        async with RawClient.open(process.port) as client:
            assert (await client.upgrade()).status == 101
            process.process.send_signal(signal.SIGTERM)
            assert await client.frame() == (0x81, b"goaway")
            process.process.send_signal(signal.SIGINT)
            status, _ = await asyncio.to_thread(process.end)

        assert status == 1
        assert process.records == []
        assert not process.ready_file.exists()


@pytest.mark.asyncio
async def test_killed_server_is_not_listed(tmp_path: Path) -> None:
    with _process(tmp_path) as process:
        assert len(list_servers(tmp_path / "streamctx")) == 1
        process.process.kill()
        process.process.wait()

        assert len(process.records) == 1
        assert list_servers(tmp_path / "streamctx") == []
        assert process.records == []


@pytest.mark.asyncio
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_200_mib_of_head_cost_next_to_nothing(tmp_path: Path) -> None:
    piece = b"x" * MIB
    with _process(tmp_path) as process:
        for _ in range(2):
            async with RawClient.open(process.port) as client:
                await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await client.response()
        before = process.memory_kib()
        async with RawClient.open(process.port) as client:
            with contextlib.suppress(ConnectionError):
                await client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
                for _ in range(200):
                    await client.send(piece)
            assert await client.is_closed()

        assert process.memory_kib() - before < 1024


@pytest.mark.asyncio
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_slow_reader_and_flooding_sender_cost_a_bounded_amount(tmp_path: Path) -> None:
    message = frame(0x82, bytes(16 * KIB))
    with _process(tmp_path) as process:
        async with RawClient.open(process.port) as client:
            assert (await client.upgrade(_BEARER)).status == 101
            await client.send(message)
            await client.frame()
            before = process.memory_kib()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    while True:
                        await client.send(message)

            assert process.memory_kib() - before < 4096


@pytest.mark.asyncio
async def test_logs_of_the_library_never_carry_frames(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with _echo() as echo, echo.websocket(_BEARER) as client:
        await client.send(frame(0x01, b"private ") + frame(0x80, b"text"))
        await client.frame()

    assert "private" not in caplog.text
    assert TOKEN not in caplog.text


def _masked(mask: bytes, payload: bytes) -> bytes:
    return bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


@pytest.mark.asyncio
async def test_a_ping_whose_head_comes_alone_is_answered() -> None:
    mask = b"\x82\x90\x00\x00"  # It looks like a frame's head itself.
    async with _echo() as echo, echo.websocket() as client:
        await client.send(b"\x89\x84")
        await asyncio.sleep(0.1)
        await client.send(mask + _masked(mask, b"ping"))
        assert await client.frame() == (0x8A, b"ping")
