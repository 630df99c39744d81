"""What a client that reads a remote origin by ranges makes of its answers (RFC 9110).

Origins send other ranges than those asked for, the whole where a part was asked for, another resource from
one request to the next, and bodies that are not as long as they promised. Nothing of that may become bytes
at a wrong offset, or an end that is none. Pure: status and headers go in, a verdict comes out. Requests,
redirects, waiting and trying again are left to the caller. Messages hold numbers, never a header's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

from streamctx.errors import ErrorCode
from streamctx.resources.base import ResourceError
from streamctx.resources.http_ranges import (
    Fields,
    Headers,
    fields_of,
    parse_http_date,
    parse_strong_etag,
    sole_value,
)

__all__ = [
    "RETRY_AFTER_S_MAX",
    "Asked",
    "BodyError",
    "BodyGuard",
    "Changed",
    "NotFound",
    "Partial",
    "Redirect",
    "Refused",
    "RetryWhole",
    "Unavailable",
    "Unsatisfiable",
    "Verdict",
    "Whole",
    "judge_answer",
]

RETRY_AFTER_S_MAX = 86_400.0
"""No origin is believed that it will be away for more than a day."""

# Numbers of at most 19 digits: more than any resource has bytes, and few enough for `int`.
_NUMBER = re.compile(r"[0-9]{1,19}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)", re.IGNORECASE)
_UNSATISFIED_RANGE = re.compile(r"bytes \*/([0-9]{1,19})", re.IGNORECASE)
_LOCATION = re.compile(r"[\x21-\x7e\x80-\xff]+")

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# What is forbidden and what is unknown look the same; some object stores say 403 of what there is not.
_NOT_FOUND = frozenset({401, 403, 404, 410})
_TRY_LATER = frozenset({408, 425, 429})

_MATTERS = frozenset(
    {"content-encoding", "content-length", "content-range", "content-type", "etag", "location", "retry-after"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A GET for the bytes `[start, stop)` of a resource, and what was known of it then.

    Its headers are `headers_to_send`: verdicts rely on `If-Range` being there wherever the etag is known.

    Raises:
        ValueError: If the range is empty or starts before 0.
    """

    start: int
    stop: int
    etag: str | None
    """Strong and without quotes, as it came with an earlier answer; `None` if none did."""
    total_bytes: int | None
    """The size of the whole, as an earlier answer told it; `None` if none did."""
    skip_bytes_max: int
    """How much of a whole may be read and thrown away to get to `start`."""
    has_range: bool = True
    """Whether it carries `Range`; after `RetryWhole` it must not."""

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise ValueError(f"there are no bytes from {self.start} to {self.stop} to ask for")

    @property
    def headers_to_send(self) -> tuple[tuple[str, str], ...]:
        """What makes the request this one (RFC 9110 sections 12.5.3, 13.1.5, 14.2)."""
        # Ranges of a compressed form are not ranges of the resource.
        headers = [("Accept-Encoding", "identity")]
        if self.has_range:
            headers.append(("Range", f"bytes={self.start}-{self.stop - 1}"))
            if self.etag is not None:
                headers.append(("If-Range", f'"{self.etag}"'))
        return tuple(headers)


@dataclass(frozen=True, slots=True)
class Partial:
    """The body is exactly `count_bytes` of the resource from `offset` on, which is where it was asked for.

    They may be fewer than asked for, which tells nothing about the end: only `total_bytes` does, and where it
    is `None`, reading goes on until `Unsatisfiable`. `etag` is strong; without one there is no resuming, and
    a change between two requests goes unseen.
    """

    offset: int
    count_bytes: int
    total_bytes: int | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class Whole:
    """The body starts at 0: `skip_bytes` are thrown away, then `count_bytes` are what was asked for.

    Where `total_bytes` is `None`, the body may end before that, and its end is that of the resource if the
    framing of HTTP says so. `etag` is as in `Partial`.
    """

    skip_bytes: int
    count_bytes: int
    total_bytes: int | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class Unsatisfiable:
    """The resource ends at or before `start`; `total_bytes` is `None` where nobody said where."""

    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Changed:
    """It is not, or not for certain, what was read before: that is of no use any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotFound:
    """It is not there, or not for us."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Not now. `retry_after_s` is how long the origin asks to be left alone, `None` if it does not say."""

    status: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Elsewhere, by a reference that may be relative. Whether to follow it is the caller's to check."""

    location: str


@dataclass(frozen=True, slots=True)
class RetryWhole:
    """The origin cannot do ranges: ask once more, with `has_range` false."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer does not fit the request, and asking again is no use. The body must not be used."""

    reason: str


Verdict = Partial | Whole | Unsatisfiable | Changed | NotFound | Unavailable | Redirect | RetryWhole | Refused


class BodyError(ResourceError):
    """A body is longer or shorter than its headers promised. Asking again may help."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, is_temporary=True)


class BodyGuard:
    """Holds a body to the number of bytes that was promised.

    Args:
        promised_bytes: `count_bytes` of `Partial`, or `total_bytes` of a `Whole` that is read to its end.
    """

    def __init__(self, promised_bytes: int) -> None:
        self._promised_bytes = promised_bytes
        self._received_bytes = 0

    def receive(self, data: bytes) -> None:
        """Count what came; call it before the data is used.

        Raises:
            BodyError: If that is more than was promised. Nothing of it is to be used.
        """
        received_bytes = self._received_bytes + len(data)
        if received_bytes > self._promised_bytes:
            raise BodyError(f"{received_bytes} bytes came and only {self._promised_bytes} were promised")
        self._received_bytes = received_bytes

    def finish(self) -> None:
        """Say that the body has ended.

        Raises:
            BodyError: If less came than was promised.
        """
        if self._received_bytes < self._promised_bytes:
            raise BodyError(f"the body ended after {self._received_bytes} of {self._promised_bytes} bytes")


def judge_answer(asked: Asked, *, status: int, headers: Headers, now: float) -> Verdict:
    """Decide what to do with an answer, before its body is read.

    Args:
        asked: What it answers.
        status: Its status code.
        headers: Its headers. Of those that matter, only one of each may be there.
        now: The time in seconds since 1970, against which `Retry-After` is read if it is a date.

    Source: RFC 9110 sections 8.4, 8.6, 8.8, 10.2.3, 13.1.5, 14.4, 15.3.7, 15.5.17.
    """
    fields = fields_of(headers, _MATTERS)
    if status in _REDIRECTS:
        return _judge_redirect(fields)
    if status in _NOT_FOUND:
        return NotFound()
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return RetryWhole() if asked.has_range else Refused("status 501 to a request without a range")
    if status in _TRY_LATER or 500 <= status < 600:
        return Unavailable(status, _retry_after_s(fields, now))
    if status == HTTPStatus.PRECONDITION_FAILED and asked.etag is not None:
        return Changed("the origin says that its etag is another one now")
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return _judge_unsatisfied(asked, fields)
    if status == HTTPStatus.PARTIAL_CONTENT:
        return _judge_partial(asked, fields)
    if status == HTTPStatus.OK:
        return _judge_whole(asked, fields)
    return Refused(f"status {status} is no answer to a request for bytes")


def _judge_redirect(fields: Fields) -> Redirect | Refused:
    location = sole_value(fields, "location")
    if _LOCATION.fullmatch(location) is None:
        return Refused("a redirect without one Location that is a reference")
    return Redirect(location)


def _retry_after_s(fields: Fields, now: float) -> float | None:
    text = sole_value(fields, "retry-after")
    if text.isdecimal() and text.isascii():
        return min(float(text), RETRY_AFTER_S_MAX)
    date = parse_http_date(text)
    return None if date is None else min(max(date - now, 0.0), RETRY_AFTER_S_MAX)


def _judge_unsatisfied(asked: Asked, fields: Fields) -> Unsatisfiable | Changed | Refused:
    if not asked.has_range:
        return Refused("status 416 to a request without a range")
    if len(fields.get("content-range", ())) > 1:
        return Refused("several Content-Range fields")
    match = _UNSATISFIED_RANGE.fullmatch(sole_value(fields, "content-range"))
    told = None if match is None else int(match[1])
    if told is not None and told > asked.start:
        return Refused(f"status 416 at {asked.start}, and yet {told} bytes in all")
    known = asked.total_bytes
    if known is not None and (known > asked.start or told not in (None, known)):
        return Changed(f"it had {known} bytes, and now it has none from {asked.start} on")
    return Unsatisfiable(known if told is None else told)


def _judge_partial(asked: Asked, fields: Fields) -> Partial | Changed | Refused:
    if not asked.has_range:
        return Refused("status 206 to a request without a range")
    problem = _framing_problem(fields)
    if problem is not None:
        return Refused(problem)
    if sole_value(fields, "content-type").lower().startswith("multipart/byteranges"):
        return Refused("several ranges, where one was asked for")
    match = _CONTENT_RANGE.fullmatch(sole_value(fields, "content-range"))
    if match is None:
        return Refused("status 206 without a Content-Range that tells which bytes these are")
    start, stop = int(match[1]), int(match[2]) + 1
    told = None if match[3] == "*" else int(match[3])
    problem = _misfit(asked, start=start, stop=stop, told=told, length=_content_length(fields))
    if problem is not None:
        return Refused(problem)
    etag = parse_strong_etag(sole_value(fields, "etag"))
    change = _change(asked, etag=etag, total_bytes=told)
    if change is not None:
        return Changed(change)
    if asked.total_bytes is not None and stop > asked.total_bytes:
        return Changed(f"it had {asked.total_bytes} bytes, and now there are some up to {stop}")
    return Partial(start, stop - start, asked.total_bytes if told is None else told, etag)


def _judge_whole(asked: Asked, fields: Fields) -> Whole | Changed | Refused:
    """A whole in spite of `If-Range` is a change, unless it has the etag: origins may ignore `Range`."""
    problem = _framing_problem(fields)
    if problem is not None:
        return Refused(problem)
    etag, told = parse_strong_etag(sole_value(fields, "etag")), _content_length(fields)
    change = _change(asked, etag=etag, total_bytes=told)
    if change is not None:
        return Changed(change)
    total = asked.total_bytes if told is None else told
    if total is not None and total <= asked.start:
        return Whole(0, 0, total, etag)
    if asked.start > asked.skip_bytes_max:
        return Refused(
            f"the whole came; its first {asked.start} bytes would be skipped, limit {asked.skip_bytes_max}"
        )
    stop = asked.stop if total is None else min(asked.stop, total)
    return Whole(asked.start, stop - asked.start, total, etag)


def _framing_problem(fields: Fields) -> str | None:
    """Why nothing can be said about how the body maps to the resource, `None` if something can."""
    # Two that agree may be taken for one (section 8.6), but whoever sends two does not know what it sends.
    for name in ("content-length", "content-range"):
        if len(fields.get(name, [])) > 1:
            return f"several {name} fields"
    if "content-length" in fields and _content_length(fields) is None:
        return "a Content-Length that is no number"
    codings = {
        coding.strip(" \t").lower() for coding in ",".join(fields.get("content-encoding", [])).split(",")
    }
    if codings - {"", "identity"}:
        return "the body is encoded, although identity was asked for"
    return None


def _content_length(fields: Fields) -> int | None:
    text = sole_value(fields, "content-length")
    return int(text) if _NUMBER.fullmatch(text) else None


def _misfit(asked: Asked, *, start: int, stop: int, told: int | None, length: int | None) -> str | None:
    if stop <= start or (told is not None and stop > told):
        return f"bytes from {start} to {stop} are said to have come, which there cannot be"
    if start != asked.start:
        return f"bytes from {start} on came, and from {asked.start} on were asked for"
    if stop > asked.stop:
        return f"bytes up to {stop} came, and up to {asked.stop} were asked for"
    if length is not None and length != stop - start:
        return f"{stop - start} bytes by Content-Range are {length} by Content-Length"
    return None


def _change(asked: Asked, *, etag: str | None, total_bytes: int | None) -> str | None:
    if asked.etag is not None and etag is None:
        return "there was a strong etag, and this answer has none to compare with it"
    if asked.etag is not None and etag != asked.etag:
        return "its etag is another one now"
    if None not in (asked.total_bytes, total_bytes) and total_bytes != asked.total_bytes:
        return f"it had {asked.total_bytes} bytes, and now it has {total_bytes}"
    return None
