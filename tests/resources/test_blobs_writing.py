"""Uploads: in chunks, cut and resumed anywhere, and seen by nobody before they are whole and right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from streamctx.errors import ErrorCode, LocalProtocolError
from streamctx.resources.base import ResourceError, ResourceInfo
from streamctx.resources.blobs import BlobBusy, Blobs, BlobWriter, OffsetMismatch
from tests.resources.blob_stores import Clock, Make, begun, content, digest_of, maker, read_all, uri_of

__all__: list[str] = []

A, B, C = (content(100, seed) for seed in range(3))
DAY = 86_400


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield maker(request.param, tmp_path / "blobs", stack)


def refused(caught: pytest.ExceptionInfo[ResourceError]) -> tuple[ErrorCode, bool]:
    return caught.value.code, caught.value.is_temporary


def demand_hidden(blobs: Blobs, *contents: bytes) -> None:
    """Nothing that can be asked for gives a byte of these."""
    assert not list(blobs.list())
    for data in contents:
        with pytest.raises(ResourceError) as caught:
            blobs.open(uri_of(data))
        assert refused(caught) == (ErrorCode.NOT_FOUND, False)


def test_what_is_written_in_chunks_is_readable_after_the_commit_and_not_before(make: Make) -> None:
    blobs = make()
    writer = blobs.begin(digest_of(A), 100, mime="text/plain", name="a")
    assert isinstance(writer, BlobWriter)
    assert (writer.digest, writer.size_bytes) == (digest_of(A), 100)
    for start in range(0, 100, 30):
        assert writer.offset == start
        writer.write(start, memoryview(A)[start : start + 30])
        demand_hidden(blobs, A, A[: writer.offset])
    info = writer.commit()
    assert (info.uri, info.mime, info.name) == (uri_of(A), "text/plain", "a")
    assert list(blobs.list()) == [info]
    assert read_all(blobs, A) == A
    assert (blobs.counters.stored, blobs.counters.bytes, blobs.counters.count) == (1, 100, 1)


def test_no_bytes_at_all_are_an_upload(make: Make) -> None:
    blobs = make()
    begun(blobs, b"").commit()
    assert read_all(blobs, b"") == b""


@pytest.mark.parametrize("cut", range(9))
def test_an_upload_goes_on_where_its_writer_was_closed(make: Make, cut: int) -> None:
    blobs, data = make(), content(8)
    with begun(blobs, data) as writer:
        writer.write(0, data[:cut])
    assert (blobs.counters.bytes, blobs.counters.count) == (cut, int(cut > 0))
    writer = begun(blobs, data)
    assert writer.offset == cut
    writer.write(cut, data[cut:])
    writer.commit()
    assert read_all(blobs, data) == data


def test_who_goes_on_with_an_upload_keeps_its_first_name(make: Make) -> None:
    blobs = make()
    first = blobs.begin(digest_of(A), 100, name="first", mime="text/plain")
    assert isinstance(first, BlobWriter)
    first.write(0, A[:50])
    first.close()
    second = blobs.begin(digest_of(A), 100, name="second")
    assert isinstance(second, BlobWriter)
    second.write(50, A[50:])
    info = second.commit()
    assert (info.name, info.mime) == ("first", "text/plain")


@pytest.mark.parametrize("offset", [-1, 0, 39, 41, 100])
def test_a_chunk_elsewhere_is_refused_with_the_offset_that_is_expected(make: Make, offset: int) -> None:
    writer = begun(make(), A)
    writer.write(0, A[:40])
    with pytest.raises(OffsetMismatch, match="expected 40") as caught:
        writer.write(offset, A[40:41])
    assert caught.value.expected == writer.offset == 40
    assert refused(caught) == (ErrorCode.BAD_PART, False)
    writer.write(40, A[40:])
    writer.commit()


def test_a_chunk_past_the_size_is_refused_whole(make: Make) -> None:
    blobs = make()
    writer = begun(blobs, A)
    writer.write(0, A[:99])
    with pytest.raises(ResourceError) as caught:
        writer.write(99, A[99:] + b"x")
    assert refused(caught) == (ErrorCode.LENGTH_MISMATCH, False)
    assert writer.offset == 99
    writer.write(99, A[99:])
    writer.commit()
    assert read_all(blobs, A) == A


def test_a_commit_that_comes_too_early_harms_nothing(make: Make) -> None:
    blobs = make()
    writer = begun(blobs, A)
    writer.write(0, A[:99])
    with pytest.raises(ResourceError, match="99 bytes, expected 100") as caught:
        writer.commit()
    assert refused(caught) == (ErrorCode.LENGTH_MISMATCH, False)
    demand_hidden(blobs, A, A[:99])
    writer.write(99, A[99:])
    writer.commit()
    assert read_all(blobs, A) == A


@pytest.mark.parametrize("wrong_index", [0, 50, 99])
def test_wrong_content_is_removed_and_readable_by_no_uri(make: Make, wrong_index: int) -> None:
    blobs = make()
    wrong = bytearray(A)
    wrong[wrong_index] ^= 1
    writer = begun(blobs, A)
    writer.write(0, wrong)
    with pytest.raises(ResourceError, match=f"{digest_of(bytes(wrong))}, expected {digest_of(A)}") as caught:
        writer.commit()
    assert refused(caught) == (ErrorCode.HASH_MISMATCH, False)
    demand_hidden(blobs, A, bytes(wrong))
    counters = blobs.counters
    assert (counters.mismatched, counters.stored, counters.bytes, counters.count) == (1, 0, 0, 0)
    with pytest.raises(LocalProtocolError):
        writer.commit()
    writer = begun(blobs, A)
    assert writer.offset == 0
    writer.write(0, A)
    writer.commit()
    assert read_all(blobs, A) == A


def test_a_resumed_upload_that_began_wrong_is_removed(make: Make) -> None:
    blobs = make()
    with begun(blobs, A) as writer:
        writer.write(0, B[:50])
    writer = begun(blobs, A)
    writer.write(50, A[50:])
    with pytest.raises(ResourceError) as caught:
        writer.commit()
    assert refused(caught) == (ErrorCode.HASH_MISMATCH, False)
    demand_hidden(blobs, A, B, B[:50] + A[50:])
    assert begun(blobs, A).offset == 0


def test_wrong_size_and_right_bytes_are_wrong(make: Make) -> None:
    blobs = make()
    for size_bytes, written in ((99, A[:99]), (101, A + b"x")):
        writer = begun(blobs, A, size_bytes)
        writer.write(0, written)
        with pytest.raises(ResourceError) as caught:
            writer.commit()
        assert refused(caught) == (ErrorCode.HASH_MISMATCH, False)
    demand_hidden(blobs, A, A[:99], A + b"x")


@pytest.mark.parametrize(
    ("digest", "size_bytes"),
    [
        ("", 1),
        (digest_of(A).upper(), 100),
        (digest_of(A)[1:], 100),
        (f"{digest_of(A)}\n", 100),
        (f"sha256:{digest_of(A)}", 100),
        ("../" * 21 + "x", 100),
        (digest_of(A), -1),
    ],
)
def test_what_is_no_digest_or_size_is_refused(make: Make, digest: str, size_bytes: int) -> None:
    blobs = make()
    with pytest.raises(ResourceError) as caught:
        blobs.begin(digest, size_bytes)
    assert refused(caught) == (ErrorCode.MALFORMED, False)
    assert blobs.counters.count == 0


def test_an_abandoned_upload_leaves_nothing(make: Make) -> None:
    blobs = make()
    writer = begun(blobs, A)
    writer.write(0, A[:50])
    writer.abandon()
    writer.abandon()
    writer.close()
    counters = blobs.counters
    assert (counters.bytes, counters.count, counters.mismatched) == (0, 0, 0)
    assert begun(blobs, A).offset == 0


@pytest.mark.parametrize("end", [BlobWriter.commit, BlobWriter.abandon, BlobWriter.close])
def test_a_writer_that_has_ended_writes_no_more(make: Make, end: Callable[[BlobWriter], object]) -> None:
    blobs = make()
    writer = begun(blobs, A)
    writer.write(0, A)
    end(writer)
    calls: list[Callable[[], object]] = [lambda: writer.write(100, b""), writer.commit]
    for call in calls:
        with pytest.raises(LocalProtocolError):
            call()
    is_there = isinstance(blobs.begin(digest_of(A), 100), ResourceInfo)
    writer.abandon()
    writer.close()
    assert is_there is (end is BlobWriter.commit)
    assert blobs.counters.count == 1


# Two writers.


def test_the_second_writer_of_a_content_is_told_that_it_is_busy(make: Make) -> None:
    blobs = make()
    first = begun(blobs, A)
    first.write(0, A[:50])
    calls: list[Callable[[], object]] = [lambda: blobs.begin(digest_of(A), 100), lambda: blobs.put(A)]
    for call in calls:
        with pytest.raises(BlobBusy) as caught:
            call()
        assert refused(caught) == (ErrorCode.UNAVAILABLE, True)
    first.write(50, A[50:])
    first.commit()
    assert isinstance(blobs.begin(digest_of(A), 100), ResourceInfo)


@pytest.mark.parametrize("is_put", [False, True])
def test_who_lies_about_the_size_is_in_nobodys_way(make: Make, is_put: bool) -> None:
    blobs = make()
    liar = begun(blobs, A, 101)
    liar.write(0, A)
    if is_put:
        blobs.put(A)
    else:
        writer = begun(blobs, A)
        writer.write(0, A)
        writer.commit()
    liar.write(100, b"x")
    with pytest.raises(ResourceError) as caught:
        liar.commit()
    assert refused(caught) == (ErrorCode.HASH_MISMATCH, False)
    assert read_all(blobs, A) == A
    assert blobs.counters.count == 1


def test_put_takes_the_place_of_a_part_at_rest_whatever_is_in_it(make: Make) -> None:
    blobs = make()
    with begun(blobs, A) as writer:
        writer.write(0, B[:50])
    assert blobs.put(A, name="put").name == "put"
    assert read_all(blobs, A) == A
    assert blobs.counters.count == 1


# Bounds.


def test_an_upload_counts_whole_while_it_has_a_writer(make: Make) -> None:
    blobs = make(bytes_max=250)
    blobs.put(B)
    writer = begun(blobs, A)
    assert blobs.counters.bytes == 200
    writer.write(0, A[:10])
    writer.close()
    assert blobs.counters.bytes == 110
    writer = begun(blobs, A)
    assert blobs.counters.bytes == 200
    blobs.put(content(150, 9))
    assert (blobs.counters.bytes, blobs.counters.evicted) == (250, 1)
    writer.write(10, A[10:])
    writer.commit()
    assert (blobs.counters.bytes, blobs.counters.count) == (250, 2)


def test_what_is_written_or_rests_for_a_day_stays(make: Make) -> None:
    clock = Clock()
    blobs = make(bytes_max=150, clock=clock)
    with begun(blobs, A) as writer:
        writer.write(0, A[:51])
    clock.now += DAY
    with pytest.raises(ResourceError) as caught:
        blobs.put(B)
    assert refused(caught) == (ErrorCode.LIMIT, True)
    writer = begun(blobs, A)
    clock.now += DAY + 1
    with pytest.raises(ResourceError) as caught:
        blobs.put(B)
    assert refused(caught) == (ErrorCode.LIMIT, True)
    writer.close()
    assert begun(blobs, A).offset == 51


def test_parts_that_rest_for_longer_go_before_any_blob_the_oldest_first(make: Make) -> None:
    clock = Clock()
    blobs = make(bytes_max=300, clock=clock)
    blobs.put(C)
    for data in (A, B):
        with begun(blobs, data) as writer:
            writer.write(0, data[:60])
        clock.now += 1
    clock.now += DAY
    blobs.put(content(100, 9))
    assert (blobs.counters.expired, blobs.counters.evicted) == (1, 0)
    assert begun(blobs, B).offset == 60
    blobs.put(content(100, 8))
    assert begun(blobs, A).offset == 0
    assert blobs.counters.evicted == 2


def test_a_part_is_not_removed_to_make_room_for_itself(make: Make) -> None:
    clock = Clock()
    blobs = make(bytes_max=100, clock=clock)
    with begun(blobs, A) as writer:
        writer.write(0, A[:60])
    blobs.put(content(40, 9))
    clock.now += DAY + 1
    writer = begun(blobs, A)
    assert (writer.offset, blobs.counters.evicted, blobs.counters.expired) == (60, 1, 0)
    writer.write(60, A[60:])
    writer.commit()
    assert read_all(blobs, A) == A


def test_a_part_for_which_there_is_no_room_rests_on(make: Make) -> None:
    blobs = make(bytes_max=150)
    with begun(blobs, A) as writer:
        writer.write(0, A[:50])
    small = content(100, 9)
    blobs.put(small)
    blobs.pin(uri_of(small))
    with pytest.raises(ResourceError) as caught:
        blobs.begin(digest_of(A), 100)
    assert refused(caught) == (ErrorCode.LIMIT, True)
    blobs.unpin(uri_of(small))
    assert begun(blobs, A).offset == 50


def test_a_writer_can_be_closed_after_its_store(make: Make) -> None:
    blobs = make()
    resting, abandoned, empty = begun(blobs, A), begun(blobs, B), begun(blobs, C)
    resting.write(0, A[:50])
    abandoned.write(0, B[:50])
    blobs.close()
    resting.close()
    abandoned.abandon()
    empty.close()
