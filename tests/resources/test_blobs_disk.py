"""What is on disk survives the store, a crash at any point and a full disk, and is not trusted unseen."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import pytest
import xxhash

from streamctx.errors import ConfigurationError, ErrorCode
from streamctx.resources import blob_files
from streamctx.resources.base import ResourceChanged, ResourceError, ResourceInfo
from streamctx.resources.blob_files import HEAD_BYTES
from streamctx.resources.blobs import Blobs, DiskBlobs
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


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "of" / "blobs"


@pytest.fixture
def make(directory: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield maker("disk", directory, stack)


def refused(caught: pytest.ExceptionInfo[ResourceError]) -> tuple[ErrorCode, bool]:
    return caught.value.code, caught.value.is_temporary


def blob_path(directory: Path, data: bytes) -> Path:
    return directory / f"{digest_of(data)}.blob"


def part_path(directory: Path, data: bytes) -> Path:
    return directory / f"{digest_of(data)}-{len(data)}.part"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# The next start.


def test_the_next_store_has_what_this_one_had(make: Make) -> None:
    blobs = make()
    infos = [blobs.put(A, mime="image/png", name="a"), blobs.put(b""), blobs.put(B)]
    read_all(blobs, A)
    listed = list(blobs.list())
    blobs.close()
    blobs = make()
    assert list(blobs.list()) == listed == [infos[1], infos[2], infos[0]]
    assert [read_all(blobs, data) for data in (A, b"", B)] == [A, b"", B]
    assert (blobs.counters.bytes, blobs.counters.count, blobs.counters.stored) == (200, 3, 0)
    assert blobs.put(A, name="other") == infos[0]


def test_the_order_of_use_survives(make: Make) -> None:
    clock = Clock()
    blobs = make(clock=clock)
    for data in (A, B, C, A):
        blobs.put(data)
        clock.now += 1
    blobs.close()
    blobs = make(clock=clock)
    # To be listed is no use.
    assert next(blobs.list()).uri == uri_of(B)
    blobs.close()
    blobs = make(bytes_max=300, clock=clock)
    blobs.put(D)
    assert [is_readable(blobs, data) for data in (A, B, C, D)] == [True, False, True, True]


def test_what_exceeds_narrower_bounds_goes_at_the_start_least_recently_used_first(make: Make) -> None:
    clock = Clock()
    blobs = make(clock=clock)
    for data in (A, B, C):
        blobs.put(data)
        clock.now += 1
    with begun(blobs, D) as writer:
        writer.write(0, D[:50])
    blobs.close()
    blobs = make(bytes_max=250, clock=clock)
    assert (blobs.counters.bytes, blobs.counters.evicted) == (250, 1)
    assert begun(blobs, D).offset == 50
    blobs.close()
    blobs = make(bytes_max=49, clock=clock)
    assert (blobs.counters.bytes, blobs.counters.count, blobs.counters.expired) == (0, 0, 1)


@pytest.mark.parametrize("cut", range(9))
def test_an_upload_goes_on_in_another_process_after_a_crash(
    make: Make, directory: Path, tmp_path: Path, cut: int
) -> None:
    data = content(8)
    writer = begun(make(), data)
    writer.write(0, data[:cut])
    # Neither closed nor synced: what a process leaves that is killed.
    shutil.copytree(directory, tmp_path / "copy")
    blobs = DiskBlobs(tmp_path / "copy", bytes_max=1000)
    assert (blobs.counters.bytes, blobs.counters.count) == (cut, int(cut > 0))
    assert not is_readable(blobs, data)
    writer = begun(blobs, data)
    assert writer.offset == cut
    writer.write(cut, data[cut:])
    writer.commit()
    assert read_all(blobs, data) == data
    blobs.close()


def test_a_large_part_is_hashed_again_in_full(make: Make) -> None:
    data = content(700_001)
    blobs = make(bytes_max=1 << 20)
    with begun(blobs, data) as writer:
        writer.write(0, data[:600_001])
    blobs.close()
    writer = begun(make(bytes_max=1 << 20), data)
    writer.write(600_001, data[600_001:])
    writer.commit()


def test_a_part_keeps_its_age(make: Make) -> None:
    clock = Clock()
    blobs = make(bytes_max=150, clock=clock)
    with begun(blobs, A) as writer:
        writer.write(0, A[:60])
    blobs.close()
    clock.now += 86_400
    blobs = make(bytes_max=150, clock=clock)
    with pytest.raises(ResourceError):
        blobs.put(B)
    clock.now += 1
    blobs.put(B)
    assert blobs.counters.expired == 1


# The directory.


def test_nobody_else_can_read_anything(make: Make, directory: Path) -> None:
    before = os.umask(0)
    try:
        blobs = make()
        blobs.put(A)
        begun(blobs, B).write(0, B[:1])
    finally:
        os.umask(before)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert names(directory) == {blob_path(directory, A).name, part_path(directory, B).name}


def test_one_store_at_a_time_has_it(make: Make) -> None:
    blobs = make()
    with pytest.raises(ConfigurationError, match="in use"):
        make()
    blobs.close()
    make()


def test_what_has_other_names_is_left_alone(make: Make, directory: Path) -> None:
    make().close()
    foreign = {
        "README",
        f"{digest_of(A).upper()}.blob",
        f"{digest_of(A)}",
        f"x{digest_of(A)}.blob",
        f"{digest_of(A)}.blob.bak",
        f"{digest_of(A)}.blob\n",
        f"{digest_of(A)}-0100.part",
        f"{digest_of(A)}-.part",
        f"{digest_of(A)}-\u0661.part",
        f"{digest_of(A)}-12345678901234567.part",
    }
    for name in foreign:
        (directory / name).write_bytes(A)
        (directory / name).chmod(0o644)
    (directory / "link").symlink_to("/")
    (directory / "directory").mkdir()
    blobs = make(bytes_max=0)
    assert not list(blobs.list())
    assert not is_readable(blobs, A)
    assert names(directory) == foreign | {"link", "directory"}


def test_useless_parts_are_removed_at_the_start(make: Make, directory: Path) -> None:
    make().close()
    for data, size_bytes in ((A, 0), (B, HEAD_BYTES - 1), (C, HEAD_BYTES), (D, HEAD_BYTES + 101)):
        part_path(directory, data).write_bytes(bytes(size_bytes))
        part_path(directory, data).chmod(0o600)
    assert make().counters.count == 0
    assert not names(directory)


def put_file(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o640)


def put_link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    target.write_bytes(b"secret")
    target.chmod(0o600)
    path.symlink_to(target)


def put_other(path: Path) -> None:
    if os.geteuid():
        pytest.skip("takes root")
    path.write_bytes(b"")
    path.chmod(0o600)
    os.chown(path, 1, 1)


@pytest.mark.parametrize("put", [put_file, put_link, put_other, Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("suffix", [".blob", ".damaged", "-1.part"])
def test_what_has_our_names_and_is_not_ours_alone_is_refused(
    make: Make, directory: Path, suffix: str, put: Callable[[Path], object]
) -> None:
    make().close()
    path = directory / f"{digest_of(A)}{suffix}"
    put(path)
    with pytest.raises(ConfigurationError, match=path.name):
        make()
    assert names(directory) == {path.name}


def test_a_directory_that_is_not_ours_alone_is_refused(make: Make, directory: Path, tmp_path: Path) -> None:
    make().close()
    directory.chmod(0o750)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        make()
    directory.chmod(0o700)
    (tmp_path / "link").symlink_to(directory)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        DiskBlobs(tmp_path / "link", bytes_max=1)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        DiskBlobs(tmp_path / "file", bytes_max=1)
    make()


def test_a_directory_of_somebody_else_is_refused(make: Make, directory: Path) -> None:
    if os.geteuid():
        pytest.skip("takes root")
    make().close()
    os.chown(directory, 1, 1)
    with pytest.raises(ConfigurationError, match="belongs to user 1"):
        make()
    os.chown(directory, 0, 0)


def test_a_directory_that_is_moved_is_still_the_one_that_was_checked(
    make: Make, directory: Path, tmp_path: Path
) -> None:
    blobs = make()
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path)
    blobs.put(A)
    assert read_all(blobs, A) == A
    assert names(tmp_path / "moved") == {blob_path(directory, A).name}


# Damage.


def flipped(index: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[index] ^= 1
        path.write_bytes(data)

    return damage


def cut_off(size_bytes: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size_bytes)


def replaced(path: Path) -> None:
    """By a whole and right file of another blob."""
    shutil.copy(blob_path(path.parent, B), path)


def of_another_version(path: Path) -> None:
    """Its head is whole, and holds something else."""
    body = b"{}".ljust(HEAD_BYTES - 16)
    path.write_bytes(b"sctxblb1" + xxhash.xxh3_64_digest(body) + body + A)


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(blob_path(path.parent, B))


def special(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


DAMAGES = {
    "magic": flipped(0),
    "head hash": flipped(8),
    "label": flipped(20),
    "end of head": flipped(HEAD_BYTES - 1),
    "first": flipped(HEAD_BYTES),
    "last": flipped(-1),
    "empty": cut_off(0),
    "short head": cut_off(HEAD_BYTES - 1),
    "head": cut_off(HEAD_BYTES),
    "short": cut_off(HEAD_BYTES + 99),
    "long": cut_off(HEAD_BYTES + 101),
    "another": replaced,
    "another version": of_another_version,
    "gone": Path.unlink,
    "link": linked,
    "pipe": special,
}


# A store does not even start with a link or a pipe, and does not miss what is gone.
AT_REST = [what for what in DAMAGES if what not in {"gone", "link", "pipe"}]


@pytest.mark.parametrize(
    ("what", "is_running"), [*((what, False) for what in AT_REST), *((what, True) for what in DAMAGES)]
)
def test_a_damaged_blob_is_not_found_and_makes_room_for_a_good_one(
    make: Make, directory: Path, what: str, is_running: bool
) -> None:
    blobs = make()
    blobs.put(A, name="a")
    blobs.put(B)
    if not is_running:
        blobs.close()
    path = blob_path(directory, A)
    DAMAGES[what](path)
    if not is_running:
        blobs = make()
    assert not is_readable(blobs, A)
    assert not is_readable(blobs, A)
    assert blobs.counters.damaged == 1
    assert uri_of(A) not in [info.uri for info in blobs.list()]
    assert (directory / f"{digest_of(A)}.damaged").is_symlink() == (what == "link")
    assert os.path.lexists(directory / f"{digest_of(A)}.damaged") == (what != "gone")
    assert blobs.counters.count == len(names(directory))
    assert not os.path.lexists(path)
    assert read_all(blobs, B) == B
    blobs.put(A)
    assert read_all(blobs, A) == A


@pytest.mark.parametrize("is_put", [False, True])
def test_a_damaged_blob_is_not_there_already(make: Make, directory: Path, is_put: bool) -> None:
    blobs = make()
    blobs.put(A)
    blobs.close()
    flipped(-1)(blob_path(directory, A))
    blobs = make()
    if is_put:
        blobs.put(A)
    else:
        writer = begun(blobs, A)
        assert writer.offset == 0
        writer.write(0, A)
        writer.commit()
    assert read_all(blobs, A) == A
    assert (blobs.counters.damaged, blobs.counters.deduplicated) == (1, 0)


def test_a_damaged_head_is_seen_by_the_list(make: Make, directory: Path) -> None:
    blobs = make()
    blobs.put(A)
    blobs.put(B)
    blobs.close()
    flipped(30)(blob_path(directory, A))
    blobs = make()
    assert [info.uri for info in blobs.list()] == [uri_of(B)]
    assert blobs.counters.damaged == 1


def test_what_was_set_aside_counts_and_goes_first(make: Make, directory: Path) -> None:
    blobs = make()
    blobs.put(A)
    blobs.put(B)
    blobs.close()
    flipped(-1)(blob_path(directory, B))
    blobs = make(bytes_max=200)
    assert not is_readable(blobs, B)
    assert (blobs.counters.bytes, blobs.counters.count) == (200, 2)
    blobs.close()
    blobs = make(bytes_max=200)
    assert (blobs.counters.bytes, blobs.counters.count) == (200, 2)
    blobs.put(C)
    assert (blobs.counters.bytes, blobs.counters.evicted) == (200, 0)
    assert names(directory) == {blob_path(directory, A).name, blob_path(directory, C).name}


def test_damage_that_repeats_keeps_the_last_only(make: Make, directory: Path) -> None:
    blobs = make()
    for _ in range(3):
        blobs.put(A)
        flipped(-1)(blob_path(directory, A))
        assert not is_readable(blobs, A)
    assert (blobs.counters.damaged, blobs.counters.bytes, blobs.counters.count) == (3, 100, 1)
    assert names(directory) == {f"{digest_of(A)}.damaged"}


@pytest.mark.parametrize("damage", [flipped(-1), cut_off(HEAD_BYTES + 50)])
def test_a_source_whose_file_is_written_to_has_changed(
    make: Make, directory: Path, damage: Callable[[Path], None]
) -> None:
    blobs = make()
    blobs.put(A)
    source = blobs.open(uri_of(A))
    os.utime(blob_path(directory, A), (1, 1))
    with pytest.raises(ResourceChanged):
        source.read(0, 100)
    source.close()
    # Touched, not damaged: its bytes are looked at again.
    source = blobs.open(uri_of(A))
    damage(blob_path(directory, A))
    with pytest.raises(ResourceChanged):
        source.read(0, 100)
    source.close()
    assert not is_readable(blobs, A)


def test_the_bytes_of_an_open_source_outlive_its_file(make: Make, directory: Path) -> None:
    blobs = make()
    blobs.put(A)
    source = blobs.open(uri_of(A))
    blob_path(directory, A).unlink()
    assert not is_readable(blobs, A)
    blobs.put(A)
    blobs.close()
    assert source.read(0, 100) == A
    source.close()


def of_another(path: Path) -> None:
    shutil.copy(blob_path(path.parent, B), path)


@pytest.mark.parametrize("damage", [flipped(0), flipped(20), cut_off(50), Path.unlink, of_another])
def test_a_damaged_part_is_begun_anew(make: Make, directory: Path, damage: Callable[[Path], None]) -> None:
    blobs = make()
    blobs.put(B)
    with begun(blobs, A) as writer:
        writer.write(0, A[:50])
    damage(part_path(directory, A))
    writer = begun(blobs, A)
    assert writer.offset == 0
    writer.write(0, A)
    writer.commit()
    assert read_all(blobs, A) == A


def test_a_part_whose_bytes_were_damaged_is_never_readable(make: Make, directory: Path) -> None:
    blobs = make()
    with begun(blobs, A) as writer:
        writer.write(0, A[:50])
    blobs.close()
    flipped(-1)(part_path(directory, A))
    blobs = make()
    writer = begun(blobs, A)
    writer.write(50, A[50:])
    with pytest.raises(ResourceError) as caught:
        writer.commit()
    assert refused(caught) == (ErrorCode.HASH_MISMATCH, False)
    assert not names(directory)


# Every call of the system.


class Calls:
    """The system as `blob_files` sees it. Something happens before each call, when half a write is done."""

    SEEN = frozenset({"pread", "pwrite", "fsync", "rename", "unlink", "utime", "ftruncate"})

    def __init__(self, before: Callable[[int, str], None]) -> None:
        self._before = before
        self.names: list[str] = []

    def __getattr__(self, name: str) -> object:
        real: Callable[..., object] = getattr(os, name)

        def call(*arguments: object, **more: object) -> object:
            if name == "pwrite":
                # As a crash or a full disk may leave it.
                descriptor, data, offset = arguments
                assert isinstance(data, memoryview)
                os.pwrite(descriptor, data[: len(data) // 2], offset)  # type: ignore[arg-type]
            self.names.append(name)
            self._before(len(self.names) - 1, name)
            return real(*arguments, **more)

        return call if name in self.SEEN else self._open if name == "open" else real

    def _open(self, path: str, flags: int, *more: int, **directory: int) -> int:
        self.names.append("create" if flags & os.O_CREAT else "open")
        self._before(len(self.names) - 1, self.names[-1])
        return os.open(path, flags, *more, **directory)


def upload(blobs: Blobs) -> None:
    """A blob that is evicted, and one that is uploaded in two goes."""
    blobs.put(B)
    with begun(blobs, A) as writer:
        writer.write(0, A[:60])
    writer = begun(blobs, A)
    writer.write(60, A[60:])
    writer.commit()


def test_after_a_crash_at_any_point_there_is_the_blob_or_a_part(
    make: Make, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = make(bytes_max=150)
    calls = Calls(lambda index, _: void(shutil.copytree(directory, tmp_path / f"{index}")))
    monkeypatch.setattr(blob_files, "os", calls)
    upload(blobs)
    monkeypatch.undo()
    # Synced before it has its name, and the name after it.
    assert calls.names[-4:] == ["utime", "fsync", "rename", "fsync"]
    states = []
    for index in range(len(calls.names)):
        left = DiskBlobs(tmp_path / f"{index}", bytes_max=1000)
        for data in (A, B):
            if is_readable(left, data):
                assert read_all(left, data) == data
        states.append((is_readable(left, A), is_readable(left, B)))
        got = left.begin(digest_of(A), 100)
        if not isinstance(got, ResourceInfo):
            got.write(got.offset, A[got.offset :])
            got.commit()
        assert read_all(left, A) == A
        assert left.counters.mismatched == left.counters.damaged == 0
        left.close()
        others = {blob_path(directory, B).name}, {part_path(directory, B).name}, set[str]()
        assert names(tmp_path / f"{index}") - {blob_path(directory, A).name} in others
    assert [state for state, _ in groupby(states)] == [
        (False, False),
        (False, True),
        (False, False),
        (True, False),
    ]


def void(_: object) -> None:
    """Nothing."""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_a_disk_that_fails_at_any_point_leaves_no_litter(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failing = -1
    failed: list[str] = []

    def fail(index: int, name: str) -> None:
        if index == failing:
            failed.append(name)
            raise OSError(number, os.strerror(number))

    expected = (ErrorCode.INTERNAL, False) if number == errno.EIO else (ErrorCode.UNAVAILABLE, True)
    calls = Calls(fail)
    while failing < len(calls.names):
        failing += 1
        calls = Calls(fail)
        blobs = make()
        monkeypatch.setattr(blob_files, "os", calls)
        try:
            upload(blobs)
        except ResourceError as error:
            assert (error.code, error.is_temporary) == expected
            assert str(directory) not in str(error)
            assert digest_of(A) not in str(error)
        monkeypatch.undo()
        counters = blobs.counters
        held = names(directory)
        assert len(held) == counters.count
        sizes = [path.stat().st_size - HEAD_BYTES for path in directory.iterdir()]
        # A writer that was not closed counts with all that it may have.
        is_open = any(name.endswith(".part") for name in held)
        assert sum(sizes) == counters.bytes or (is_open and sum(sizes) <= counters.bytes)
        blobs.close()
        blobs = make()
        assert blobs.counters.bytes == sum(sizes)
        blobs.put(A)
        assert read_all(blobs, A) == A
        blobs.close()
        shutil.rmtree(directory)
    # The order of use and the age of a part are worth a try only; all else was told.
    assert set(failed) >= {"create", "open", "pread", "pwrite", "fsync", "rename", "utime"}


@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_blob_that_cannot_be_read_now_is_not_taken_for_damaged(
    make: Make, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(_: int, name: str) -> None:
        if name == call:
            raise OSError(errno.EMFILE, "too many")

    blobs = make()
    blobs.put(A)
    blobs.close()
    blobs = make(bytes_max=100)
    monkeypatch.setattr(blob_files, "os", Calls(fail))
    asks: list[Callable[[], object]] = [
        lambda: blobs.open(uri_of(A)),
        lambda: next(blobs.list()),
        lambda: blobs.begin(digest_of(A), 100),
    ]
    for ask in asks:
        with pytest.raises(ResourceError) as caught:
            ask()
        assert refused(caught) == (ErrorCode.UNAVAILABLE, True)
    monkeypatch.undo()
    assert read_all(blobs, A) == A
    assert blobs.counters.damaged == 0
    # Nor is it still taken for open.
    blobs.put(B)


def test_damage_that_two_see_at_once_is_counted_once(
    make: Make, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = make()
    blobs.put(A)
    blobs.close()
    flipped(-1)(blob_path(directory, A))
    blobs = make()

    def see_first(_: int, name: str) -> None:
        if name == "pread":
            monkeypatch.undo()
            assert not is_readable(blobs, A)
            blobs.put(A)

    monkeypatch.setattr(blob_files, "os", Calls(see_first))
    assert not is_readable(blobs, A)
    assert read_all(blobs, A) == A
    assert blobs.counters.damaged == 1


def test_a_system_that_gives_and_takes_little_at_a_time_is_asked_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stingy:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def pread(self, descriptor: int, count: int, offset: int) -> bytes:
            return os.pread(descriptor, min(count, 7), offset)

        def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
            return os.pwrite(descriptor, data[:7], offset)

    monkeypatch.setattr(blob_files, "os", Stingy())
    blobs = make()
    blobs.put(A)
    blobs.close()
    source = make().open(uri_of(A))
    assert source.read(0, 1000) == A
    source.close()


def test_a_write_that_failed_can_be_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int, name: str) -> None:
        if name in ("pwrite", "ftruncate"):
            raise OSError(errno.ENOSPC, "full")

    blobs = make()
    writer = begun(blobs, A)
    writer.write(0, A[:20])
    monkeypatch.setattr(blob_files, "os", Calls(fail))
    for _ in range(2):
        with pytest.raises(ResourceError, match="full") as caught:
            writer.write(20, A[20:80])
        assert refused(caught) == (ErrorCode.UNAVAILABLE, True)
        assert writer.offset == 20
    monkeypatch.undo()
    writer.write(20, A[20:])
    writer.commit()
    assert read_all(blobs, A) == A


def test_what_cannot_be_evicted_is_still_there(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int, name: str) -> None:
        if name == "unlink":
            raise OSError(errno.EROFS, "read only")

    blobs = make(bytes_max=100)
    blobs.put(B)
    monkeypatch.setattr(blob_files, "os", Calls(fail))
    with pytest.raises(ResourceError) as caught:
        blobs.put(A)
    assert refused(caught) == (ErrorCode.INTERNAL, False)
    monkeypatch.undo()
    assert read_all(blobs, B) == B
    assert (blobs.counters.bytes, blobs.counters.evicted) == (100, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(path))
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no small disk can be mounted: takes root")
    try:
        yield path
    finally:
        subprocess.run(("umount", "--lazy", str(path)), check=True)


def test_a_full_disk_is_told_and_can_be_used_on(small_disk: Path) -> None:
    blobs = DiskBlobs(small_disk / "blobs", bytes_max=1 << 20)
    blobs.put(A)
    large, fitting = content(60_000, 8), content(40_000, 9)
    with pytest.raises(ResourceError, match="disk of the blobs is full") as caught:
        blobs.put(large)
    assert refused(caught) == (ErrorCode.UNAVAILABLE, True)
    assert names(small_disk / "blobs") == {blob_path(small_disk, A).name}
    with begun(blobs, large) as writer:
        writer.write(0, large[:20_000])
        with pytest.raises(ResourceError) as caught:
            writer.write(20_000, large[20_000:])
        assert refused(caught) == (ErrorCode.UNAVAILABLE, True)
        assert part_path(small_disk / "blobs", large).stat().st_size == HEAD_BYTES + 20_000
        writer.abandon()
    blobs.put(fitting)
    assert [read_all(blobs, data) for data in (A, fitting)] == [A, fitting]
    blobs.close()
