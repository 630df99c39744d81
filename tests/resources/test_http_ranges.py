"""What a server of bytes decides, against a resource of 10,000 bytes that is really cut up."""

from __future__ import annotations

import email
import email.policy
from http import HTTPStatus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamctx.resources.base import ResourceInfo
from streamctx.resources.http_ranges import (
    RANGES_MAX,
    Decision,
    decide,
    format_http_date,
    parse_http_date,
    parse_strong_etag,
)

__all__: list[str] = []

CONTENT = bytes(index * 7 % 251 for index in range(10_000))
BOUNDARY = "x7Kd92hfQ_boundary"
BEFORE = "Sun, 06 Nov 1994 08:49:36 GMT"
MODIFIED = "Sun, 06 Nov 1994 08:49:37 GMT"
AFTER = "Sun, 06 Nov 1994 08:49:38 GMT"


def info(
    size: int | None = len(CONTENT),
    *,
    etag: str = "abc",
    modified: float | None = 784_111_777.5,
    mime: str = "application/pdf",
) -> ResourceInfo:
    return ResourceInfo(uri="file:///a", name="a", mime=mime, size_bytes=size, etag=etag, modified=modified)


def answer(
    *headers: tuple[str, str],
    method: str = "GET",
    of: ResourceInfo | None = None,
    ranges_max: int = RANGES_MAX,
) -> Decision:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return decide(method, raw, of or info(), boundary=BOUNDARY, ranges_max=ranges_max)


def asking(value: str, *, size: int | None = len(CONTENT), ranges_max: int = RANGES_MAX) -> Decision:
    return answer(("Range", value), of=info(size), ranges_max=ranges_max)


def body(decision: Decision, content: bytes = CONTENT) -> bytes:
    return b"".join(part.head + content[part.start : part.stop] for part in decision.parts) + decision.tail


def spans(decision: Decision) -> list[tuple[int, int | None]]:
    return [(part.start, part.stop) for part in decision.parts]


def is_whole(decision: Decision) -> bool:
    return decision.status == 200 and spans(decision) == [(0, len(CONTENT))]


def received_parts(decision: Decision, content: bytes) -> list[tuple[str, bytes]]:
    """What a MIME parser, which is not ours, makes of a multipart answer."""
    kind = dict(decision.headers)["Content-Type"]
    text = f"Content-Type: {kind}\r\n\r\n".encode() + body(decision, content)
    message = email.message_from_bytes(text, policy=email.policy.HTTP)
    assert not message.defects
    parts = []
    for part in message.iter_parts():
        assert part.get_content_type() == "application/pdf"
        data = part.get_payload(decode=True)
        assert isinstance(data, bytes)
        parts.append((str(part["Content-Range"]), data))
    return parts


# The whole.


def test_without_a_range_the_whole_is_sent() -> None:
    assert answer() == Decision(
        HTTPStatus.OK,
        (
            ("Content-Type", "application/pdf"),
            ("Content-Length", "10000"),
            ("Accept-Ranges", "bytes"),
            ("ETag", '"abc"'),
            ("Last-Modified", MODIFIED),
        ),
        answer().parts,
    )
    assert body(answer()) == CONTENT


def test_of_an_unknown_size_neither_a_length_nor_a_range_is_told() -> None:
    decision = asking("bytes=0-99", size=None)
    assert decision.status == 200
    assert spans(decision) == [(0, None)]
    names = dict(decision.headers)
    assert names["Accept-Ranges"] == "none"
    assert "Content-Length" not in names


def test_without_a_date_none_is_told() -> None:
    assert "Last-Modified" not in dict(answer(of=info(modified=None)).headers)


@pytest.mark.parametrize("headers", [(), (("Range", "bytes=0-9"),), (("Range", "bytes=20000-"),)])
def test_head_has_the_headers_of_the_whole_and_no_content(headers: tuple[tuple[str, str], ...]) -> None:
    decision = answer(*headers, method="HEAD")
    assert (decision.status, decision.headers) == (200, answer().headers)
    assert body(decision) == b""


# One range.


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-9999", 0, 10_000),
        ("bytes=0-10000", 0, 10_000),
        ("bytes=500-999", 500, 1000),
        ("bytes=9999-9999", 9999, 10_000),
        ("bytes=9999-20000", 9999, 10_000),
        ("bytes=0-", 0, 10_000),
        ("bytes=9999-", 9999, 10_000),
        ("bytes=-1", 9999, 10_000),
        ("bytes=-10000", 0, 10_000),
        ("bytes=-10001", 0, 10_000),
        ("bytes=007-0000000000000000000000000000008", 7, 9),
        (f"bytes=5-{'9' * 5000}", 5, 10_000),
        (f"bytes=-{'9' * 5000}", 0, 10_000),
        (f"bytes={'0' * 5000}-0", 0, 1),
        ("BYTES=1-2", 1, 3),
        ("bytes= 1-2 ", 1, 3),
        ("bytes=,\t,1-2 ,, ", 1, 3),
        ("bytes=10000-,1-2,-0", 1, 3),
        ("bytes=1-2,3-4", 1, 5),
        ("bytes=3-4,1-3", 1, 5),
        ("bytes=3-4,3-4", 3, 5),
    ],
)
def test_one_range_is_sent_and_named(asked: str, start: int, stop: int) -> None:
    decision = asking(asked)
    assert decision.status == 206
    assert decision.headers == (
        ("Content-Type", "application/pdf"),
        ("Content-Length", str(stop - start)),
        ("Content-Range", f"bytes {start}-{stop - 1}/10000"),
        ("Accept-Ranges", "bytes"),
        ("ETag", '"abc"'),
        ("Last-Modified", MODIFIED),
    )
    assert body(decision) == CONTENT[start:stop]


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "bytes",
        "bytes=",
        "bytes=,",
        "bytes=-",
        "bytes=--1",
        "bytes=1",
        "bytes=2-1",
        f"bytes=1{'0' * 30}-9{'0' * 29}",
        "bytes=0-1,2-1",
        "bytes=0-1;2-3",
        "bytes=0-1 2-3",
        "bytes=0 - 1",
        "bytes=+0-1",
        "bytes=0-1.5",
        "bytes=0x0-0x1",
        "bytes=0_0-1_0",
        "bytes=\xb2-\xb3",
        "bytes=a-b",
        "bytes=0-1/10000",
        "bytes =0-1",
        "bytes 0-1",
        "bytes:0-1",
        "items=0-1",
        "=0-1",
        "bytes=bytes=0-1",
        "bytes=0-1\n",
    ],
)
def test_what_breaks_the_syntax_or_has_another_unit_is_ignored(asked: str) -> None:
    assert is_whole(asking(asked))


def test_two_range_fields_are_ignored() -> None:
    assert is_whole(answer(("Range", "bytes=0-1"), ("range", "bytes=0-1")))


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=10000-",
        "bytes=10000-10000",
        "bytes=-0",
        "bytes=-000",
        "bytes=20000-,-0,10000-10001",
        f"bytes={'9' * 5000}-",
        f"bytes={'9' * 19}-{'9' * 20}",
    ],
)
def test_only_past_the_end_nothing_can_be_sent(asked: str) -> None:
    assert asking(asked) == Decision(
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        (("Content-Range", "bytes */10000"), ("Accept-Ranges", "bytes")),
    )


@pytest.mark.parametrize(
    ("asked", "status"),
    [("bytes=0-", 416), ("bytes=0-0", 416), ("bytes=-0", 416), ("bytes=-1", 200), ("bytes=0-0,-1", 200)],
)
def test_of_an_empty_resource_only_a_suffix_is_satisfiable(asked: str, status: int) -> None:
    decision = asking(asked, size=0)
    assert decision.status == status
    assert body(decision, b"") == b""
    assert dict(decision.headers).get("Content-Range") == ("bytes */0" if status == 416 else None)


# Several ranges.


def test_several_ranges_are_parts_in_the_order_asked_for() -> None:
    decision = asking("bytes=9500-9599,0-99,-100")
    headers = dict(decision.headers)
    assert decision.status == 206
    assert "Content-Range" not in headers
    assert headers["Content-Type"] == f"multipart/byteranges; boundary={BOUNDARY}"
    assert headers["Content-Length"] == str(len(body(decision)))
    assert headers["ETag"] == '"abc"'
    assert received_parts(decision, CONTENT) == [
        ("bytes 9500-9599/10000", CONTENT[9500:9600]),
        ("bytes 0-99/10000", CONTENT[:100]),
        ("bytes 9900-9999/10000", CONTENT[9900:]),
    ]


def test_the_bytes_between_parts_are_those_of_the_rfc() -> None:
    assert body(asking("bytes=0-1,8-9"), b"0123456789") == (
        b"--x7Kd92hfQ_boundary\r\n"
        b"Content-Type: application/pdf\r\n"
        b"Content-Range: bytes 0-1/10000\r\n\r\n"
        b"01\r\n"
        b"--x7Kd92hfQ_boundary\r\n"
        b"Content-Type: application/pdf\r\n"
        b"Content-Range: bytes 8-9/10000\r\n\r\n"
        b"89\r\n"
        b"--x7Kd92hfQ_boundary--\r\n"
    )


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("0-99,101-199", [(0, 100), (101, 200)]),
        ("0-99,100-199,300-399", [(0, 200), (300, 400)]),
        ("300-399,100-199,0-99", [(300, 400), (0, 200)]),
        ("100-199,300-399,0-99", [(0, 200), (300, 400)]),
        ("0-99,200-299,400-499,100-199", [(0, 300), (400, 500)]),
        ("400-499,0-99,200-299,100-199", [(400, 500), (0, 300)]),
        ("0-99,50-149,300-399", [(0, 150), (300, 400)]),
        ("0-999,100-199,3000-3099", [(0, 1000), (3000, 3100)]),
        ("100-199,0-999,3000-3099", [(0, 1000), (3000, 3100)]),
        ("20000-,0-99,300-399,-0", [(0, 100), (300, 400)]),
    ],
)
def test_ranges_that_touch_or_overlap_become_one_in_the_place_of_the_first(
    asked: str, expected: list[tuple[int, int]]
) -> None:
    decision = asking("bytes=" + asked)
    assert decision.status == 206
    assert spans(decision) == expected


def test_more_ranges_than_the_limit_are_ignored() -> None:
    at_limit = ",".join(f"{start}-{start}" for start in range(0, 3200, 200))
    assert len(asking(f"bytes={at_limit}").parts) == RANGES_MAX
    assert is_whole(asking(f"bytes={at_limit},5000-5000"))
    assert is_whole(asking(f"bytes={at_limit},20000-"))
    assert asking("bytes=0-0,9-9", ranges_max=2).status == 206
    assert is_whole(asking("bytes=0-0,9-9", ranges_max=1))


@pytest.mark.parametrize(
    ("asked", "is_ignored"),
    [
        ("0-9,5-14", False),
        ("0-9,5-14,20-29", False),
        ("0-9,5-14,14-20", True),
        ("0-9,0-9,0-9", True),
        ("0-9,5-14,100-109,105-114", True),
        ("0-9,10-19,20-29,30-39", False),
        ("0-9,5-14,20000-,20000-", False),
    ],
)
def test_more_than_two_ranges_that_overlap_are_ignored(asked: str, is_ignored: bool) -> None:
    assert is_whole(asking("bytes=" + asked)) is is_ignored


def test_parts_that_are_no_shorter_than_the_whole_are_ignored() -> None:
    around = len(body(asking("bytes=0-0,500-"))) - 9501
    assert 100 < around < 300
    assert asking(f"bytes=0-0,{around + 2}-").status == 206
    assert is_whole(asking(f"bytes=0-0,{around + 1}-"))


# Preconditions.

TAG = '"abc"'


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        # If-Match is by strong comparison.
        ({"If-Match": TAG}, 200),
        ({"If-Match": f'"x", {TAG}'}, 200),
        ({"If-Match": "*"}, 200),
        ({"If-Match": '"x"'}, 412),
        ({"If-Match": f"W/{TAG}"}, 412),
        ({"If-Match": "abc"}, 412),
        ({"If-Match": f"{TAG} {TAG}"}, 412),
        ({"If-Match": f'{TAG}, "'}, 412),
        ({"If-Match": f"*, {TAG}"}, 412),
        ({"If-Match": '"ABC"'}, 412),
        ({"If-Match": ""}, 412),
        # If-None-Match is by weak comparison.
        ({"If-None-Match": TAG}, 304),
        ({"If-None-Match": f"W/{TAG}"}, 304),
        ({"If-None-Match": f' , "a,b" ,, {TAG} ,'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"x"'}, 200),
        ({"If-None-Match": '"x,"abc"'}, 200),
        ({"If-None-Match": f"w/{TAG}"}, 200),
        ({"If-None-Match": "abc"}, 200),
        ({"If-None-Match": ""}, 200),
        # Dates.
        ({"If-Unmodified-Since": BEFORE}, 412),
        ({"If-Unmodified-Since": MODIFIED}, 200),
        ({"If-Unmodified-Since": AFTER}, 200),
        ({"If-Unmodified-Since": "yesterday"}, 200),
        ({"If-Modified-Since": BEFORE}, 200),
        ({"If-Modified-Since": MODIFIED}, 304),
        ({"If-Modified-Since": AFTER}, 304),
        ({"If-Modified-Since": "Sunday, 06-Nov-94 08:49:37 GMT"}, 304),
        ({"If-Modified-Since": "784111777"}, 200),
        # A date does not count beside an etag, whatever becomes of that.
        ({"If-Match": TAG, "If-Unmodified-Since": BEFORE}, 200),
        ({"If-Match": '"x"', "If-Unmodified-Since": AFTER}, 412),
        ({"If-None-Match": '"x"', "If-Modified-Since": AFTER}, 200),
        ({"If-None-Match": "garbage", "If-Modified-Since": AFTER}, 200),
        ({"If-None-Match": TAG, "If-Modified-Since": BEFORE}, 304),
        # 412 goes before 304, and both before ranges.
        ({"If-Match": '"x"', "If-None-Match": TAG}, 412),
        ({"If-Unmodified-Since": BEFORE, "If-None-Match": TAG}, 412),
        ({"If-Match": TAG, "If-None-Match": TAG}, 304),
        ({"If-Unmodified-Since": MODIFIED, "If-Modified-Since": MODIFIED}, 304),
        ({"If-Match": '"x"', "Range": "bytes=20000-"}, 412),
        ({"If-None-Match": TAG, "Range": "bytes=0-1", "If-Range": TAG}, 304),
        ({"If-None-Match": TAG, "Range": "bytes=20000-"}, 304),
        ({"If-Match": TAG, "Range": "bytes=0-1"}, 206),
        ({"If-None-Match": '"x"', "Range": "bytes=20000-"}, 416),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_preconditions_come_in_their_order(method: str, headers: dict[str, str], status: int) -> None:
    decision = answer(*headers.items(), method=method)
    expected = 200 if method == "HEAD" and status in (206, 416) else status
    assert decision.status == expected


def test_of_what_was_not_modified_only_the_etag_is_told() -> None:
    assert answer(("If-None-Match", TAG)) == Decision(HTTPStatus.NOT_MODIFIED, (("ETag", TAG),))


def test_of_what_failed_its_precondition_nothing_is_told() -> None:
    assert answer(("If-Match", '"x"')) == Decision(HTTPStatus.PRECONDITION_FAILED)


def test_lists_over_several_fields_are_one() -> None:
    assert answer(("If-None-Match", '"x"'), ("if-none-match", TAG)).status == 304
    assert answer(("If-Match", '"x"'), ("If-Match", TAG)).status == 200


@pytest.mark.parametrize("name", ["If-Modified-Since", "If-Unmodified-Since"])
def test_two_dates_are_ignored(name: str) -> None:
    date = AFTER if name == "If-Modified-Since" else BEFORE
    assert answer((name, date)).status != 200
    assert answer((name, date), (name, date)).status == 200


@pytest.mark.parametrize("modified", [None, -1.0, float("nan"), float("inf"), 1e12])
def test_without_a_date_that_can_be_told_dates_are_ignored(modified: float | None) -> None:
    of = info(modified=modified)
    assert answer(("If-Unmodified-Since", BEFORE), of=of).status == 200
    assert answer(("If-Modified-Since", AFTER), of=of).status == 200
    assert answer(("Range", "bytes=0-1"), ("If-Range", MODIFIED), of=of).status == 200


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        (TAG, 206),
        (f"W/{TAG}", 200),
        ('"x"', 200),
        ("abc", 200),
        ("*", 200),
        (f'{TAG}, "x"', 200),
        # It may have changed twice in that second: the first half of a copy and the second would not fit.
        (MODIFIED, 200),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 200),
        ("Sun Nov  6 08:49:37 1994", 200),
        (BEFORE, 200),
        (AFTER, 200),
        ("", 200),
    ],
)
def test_a_range_is_sent_of_the_same_representation_alone(condition: str, status: int) -> None:
    decision = answer(("Range", "bytes=5-9"), ("If-Range", condition))
    assert decision.status == status
    assert body(decision) == (CONTENT[5:10] if status == 206 else CONTENT)
    # Past the end it is 416 only if the resource is still what the client takes it for.
    past = answer(("Range", "bytes=10000-"), ("If-Range", condition))
    assert past.status == (416 if status == 206 else 200)


def test_if_range_without_a_range_is_ignored() -> None:
    assert is_whole(answer(("If-Range", TAG)))


def test_two_if_range_are_not_met() -> None:
    assert is_whole(answer(("Range", "bytes=0-1"), ("If-Range", TAG), ("If-Range", TAG)))


def test_an_empty_etag_is_one() -> None:
    assert answer(("Range", "bytes=0-1"), ("If-Range", '""'), of=info(etag="")).status == 206
    assert answer(("Range", "bytes=0-1"), ("If-Range", ""), of=info(etag="")).status == 200


# What our caller must not do.


def test_other_methods_are_not_answered() -> None:
    with pytest.raises(ValueError, match="POST"):
        answer(method="POST")


@pytest.mark.parametrize(
    ("boundary", "is_good"),
    [
        ("a", True),
        ("a" * 70, True),
        ("a" * 71, False),
        ("", False),
        ("a b", False),
        ("a\r\nb", False),
        ("a;", False),
    ],
)
def test_a_boundary_that_needs_quotes_is_refused(boundary: str, is_good: bool) -> None:
    try:
        decide("GET", [], info(), boundary=boundary)
    except ValueError:
        assert not is_good
    else:
        assert is_good


@pytest.mark.parametrize("etag", ['a"b', "a b", "a\r\nb", "a\x7f", "\u20ac"])
def test_an_etag_that_cannot_be_written_is_refused(etag: str) -> None:
    with pytest.raises(ValueError, match="etag"):
        answer(of=info(etag=etag))


@pytest.mark.parametrize("mime", ["", "text/plain\r\nX: y", "text/\xe4"])
def test_a_media_type_that_cannot_be_written_is_refused(mime: str) -> None:
    with pytest.raises(ValueError, match="media type"):
        answer(of=info(mime=mime))


# Etags and dates.


@pytest.mark.parametrize(
    ("text", "etag"),
    [
        (TAG, "abc"),
        ('""', ""),
        ('"a,b\xff"', "a,b\xff"),
        (f"W/{TAG}", None),
        ("abc", None),
        ('"a"b"', None),
        ('"', None),
    ],
)
def test_only_a_strong_etag_is_taken(text: str, etag: str | None) -> None:
    assert parse_strong_etag(text) == etag


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (MODIFIED, 784_111_777),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
        ("Sun Nov  6 08:49:37 1994", 784_111_777),
        ("Wed Nov 16 08:49:37 1994", 784_975_777),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Wed, 31 Dec 1969 23:59:59 GMT", -1),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800),
        ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_800),
        ("Thursday, 01-Jan-70 00:00:00 GMT", 0),
        ("Tuesday, 31-Dec-69 23:59:59 GMT", 3_155_759_999),
        # What is none.
        ("", None),
        ("Thu, 29 Feb 2023 00:00:00 GMT", None),
        ("Sun, 00 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 0000 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 24:00:00 GMT", None),
        ("Sun, 06 Nov 1994 08:60:00 GMT", None),
        ("Sun, 06 Nov 1994 08:49:61 GMT", None),
        ("Sun, 6 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 nov 1994 08:49:37 GMT", None),
        ("sun, 06 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37", None),
        ("Sun, 06 Nov 1994 08:49:37 UTC", None),
        ("Sun, 06 Nov 1994 08:49:37 +0000", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT\n", None),
        ("Sun, 06 Nov 1994 \u0660\u0668:49:37 GMT", None),
        ("Sun, 06 Nov 94 08:49:37 GMT", None),
        ("1994-11-06T08:49:37Z", None),
    ],
)
def test_dates_are_read_in_three_forms_and_no_other(text: str, seconds: int | None) -> None:
    assert parse_http_date(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
        (784_111_777.999, MODIFIED),
        (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
        (253_402_300_800, None),
        (-0.5, None),
        (float("nan"), None),
        (float("-inf"), None),
    ],
)
def test_dates_are_written_if_they_can_be(seconds: float, text: str | None) -> None:
    assert format_http_date(seconds) == text


@given(st.integers(min_value=0, max_value=253_402_300_799))
def test_a_date_that_was_written_is_read_again(seconds: int) -> None:
    text = format_http_date(seconds)
    assert text is not None
    assert parse_http_date(text) == seconds


# Against a naive reference.

Spec = tuple[int | None, int | None]


def written(specs: list[Spec]) -> str:
    return "bytes=" + ",".join("-".join("" if n is None else str(n) for n in spec) for spec in specs)


def sliced(spec: Spec, content: bytes) -> range:
    first, last = spec
    positions = range(len(content))
    if first is None:
        assert last is not None
        return positions[-last:] if last else positions[:0]
    return positions[first:] if last is None else positions[first : last + 1]


numbers = st.integers(min_value=0, max_value=2100) | st.integers(min_value=10**18, max_value=10**25)
specs = st.lists(
    st.one_of(
        st.tuples(numbers, st.none()),
        st.tuples(st.none(), numbers),
        st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair))),
        st.tuples(st.integers(0, 2100), st.integers(0, 40)).map(lambda pair: (pair[0], sum(pair))),
    ),
    min_size=1,
    max_size=18,
)


@given(specs=specs, size=st.sampled_from([0, 1, 100, 2000]))
@example(specs=[(0, 9), (1000, 1009)], size=2000)
@example(specs=[(1000, 1009), (0, 9), (10, 19)], size=2000)
def test_what_is_sent_is_what_slicing_gives(specs: list[Spec], size: int) -> None:
    content = CONTENT[:size]
    wanted = [sliced(spec, content) for spec in specs]
    positions = {position for found in wanted for position in found}
    decision = asking(written(specs), size=size)
    headers = dict(decision.headers)
    if decision.status == 416:
        assert not positions
        assert body(decision) == b""
        return
    assert headers["Content-Length"] == str(len(body(decision, content)))
    if decision.status == 200:
        assert body(decision, content) == content
        assert is_whole_justified(specs, wanted, size)
        return
    assert decision.status == 206
    sent = [range(start, stop) for start, stop in spans(decision) if stop is not None]
    assert positions == {position for part in sent for position in part}
    if "Content-Range" in headers:
        got = [(headers["Content-Range"], body(decision, content))]
    else:
        got = received_parts(decision, content)
        assert len(got) > 1
        assert len(body(decision, content)) < size
    assert got == [(f"bytes {part[0]}-{part[-1]}/{size}", content[part.start : part.stop]) for part in sent]
    # In the order of the first of each that was asked for, and kept apart by a byte at least.
    places = [min(i for i, w in enumerate(wanted) if w and w[0] in part) for part in sent]
    assert places == sorted(places)
    assert len(sent) == len(runs(positions))


def runs(positions: set[int]) -> list[range]:
    starts = sorted(p for p in positions if p - 1 not in positions)
    stops = sorted(p + 1 for p in positions if p + 1 not in positions)
    return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def is_whole_justified(specs: list[Spec], wanted: list[range], size: int) -> bool:
    if len(specs) > RANGES_MAX or (size == 0 and any(first is None and last for first, last in specs)):
        return True
    found = [set(positions) for positions in wanted if positions]
    sharing = sum(any(one & two for j, two in enumerate(found) if i != j) for i, one in enumerate(found))
    parts = runs({position for positions in found for position in positions})
    form = "\r\n--{}\r\nContent-Type: application/pdf\r\nContent-Range: bytes {}-{}/{}\r\n\r\n"
    heads = sum(len(form.format(BOUNDARY, part[0], part[-1], size)) for part in parts)
    content = heads - 2 + sum(map(len, parts)) + len(f"\r\n--{BOUNDARY}--\r\n")
    return sharing > 2 or (len(parts) > 1 and content >= size)


@given(
    st.text(st.characters(max_codepoint=255))
    | st.text('0123456789-,= \tbytesW"').map(lambda text: "bytes=" + text)
)
def test_no_range_does_harm(value: str) -> None:
    decision = asking(value)
    assert decision.status in (200, 206, 416)
    if decision.status != 416:
        assert dict(decision.headers)["Content-Length"] == str(len(body(decision)))
        assert len(body(decision)) <= len(CONTENT)


names = st.sampled_from(
    ["Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "\xe4"]
)
values = st.text(st.characters(max_codepoint=255), max_size=40) | st.sampled_from(
    [TAG, f"W/{TAG}", "*", BEFORE, MODIFIED, AFTER, "bytes=1-2", "bytes=-0"]
)


@given(st.lists(st.tuples(names, values), max_size=8), st.sampled_from(["GET", "HEAD"]))
def test_no_headers_do_harm(headers: list[tuple[str, str]], method: str) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    assert decide(method, raw, info(), boundary=BOUNDARY).status in (200, 206, 304, 412, 416)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("If-None-Match", '"a" ' + ", " * 8000 + "x"),
        ("If-None-Match", '"a"' + " " * 16_000 + "x"),
        ("If-None-Match", '"a",' * 8000 + "x"),
        ("If-None-Match", '"' * 32_000),
        ("Range", "bytes=" + "0-0," * 8000),
        ("Range", "bytes=" + "," * 32_000),
        ("Range", "bytes=" + "1" * 32_000),
    ],
)
def test_a_head_full_of_one_field_is_answered_at_once(name: str, value: str) -> None:
    assert is_whole(answer((name, value)))
