"""A recorded hub, fed its own inputs again, sends the same bytes; and one that would not is found out."""

from __future__ import annotations

import logging
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from streamctx.cli.rerun import Rerun, TracedFrame
from streamctx.core.session.client_session import ClientSettings
from streamctx.errors import ConfigurationError
from streamctx.hub.hub import Hub
from streamctx.hub.recorder import (
    DebugLogError,
    LogEntry,
    RecordingHub,
    SeededIds,
    read_debug_log,
)
from streamctx.limits import Limits
from streamctx.vocabulary import Encoding
from streamctx.wire.changes import Change
from streamctx.wire.messages import ClientInfo, Cursor
from tests.sim.pair import PERFECT, PRINCIPAL, TOKEN, Faults, World

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

BAD = Faults(drop=0.05, duplicate=0.05, reorder=0.05, corrupt=0.02, cut=0.005)


class RecordedWorld(World):
    """A world whose hub is recorded."""

    def __init__(self, path: Path, *, faults: Faults = PERFECT, bytes_max: int = 100_000_000) -> None:
        self.path = path
        self.bytes_max = bytes_max
        super().__init__(1, faults, Limits(sessions_max=50))

    @override
    def _new_hub(self) -> Hub:
        self.recording = RecordingHub.create(
            self.path,
            tokens={TOKEN: PRINCIPAL},
            version="sim",
            limits=self.limits,
            bytes_max=self.bytes_max,
        )
        return self.recording  # type: ignore[return-value]  # A `HubPort` is all that a world needs.


def settings(role: str, encoding: Encoding) -> ClientSettings:
    return ClientSettings(
        client=ClientInfo(name=f"recorded {role}"),
        encoding=encoding,
        role=role,  # type: ignore[arg-type]
        token=TOKEN,
    )


def edit_for_a_while(world: World, *, steps: int = 60) -> None:
    """An editor that types, an observer that looks on and stalls for a while."""
    editor = world.client(settings("produce", Encoding.MSGPACK))
    observer = world.client(settings("observe", Encoding.JSON))
    observer.session.subscribe("*", world.now)
    document = editor.session.open("file:///work/a.py", "naïve 🙂\n" * 40, world.now)
    for step in range(steps):
        observer.is_stalled = 20 <= step < 40
        editor.session.edit(document.alias, [Change(step % 40, 0, step % 40, 0, "x")], world.now)
        cursor = Cursor(document=document.alias, version=document.version, position=(step % 40, 1))
        editor.session.put(cursor, world.now)
        editor.pump()
        world.hub.sweep(world.now)
        world.run(0.05)
    world.run(5.0)


def recorded(path: Path, *, faults: Faults = PERFECT) -> Path:
    world = RecordedWorld(path, faults=faults)
    edit_for_a_while(world)
    world.recording.close()
    return path


@pytest.mark.parametrize("faults", [PERFECT, BAD], ids=["perfect", "bad"])
def test_same_inputs_lead_to_the_same_frames(tmp_path: Path, faults: Faults) -> None:
    log = recorded(tmp_path / "log", faults=faults)
    rerun = Rerun(read_debug_log(log))
    assert rerun.run() is None
    assert rerun.frame_count > 100


def test_changed_input_is_found_where_it_first_shows(tmp_path: Path) -> None:
    log = recorded(tmp_path / "log")
    lines = log.read_bytes().splitlines(keepends=True)
    entries = [index for index, line in enumerate(lines) if b'"what":"message"' in line]
    changed = entries[len(entries) // 2]
    entry = msgspec.json.decode(lines[changed], type=LogEntry)
    assert entry.data is not None or entry.text is not None
    # A corrupt frame is not acknowledged as the good one was.
    broken = (
        msgspec.structs.replace(entry, data=entry.data[:-1] + bytes([entry.data[-1] ^ 1]))
        if entry.data is not None
        else msgspec.structs.replace(entry, text=f"{entry.text} ")
    )
    lines[changed] = msgspec.json.encode(broken) + b"\n"
    log.write_bytes(b"".join(lines))
    inputs_before = sum(b'"outputs"' not in line for line in lines[1:changed])
    difference = Rerun(read_debug_log(log)).run()
    assert difference is not None
    assert difference.input_index > inputs_before
    assert difference.recorded != difference.repeated


def test_every_frame_can_be_traced(tmp_path: Path) -> None:
    frames: list[TracedFrame] = []
    Rerun(read_debug_log(recorded(tmp_path / "log")), on_frame=frames.append).run()
    described = [frame.describe() for frame in frames]
    assert '"type": "hello"' in described[0]
    assert frames[0].is_input
    assert any('"type": "edit"' in text for text in described)
    assert not any("corrupt" in text for text in described)


def test_tracing_shows_corrupt_frames_as_such(tmp_path: Path) -> None:
    frames: list[TracedFrame] = []
    Rerun(read_debug_log(recorded(tmp_path / "log", faults=BAD)), on_frame=frames.append).run()
    assert any(frame.describe().startswith("corrupt frame") for frame in frames if frame.is_input)


def test_log_ends_at_its_bound_and_the_hub_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = RecordedWorld(tmp_path / "log", bytes_max=20_000)
    with caplog.at_level(logging.WARNING, logger="streamctx.server"):
        edit_for_a_while(world)
    assert not world.recording.is_recording
    assert (tmp_path / "log").stat().st_size <= 20_000
    assert [record.message for record in caplog.records if "debug log" in record.message] == [
        "the debug log ends here: it has reached 0.02 MB"
    ]
    [view] = world.hub.sessions(PRINCIPAL)[:1]
    assert view["documents"]
    rerun = Rerun(read_debug_log(tmp_path / "log"))
    assert rerun.run() is None
    assert rerun.input_count > 10


def test_log_of_a_killed_process_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    log = recorded(tmp_path / "log")
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    rerun = Rerun(read_debug_log(log))
    assert rerun.run() is None
    assert rerun.input_count > 10


def test_only_the_owner_can_read_the_log_and_it_holds_no_token_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    RecordingHub.create(log, tokens={TOKEN: PRINCIPAL}, version="sim", bytes_max=10_000).close()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert TOKEN not in log.read_text()


def test_log_is_never_written_over_another_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("mine")
    with pytest.raises(ConfigurationError, match="a new file is needed"):
        RecordingHub.create(log, tokens={}, version="sim", bytes_max=10_000)
    assert log.read_text() == "mine"


@pytest.mark.parametrize("content", ["", "{}\n", "no JSON\n", '{"streamctx_debug_log": 2}\n'])
def test_another_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "log").write_text(content)
    with pytest.raises(DebugLogError, match="not a debug log"):
        read_debug_log(tmp_path / "log")


def test_broken_line_is_named_without_its_content(tmp_path: Path) -> None:
    log = recorded(tmp_path / "log")
    lines = log.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"now":1,"what":"message","text":["secret"]}\n'
    log.write_bytes(b"".join(lines))
    with pytest.raises(DebugLogError, match="line 4") as caught:
        Rerun(read_debug_log(log)).run()
    assert "secret" not in str(caught.value)


def test_seeded_ids_follow_from_the_seed_and_never_repeat() -> None:
    ids, again, others = SeededIds(b"seed"), SeededIds(b"seed"), SeededIds(b"other")
    drawn = [ids() for _ in range(100)]
    assert drawn == [again() for _ in range(100)]
    assert len({*drawn, *(others() for _ in range(100))}) == 200
    assert {len(drawn_id) for drawn_id in drawn} == {43}
