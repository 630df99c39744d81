"""The file of an outbox: whatever becomes of it, it is read as it was up to a batch, or not at all."""

from __future__ import annotations

import os
import random
import stat
import sys
from pathlib import Path

import pytest

from streamctx.client.outbox_file import OutboxFile, read_batches
from streamctx.core.session.outbox_records import AttemptMade, Bound, EventsGone, OutboxRecord
from streamctx.core.session.outbox_state import OutboxDamaged, OutboxState
from streamctx.errors import ConfigurationError
from streamctx.limits import MIB

__all__: list[str] = []

BATCHES: list[list[OutboxRecord]] = [
    [AttemptMade(1), Bound("design", 3, True)],
    [AttemptMade(2)],
    [EventsGone((1, 2, 300)), AttemptMade(70_000)],
]


def written(directory: Path, *, bytes_max: int = MIB) -> bytes:
    file = OutboxFile(directory, fsync=False)
    assert file.rewrite(BATCHES[0], bytes_max)
    for batch in BATCHES[1:]:
        assert file.append(batch, bytes_max)
    data = (directory / "outbox.log").read_bytes()
    assert file.size_bytes == len(data)
    file.close()
    return data


def ends(data: bytes) -> list[int]:
    """Where batches end."""
    found = [len(b"streamctx outbox 1\n")]
    while found[-1] < len(data):
        found.append(found[-1] + 16 + int.from_bytes(data[found[-1] : found[-1] + 4], "big"))
    return found


def test_what_was_written_is_read(tmp_path: Path) -> None:
    data = written(tmp_path)
    assert list(read_batches(data)) == BATCHES
    file = OutboxFile(tmp_path, fsync=False)
    assert file.read(MIB).attempt == 70_000
    assert file.read(len(data)).attempt == 70_000
    with pytest.raises(OutboxDamaged, match="limit"):
        file.read(len(data) - 1)
    file.close()


def test_torn_end_is_cut_off_wherever_it_tears(tmp_path: Path) -> None:
    data = written(tmp_path)
    stops = ends(data)
    for length in range(len(data) + 1):
        whole = max((index for index, stop in enumerate(stops) if stop <= length), default=0)
        assert list(read_batches(data[:length])) == BATCHES[:whole]


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    data = written(tmp_path)
    for index in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[index] ^= 1 << bit
            with pytest.raises(OutboxDamaged):
                list(read_batches(bytes(flipped)))


def test_batch_that_was_moved_doubled_or_taken_out_is_found(tmp_path: Path) -> None:
    data = written(tmp_path)
    _, first, second, third = ends(data)
    for changed in (
        data[:first] + data[second:],
        data[:second] + data[first:],
        data[:first] + data[second:third] + data[first:second],
    ):
        with pytest.raises(OutboxDamaged):
            list(read_batches(changed))


def test_noise_is_no_outbox() -> None:
    chance = random.Random(5)
    for _ in range(200):
        with pytest.raises(OutboxDamaged):
            list(read_batches(chance.randbytes(chance.randint(1, 200))))
    with pytest.raises(OutboxDamaged):
        list(read_batches(b"streamctx outbox 2\n"))


def test_rewrite_takes_the_place_of_all_before(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path, fsync=True)
    assert file.read(MIB) == OutboxState()
    for number in range(1, 4):
        assert file.rewrite([AttemptMade(number)], MIB)
        assert file.append([Bound("design", number, True)], MIB)
    state = file.read(MIB)
    assert (state.attempt, state.designs) == (3, {3})
    # One that was killed while it wrote anew has left its beginning.
    (tmp_path / "outbox.new").write_bytes(b"streamctx out")
    assert file.rewrite([AttemptMade(9)], MIB)
    assert file.read(MIB).attempt == 9
    file.close()


def test_nothing_is_written_beyond_the_bound(tmp_path: Path) -> None:
    size = len(written(tmp_path))
    file = OutboxFile(tmp_path, fsync=False)
    assert file.rewrite(BATCHES[0], size)
    assert file.append(BATCHES[1], size)
    assert file.append(BATCHES[2], size)
    assert not file.append([AttemptMade(1)], size)
    assert file.size_bytes == size
    assert not file.rewrite(BATCHES[0], ends((tmp_path / "outbox.log").read_bytes())[1] - 1)
    assert file.rewrite(BATCHES[0], ends((tmp_path / "outbox.log").read_bytes())[1])
    file.close()


def test_abandoned_log_leaves_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    file = OutboxFile(tmp_path, fsync=False)
    assert file.rewrite(BATCHES[0], MIB)
    file.abandon()
    assert not file.is_open
    assert file.read(MIB) == OutboxState()
    file.close()


def test_another_client_is_kept_out_until_it_is_closed(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path, fsync=False)
    with pytest.raises(ConfigurationError, match="in use by another client"):
        OutboxFile(tmp_path, fsync=False)
    file.close()
    OutboxFile(tmp_path, fsync=False).close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
def test_directory_and_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    written(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    (directory / "outbox.log").chmod(0o640)
    file = OutboxFile(directory, fsync=False)
    with pytest.raises(ConfigurationError, match="chmod 0600"):
        file.read(MIB)
    file.close()
    directory.chmod(0o770)
    with pytest.raises(ConfigurationError, match="chmod 0700"):
        OutboxFile(directory, fsync=False)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows makes links for administrators only")
def test_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path / "one")
    (tmp_path / "other").mkdir(mode=0o700)
    os.symlink(tmp_path / "one" / "outbox.log", tmp_path / "other" / "outbox.log")
    file = OutboxFile(tmp_path / "other", fsync=False)
    with pytest.raises(ConfigurationError, match="a file of ours is needed"):
        file.read(MIB)
    file.close()


def test_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="a directory of ours is needed"):
        OutboxFile(tmp_path / "file", fsync=False)


def test_the_data_directory_of_a_server_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    with pytest.raises(ConfigurationError, match="is the data directory of a server"):
        OutboxFile(tmp_path, fsync=False)
    assert [path.name for path in tmp_path.iterdir()] == ["store.db"]
