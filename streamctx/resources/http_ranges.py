"""What a server of bytes answers to GET and HEAD: all of them, some of them, or none (RFC 9110).

Pure: headers and what is known of the resource go in, a decision comes out. Reading the resource, `Date`,
caching and the bodies of errors are left to the caller. How headers, etags and dates are read is here too,
since conditions are made of them.
"""

from __future__ import annotations

import email.utils
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus

from streamctx.resources.base import ResourceInfo

__all__ = [
    "RANGES_MAX",
    "Decision",
    "Fields",
    "Headers",
    "Part",
    "decide",
    "fields_of",
    "format_http_date",
    "parse_http_date",
    "parse_strong_etag",
    "sole_value",
]

Headers = Iterable[tuple[bytes, bytes]]
"""Names and values as they came, in their order; names in any case."""

Fields = Mapping[str, Sequence[str]]
"""All values of each header, without the white space around them; names in lower case."""

RANGES_MAX = 16
"""Ranges in one request. Readers of documents ask for a handful."""

_MATTERS = frozenset(
    {"if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "range"}
)

_ETAG_TEXT = r"[\x21\x23-\x7e\x80-\xff]*"
_ETAG = re.compile(rf'(W/)?"({_ETAG_TEXT})"')
# Recipients accept empty elements (section 5.6.1.2). A tag may hold commas, so a list is not split at them.
_ETAG_LIST = re.compile(rf"[ \t,]*{_ETAG.pattern}(?:[ \t]*,[ \t,]*{_ETAG.pattern})*[ \t,]*")

_RANGE = re.compile(r"([0-9]*)-([0-9]*)")
# A number of 20 digits is past every end, and Python refuses to read one of 5,000.
_DIGITS_MAX = 19
_PAST_EVERY_END = 10**_DIGITS_MAX

# Of what RFC 2046 section 5.1.1 allows, that which needs no quotes as a parameter of Content-Type.
_BOUNDARY = re.compile(r"[0-9A-Za-z'+_.-]{1,70}")
_MIME = re.compile(r"[\x20-\x7e]+")

_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9]):(?P<second>[0-5][0-9]|60)"
_DATES = (
    re.compile(rf"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"{_DAY} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)
_YEAR_10000 = 253_402_300_800


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `[start, stop)` of the resource, and what is sent before them.

    `stop` is `None` where the size is unknown: to the end, wherever that is.
    """

    start: int
    stop: int | None
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer: its status and headers, then the parts in their order, then the tail.

    `headers` are all that this module knows of, `Content-Type` and `Content-Length` among them. The latter is
    missing where the size is unknown, and from 304, 412 and 416, whose content is the caller's. To HEAD there
    are no parts.
    """

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...] = ()
    parts: tuple[Part, ...] = ()
    tail: bytes = b""


def decide(
    method: str, headers: Headers, info: ResourceInfo, *, boundary: str, ranges_max: int = RANGES_MAX
) -> Decision:
    """Decide what to answer to a GET or HEAD of a resource that is there.

    Conditions come first, in the order of section 13.2.2. Then `Range`, for GET alone, unless it is ignored,
    which is to send the whole. It is ignored where

    - it breaks the syntax, or its unit is not `bytes`, or there are two of it;
    - `If-Range` is not the strong etag of this representation. A date is never taken for a match: it would
      have to be known that the representation did not change twice within its second, which needs the clock
      (sections 8.8.2.2 and 13.1.5), and to be wrong would join bytes of two states into one copy;
    - the size is unknown, since no `Content-Range` can then be vouched for;
    - it looks like an attack (sections 14.2 and 17.15): more than `ranges_max` ranges, or more than two that
      overlap others, or, with all the heads of their parts, no fewer bytes than the whole has.

    Otherwise ranges that overlap or touch become one, in the place of the first, and the order stays as asked
    for. Where a condition is met, ranges past the end are answered 416, with `If-Range` too.

    Args:
        method: `GET` or `HEAD`.
        headers: The request's.
        info: The resource. Its `modified` must not be in the future (section 8.8.2.1).
        boundary: Between parts. At most 70 letters, digits and `'+_.-`, which the content must not be able
            to foresee: random ones.
        ranges_max: More are ignored.

    Raises:
        ValueError: If the method is another one, or the boundary, the etag or the media type cannot be
            written into a header.

    Source: RFC 9110 sections 8.8, 13, 14, 15.3.7, 15.4.5, 15.5.13, 15.5.17.
    """
    if method not in ("GET", "HEAD"):
        raise ValueError(f"{method} is not answered by ranges; only GET and HEAD are")
    _check_writable(info, boundary)
    fields = fields_of(headers, _MATTERS)
    modified = _whole_seconds(info.modified)
    failed = _failed_precondition(fields, etag=info.etag, modified=modified)
    if failed is HTTPStatus.NOT_MODIFIED:
        # Other metadata is only for answers without an etag (section 15.4.5).
        return Decision(failed, (("ETag", f'"{info.etag}"'),))
    if failed is not None:
        return Decision(failed)
    if method == "HEAD":
        return _without_content(_whole(info))
    if info.size_bytes is None or not _is_range_allowed(fields, etag=info.etag):
        return _whole(info)
    ranges = _ranges_asked_for(sole_value(fields, "range"), size=info.size_bytes, ranges_max=ranges_max)
    if ranges is None:
        return _whole(info)
    return _by_ranges(ranges, info, size=info.size_bytes, boundary=boundary)


def format_http_date(seconds: float) -> str | None:
    """A time since 1970 as an IMF-fixdate, its fraction cut off; `None` if it is before 1970 or after 9999.

    Source: RFC 9110 section 5.6.7.
    """
    # Also false for what is not a number.
    if not 0 <= seconds < _YEAR_10000:
        return None
    return email.utils.formatdate(math.floor(seconds), usegmt=True)


def parse_http_date(text: str) -> int | None:
    """The seconds since 1970 of a date in one of the three forms of HTTP; `None` if it is none.

    Two digits of a year are 1970 to 2069: the 50 years of the RFC need a clock, and since 1999 nobody should
    send them. The name of the day must be one; whether it is the right one is not looked at.

    Source: RFC 9110 section 5.6.7.
    """
    match = next((match for form in _DATES if (match := form.fullmatch(text))), None)
    if match is None:
        return None
    year = int(match["year"])
    if len(match["year"]) == 2:
        year += 1900 if year >= 70 else 2000
    month = _MONTHS.index(match["month"]) + 1
    try:
        start = datetime(year, month, int(match["day"]), int(match["hour"]), int(match["minute"]), tzinfo=UTC)
    except ValueError:
        return None
    # Added, since a leap second has the number 60.
    return int(start.timestamp()) + int(match["second"])


def fields_of(headers: Headers, names: Set[str]) -> Fields:
    """The headers of those names, in lower case, and no others."""
    fields: dict[str, list[str]] = {}
    for raw_name, value in headers:
        name = raw_name.decode("latin-1").lower()
        if name in names:
            fields.setdefault(name, []).append(value.decode("latin-1").strip(" \t"))
    return fields


def sole_value(fields: Fields, name: str) -> str:
    """The value of a header that came once; otherwise the empty text, which is no date, no etag, no range."""
    values = fields.get(name, ())
    return values[0] if len(values) == 1 else ""


def parse_strong_etag(text: str) -> str | None:
    """What stands between the quotes of a strong etag; `None` of a weak one, and of what is none.

    Source: RFC 9110 section 8.8.3.
    """
    match = _ETAG.fullmatch(text)
    return None if match is None or match[1] else match[2]


def _check_writable(info: ResourceInfo, boundary: str) -> None:
    if _BOUNDARY.fullmatch(boundary) is None:
        raise ValueError(f"a boundary is 1 to 70 letters, digits and '+_.-, not {boundary!r}")
    if re.fullmatch(_ETAG_TEXT, info.etag) is None:
        raise ValueError("the etag of a resource holds a quote, white space or a control character")
    if _MIME.fullmatch(info.mime) is None:
        raise ValueError("the media type of a resource is empty or holds what is not ASCII")


# Preconditions.


def _whole_seconds(modified: float | None) -> int | None:
    """What `Last-Modified` says, so that a client that repeats it is not told of a change of its fraction."""
    return None if modified is None or format_http_date(modified) is None else math.floor(modified)


def _failed_precondition(fields: Fields, *, etag: str, modified: int | None) -> HTTPStatus | None:
    """The steps 1 to 4 of section 13.2.2: 412, 304 or none. A date counts only where there is no etag."""
    if "if-match" in fields:
        if not _is_listed(etag, fields["if-match"], is_weak_enough=False):
            return HTTPStatus.PRECONDITION_FAILED
    elif _is_later(modified, parse_http_date(sole_value(fields, "if-unmodified-since"))):
        return HTTPStatus.PRECONDITION_FAILED
    if "if-none-match" in fields:
        if _is_listed(etag, fields["if-none-match"], is_weak_enough=True):
            return HTTPStatus.NOT_MODIFIED
    elif _is_later(modified, parse_http_date(sole_value(fields, "if-modified-since"))) is False:
        return HTTPStatus.NOT_MODIFIED
    return None


def _is_later(modified: int | None, limit: int | None) -> bool | None:
    """`None` if one of the two is unknown or is no date: such a condition is ignored."""
    return None if modified is None or limit is None else modified > limit


def _is_listed(etag: str, values: Sequence[str], *, is_weak_enough: bool) -> bool:
    """Whether a list of etags has that strong one (section 8.8.3.2); a malformed list has none."""
    text = ",".join(values)
    if text == "*":
        return True
    if _ETAG_LIST.fullmatch(text) is None:
        return False
    return any(tag == etag and (is_weak_enough or not weak) for weak, tag in _ETAG.findall(text))


def _is_range_allowed(fields: Fields, *, etag: str) -> bool:
    """Whether `If-Range` allows what `Range` asks for, if anything (step 5 of section 13.2.2)."""
    if "if-range" not in fields:
        return True
    return parse_strong_etag(sole_value(fields, "if-range")) == etag


# Ranges.


def _ranges_asked_for(value: str, *, size: int, ranges_max: int) -> list[range] | None:
    """What to send of `size` bytes: nothing if all is past the end, `None` if `Range` is to be ignored."""
    unit, _, listed = value.partition("=")
    specs = [spec for element in listed.split(",") if (spec := element.strip(" \t"))]
    if unit.lower() != "bytes" or not 0 < len(specs) <= ranges_max:
        return None
    ranges = []
    for spec in specs:
        found = _range_of(spec, size)
        if found is None:
            return None
        if found:
            ranges.append(found)
    return None if _overlapping_count(ranges) > 2 else _coalesced(ranges)


def _range_of(spec: str, size: int) -> range | None:
    """What one spec means: an empty range if it is unsatisfiable, `None` if `Range` is to be ignored."""
    match = _RANGE.fullmatch(spec)
    if match is None or spec == "-":
        return None
    first, last = (digits.lstrip("0") for digits in match.groups())
    if not match[1]:
        length = _number(last)
        # Satisfiable (section 14.1.2), but nothing can be put into its Content-Range.
        return None if length and not size else range(max(size - length, 0), size)
    if not match[2]:
        return range(_number(first), size)
    if (len(last), last) < (len(first), first):
        return None
    return range(_number(first), min(_number(last) + 1, size))


def _number(digits: str) -> int:
    return int(digits or "0") if len(digits) <= _DIGITS_MAX else _PAST_EVERY_END


def _overlapping_count(ranges: list[range]) -> int:
    def is_overlapping(index: int) -> bool:
        others = ranges[:index] + ranges[index + 1 :]
        return any(one.start < ranges[index].stop and ranges[index].start < one.stop for one in others)

    return sum(map(is_overlapping, range(len(ranges))))


def _coalesced(ranges: list[range]) -> list[range]:
    kept: list[range] = []
    for wanted in ranges:
        near = [one for one in kept if one.start <= wanted.stop and wanted.start <= one.stop]
        if not near:
            kept.append(wanted)
            continue
        place = kept.index(near[0])
        joined = [*near, wanted]
        kept = [one for one in kept if one not in near]
        kept.insert(place, range(min(r.start for r in joined), max(r.stop for r in joined)))
    return kept


# Answers.


def _whole(info: ResourceInfo) -> Decision:
    size = info.size_bytes
    length = () if size is None else (("Content-Length", str(size)),)
    return Decision(
        HTTPStatus.OK,
        (("Content-Type", info.mime), *length, *_common(info)),
        (Part(0, size),),
    )


def _without_content(decision: Decision) -> Decision:
    return Decision(decision.status, decision.headers)


def _by_ranges(ranges: list[range], info: ResourceInfo, *, size: int, boundary: str) -> Decision:
    if not ranges:
        unsatisfied = (("Content-Range", f"bytes */{size}"), ("Accept-Ranges", "bytes"))
        return Decision(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, unsatisfied)
    if len(ranges) > 1:
        return _multipart(ranges, info, size=size, boundary=boundary)
    (only,) = ranges
    return Decision(
        HTTPStatus.PARTIAL_CONTENT,
        (
            ("Content-Type", info.mime),
            ("Content-Length", str(only.stop - only.start)),
            ("Content-Range", _content_range(only, size)),
            *_common(info),
        ),
        (Part(only.start, only.stop),),
    )


def _multipart(ranges: list[range], info: ResourceInfo, *, size: int, boundary: str) -> Decision:
    """The form of section 14.6; the whole where that is not longer."""
    parts = []
    line_end = ""
    for each in ranges:
        head = (
            f"{line_end}--{boundary}\r\nContent-Type: {info.mime}\r\n"
            f"Content-Range: {_content_range(each, size)}\r\n\r\n"
        )
        parts.append(Part(each.start, each.stop, head.encode("ascii")))
        line_end = "\r\n"
    tail = f"\r\n--{boundary}--\r\n".encode("ascii")
    content = sum(len(part.head) for part in parts) + sum(r.stop - r.start for r in ranges) + len(tail)
    if content >= size:
        return _whole(info)
    return Decision(
        HTTPStatus.PARTIAL_CONTENT,
        (
            ("Content-Type", f"multipart/byteranges; boundary={boundary}"),
            ("Content-Length", str(content)),
            *_common(info),
        ),
        tuple(parts),
        tail,
    )


def _content_range(sent: range, size: int) -> str:
    return f"bytes {sent.start}-{sent.stop - 1}/{size}"


def _common(info: ResourceInfo) -> tuple[tuple[str, str], ...]:
    date = None if info.modified is None else format_http_date(info.modified)
    modified = () if date is None else (("Last-Modified", date),)
    unit = "none" if info.size_bytes is None else "bytes"
    return (("Accept-Ranges", unit), ("ETag", f'"{info.etag}"'), *modified)
