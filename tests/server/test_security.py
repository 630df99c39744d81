from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from streamctx.errors import ErrorCode
from streamctx.server.config import ServerConfig
from streamctx.server.security import (
    BearerError,
    Refusal,
    bearer_token,
    check_request,
    identify_client,
    is_loopback,
    normalise_origin,
    policy_of,
)

__all__: list[str] = []

_TOKEN = "a-token-of-enough-characters"


def _check(
    *headers: tuple[bytes, bytes],
    query: bytes = b"",
    target: bytes = b"",
    scheme: str = "http",
    allowed_hosts: tuple[str, ...] = (),
    allowed_origins: tuple[str, ...] = (),
) -> int | None:
    config = ServerConfig(token=_TOKEN, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins)
    refusal = check_request(policy_of(config), headers, scheme=scheme, query=query, target=target)
    return None if refusal is None else refusal.status


def _host(value: str) -> tuple[bytes, bytes]:
    return b"host", value.encode()


def _origin(value: str) -> tuple[bytes, bytes]:
    return b"origin", value.encode()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:1", "localhost", "LocalHost:65535", "[::1]", "[::1]:80"]
)
def test_loopback_name_is_ours_with_any_port(host: str) -> None:
    assert _check(_host(host)) is None


@pytest.mark.parametrize(
    "host",
    ["example.com", "localhost.example.com", "127.0.0.1.example.com", "127.0.0.2", "localhost.", "[::2]"],
)
def test_foreign_name_is_misdirected(host: str) -> None:
    assert _check(_host(host)) == 421


@pytest.mark.parametrize(
    "host", ["", "a b", "localhost:x", "localhost:65536", "u@localhost", "::1", "localhost/"]
)
def test_host_that_is_none_is_a_bad_request(host: str) -> None:
    assert _check(_host(host)) == 400


def test_exactly_one_host_is_needed() -> None:
    assert _check() == 400
    assert _check(_host("localhost"), _host("localhost")) == 400


def test_allowed_host_is_ours() -> None:
    assert _check(_host("Dev.Example:8000"), allowed_hosts=("dev.example",)) is None


def test_absolute_target_is_held_to_the_same_hosts() -> None:
    assert _check(_host("localhost"), target=b"http://evil.example/v1/stream") == 421
    assert _check(_host("localhost"), target=b"http://localhost:1/v1/stream") is None


def test_specific_loopback_address_is_ours_only_if_bound() -> None:
    policy = policy_of(ServerConfig(token=_TOKEN, host="127.0.0.7"))

    assert check_request(policy, [_host("127.0.0.7:9")], scheme="http", query=b"") is None


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8000", None),
        ("HTTP://localhost:8000", None),
        ("http://localhost:8001", 403),
        ("http://localhost", 403),
        ("https://localhost:8000", 403),
        ("http://127.0.0.1:8000", 403),
        ("http://evil.example", 403),
        ("http://localhost:8000/", 403),
        ("http://localhost:8000@evil.example", 403),
        ("null", 403),
        ("", 403),
        ("localhost:8000", 403),
    ],
)
def test_origin_is_our_own_or_refused(origin: str, status: int | None) -> None:
    assert _check(_host("localhost:8000"), _origin(origin)) == status


def test_default_port_of_the_scheme_is_filled_in() -> None:
    assert _check(_host("localhost"), _origin("http://localhost:80")) is None
    assert _check(_host("localhost:443"), _origin("https://localhost"), scheme="https") is None
    assert _check(_host("localhost:80"), _origin("https://localhost"), scheme="https") == 403


def test_listed_origin_is_allowed() -> None:
    allowed = ("https://app.example", "vscode-webview://abc")

    assert _check(_host("localhost"), _origin("https://app.example:443"), allowed_origins=allowed) is None
    assert _check(_host("localhost"), _origin("vscode-webview://abc"), allowed_origins=allowed) is None
    assert _check(_host("localhost"), _origin("https://app.example.evil"), allowed_origins=allowed) == 403
    assert _check(_host("localhost"), _origin("null"), allowed_origins=allowed) == 403


def test_null_origin_is_allowed_only_if_listed() -> None:
    assert _check(_host("localhost"), _origin("null"), allowed_origins=("null",)) is None


def test_two_origins_are_refused() -> None:
    own = _origin("http://localhost")

    assert _check(_host("localhost"), own, own) == 403


@pytest.mark.parametrize(
    "query", [b"token=x", b"a=1&access_token=", b"Auth=x", b"%74oken=x", b"a;token=x", b"token", b"api_key=1"]
)
def test_token_in_the_url_is_a_bad_request(query: bytes) -> None:
    assert _check(_host("localhost"), query=query) == 400


def test_other_query_is_let_through() -> None:
    assert _check(_host("localhost"), query=b"tokens=1&q=token") is None


def test_refusal_is_a_whole_response() -> None:
    refusal = Refusal(HTTPStatus.FORBIDDEN, ErrorCode.FORBIDDEN, 'no "x"', (("retry-after", "1"),))

    head, body = refusal.to_bytes().split(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"\r\nretry-after: 1" in head
    assert b"\r\ncontent-length: %d\r\n" % len(body) in head
    assert json.loads(body) == {"error": {"code": "forbidden", "message": 'no "x"'}}


@pytest.mark.parametrize("value", [b"Bearer abc", b"bearer  abc ", b" BEARER abc"])
def test_bearer_token_is_taken_out(value: bytes) -> None:
    assert bearer_token([(b"authorization", value)]) == "abc"


def test_absent_authorization_is_no_token() -> None:
    assert bearer_token([(b"host", b"x")]) is None


@pytest.mark.parametrize(
    "value", [b"", b"Bearer", b"Bearer ", b"Basic abc", b"Bearer a b", b"Bearer \xff", b"abc"]
)
def test_other_authorization_is_an_error(value: bytes) -> None:
    with pytest.raises(BearerError):
        bearer_token([(b"authorization", value)])


def test_two_authorizations_are_an_error() -> None:
    with pytest.raises(BearerError):
        bearer_token([(b"authorization", b"Bearer a"), (b"authorization", b"Bearer a")])


def _identify(peer: str, *headers: tuple[bytes, bytes], trusted: tuple[str, ...] = ()) -> tuple[str, str]:
    policy = policy_of(ServerConfig(token=_TOKEN, trusted_proxies=trusted))
    client = identify_client(policy, headers, peer_address=peer, scheme="http")
    return client.address, client.scheme


_FORWARDED = ((b"x-forwarded-for", b"1.1.1.1, 2.2.2.2"), (b"x-forwarded-proto", b"https"))


def test_forwarded_headers_of_a_stranger_are_ignored() -> None:
    assert _identify("127.0.0.1", *_FORWARDED) == ("127.0.0.1", "http")
    assert _identify("9.9.9.9", *_FORWARDED, trusted=("10.0.0.0/8",)) == ("9.9.9.9", "http")


def test_trusted_proxy_states_the_rightmost_address_and_the_scheme() -> None:
    assert _identify("10.1.2.3", *_FORWARDED, trusted=("10.0.0.0/8",)) == ("2.2.2.2", "https")


def test_chain_of_trusted_proxies_is_walked_to_the_first_stranger() -> None:
    header = (b"x-forwarded-for", b"6.6.6.6, [2001:db8::1]:4711, 10.0.0.9")

    assert _identify("10.1.2.3", header, trusted=("10.0.0.0/8",))[0] == "2001:db8::1"


def test_unreadable_forwarded_address_ends_the_walk() -> None:
    assert (
        _identify("10.0.0.1", (b"x-forwarded-for", b"1.1.1.1, unknown"), trusted=("10.0.0.1",))[0]
        == "10.0.0.1"
    )


def test_unix_peer_is_trusted_only_if_listed() -> None:
    assert _identify("unix", *_FORWARDED)[0] == "unix"
    assert _identify("unix", *_FORWARDED, trusted=("unix",))[0] == "2.2.2.2"


def test_unknown_forwarded_scheme_is_ignored() -> None:
    assert _identify("10.0.0.1", (b"x-forwarded-proto", b"gopher"), trusted=("10.0.0.1",))[1] == "http"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "localhost.example", "localhost4", ""])
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_origin_with_a_wrong_port_is_none() -> None:
    assert normalise_origin("http://localhost:99999") is None
