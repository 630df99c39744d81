"""Every option of the libraries below has been looked at; a new one fails here until it has been too."""

from __future__ import annotations

import inspect
import logging
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.server import ServerProtocol

import streamctx
from streamctx.client import websocket
from streamctx.limits import DEFAULT_LIMITS
from streamctx.server import handshake
from tests.server.raw_client import RawClient

__all__: list[str] = []

# Of uvicorn's own server, process manager, logging and WebSockets, none of which runs here.
_UNUSED = {
    "host", "port", "uds", "fd", "backlog", "loop", "env_file", "factory", "use_colors", "log_level",
    "reload", "reload_dirs", "reload_delay", "reload_includes", "reload_excludes",
    "workers", "timeout_worker_healthcheck", "limit_max_requests", "limit_max_requests_jitter",
    "timeout_notify", "callback_notify", "timeout_graceful_shutdown",
    "ws_max_size", "ws_max_queue", "ws_ping_interval", "ws_ping_timeout", "ws_per_message_deflate",
    "h11_max_incomplete_event_size", "forwarded_allow_ips",
}  # fmt: skip

# What the server relies on without saying so. `access_log` is turned off on each connection, since its
# setting here would change the logger of the whole program; connections are counted by ourselves.
_RELIED_ON: dict[str, object] = {
    "http2": False,
    "access_log": True,
    "date_header": True,
    "root_path": "",
    "limit_concurrency": None,
    "timeout_keep_alive": 5,
    "headers": None,
    "reset_contextvars": False,
    "ssl_keyfile_password": None,
    "ssl_version": ssl.PROTOCOL_TLS_SERVER,
    "ssl_cert_reqs": ssl.CERT_NONE,
    "ssl_ca_certs": None,
    "ssl_ciphers": None,
    "ssl_context_factory": None,
}

_SET = {
    "app", "interface", "ws", "http", "lifespan", "log_config", "proxy_headers", "server_header",
    "ssl_certfile", "ssl_keyfile",
}  # fmt: skip

# No origins, since ours are checked before; no extensions, so that nothing is ever inflated.
_SERVER_PROTOCOL: dict[str, object] = {"origins": None, "extensions": None, "subprotocols": None}
_SERVER_PROTOCOL_SET = {"select_subprotocol", "state", "max_size", "logger"}

_CLIENT_PROTOCOL: dict[str, object] = {"origin": None, "extensions": None, "state": State.CONNECTING}
_CLIENT_PROTOCOL_SET = {"uri", "subprotocols", "max_size", "logger"}


def _defaults(kind: type) -> dict[str, object]:
    return {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}


@pytest.mark.parametrize(
    ("kind", "set_here", "relied_on", "unused"),
    [
        (uvicorn.Config, _SET, _RELIED_ON, _UNUSED),
        (ServerProtocol, _SERVER_PROTOCOL_SET, _SERVER_PROTOCOL, set()),
        (ClientProtocol, _CLIENT_PROTOCOL_SET, _CLIENT_PROTOCOL, set()),
    ],
)
def test_every_option_is_set_relied_on_or_unused(
    kind: type, set_here: set[str], relied_on: dict[str, object], unused: set[str]
) -> None:
    defaults = _defaults(kind)
    assert sorted(defaults) == sorted([*set_here, *relied_on, *unused])
    assert {name: defaults[name] for name in relied_on} == relied_on


def _recorded(kind: Callable[..., Any], calls: list[dict[str, object]]) -> Callable[..., Any]:
    names = list(inspect.signature(kind).parameters)

    def make(*args: object, **options: object) -> Any:
        calls.append(dict(zip(names, args, strict=False)) | options)
        return kind(*args, **options)

    return make


@pytest.mark.asyncio
async def test_what_is_set_has_been_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[dict[str, object]] = []
    servers: list[dict[str, object]] = []
    clients: list[dict[str, object]] = []
    monkeypatch.setattr(uvicorn, "Config", _recorded(uvicorn.Config, configs))
    monkeypatch.setattr(handshake, "ServerProtocol", _recorded(ServerProtocol, servers))
    monkeypatch.setattr(websocket, "ClientProtocol", _recorded(ClientProtocol, clients))
    async with streamctx.serve() as server:
        async with RawClient.open(server.port) as stranger:
            assert (await stranger.upgrade()).status == 101
        async with streamctx.connect(server.url, server.token) as client:
            await client.ready()

    (config,) = configs
    assert set(config) == _SET
    assert {name: config[name] for name in _SET - {"app", "ws", "http"}} == {
        "interface": "asgi3",
        "lifespan": "off",
        "log_config": None,
        "proxy_headers": False,
        "server_header": False,
        "ssl_certfile": None,
        "ssl_keyfile": None,
    }
    for options, max_size in zip(
        servers,
        (DEFAULT_LIMITS.before_welcome_bytes_max, DEFAULT_LIMITS.websocket_message_bytes_max),
        strict=True,
    ):
        assert set(options) == _SERVER_PROTOCOL_SET
        assert (options["state"], options["max_size"]) == (State.OPEN, max_size)
    (options,) = clients
    assert set(options) == _CLIENT_PROTOCOL_SET
    assert (options["subprotocols"], options["max_size"]) == (
        ["streamctx.v1"],
        DEFAULT_LIMITS.websocket_message_bytes_max,
    )
    # The library would log what a frame holds.
    for used in (servers[0]["logger"], options["logger"]):
        assert isinstance(used, logging.Logger)
        assert used.disabled or used.getEffectiveLevel() > logging.DEBUG
