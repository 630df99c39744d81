"""What is made of the answers of origins, of good ones and of those that misbehave."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamctx.errors import ErrorCode
from streamctx.resources.base import ResourceError, ResourceInfo
from streamctx.resources.http_ranges import decide
from streamctx.resources.origin_answers import (
    RETRY_AFTER_S_MAX,
    Asked,
    BodyError,
    BodyGuard,
    Changed,
    NotFound,
    Partial,
    Redirect,
    Refused,
    RetryWhole,
    Unavailable,
    Unsatisfiable,
    Verdict,
    Whole,
    judge_answer,
)

__all__: list[str] = []

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT.
FIRST = Asked(start=0, stop=1000, etag=None, total_bytes=None, skip_bytes_max=5000)
"""Of a resource of which nothing is known."""
NEXT = Asked(start=1000, stop=2000, etag="abc", total_bytes=10_000, skip_bytes_max=5000)
"""Of one that has been read before."""
LAST = dataclasses.replace(NEXT, start=9500, stop=10_500)


def judged(asked: Asked, status: int, *headers: str) -> Verdict:
    pairs = [
        (name.encode(), value.encode("latin-1")) for name, _, value in (h.partition(":") for h in headers)
    ]
    return judge_answer(asked, status=status, headers=pairs, now=NOW)


# The request.


def test_a_range_is_asked_for_as_it_is() -> None:
    assert FIRST.headers_to_send == (("Accept-Encoding", "identity"), ("Range", "bytes=0-999"))


def test_what_is_known_goes_into_if_range() -> None:
    assert NEXT.headers_to_send[1:] == (("Range", "bytes=1000-1999"), ("If-Range", '"abc"'))


def test_the_whole_is_asked_for_without_a_range() -> None:
    asked = dataclasses.replace(NEXT, has_range=False)
    assert asked.headers_to_send == (("Accept-Encoding", "identity"),)


@pytest.mark.parametrize(
    ("start", "stop", "is_good"), [(0, 1, True), (0, 0, False), (5, 4, False), (-1, 1, False)]
)
def test_nothing_cannot_be_asked_for(start: int, stop: int, is_good: bool) -> None:
    try:
        dataclasses.replace(FIRST, start=start, stop=stop)
    except ValueError:
        assert not is_good
    else:
        assert is_good


# 206.


@pytest.mark.parametrize(
    ("asked", "headers", "verdict"),
    [
        (FIRST, ["Content-Range: bytes 0-999/10000"], Partial(0, 1000, 10_000, None)),
        (FIRST, ["Content-Range: bytes 0-999/1000"], Partial(0, 1000, 1000, None)),
        (FIRST, ["Content-Range: bytes 0-999/10000", 'ETag: "x"'], Partial(0, 1000, 10_000, "x")),
        (
            FIRST,
            ["content-range:\tBYTES 0-999/10000 ", "content-length: 1000"],
            Partial(0, 1000, 10_000, None),
        ),
        (
            FIRST,
            ["Content-Range: bytes 0-999/10000", "Content-Encoding: Identity ,"],
            Partial(0, 1000, 10_000, None),
        ),
        (
            FIRST,
            ["Content-Range: bytes 0-999/10000", "Content-Type: multipart/mixed"],
            Partial(0, 1000, 10_000, None),
        ),
        # Fewer than asked for: at the end, or because the origin likes it so.
        (FIRST, ["Content-Range: bytes 0-499/500"], Partial(0, 500, 500, None)),
        (FIRST, ["Content-Range: bytes 0-0/10000"], Partial(0, 1, 10_000, None)),
        (LAST, ["Content-Range: bytes 9500-9999/10000", 'ETag: "abc"'], Partial(9500, 500, 10_000, "abc")),
        # Nobody says where it ends, or it is known from before.
        (FIRST, ["Content-Range: bytes 0-999/*"], Partial(0, 1000, None, None)),
        (NEXT, ["Content-Range: bytes 1000-1999/*", 'ETag: "abc"'], Partial(1000, 1000, 10_000, "abc")),
        # Content, and yet nothing to resume by.
        (FIRST, ["Content-Range: bytes 0-999/10000", 'ETag: W/"x"'], Partial(0, 1000, 10_000, None)),
        (FIRST, ["Content-Range: bytes 0-999/10000", "ETag: x"], Partial(0, 1000, 10_000, None)),
        (
            FIRST,
            ["Content-Range: bytes 0-999/10000", 'ETag: "x"', 'ETag: "y"'],
            Partial(0, 1000, 10_000, None),
        ),
    ],
)
def test_what_was_asked_for_is_used(asked: Asked, headers: list[str], verdict: Verdict) -> None:
    assert judged(asked, 206, *headers) == verdict


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "without a Content-Range"),
        (["Content-Length: 1000"], "without a Content-Range"),
        (["Content-Range: bytes */10000"], "without a Content-Range"),
        (["Content-Range: bytes 1000-1999"], "without a Content-Range"),
        (["Content-Range: bytes 1000-1999/"], "without a Content-Range"),
        (["Content-Range: bytes=1000-1999/10000"], "without a Content-Range"),
        (["Content-Range: items 1000-1999/10000"], "without a Content-Range"),
        (["Content-Range: bytes -1000/10000"], "without a Content-Range"),
        (["Content-Range: bytes 1000-1999/10000, bytes 1000-1999/10000"], "without a Content-Range"),
        ([f"Content-Range: bytes 1000-1999/{'9' * 20}"], "without a Content-Range"),
        ([f"Content-Range: bytes 1000-{'9' * 5000}/*"], "without a Content-Range"),
        (["Content-Range: bytes 0-999/10000"], "from 0 on came"),
        (["Content-Range: bytes 999-1999/10000"], "from 999 on came"),
        (["Content-Range: bytes 1001-1999/10000"], "from 1001 on came"),
        (["Content-Range: bytes 1000-2000/10000"], "up to 2001 came"),
        (["Content-Range: bytes 1000-9999/10000"], "up to 10000 came"),
        (["Content-Range: bytes 1000-1999/1999"], "there cannot be"),
        (["Content-Range: bytes 1000-999/10000"], "there cannot be"),
        (["Content-Range: bytes 1000-1999/10000"] * 2, "several content-range"),
        (["Content-Range: bytes 1000-1999/10000", "Content-Range: bytes 0-0/1"], "several content-range"),
        (["Content-Range: bytes 1000-1999/10000", *["Content-Length: 1000"] * 2], "several content-length"),
        (["Content-Range: bytes 1000-1999/10000", "Content-Length: 1000, 1000"], "no number"),
        (["Content-Range: bytes 1000-1999/10000", "Content-Length: -1"], "no number"),
        (["Content-Range: bytes 1000-1999/10000", f"Content-Length: {'9' * 5000}"], "no number"),
        (
            ["Content-Range: bytes 1000-1999/10000", "Content-Length: 999"],
            "1000 bytes by Content-Range are 999 by",
        ),
        (["Content-Range: bytes 1000-1999/10000", "Content-Length: 10000"], "10000 by Content-Length"),
        (["Content-Range: bytes 1000-1999/10000", "Content-Encoding: gzip"], "encoded"),
        (["Content-Range: bytes 1000-1999/10000", "Content-Encoding: identity, br"], "encoded"),
        (
            ["Content-Range: bytes 1000-1999/10000", "Content-Encoding: identity", "Content-Encoding: gzip"],
            "encoded",
        ),
        (["Content-Type: Multipart/ByteRanges; boundary=a", "Content-Length: 1200"], "several ranges"),
        (
            ["Content-Range: bytes 1000-1999/10000", "Content-Type: multipart/byteranges; boundary=a"],
            "several ranges",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(headers: list[str], reason: str) -> None:
    verdict = judged(NEXT, 206, 'ETag: "abc"', *headers)
    assert isinstance(verdict, Refused)
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (["Content-Range: bytes 1000-1999/10000", 'ETag: "abd"'], "its etag is another"),
        (["Content-Range: bytes 1000-1999/10000", 'ETag: "ABC"'], "its etag is another"),
        (["Content-Range: bytes 1000-1999/10000", 'ETag: W/"abc"'], "has none"),
        (["Content-Range: bytes 1000-1999/10000"], "has none"),
        (["Content-Range: bytes 1000-1999/10000", 'ETag: "abc"', 'ETag: "abc"'], "has none"),
        (["Content-Range: bytes 1000-1999/10001", 'ETag: "abc"'], "now it has 10001"),
        (["Content-Range: bytes 1000-1999/2000", 'ETag: "abc"'], "now it has 2000"),
    ],
)
def test_another_resource_than_before_is_told(headers: list[str], reason: str) -> None:
    verdict = judged(NEXT, 206, *headers)
    assert isinstance(verdict, Changed)
    assert reason in verdict.reason


def test_more_than_there_was_is_a_change() -> None:
    assert isinstance(judged(LAST, 206, "Content-Range: bytes 9500-9999/*", 'ETag: "abc"'), Partial)
    assert isinstance(judged(LAST, 206, "Content-Range: bytes 9500-10000/*", 'ETag: "abc"'), Changed)


def test_where_no_etag_is_known_a_new_one_is_no_change() -> None:
    asked = dataclasses.replace(NEXT, etag=None)
    assert judged(asked, 206, "Content-Range: bytes 1000-1999/10000", 'ETag: "x"') == Partial(
        1000, 1000, 10_000, "x"
    )


# 200.


@pytest.mark.parametrize(
    ("asked", "headers", "verdict"),
    [
        (FIRST, [], Whole(0, 1000, None, None)),
        (FIRST, ["Content-Length: 10000", 'ETag: "x"'], Whole(0, 1000, 10_000, "x")),
        (FIRST, ["Content-Length: 1001"], Whole(0, 1000, 1001, None)),
        (FIRST, ["Content-Length: 999"], Whole(0, 999, 999, None)),
        (FIRST, ["Content-Length: 0"], Whole(0, 0, 0, None)),
        (FIRST, ['ETag: W/"x"'], Whole(0, 1000, None, None)),
        # That of a status that does not have one is ignored.
        (FIRST, ["Content-Range: bytes 5-9/10"], Whole(0, 1000, None, None)),
        # An origin that ignores ranges still says whether it is the same.
        (NEXT, ['ETag: "abc"', "Content-Length: 10000"], Whole(1000, 1000, 10_000, "abc")),
        (NEXT, ['ETag: "abc"'], Whole(1000, 1000, 10_000, "abc")),
        # Nothing is skipped to get to nothing.
        (dataclasses.replace(FIRST, start=998, stop=2000), ["Content-Length: 999"], Whole(998, 1, 999, None)),
        (dataclasses.replace(FIRST, start=999, stop=2000), ["Content-Length: 999"], Whole(0, 0, 999, None)),
        (
            dataclasses.replace(FIRST, start=9999, stop=20_000),
            ["Content-Length: 999"],
            Whole(0, 0, 999, None),
        ),
    ],
)
@pytest.mark.parametrize("has_range", [True, False])
def test_the_whole_is_skipped_to_what_was_asked_for(
    asked: Asked, headers: list[str], verdict: Verdict, has_range: bool
) -> None:
    assert judged(dataclasses.replace(asked, has_range=has_range), 200, *headers) == verdict


def test_no_more_is_skipped_than_may_be() -> None:
    at_limit = dataclasses.replace(FIRST, start=5000, stop=6000)
    assert judged(at_limit, 200) == Whole(5000, 1000, None, None)
    past = judged(dataclasses.replace(FIRST, start=5001, stop=6000), 200)
    assert past == Refused("the whole came; its first 5001 bytes would be skipped, limit 5000")


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([], Changed),
        (['ETag: "x"'], Changed),
        (['ETag: W/"abc"'], Changed),
        (['ETag: "abc"', "Content-Length: 9999"], Changed),
        (['ETag: "abc"', "Content-Encoding: gzip"], Refused),
        (['ETag: "abc"', "Content-Length: 10000", "Content-Length: 10000"], Refused),
        (['ETag: "abc"', "Content-Length: ten"], Refused),
    ],
)
def test_a_whole_that_is_not_what_was_read_before_is_not_used(headers: list[str], kind: type) -> None:
    assert isinstance(judged(NEXT, 200, *headers), kind)


# Neither.


@pytest.mark.parametrize(
    ("asked", "headers", "verdict"),
    [
        (FIRST, ["Content-Range: bytes */0"], Unsatisfiable(0)),
        (FIRST, [], Unsatisfiable(None)),
        (FIRST, ["Content-Range: bytes 0-0/0"], Unsatisfiable(None)),
        (FIRST, [f"Content-Range: bytes */{'9' * 5000}"], Unsatisfiable(None)),
        (dataclasses.replace(FIRST, start=500), ["Content-Range: bytes */500"], Unsatisfiable(500)),
        (dataclasses.replace(FIRST, start=500), ["Content-Range: BYTES */499"], Unsatisfiable(499)),
        (dataclasses.replace(NEXT, start=10_000, stop=10_001), [], Unsatisfiable(10_000)),
        (
            dataclasses.replace(NEXT, start=10_000, stop=10_001),
            ["Content-Range: bytes */10000"],
            Unsatisfiable(10_000),
        ),
    ],
)
def test_past_the_end_the_end_is_told(asked: Asked, headers: list[str], verdict: Verdict) -> None:
    assert judged(asked, 416, *headers) == verdict


@pytest.mark.parametrize(
    ("asked", "headers", "kind"),
    [
        (dataclasses.replace(FIRST, start=499), ["Content-Range: bytes */500"], Refused),
        (FIRST, ["Content-Range: bytes */0", "Content-Range: bytes */0"], Refused),
        (dataclasses.replace(FIRST, has_range=False), ["Content-Range: bytes */0"], Refused),
        (NEXT, [], Changed),
        (NEXT, ["Content-Range: bytes */1000"], Changed),
        (dataclasses.replace(NEXT, start=9999, stop=10_001), [], Changed),
        (dataclasses.replace(NEXT, start=10_000, stop=10_001), ["Content-Range: bytes */9999"], Changed),
    ],
)
def test_an_end_that_cannot_be_there_is_not_taken_for_one(
    asked: Asked, headers: list[str], kind: type
) -> None:
    assert isinstance(judged(asked, 416, *headers), kind)


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_what_is_not_there_and_what_is_not_ours_look_the_same(status: int) -> None:
    assert judged(FIRST, status) == NotFound()


def test_an_origin_that_cannot_do_ranges_is_asked_once_more_without() -> None:
    assert judged(NEXT, 501) == RetryWhole()
    assert isinstance(judged(dataclasses.replace(NEXT, has_range=False), 501), Refused)


def test_a_failed_precondition_is_a_change_if_there_was_one() -> None:
    assert isinstance(judged(NEXT, 412), Changed)
    assert isinstance(judged(FIRST, 412), Refused)


def test_a_part_is_refused_where_the_whole_was_asked_for() -> None:
    asked = dataclasses.replace(FIRST, has_range=False)
    assert isinstance(judged(asked, 206, "Content-Range: bytes 0-999/10000"), Refused)


@pytest.mark.parametrize(
    "status", [100, 201, 202, 203, 204, 300, 304, 305, 400, 405, 413, 451, 499, 600, 999]
)
def test_other_answers_are_refused(status: int) -> None:
    verdict = judged(FIRST, status, "Content-Length: 1000", "Location: /a")
    assert verdict == Refused(f"status {status} is no answer to a request for bytes")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_what_may_pass_is_unavailable(status: int) -> None:
    assert judged(FIRST, status) == Unavailable(status, None)


@pytest.mark.parametrize(
    ("headers", "retry_after_s"),
    [
        (["Retry-After: 0"], 0.0),
        (["Retry-After: 120"], 120.0),
        (["Retry-After: 86400"], RETRY_AFTER_S_MAX),
        (["Retry-After: 86401"], RETRY_AFTER_S_MAX),
        ([f"Retry-After: {'9' * 5000}"], RETRY_AFTER_S_MAX),
        (["Retry-After: Sun, 06 Nov 1994 08:50:37 GMT"], 60.0),
        (["Retry-After: Sunday, 06-Nov-94 08:50:37 GMT"], 60.0),
        (["Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"], 0.0),
        (["Retry-After: Sun, 06 Nov 1994 08:49:36 GMT"], 0.0),
        (["Retry-After: Mon, 07 Nov 1994 08:49:38 GMT"], RETRY_AFTER_S_MAX),
        (["Retry-After: -1"], None),
        (["Retry-After: 1.5"], None),
        (["Retry-After: soon"], None),
        (["Retry-After: \xb2"], None),
        (["Retry-After: "], None),
        (["Retry-After: 1", "Retry-After: 1"], None),
    ],
)
def test_how_long_to_wait_is_told_if_it_makes_sense(headers: list[str], retry_after_s: float | None) -> None:
    assert judged(FIRST, 503, *headers) == Unavailable(503, retry_after_s)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_left_to_the_caller(status: int) -> None:
    assert judged(NEXT, status, "Location: https://other.example/a?b") == Redirect(
        "https://other.example/a?b"
    )


@pytest.mark.parametrize(
    "headers",
    [[], ["Location: "], ["Location: /a b"], ["Location: /a\r\nX:y"], ["Location: /a", "Location: /a"]],
)
def test_a_redirect_to_no_place_is_refused(headers: list[str]) -> None:
    assert isinstance(judged(FIRST, 302, *headers), Refused)


# What origins did to the official chunk server.


def test_a_total_that_is_not_told_is_not_taken_for_the_end() -> None:
    verdict = judged(FIRST, 206, "Content-Range: bytes 0-999/*", "Content-Length: 1000")
    assert verdict == Partial(0, 1000, None, None)


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Range: bytes 0-1199999/1200000", "Content-Length: 1200000"],
        ["Content-Range: bytes 0-999/1200000", "Content-Length: 1200000"],
        ["Content-Length: 1200000"],
    ],
)
def test_a_whole_that_calls_itself_a_part_is_refused(headers: list[str]) -> None:
    assert isinstance(judged(FIRST, 206, *headers), Refused)


def test_a_whole_behind_the_headers_of_a_part_is_stopped() -> None:
    verdict = judged(FIRST, 206, "Content-Range: bytes 0-999/1200000")
    assert isinstance(verdict, Partial)
    guard = BodyGuard(verdict.count_bytes)
    with pytest.raises(BodyError, match="1200000 bytes came and only 1000 were promised"):
        guard.receive(bytes(1_200_000))


def test_another_place_is_not_gone_to_unseen() -> None:
    assert judged(FIRST, 302, "Location: http://169.254.169.254/") == Redirect("http://169.254.169.254/")


def test_past_the_end_nothing_is_fetched_again() -> None:
    asked = dataclasses.replace(NEXT, start=10_000, stop=11_000)
    assert judged(asked, 416) == Unsatisfiable(10_000)


def test_a_change_between_two_chunks_is_seen() -> None:
    first = judged(FIRST, 206, "Content-Range: bytes 0-999/5000", 'ETag: "1"')
    assert isinstance(first, Partial)
    asked = dataclasses.replace(FIRST, start=1000, stop=2000, etag=first.etag, total_bytes=first.total_bytes)
    assert isinstance(judged(asked, 206, "Content-Range: bytes 1000-1999/5000", 'ETag: "2"'), Changed)
    # As an origin does that knows If-Range.
    assert isinstance(judged(asked, 200, "Content-Length: 5000", 'ETag: "2"'), Changed)
    assert isinstance(judged(asked, 206, "Content-Range: bytes 1000-1999/5000", 'ETag: "1"'), Partial)


# Bodies.


def test_a_body_of_the_promised_length_is_good() -> None:
    guard = BodyGuard(10)
    guard.receive(bytes(4))
    guard.receive(b"")
    guard.receive(bytes(6))
    guard.finish()


def test_a_body_of_nothing_is_good_where_nothing_was_promised() -> None:
    guard = BodyGuard(0)
    guard.finish()
    with pytest.raises(BodyError, match="1 bytes came and only 0 were promised"):
        guard.receive(b"x")


def test_a_body_that_is_too_long_is_told() -> None:
    guard = BodyGuard(10)
    guard.receive(bytes(10))
    with pytest.raises(BodyError, match="11 bytes came and only 10 were promised"):
        guard.receive(b"x")


def test_a_body_that_is_too_short_is_told() -> None:
    guard = BodyGuard(10)
    guard.receive(bytes(9))
    with pytest.raises(BodyError, match="ended after 9 of 10 bytes"):
        guard.finish()


def test_what_was_too_much_does_not_count() -> None:
    guard = BodyGuard(10)
    with pytest.raises(BodyError):
        guard.receive(bytes(11))
    with pytest.raises(BodyError, match="after 0 of 10"):
        guard.finish()


def test_a_wrong_body_is_a_resource_that_may_be_given_later() -> None:
    error = BodyError("too short")
    assert isinstance(error, ResourceError)
    assert (error.code, error.is_temporary) == (ErrorCode.UNAVAILABLE, True)


# Against a good origin, which is our own, and against any.


@given(
    size=st.integers(min_value=0, max_value=3000),
    start=st.integers(min_value=0, max_value=4000),
    length=st.integers(min_value=1, max_value=4000),
    is_known=st.booleans(),
    has_range=st.booleans(),
)
def test_from_our_own_server_comes_what_was_asked_for(
    size: int, start: int, length: int, is_known: bool, has_range: bool
) -> None:
    content = bytes(index % 251 for index in range(size))
    asked = Asked(
        start=start,
        stop=start + length,
        etag="abc" if is_known else None,
        total_bytes=size if is_known else None,
        skip_bytes_max=4000,
        has_range=has_range,
    )
    info = ResourceInfo(uri="u", name="n", mime="a/b", size_bytes=size, etag="abc", modified=None)
    request = [(name.encode(), value.encode()) for name, value in asked.headers_to_send]
    made = decide("GET", request, info, boundary="b")
    body = b"".join(content[part.start : part.stop] for part in made.parts)
    headers = [f"{name}: {value}" for name, value in made.headers]
    match judged(asked, made.status, *headers):
        case Partial(offset, count_bytes, total_bytes, etag):
            assert has_range
            assert (offset, count_bytes, total_bytes, etag) == (start, len(body), size, "abc")
            got = body
        case Whole(skip_bytes, count_bytes, total_bytes, etag):
            assert not has_range
            assert (total_bytes, etag) == (size, "abc")
            got = body[skip_bytes : skip_bytes + count_bytes]
            assert len(got) == count_bytes
        case Unsatisfiable(total_bytes):
            assert total_bytes == size
            got = b""
        case other:
            pytest.fail(f"{other} of a good origin")
    assert got == content[start : start + length]


names = st.sampled_from(
    ["Content-Range", "Content-Length", "Content-Encoding", "Content-Type", "ETag", "Location", "Retry-After"]
)
values = st.text(st.characters(max_codepoint=255), max_size=40) | st.sampled_from(
    [
        "bytes 1000-1999/10000",
        "bytes 0-999/*",
        "bytes 0-499/500",
        "bytes */500",
        "1000",
        "500",
        '"abc"',
        'W/"abc"',
    ]
)


@given(
    st.sampled_from([FIRST, NEXT, LAST]),
    st.sampled_from([200, 206, 206, 206, 302, 416, 503]) | st.integers(min_value=100, max_value=999),
    st.lists(st.tuples(names, values), max_size=6),
)
def test_no_answer_does_harm(asked: Asked, status: int, headers: list[tuple[str, str]]) -> None:
    verdict = judged(asked, status, *(f"{name}:{value}" for name, value in headers))
    match verdict:
        case Partial():
            assert verdict.offset == asked.start
            assert 0 < verdict.count_bytes <= asked.stop - asked.start
        case Whole():
            assert verdict.skip_bytes in (0, asked.start)
            assert 0 <= verdict.count_bytes <= asked.stop - asked.start
    if isinstance(verdict, Partial | Whole):
        assert verdict.total_bytes is None or verdict.total_bytes >= verdict.count_bytes
        assert asked.etag in (None, verdict.etag)


@pytest.mark.parametrize("status", [200, 206, 302, 416])
def test_the_text_of_headers_is_not_in_reasons(status: int) -> None:
    canary = "cAnArY"
    headers = [
        f"{name}: {canary}" for name in ("Content-Range", "Content-Length", "ETag", "Content-Encoding")
    ]
    assert canary not in repr(judged(NEXT, status, *headers))
    assert canary not in repr(
        judged(NEXT, status, f'ETag: "{canary}"', "Content-Range: bytes 1000-1999/10000")
    )
