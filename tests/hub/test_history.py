"""The texts of the past are those that there were, and what cannot be had says what can."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.session.stored import JournalBatch, SessionRecord, SessionState
from streamctx.engine.base import Done, Loaded, Past, StoreError, Summary
from streamctx.engine.memory import MemoryEngine
from streamctx.engine.sqlite.store import SqliteStore
from streamctx.hub.history import NotInHistory, SessionPast
from streamctx.vocabulary import HashAlgorithm
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Close,
    DesignOpen,
    DesignPage,
    DesignTool,
    Edit,
    Open,
    Part,
    Skip,
    Snapshot,
    Version,
    Welcome,
    Workspace,
)
from tests.engine.clock import Clock
from tests.hub.peers import ALL, OTHER, Raw, Stage, opened

if sys.version_info >= (3, 12):
    pass
else:
    pass

__all__: list[str] = []

HISTORY_S = 60.0
START = Clock.now


class Sqlite:
    """An engine that does all at once, in a real file; a snapshot is due after each fifth batch."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.durability = "full"
        self.store = SqliteStore.open(directory / "data", history_s=HISTORY_S, clock=clock)
        self._appended = 0

    def _write(self, write: Callable[[], None], done: Done) -> None:
        try:
            write()
        except StoreError as error:
            done(error)
        else:
            done(None)

    def fence(self, record: SessionRecord, done: Done) -> None:
        self._write(lambda: self.store.fence(record), done)

    def append(self, session_id: str, epoch: str, batch: JournalBatch, done: Done) -> None:
        self._appended += 1
        self._write(lambda: self.store.append(session_id, epoch, batch), done)

    def is_snapshot_due(self, _: str) -> bool:
        return self._appended % 5 == 0

    def snapshot(
        self, session_id: str, epoch: str, state: SessionState, done: Done, *, purge: bool = False
    ) -> None:
        self._write(lambda: self.store.snapshot(session_id, epoch, state, purge=purge), done)
        while self.store.upkeep(is_idle=True):
            pass

    def load(self, session_id: str, done: Callable[[Loaded], None]) -> None:
        done(self.store.load(session_id))

    def tail(self, session_id: str, since: float, done: Callable[[Past], None]) -> None:
        done(self.store.tail(session_id, since))

    def forget(self, session_id: str, done: Done) -> None:
        self._write(lambda: self.store.forget(session_id), done)

    def summaries(self) -> list[Summary]:
        return self.store.summaries()


def places_of(text: str) -> Iterator[tuple[int, int, int]]:
    """Each place where a change may begin or end: index, line, and character in UTF-16."""
    line = character = 0
    for index, sign in enumerate(text):
        if text[index - 1 : index + 1] != "\r\n":
            yield index, line, character
        if sign == "\n" or (sign == "\r" and text[index + 1 : index + 2] != "\n"):
            line, character = line + 1, 0
        else:
            character += 1 + (ord(sign) > 0xFFFF)
    yield len(text), line, character


def length_of(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


class Editor:
    """An editor that remembers every text that it sent, with its time."""

    def __init__(self, engine: object, clock: Clock) -> None:
        self.clock = clock
        self.raw: Raw = Stage(engine=engine).joined()  # type: ignore[arg-type]
        self.sequence = 0
        self.opening = 0
        self.version = 0
        self.text = ""
        self.is_stale = False
        self.disproved: set[tuple[int, int]] = set()
        self.texts: dict[tuple[int, int], tuple[float, str]] = {}
        """By opening, counted from the first, and version."""

    def send(self, message: object) -> None:
        self.sequence += 1
        self.raw.send(message, self.sequence)  # type: ignore[arg-type]

    def remember(self) -> None:
        """What is sent while the document waits for a snapshot is dropped."""
        if not self.is_stale:
            self.texts[self.opening, self.version] = (self.clock.now, self.text)

    def open(self, text: str, *, version: int = 1, parts: bool = False) -> None:
        self.opening += 1
        self.version, self.text, self.is_stale = version, text, False
        message = msgspec.structs.replace(opened(text), version=version, length=length_of(text))
        if parts:
            self.send(msgspec.structs.replace(message, text=None, parts=2))
            self.send(Part(document=1, version=version, index=0, text=text[:1]))
            self.send(Part(document=1, version=version, index=1, text=text[1:]))
        else:
            self.send(message)
        self.remember()

    def edit(self, place: float, removed: int, text: str, *, jump: int = 1) -> None:
        places = list(places_of(self.text))
        first = round(place * (len(places) - 1))
        start, *position = places[first]
        stop, *end = places[min(first + removed, len(places) - 1)]
        change = Change(position[0], position[1], end[0], end[1], text)
        self.text = self.text[:start] + text + self.text[stop:]
        self.send(Edit(document=1, base=self.version, version=self.version + jump, changes=(change,)))
        self.version += jump
        self.remember()

    def heal(self, text: str) -> None:
        self.version, self.text, self.is_stale = self.version + 1, text, False
        self.send(
            Snapshot(
                document=1,
                version=self.version,
                length=length_of(text),
                hash=text_hash(text, HashAlgorithm.XXH3_64),
                text=text,
            )
        )
        self.remember()

    def verify(self) -> None:
        self.send(
            Version(
                document=1,
                version=self.version,
                length=length_of(self.text),
                hash=text_hash(self.text, HashAlgorithm.XXH3_64),
            )
        )

    def err(self) -> None:
        """Have another text than was sent."""
        self.send(
            Version(
                document=1,
                version=self.version,
                length=length_of(self.text),
                hash=text_hash(self.text + "y", HashAlgorithm.XXH3_64),
            )
        )
        if not self.is_stale:
            self.disproved.add((self.opening, self.version))
            del self.texts[self.opening, self.version]
        self.is_stale = True

    def leave_out(self) -> None:
        """Skip a version, so that the next edit is refused."""
        self.send(edit(self.version + 1, "x"))
        self.is_stale = True

    def lose(self) -> None:
        """Give a number up for good."""
        self.sequence += 1
        self.raw.send(Skip(ranges=((self.sequence, self.sequence + 1),), reason="evicted"))
        self.is_stale = True

    def close(self) -> None:
        self.send(Close(document=1))

    def past(self) -> SessionPast:
        found: list[object] = []
        hub = self.raw.stage.hub
        hub.past(ALL, self.raw.of(Welcome)[-1].session, found.append)
        assert isinstance(found[0], SessionPast)
        return found[0]


def past_of(*messages: object, **hello: object) -> SessionPast:
    """What is kept of a session that sent these."""
    editor = Editor(MemoryEngine(durability="full"), Clock())
    if hello:
        editor.raw = Stage(engine=MemoryEngine(durability="full")).joined(**hello)  # type: ignore[arg-type]
    for message in messages:
        editor.send(message)
    return editor.past()


def edit(base: int, text: str, *, document: int = 1) -> Edit:
    return Edit(document=document, base=base, version=base + 1, changes=(Change(0, 0, 0, 0, text),))


TEXTS = st.text(st.sampled_from("ab\n\r🙂é"), max_size=6)
STEPS = st.one_of(
    st.tuples(
        st.just("edit"), st.floats(0, 1), st.integers(0, 4), TEXTS, st.integers(1, 3), st.floats(0, 20)
    ),
    st.tuples(st.just("heal"), TEXTS),
    st.sampled_from([("verify",), ("err",), ("leave out",), ("lose",)]),
    st.tuples(st.just("reopen"), TEXTS, st.integers(1, 4), st.booleans(), st.booleans()),
)


def play(editor: Editor, steps: list[tuple[object, ...]]) -> None:
    editor.open("start\n")
    for step in steps:
        match step:
            case ("edit", float(place), int(removed), str(text), int(jump), float(pause)):
                editor.clock.now += pause
                editor.edit(place, removed, text, jump=jump)
            case ("heal", str(text)):
                editor.heal(text)
            case ("verify",):
                editor.verify()
            case ("err",):
                editor.err()
            case ("leave out",):
                editor.leave_out()
            case ("lose",):
                editor.lose()
            case ("reopen", str(text), int(version), bool(is_closed), bool(parts)):
                if is_closed:
                    editor.close()
                editor.open(text + "x", version=version, parts=parts)


def demand_all_texts(editor: Editor) -> None:
    past = editor.past()
    by_alias, by_uri = past.document("1"), past.document("file:///a.py")
    assert by_alias == by_uri
    kept = {(editor.opening + 1 - moment.opened, moment.version): moment for moment in by_alias.moments}
    assert set(kept) <= set(editor.texts) | editor.disproved
    for opening, version in editor.disproved.intersection(kept):
        with pytest.raises(NotInHistory) as error:
            past.text("1", version, opened=editor.opening + 1 - opening)
        assert error.value.reason == "stale"
    for (opening, version), (at, text) in editor.texts.items():
        if at >= editor.clock.now - HISTORY_S:
            assert (opening, version) in kept, "what is within the history's reach is there"
        if (opening, version) in kept:
            found = past.text("1", version, opened=editor.opening + 1 - opening)
            assert found.text == text
            assert found.hash == text_hash(text, HashAlgorithm.XXH3_64)
            assert found.moment.at is None or abs(found.moment.at - at) < 0.001
            assert not found.moment.is_stale


@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_every_text_within_reach_is_read_back_from_memory(steps: list[tuple[object, ...]]) -> None:
    clock = Clock()
    engine = MemoryEngine(durability="full", history_s=HISTORY_S, snapshot_batches=5, clock=clock)
    editor = Editor(engine, clock)
    play(editor, steps)
    demand_all_texts(editor)


@settings(deadline=None, max_examples=15)
@given(st.lists(STEPS, max_size=40))
def test_every_text_within_reach_is_read_back_from_a_file(steps: list[tuple[object, ...]]) -> None:
    clock = Clock()
    with TemporaryDirectory() as directory:
        engine = Sqlite(Path(directory), clock)
        editor = Editor(engine, clock)
        play(editor, steps)
        demand_all_texts(editor)
        engine.store.close()


def test_the_oldest_are_gone_and_said_to_be() -> None:
    clock = Clock()
    engine = MemoryEngine(durability="full", history_s=HISTORY_S, snapshot_batches=5, clock=clock)
    editor = Editor(engine, clock)
    editor.open("start")
    for _ in range(40):
        clock.now += 10
        editor.edit(0, 0, "x")
    past = editor.past()
    oldest = past.document("1").moments[0]
    assert 20 < oldest.version < 40
    assert oldest.at is None
    assert not past.is_complete
    with pytest.raises(NotInHistory, match=f"older than what is kept; nearest is {oldest.version}") as error:
        past.text("1", 2)
    assert (error.value.reason, error.value.nearest) == ("old", (oldest.version,))


@pytest.mark.parametrize(
    ("version", "message", "nearest"),
    [
        (0, "never was at version 0; nearest is 1", (1,)),
        (3, "never was at version 3; nearest are 2 and 5", (2, 5)),
        (9, "has not been at version 9; nearest is 5", (5,)),
    ],
)
def test_a_version_that_never_was_names_the_nearest(
    version: int, message: str, nearest: tuple[int, ...]
) -> None:
    past = past_of(opened("abc"), edit(1, "x"), msgspec.structs.replace(edit(2, "y"), version=5))
    with pytest.raises(NotInHistory, match=message) as error:
        past.text("1", version)
    assert (error.value.reason, error.value.nearest) == ("never", nearest)


def test_an_unknown_document_is_told_apart() -> None:
    past = past_of(opened("abc"))
    assert past.document("2").moments == ()
    for name in ("2", "file:///b.py", "", "9" * 20):
        with pytest.raises(NotInHistory) as error:
            past.text(name, 1)
        assert error.value.reason == "unknown"


def test_a_version_of_two_openings_is_the_newest_unless_another_is_named() -> None:
    past = past_of(opened("first"), edit(1, "x"), Close(document=1), opened("second"))
    found = past.text("1", 1)
    assert (found.text, found.moment.opened) == ("second", 1)
    assert [moment.opened for moment in found.openings] == [1, 2]
    assert past.text("1", 1, opened=2).text == "first"
    assert past.text("1", 2).text == "xfirst"
    with pytest.raises(NotInHistory, match="was opened 2 times in what is kept; 3 is asked for") as error:
        past.text("1", 1, opened=3)
    assert error.value.reason == "opening"
    with pytest.raises(NotInHistory, match="nearest is 1"):
        past.text("1", 2, opened=1)


def test_an_alias_that_went_to_another_document_is_told_by_its_uri() -> None:
    past = past_of(
        opened("of a", uri="file:///a.py"),
        edit(1, "x"),
        Close(document=1),
        opened("of b", uri="file:///b.py"),
        opened("again a", document=2, uri="file:///a.py"),
    )
    found = past.text("1", 1)
    assert (found.text, found.moment.uri) == ("of b", "file:///b.py")
    assert [moment.uri for moment in found.openings] == ["file:///b.py", "file:///a.py"]
    assert past.text("1", 2).moment.uri == "file:///a.py"
    assert [(moment.document, moment.version) for moment in past.document("file:///a.py").moments] == [
        (1, 1),
        (1, 2),
        (2, 1),
    ]
    assert past.text("file:///a.py", 1).text == "again a"
    assert past.text("file:///a.py", 1, opened=2).text == "of a"


def test_a_text_that_was_not_the_editors_is_refused_and_its_neighbours_are_not() -> None:
    wrong = Version(document=1, version=3, length=3, hash=text_hash("abc", HashAlgorithm.XXH3_64))
    healed = Snapshot(
        document=1, version=5, length=3, hash=text_hash("new", HashAlgorithm.XXH3_64), text="new"
    )
    past = past_of(opened("abc"), edit(1, "x"), edit(2, "y"), wrong, edit(3, "z"), healed)
    moments = past.document("1").moments
    assert [(moment.version, moment.is_stale) for moment in moments] == [
        (1, False),
        (2, False),
        (3, True),
        (5, False),
    ]
    assert [moment.is_verified for moment in moments] == [True, False, False, True]
    with pytest.raises(NotInHistory, match=r"version 3 was stale: .*; nearest are 2 and 5") as error:
        past.text("1", 3)
    assert error.value.reason == "stale"
    assert past.text("1", 2).text == "xabc"
    assert past.text("1", 5).text == "new"


def test_a_stale_version_that_a_snapshot_healed_is_there_once() -> None:
    wrong = Version(document=1, version=2, length=3, hash=text_hash("abc", HashAlgorithm.XXH3_64))
    healed = Snapshot(
        document=1, version=2, length=3, hash=text_hash("new", HashAlgorithm.XXH3_64), text="new"
    )
    past = past_of(opened("abc"), edit(1, "x"), wrong, healed)
    assert [(moment.version, moment.is_stale) for moment in past.document("1").moments] == [
        (1, False),
        (2, False),
    ]
    assert past.text("1", 2).text == "new"


def test_a_refused_edit_leaves_the_version_before_it() -> None:
    past = past_of(opened("abc"), edit(1, "x"), edit(7, "never"), edit(2, "dropped"))
    assert [moment.version for moment in past.document("1").moments] == [1, 2]
    assert past.text("1", 2).text == "xabc"


def test_an_open_that_was_refused_since_a_design_has_its_alias_is_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    engine = MemoryEngine(durability="full", history_s=0.0, snapshot_batches=1, clock=clock)
    editor = Editor(engine, clock)
    design = DesignOpen(
        document=1,
        uri="figma:///x",
        tool=DesignTool(name="figma"),
        file_name="x",
        pages=(DesignPage(id="0:1", name="one", order=0),),
    )
    editor.send(design)
    clock.now += 1
    editor.send(opened("other", document=2, uri="file:///b.py"))
    clock.now += 1
    monkeypatch.setattr(engine, "is_snapshot_due", lambda _: False)
    editor.send(opened("abc"))
    assert editor.raw.errors() == ["alias_in_use"]
    past = editor.past()
    assert past.document("1").moments == past.document("file:///a.py").moments == ()
    assert past.text("2", 1).text == "other"


def test_a_verified_version_says_so() -> None:
    text = "xabc"
    proof = Version(
        document=1, version=4, length=4, hash=text_hash(text, HashAlgorithm.XXH3_64), cause="idle"
    )
    past = past_of(opened("abc"), edit(1, "x"), proof)
    assert [(moment.version, moment.is_verified) for moment in past.document("1").moments] == [
        (1, True),
        (2, False),
        (4, True),
    ]
    assert past.text("1", 4).text == past.text("1", 2).text == text


def test_nothing_is_told_of_what_is_excluded_by_now(tmp_path: Path) -> None:
    folder = tmp_path.as_uri()
    editor = Editor(MemoryEngine(durability="full"), Clock())
    engine = MemoryEngine(durability="full")
    editor.raw = Stage(engine=engine).joined(workspace=Workspace(folders=(folder,), trusted=True))
    editor.send(Open(**{**msgspec.structs.asdict(opened("abc")), "uri": f"{folder}/plan.txt"}))
    editor.send(edit(1, "x"))
    assert editor.past().text("1", 2).text == "xabc"
    (tmp_path / ".streamctxignore").write_text("*.txt\n")
    past = editor.past()
    for name in ("1", f"{folder}/plan.txt"):
        assert past.document(name).moments == ()


def test_the_past_of_others_is_not_given() -> None:
    editor = Editor(MemoryEngine(durability="full"), Clock())
    editor.open("abc")
    found: list[object] = []
    editor.raw.stage.hub.past(OTHER, editor.raw.of(Welcome)[-1].session, found.append)
    assert found == [None]


def test_what_is_not_stored_has_no_past() -> None:
    raw = Stage().joined()
    raw.send(opened("abc"), 1)
    found: list[object] = []
    raw.stage.hub.past(ALL, raw.of(Welcome)[-1].session, found.append)
    assert found == [None]
