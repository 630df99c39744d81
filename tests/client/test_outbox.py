"""An outbox on disk beside a session: it grows no further than it may, and gives up as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from streamctx.client.outbox import Outbox
from streamctx.client.outbox_file import OutboxFile
from streamctx.core.session.client_events import ClientSettings
from streamctx.limits import DEFAULT_LIMITS, MIB, Limits
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo

__all__: list[str] = []

_FULL = OSError(28, "No space left on device")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(directory: Path, clock: Clock, *, limits: Limits = DEFAULT_LIMITS) -> Outbox:
    settings = ClientSettings(client=ClientInfo(name="c"), limits=limits)
    file = OutboxFile(directory, fsync=False)
    return Outbox(file, settings, fsync=False, clock=clock, jitter=lambda: 0.5)


def restored_texts(directory: Path, *, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    outbox = opened(directory, Clock(), limits=limits)
    texts = [document.buffer.text() for document in outbox.session.unclaimed]
    outbox.close()
    return texts


def is_suspended(outbox: Outbox) -> bool:
    return outbox.status.is_suspended  # A call, so that the type checker forgets what it was.


def test_text_survives_the_process_that_saved_it(tmp_path: Path) -> None:
    outbox = opened(tmp_path, Clock())
    assert outbox.status.found == "nothing"
    document = outbox.session.open("file:///a", "abc", 0.0)
    outbox.save()
    for _ in range(100):
        outbox.session.edit(document.alias, [Change(0, 0, 0, 0, "x")], 0.0)
        outbox.save()
    outbox.close()
    outbox = opened(tmp_path, Clock())
    # No WELCOME has come: there is no session yet.
    assert outbox.status.found == "documents"
    assert [document.buffer.text() for document in outbox.session.unclaimed] == ["x" * 100 + "abc"]
    assert outbox.session.pending == 102  # The 64th edit is followed by a hash.
    outbox.close()


def test_log_is_made_small_again_and_the_text_stays(tmp_path: Path) -> None:
    outbox = opened(tmp_path, Clock())
    document = outbox.session.open("file:///a", "", 0.0)
    for _ in range(60):
        outbox.session.replace_text(document.alias, "y" * 100_000, 0.0)
        outbox.save()
        assert outbox.status.size_bytes <= 4 * MIB + 100_100
    assert outbox.status.compactions == 1
    assert (tmp_path / "outbox.log").stat().st_size == outbox.status.size_bytes
    outbox.close()
    assert restored_texts(tmp_path) == ["y" * 100_000]


def test_more_than_fits_is_kept_not_at_all_until_it_fits_again(tmp_path: Path) -> None:
    limits = replace(DEFAULT_LIMITS, outbox_bytes_max=17 * MIB)
    clock = Clock()
    outbox = opened(tmp_path, clock, limits=limits)
    outbox.session.open("file:///small", "small", 0.0)
    outbox.save()
    large = outbox.session.open("file:///large", "z" * 18 * MIB, 0.0)
    outbox.save()
    assert is_suspended(outbox)
    assert outbox.status.suspensions == 1
    assert not (tmp_path / "outbox.log").exists()
    outbox.session.replace_text(large.alias, "fits", 0.0)
    outbox.save()
    assert is_suspended(outbox)
    clock.now = 1.0
    outbox.save()
    assert not is_suspended(outbox)
    outbox.close()
    assert restored_texts(tmp_path, limits=limits) == ["small", "fits"]


@pytest.mark.parametrize("written", [0, 5])
def test_full_disk_leaves_no_half_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    clock = Clock()
    outbox = opened(tmp_path, clock)
    document = outbox.session.open("file:///a", "a", 0.0)
    outbox.save()
    write: Callable[[int, bytes], int] = os.write

    def fail(descriptor: int, data: bytes) -> int:
        if len(data) <= written or not written:
            raise _FULL
        return write(descriptor, data[:-written])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        outbox.session.edit(document.alias, [Change(0, 0, 0, 0, "b")], 0.0)
        outbox.save()
        assert is_suspended(outbox)
        assert not (tmp_path / "outbox.log").exists()
        clock.now = 5.0
        outbox.save()
        assert is_suspended(outbox)
    assert outbox.status.suspensions == 1
    clock.now = 10.0
    outbox.save()
    assert not is_suspended(outbox)
    outbox.close()
    assert restored_texts(tmp_path) == ["ba"]


def test_damaged_outbox_is_said_to_be_so_and_a_new_session_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = opened(tmp_path, Clock())
    outbox.session.open("file:///secret-name", "secret text", 0.0)
    outbox.save()
    outbox.close()
    log = tmp_path / "outbox.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    outbox = opened(tmp_path, Clock())
    assert outbox.status.found == "damage"
    assert outbox.session.unclaimed == []
    assert "a new session begins" in caplog.text
    assert "secret" not in caplog.text
    outbox.close()
    assert restored_texts(tmp_path) == []


def test_session_that_has_ended_leaves_nothing(tmp_path: Path) -> None:
    outbox = opened(tmp_path, Clock())
    outbox.session.open("file:///a", "a", 0.0)
    outbox.save()
    outbox.end()
    outbox.save()
    outbox.close()
    outbox = opened(tmp_path, Clock())
    assert outbox.status.found == "nothing"
    outbox.close()


def test_limits_of_an_outbox_are_above_those_of_what_waits() -> None:
    with pytest.raises(ValueError, match="outbox_bytes_max"):
        replace(DEFAULT_LIMITS, outbox_bytes_max=DEFAULT_LIMITS.ring_bytes_max)
