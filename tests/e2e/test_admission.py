"""Every kind of Host, Origin, token and address together: let in only if each of them is right."""

from __future__ import annotations

import itertools
import random
from typing import Final

import pytest

import streamctx
from streamctx.server.serve import Server
from tests.server.raw_client import RawClient, upgrade_head

__all__: list[str] = []

_OK: Final = None
_SEVERAL_WRONG_SHARE = 0.03

# What each of them is refused with. `{port}` and `{token}` are the server's, `{host}` is what Host says.
_HOSTS: dict[tuple[str, ...], int | None] = {
    ("localhost:{port}",): _OK,
    ("LOCALHOST",): _OK,
    ("127.0.0.1:{port}",): _OK,
    ("[::1]:1",): _OK,
    ("dev.example:8443",): _OK,
    ("evil.example",): 421,
    ("localhost.evil.example:{port}",): 421,
    ("127.0.0.1.nip.example:{port}",): 421,
    ("192.168.0.7:{port}",): 421,
    ("localhost@evil.example",): 400,
    ("localhost, evil.example",): 400,
    ("localhost", "evil.example"): 400,
    (): 400,
}
_ORIGINS: dict[tuple[str, ...], int | None] = {
    (): _OK,
    ("https://app.example",): _OK,
    ("http://{host}",): _OK,
    ("https://{host}",): 403,
    ("http://{host}.evil.example",): 403,
    ("http://evil.example",): 403,
    ("http://app.example",): 403,
    ("null",): 403,
    ("",): 403,
    ("https://app.example", "http://evil.example"): 403,
}
# Who comes without a token may upgrade, and has to bring it in HELLO; who comes with a wrong one may not.
_TOKENS: dict[str, tuple[int | None, int | None]] = {
    "Bearer {token}": (_OK, _OK),
    "bearer {token}": (_OK, _OK),
    "": (_OK, 401),
    "Bearer wrong": (401, 401),
    "Bearer {token}x": (401, 401),
    "Basic {token}": (401, 401),
    "{token}": (401, 401),
}
_QUERIES: dict[str, int | None] = {"": _OK, "?x=1": _OK, "?token={token}": 400, "?x=1&Access_Token=x": 400}
_UPGRADES: dict[str, int | None] = {"/v1/stream": _OK, "/v1/streams": 404, "/v1/stream/": 404}
_GETS: dict[str, int | None] = {"/v1/sessions": _OK, "/metrics": _OK, "/v1/sessions/x": 404}


def _filled(text: str, server: Server, hosts: tuple[str, ...]) -> str:
    host = (hosts[0] if hosts else "localhost").format(port=server.port)
    return text.format(host=host, port=server.port, token=server.token)


async def _status(
    server: Server,
    *,
    target: str,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    token: str,
    is_upgrade: bool,
) -> int:
    headers = [f"Host: {host}" for host in hosts] + [f"Origin: {origin}" for origin in origins]
    if token:
        headers.append(f"Authorization: {token}")
    headers = [_filled(header, server, hosts) for header in headers]
    target = _filled(target, server, hosts)
    async with RawClient.open(server.port) as client:
        if is_upgrade:
            await client.send(upgrade_head(*headers, target=target, host=None))
        else:
            await client.send("\r\n".join((f"GET {target} HTTP/1.1", *headers)).encode() + b"\r\n\r\n")
        response = await client.response()
        assert server.token.encode() not in response.body
        return response.status


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("is_upgrade", [True, False], ids=["websocket", "http"])
async def test_admission_is_refused_for_each_wrong_part_and_for_nothing_else(is_upgrade: bool) -> None:
    good = 101 if is_upgrade else 200
    combinations = itertools.product(
        (_UPGRADES if is_upgrade else _GETS).items(),
        _QUERIES.items(),
        _HOSTS.items(),
        _ORIGINS.items(),
        _TOKENS.items(),
    )
    chance = random.Random(1)
    wrong = []
    count = 0
    async with streamctx.serve(
        allowed_hosts=("dev.example",), allowed_origins=("https://app.example",)
    ) as server:
        for (path, for_path), (query, for_query), (hosts, for_host), (
            origins,
            for_origin,
        ), tokens in combinations:
            token, for_token = tokens
            parts = [for_path, for_query, for_host, for_origin, for_token[0 if is_upgrade else 1]]
            reasons = {part for part in parts if part is not _OK}
            # All with one wrong part at most, and some with several, any of which may be named.
            if parts.count(_OK) < len(parts) - 1 and chance.random() > _SEVERAL_WRONG_SHARE:
                continue
            count += 1
            status = await _status(
                server,
                target=path + query,
                hosts=hosts,
                origins=origins,
                token=token,
                is_upgrade=is_upgrade,
            )
            if status not in (reasons or {good}):
                wrong.append((status, reasons, path + query, hosts, origins, token))
    assert count > 800
    assert wrong == []
