from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from streamctx.errors import ConfigurationError
from streamctx.server.config import ServerConfig

__all__: list[str] = []

_TOKEN = "a-token-of-enough-characters"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ServerConfig(port=65536), ("port", "65536", "0 to 65535")),
        (lambda: ServerConfig(port=-1), ("port", "-1")),
        (lambda: ServerConfig(port=None), ("port", "uds")),
        (lambda: ServerConfig(host=""), ("host",)),
        (lambda: ServerConfig(host="0.0.0.0"), ("host", "0.0.0.0", "tls_cert", "allow_insecure_bind")),
        (lambda: ServerConfig(token="short"), ("token", "5", "16")),
        (lambda: ServerConfig(token="a token with spaces in it"), ("token", "visible")),
        (lambda: ServerConfig(token="ä" * 20), ("token", "visible")),
        (lambda: ServerConfig(token=_TOKEN, token_file=Path("x")), ("token", "token_file")),
        (lambda: ServerConfig(allowed_hosts=("a:80",)), ("allowed_hosts", "a:80", "without port")),
        (lambda: ServerConfig(allowed_hosts=("*",)), ("allowed_hosts", "*")),
        (lambda: ServerConfig(allowed_origins=("*",)), ("allowed_origins", "*", "scheme://host")),
        (lambda: ServerConfig(allowed_origins=("https://a/b",)), ("allowed_origins", "https://a/b")),
        (lambda: ServerConfig(trusted_proxies=("proxy",)), ("trusted_proxies", "proxy", "network")),
        (lambda: ServerConfig(trusted_proxies=("10.0.0.1/8",)), ("trusted_proxies", "host bits")),
        (lambda: ServerConfig(tls_key=Path("k")), ("tls_key", "tls_cert")),
        (lambda: ServerConfig(tls_cert=Path("/nonexistent")), ("tls_cert", "/nonexistent", "PEM")),
    ],
)
def test_wrong_setting_is_named_with_its_value_and_what_is_allowed(
    make: Callable[[], ServerConfig], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()

    assert [word for word in words if word not in str(caught.value)] == []


def test_error_does_not_repeat_the_token() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ServerConfig(token="p4ss w0rd-with-a-space")

    assert "p4ss" not in str(caught.value)


def test_token_is_not_in_the_repr() -> None:
    assert _TOKEN not in repr(ServerConfig(token=_TOKEN))


def test_non_loopback_bind_is_allowed_by_the_flag_or_by_tls(tmp_path: Path) -> None:
    certificate = tmp_path / "cert.pem"
    certificate.write_text("")

    assert not ServerConfig(host="0.0.0.0", allow_insecure_bind=True).is_tls
    assert ServerConfig(host="0.0.0.0", tls_cert=certificate).is_tls


def test_ephemeral_server_makes_up_a_token_of_its_own() -> None:
    first, second = ServerConfig(ephemeral=True), ServerConfig(ephemeral=True)

    assert first.token is not None
    assert second.token is not None
    assert first.token != second.token
    assert len(first.token) >= 43


def test_ordinary_settings_are_accepted() -> None:
    ServerConfig(
        host="::1",
        port=65535,
        token=_TOKEN,
        allowed_hosts=("dev.example", "[::2]", "192.168.0.1"),
        allowed_origins=("null", "https://a.example:8443", "vscode-webview://x"),
        trusted_proxies=("unix", "10.0.0.0/8", "::1"),
    )
