from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamctx.errors import ErrorCode
from streamctx.resources.base import ResourceChanged, ResourceError, ResourceInfo
from streamctx.resources.pinned import Pin, PinnedFile

__all__: list[str] = []

CONTENT = bytes(range(100))
MS = 1_000_000
S = 1_000_000_000
# Not on a whole second.
NOW = 2_000_000_000 * S + 1


def pin(*, size: int = 0, modified_ns: int = NOW, changed_ns: int = NOW) -> Pin:
    return Pin(device=1, inode=2, size_bytes=size, modified_ns=modified_ns, changed_ns=changed_ns)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def open_pinned() -> Iterator[Callable[[Path], PinnedFile]]:
    made: list[PinnedFile] = []

    def open_one(path: Path) -> PinnedFile:
        descriptor = os.open(path, os.O_RDONLY)
        taken = Pin.of(os.fstat(descriptor))
        info = ResourceInfo(uri="", name="", mime="", size_bytes=taken.size_bytes, etag="", modified=0)
        # Until the clock of the kernel has gone on; that nobody is writing is known here.
        while (left_ns := taken._replace(size_bytes=0).fresh_ns(time.time_ns())) > 0:
            time.sleep(left_ns / S)
        made.append(PinnedFile(descriptor, taken, info))
        return made[-1]

    yield open_one
    for file in made:
        file.close()


OpenPinned = Callable[[Path], PinnedFile]


# Reading.


def test_every_range_is_given(path: Path, open_pinned: OpenPinned) -> None:
    file = open_pinned(path)
    edges = [0, 1, 2, 50, 98, 99, 100, 101, 200, 1 << 40, 1 << 64]
    for offset in edges:
        for count in edges:
            assert file.read(offset, count) == CONTENT[offset : offset + count]


def test_of_an_empty_file_nothing_is_given(path: Path, open_pinned: OpenPinned) -> None:
    path.write_bytes(b"")
    assert open_pinned(path).read(0, 100) == b""


def test_far_into_a_large_file_is_read(path: Path, open_pinned: OpenPinned) -> None:
    size = 5 << 30
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.seek(size - 3)
        file.write(b"end")
    pinned = open_pinned(path)
    assert pinned.read(size - 5, 100) == b"\0\0end"
    assert pinned.read((4 << 30) - 1, 2) == b"\0\0"
    assert pinned.read(0, 100) == CONTENT
    assert pinned.read(size, 1) == b""


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, -1)])
def test_negative_numbers_are_the_callers_fault(
    path: Path, open_pinned: OpenPinned, offset: int, count: int
) -> None:
    with pytest.raises(ValueError, match="negative"):
        open_pinned(path).read(offset, count)


def test_after_it_was_closed_nothing_is_read(path: Path, open_pinned: OpenPinned) -> None:
    file = open_pinned(path)
    file.close()
    # Whoever has the number now is left alone.
    other = os.open(path, os.O_RDONLY)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(0, 1)
    os.close(other)


def test_a_failing_disk_is_told_without_a_path(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    info = ResourceInfo(uri="", name="", mime="", size_bytes=100, etag="", modified=0)
    file = PinnedFile(descriptor, Pin.of(os.fstat(descriptor)), info)
    with pytest.raises(ResourceError) as caught:
        file.read(0, 100)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.is_temporary
    assert str(path) not in f"{caught.value} {caught.value.__cause__}"
    file.close()


# Changes.


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(CONTENT[::-1])


def overwrite_and_hide_it(path: Path) -> None:
    status = path.stat()
    overwrite(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def write_the_same(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(CONTENT)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def write_anew(path: Path) -> None:
    path.write_bytes(CONTENT[::-1])


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(CONTENT[::-1])
    new.replace(path)


@pytest.mark.parametrize(
    "change",
    [
        overwrite,
        overwrite_and_hide_it,
        write_the_same,
        grow,
        write_anew,
        replace,
        lambda path: os.truncate(path, 50),
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, 1000),
        os.unlink,
    ],
)
def test_nothing_more_is_given_of_a_file_that_was_changed(
    path: Path, open_pinned: OpenPinned, change: Callable[[Path], None]
) -> None:
    file = open_pinned(path)
    assert file.read(0, 50) == CONTENT[:50]
    change(path)
    for offset, count in ((50, 50), (0, 100), (0, 0), (100, 1)):
        with pytest.raises(ResourceChanged):
            file.read(offset, count)


def test_a_change_within_a_read_is_seen(
    path: Path, open_pinned: OpenPinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_pinned(path)
    pread = os.pread

    def pread_while_written(descriptor: int, count: int, offset: int) -> bytes:
        # The first half is old, the second half new.
        first = pread(descriptor, count // 2, offset)
        overwrite(path)
        return first + pread(descriptor, count - len(first), offset + len(first))

    monkeypatch.setattr(os, "pread", pread_while_written)
    with pytest.raises(ResourceChanged):
        file.read(0, 100)


def test_pieces_are_put_together(
    path: Path, open_pinned: OpenPinned, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = open_pinned(path)
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda descriptor, count, offset: pread(descriptor, min(count, 7), offset)
    )
    assert file.read(1, 98) == CONTENT[1:99]
    # A file system that gives less than it said.
    monkeypatch.setattr(os, "pread", lambda descriptor, count, offset: b"")
    with pytest.raises(ResourceChanged):
        file.read(0, 100)


# Fresh files.


@pytest.mark.parametrize(
    ("given", "margin_ns"),
    [
        (pin(), 50 * MS),
        (pin(modified_ns=0), 50 * MS),
        (pin(changed_ns=0), 50 * MS),
        (pin(size=100), 50 * MS + 100),
        (pin(size=1 << 31), 50 * MS + (1 << 31)),
        (pin(size=1 << 40), 50 * MS + (1 << 31)),
        (pin(modified_ns=NOW - 1), 50 * MS),
    ],
)
def test_a_file_is_fresh_for_a_while(given: Pin, margin_ns: int) -> None:
    assert given.fresh_ns(NOW) == margin_ns
    assert given.fresh_ns(NOW + margin_ns - 1) == 1
    assert given.fresh_ns(NOW + margin_ns) == 0
    assert given.fresh_ns(NOW + 100 * S) == 0


def test_where_times_are_whole_seconds_a_file_is_fresh_for_two() -> None:
    given = pin(modified_ns=NOW - 1, changed_ns=NOW - 1)
    assert given.fresh_ns(NOW - 1) == 2050 * MS
    assert given.fresh_ns(NOW - 1 + 2050 * MS) == 0


def test_a_time_that_is_still_to_come_is_waited_for_if_it_is_near() -> None:
    assert pin().fresh_ns(NOW - 10 * MS) == 60 * MS
    assert pin().fresh_ns(NOW - 50 * MS) == 0
    assert pin().fresh_ns(NOW - 3600 * S) == 0


# Etags.


def test_etags_differ_when_anything_does() -> None:
    first = pin()
    pins = {first, *(first._replace(**{field: 3}) for field in Pin._fields)}
    etags = {one.etag for one in pins}
    assert len(etags) == len(pins) == 1 + len(Pin._fields)
    assert all(re.fullmatch("[0-9a-f]{32}", etag) for etag in etags)
    # It is stored by clients: a new release does not change it.
    assert first.etag == pin().etag == "f5e27eec2e4340f412ad82b7efc4251a"
