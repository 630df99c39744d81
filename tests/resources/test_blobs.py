"""What is put can be read, once and within bounds, in memory and on disk alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

import pytest

from streamctx.errors import ErrorCode, LocalProtocolError
from streamctx.resources.base import Provider, ResourceError, ResourceInfo
from streamctx.resources.blobs import MemoryBlobs
from tests.resources.blob_stores import (
    Clock,
    Make,
    begun,
    content,
    digest_of,
    is_readable,
    maker,
    read_all,
    uri_of,
)

__all__: list[str] = []

A, B, C, D = (content(100, seed) for seed in range(4))


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield maker(request.param, tmp_path / "blobs", stack)


class Bounds(TypedDict, total=False):
    bytes_max: int
    blob_bytes_max: int
    count_max: int


def refused(caught: pytest.ExceptionInfo[ResourceError]) -> tuple[ErrorCode, bool]:
    return caught.value.code, caught.value.is_temporary


# Reading.


def test_what_is_put_can_be_read_and_is_told_of(make: Make) -> None:
    blobs = make(clock=Clock())
    info = blobs.put(A, mime="image/png", name="a.png")
    assert info == ResourceInfo(
        uri=uri_of(A),
        name="a.png",
        mime="image/png",
        size_bytes=100,
        etag=digest_of(A),
        modified=1_700_000_000.0,
    )
    source = blobs.open(info.uri)
    assert source.info == info
    assert list(blobs.list()) == [info]
    assert source.read(0, 100) == source.read(0, 1000) == A
    assert source.read(30, 20) == A[30:50]
    assert source.read(99, 2) == A[99:]
    assert source.read(100, 1) == source.read(1000, 1) == source.read(5, 0) == b""
    source.close()


def test_a_blob_without_a_name_has_its_digest(make: Make) -> None:
    info = make().put(A)
    assert (info.name, info.mime) == (digest_of(A), "application/octet-stream")


def test_an_empty_blob_is_one(make: Make) -> None:
    blobs = make(bytes_max=0)
    blobs.put(b"")
    assert read_all(blobs, b"") == b""
    assert [info.size_bytes for info in blobs.list()] == [0]


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "sha256:",
        digest_of(A),
        f"SHA256:{digest_of(A)}",
        f"sha256:{digest_of(A).upper()}",
        f"sha256:{digest_of(A)}\n",
        f"sha256:{digest_of(A)[:-1]}",
        f"sha256:{digest_of(A)}0",
        f"sha256:../blobs/{digest_of(A)}",
        f"sha256:sha256:{digest_of(A)}",
        f"file:{digest_of(A)}",
        uri_of(B),
    ],
)
def test_another_uri_is_not_found(make: Make, uri: str) -> None:
    blobs = make()
    blobs.put(A)
    for call in (blobs.open, blobs.pin):
        with pytest.raises(ResourceError) as caught:
            call(uri)
        assert refused(caught) == (ErrorCode.NOT_FOUND, False)


def test_a_closed_source_gives_nothing(make: Make) -> None:
    blobs = make()
    source = blobs.open(blobs.put(A).uri)
    source.close()
    source.close()
    with pytest.raises(LocalProtocolError):
        source.read(0, 1)


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, -1)])
def test_there_is_nothing_before_the_start(make: Make, offset: int, count: int) -> None:
    blobs = make()
    source = blobs.open(blobs.put(A).uri)
    with pytest.raises(ValueError, match="no bytes"):
        source.read(offset, count)
    source.close()


def test_a_closed_store_gives_nothing_but_what_is_open(make: Make) -> None:
    blobs = make()
    source = blobs.open(blobs.put(A).uri)
    writer = begun(blobs, B)
    writer.write(0, B)
    listed = blobs.list()
    blobs.close()
    blobs.close()
    for call in (lambda: blobs.open(uri_of(A)), lambda: blobs.put(C), writer.commit, lambda: next(listed)):
        with pytest.raises(ResourceError) as caught:
            call()
        assert refused(caught) == (ErrorCode.UNAVAILABLE, True)
    assert source.read(0, 100) == A
    source.close()
    writer.close()


# The same content.


def test_the_same_content_is_stored_once_and_keeps_its_first_name(make: Make) -> None:
    blobs = make()
    first = blobs.put(A, mime="text/plain", name="first")
    assert blobs.put(A, mime="image/png", name="second") == first
    assert blobs.begin(digest_of(A), 100, name="third") == first
    counters = blobs.counters
    assert (counters.stored, counters.deduplicated, counters.bytes, counters.count) == (1, 2, 100, 1)


@pytest.mark.parametrize("size_bytes", [99, 101])
def test_what_is_there_with_another_size_is_not_that_content(make: Make, size_bytes: int) -> None:
    blobs = make()
    blobs.put(A)
    with pytest.raises(ResourceError) as caught:
        blobs.begin(digest_of(A), size_bytes)
    assert refused(caught) == (ErrorCode.LENGTH_MISMATCH, False)
    assert blobs.counters.deduplicated == 0


# Bounds.


def test_the_least_recently_used_make_room(make: Make) -> None:
    blobs = make(bytes_max=300)
    for data in (A, B, C):
        blobs.put(data)
    read_all(blobs, A)
    blobs.put(B)
    assert [info.uri for info in blobs.list()] == [uri_of(C), uri_of(A), uri_of(B)]
    blobs.put(D)
    assert not is_readable(blobs, C)
    assert [read_all(blobs, data) for data in (A, B, D)] == [A, B, D]
    assert (blobs.counters.evicted, blobs.counters.bytes) == (1, 300)


def test_what_fits_exactly_evicts_nothing_and_one_byte_more_does(make: Make) -> None:
    blobs = make(bytes_max=300)
    blobs.put(A)
    blobs.put(content(200, 9))
    assert (blobs.counters.evicted, blobs.counters.bytes) == (0, 300)
    blobs.put(b"x")
    assert (blobs.counters.evicted, blobs.counters.bytes) == (1, 201)


def test_no_more_goes_than_has_to(make: Make) -> None:
    blobs = make(bytes_max=300)
    for data in (A, B, C):
        blobs.put(data)
    blobs.put(content(150, 9))
    assert [is_readable(blobs, data) for data in (A, B, C)] == [False, False, True]


def test_listing_does_not_use(make: Make) -> None:
    blobs = make(bytes_max=200)
    blobs.put(A)
    blobs.put(B)
    assert next(blobs.list()).uri == uri_of(A)
    blobs.put(C)
    assert not is_readable(blobs, A)


def test_there_are_no_more_than_count_max(make: Make) -> None:
    blobs = make(count_max=2)
    blobs.put(A)
    writer = begun(blobs, B)
    assert blobs.counters.evicted == 0
    blobs.put(C)
    assert not is_readable(blobs, A)
    with blobs_open(blobs, C), pytest.raises(ResourceError) as caught:
        blobs.put(D)
    assert refused(caught) == (ErrorCode.LIMIT, True)
    writer.abandon()


def blobs_open(blobs: Provider, data: bytes) -> ExitStack:
    stack = ExitStack()
    stack.callback(blobs.open(uri_of(data)).close)
    return stack


def test_a_blob_may_be_as_large_as_blob_bytes_max(make: Make) -> None:
    blobs = make(blob_bytes_max=100)
    blobs.put(A)
    large = content(101)
    calls: list[Callable[[], object]] = [
        lambda: blobs.put(large),
        lambda: blobs.begin(digest_of(large), 101),
    ]
    for call in calls:
        with pytest.raises(ResourceError) as caught:
            call()
        assert refused(caught) == (ErrorCode.TOO_LARGE, False)
    assert blobs.counters.refused == 2
    assert not is_readable(blobs, large)


def test_without_its_own_bound_one_blob_may_take_all(make: Make) -> None:
    blobs = make(bytes_max=300)
    blobs.put(content(300))
    with pytest.raises(ResourceError) as caught:
        blobs.put(content(301))
    assert refused(caught) == (ErrorCode.TOO_LARGE, False)


@pytest.mark.parametrize(
    "bounds", [{"bytes_max": 10, "blob_bytes_max": 11}, {"bytes_max": -1}, {"count_max": -1}]
)
def test_bounds_that_contradict_each_other_are_refused(make: Make, bounds: Bounds) -> None:
    with pytest.raises(ValueError, match="contradict"):
        make(**bounds)
    make()


def test_what_is_open_stays_and_nothing_else_goes_in_vain(make: Make) -> None:
    blobs = make(bytes_max=300)
    for data in (A, B, C):
        blobs.put(data)
    first, again = blobs.open(uri_of(B)), blobs.open(uri_of(B))
    large = content(250, 9)
    with pytest.raises(ResourceError) as caught:
        blobs.put(large)
    assert refused(caught) == (ErrorCode.LIMIT, True)
    assert (blobs.counters.evicted, blobs.counters.refused, blobs.counters.bytes) == (0, 1, 300)
    blobs.put(content(200, 8))
    assert first.read(0, 100) == again.read(0, 100) == B
    first.close()
    first.close()
    with pytest.raises(ResourceError):
        blobs.put(large)
    again.close()
    blobs.put(large)
    assert not is_readable(blobs, B)


def test_what_is_pinned_stays_until_it_is_unpinned_as_often(make: Make) -> None:
    blobs = make(bytes_max=100)
    blobs.put(A)
    blobs.pin(uri_of(A))
    blobs.pin(uri_of(A))
    for _ in range(2):
        with pytest.raises(ResourceError) as caught:
            blobs.put(B)
        assert refused(caught) == (ErrorCode.LIMIT, True)
        blobs.unpin(uri_of(A))
    blobs.put(B)
    assert not is_readable(blobs, A)
    for uri in (uri_of(A), uri_of(B), "sha256:"):
        with pytest.raises(LocalProtocolError):
            blobs.unpin(uri)


# Types and names.


@pytest.mark.parametrize("name", ["", "x" * 255, "\x00" * 255, "\U0001f680" * 255, '"\\\n/../é', "\u2028"])
def test_any_name_up_to_its_length_is_given_back(make: Make, name: str) -> None:
    blobs = make()
    blobs.put(A, name=name, mime="\x01" * 255)
    (info,) = blobs.list()
    assert (info.name, info.mime) == (name, "\x01" * 255)


@pytest.mark.parametrize(
    ("label", "code"),
    [
        ({"name": "x" * 256}, ErrorCode.TOO_LARGE),
        ({"mime": "x" * 256}, ErrorCode.TOO_LARGE),
        ({"name": "a\ud800"}, ErrorCode.BAD_TEXT),
        ({"mime": "\udfff"}, ErrorCode.BAD_TEXT),
    ],
)
def test_another_name_or_type_is_refused(make: Make, label: dict[str, str], code: ErrorCode) -> None:
    blobs = make()
    with pytest.raises(ResourceError) as caught:
        blobs.put(A, **label)
    assert refused(caught) == (code, False)
    assert blobs.counters.count == 0


# Threads.


def test_threads_that_put_and_read_at_once_keep_the_bounds(make: Make) -> None:
    blobs = make(bytes_max=350)
    contents = [content(100, seed) for seed in range(6)]
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for index in range(60):
                data = contents[(start + index * (start + 1)) % len(contents)]
                try:
                    blobs.put(data)
                    assert read_all(blobs, data) == data
                except ResourceError as error:
                    # Evicted before it was read, or somebody else is at it.
                    assert error.code in {ErrorCode.NOT_FOUND, ErrorCode.UNAVAILABLE, ErrorCode.LIMIT}
                assert blobs.counters.bytes <= 350
                assert all(info.size_bytes == 100 for info in blobs.list())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert blobs.counters.evicted > 0
    assert blobs.counters.damaged == blobs.counters.mismatched == 0
    # Nothing is still taken for open.
    blobs.put(content(350, 9))
    assert [info.size_bytes for info in blobs.list()] == [350]


def test_a_store_needs_no_settings_but_its_size() -> None:
    blobs = MemoryBlobs(bytes_max=10)
    assert blobs.put(b"x").modified
    blobs.close()
