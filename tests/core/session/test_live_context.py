from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.core.session.live_context import Answers, LiveContext, TextBudget
from streamctx.errors import ErrorCode
from streamctx.limits import DEFAULT_LIMITS, Limits
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Close,
    Cursor,
    DesignClose,
    DesignNode,
    DesignOpen,
    DesignSelection,
    DesignTool,
    Edit,
    ErrorMessage,
    Event,
    FeedEvent,
    Focus,
    Mention,
    Open,
    Part,
    Save,
    Snapshot,
    SnapshotRequest,
    Stale,
    State,
    Version,
    Viewport,
)

__all__: list[str] = []

LIMITS = replace(
    DEFAULT_LIMITS,
    documents_per_session_max=2,
    document_bytes_max=20,
    part_text_bytes_max=10,
)


def hash_of(text: str) -> str:
    return text_hash(text, HashAlgorithm.XXH3_64)


def open_(text: str, *, document: int = 1, version: int = 1, uri: str | None = None, hash_: str = "") -> Open:
    return Open(
        document=document,
        uri=uri or f"file:///{document}.py",
        version=version,
        length=length_in(text, Unit.UTF_16),
        hash=hash_ or hash_of(text),
        text=text,
    )


def snapshot(text: str, version: int, *, hash_: str = "") -> Snapshot:
    return Snapshot(document=1, version=version, length=len(text), hash=hash_ or hash_of(text), text=text)


def edit(base: int, text: str = "x", *, version: int | None = None) -> Edit:
    return Edit(document=1, base=base, version=version or base + 1, changes=(Change(0, 0, 0, 0, text),))


def version_of(text: str, version: int) -> Version:
    return Version(document=1, version=version, length=len(text), hash=hash_of(text))


def cursor(version: int, character: int = 0, *, document: int = 1) -> Cursor:
    return Cursor(document=document, version=version, position=(0, character))


def design(document: int = 1, *, uri: str = "design:///1", capture: str = "off") -> DesignOpen:
    return DesignOpen(
        document=document,
        uri=uri,
        tool=DesignTool(name="t"),
        file_name="f",
        pages=(),
        capture=capture,  # type: ignore[arg-type]
    )


class Context:
    """A context, and the numbers that its events get."""

    def __init__(
        self,
        *,
        limits: Limits = LIMITS,
        budget: int = 10_000,
        unit: Unit = Unit.UTF_16,
        units: Sequence[Unit] = (),
    ) -> None:
        self.budget = TextBudget(budget)
        self.context = LiveContext(
            unit=unit,
            hash_algorithm=HashAlgorithm.XXH3_64,
            limits=limits,
            is_excluded=lambda uri: "secret" in uri,
            budget=self.budget,
        )
        self.context.feed.units = tuple(units)
        self.sequence = 0

    def apply(self, *events: Event, in_order: bool = True) -> Answers:
        answers: list[ErrorMessage | SnapshotRequest] = []
        for event in events:
            self.sequence += 1
            answers += self.context.apply(self.sequence, event, in_order=in_order)
        return answers

    def codes(self, *events: Event) -> list[str]:
        return [
            answer.code if isinstance(answer, ErrorMessage) else "request" for answer in self.apply(*events)
        ]

    def text(self) -> str | None:
        document = self.context.documents.get(1)
        return None if document is None or document.buffer is None else document.buffer.text()

    def shown(self) -> list[FeedEvent]:
        entries = self.context.feed.since(self.context.feed.first_offset)
        assert entries is not None
        return [entry.event for entry in entries]

    def state(self) -> list[FeedEvent]:
        return [event for event, _ in self.context.state_events(Unit.UTF_16)]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (edit(0), ErrorCode.BAD_VERSION),
        (edit(1, version=1), ErrorCode.BAD_VERSION),
        (Edit(document=1, base=1, version=2, changes=(Change(0, 9, 0, 9, ""),)), ErrorCode.BAD_POSITION),
        (Edit(document=1, base=1, version=2, changes=(Change(0, 1, 0, 0, ""),)), ErrorCode.BAD_CHANGE),
        (
            Edit(document=1, base=1, version=2, changes=(Change(0, 0, 0, 1, "", 2),)),
            ErrorCode.OLD_LENGTH_MISMATCH,
        ),
        (
            Edit(document=1, base=1, version=2, changes=(Change(0, 0, 0, 1, ""),), length=9),
            ErrorCode.LENGTH_MISMATCH,
        ),
        (version_of("abcd", 1), ErrorCode.LENGTH_MISMATCH),
        (version_of("abd", 1), ErrorCode.HASH_MISMATCH),
        (version_of("abc", 0), ErrorCode.BAD_VERSION),
        (snapshot("new", 2, hash_=hash_of("")), ErrorCode.HASH_MISMATCH),
        (snapshot("new", 0), ErrorCode.BAD_VERSION),
        (Snapshot(document=1, version=2, length=0, hash=""), ErrorCode.BAD_PART),
        (open_("new", version=9, hash_="x"), ErrorCode.HASH_MISMATCH),
        (Part(document=1, version=1, index=0, text=""), ErrorCode.BAD_PART),
    ],
)
def test_a_refusal_leaves_the_text_marks_it_stale_and_asks_once(event: Event, code: ErrorCode) -> None:
    context = Context()
    context.apply(open_("abc"))
    error, request = context.apply(event)
    assert isinstance(error, ErrorMessage)
    assert (error.code, error.reference, error.document) == (code, 2, 1)
    assert isinstance(request, SnapshotRequest)
    assert request.reason == ("mismatch" if isinstance(event, Version) else "refused")
    assert context.text() == "abc"
    assert context.apply(edit(1), version_of("abc", 1), Save(document=1, version=9)) == []
    assert [event for event in context.shown() if isinstance(event, Stale)] == [
        Stale(document=1, reason=request.reason)
    ]
    assert [e for e in context.state() if isinstance(e, Stale)] == [Stale(document=1, reason=request.reason)]
    assert context.codes(snapshot("healed", 5)) == []
    assert context.text() == "healed"
    assert not context.context.documents[1].is_stale
    assert context.context.counters.healed == 1


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (Save(document=1, version=2), ErrorCode.BAD_VERSION),
        (cursor(1, 9), ErrorCode.BAD_POSITION),
        (Mention(document=1, version=1, range=(0, 0, 0, 9)), ErrorCode.BAD_POSITION),
        (Mention(document=1, version=1, range=(0, 1, 0, 0)), ErrorCode.BAD_CHANGE),
        (open_("", uri="file:///other.py"), ErrorCode.ALIAS_IN_USE),
        (design(uri="file:///1.py"), ErrorCode.ALIAS_IN_USE),
        (Edit(document=7, base=1, version=2, changes=(Change(0, 0, 0, 0, ""),)), ErrorCode.UNKNOWN_DOCUMENT),
        (Close(document=7), ErrorCode.UNKNOWN_DOCUMENT),
        (cursor(1, document=7), ErrorCode.UNKNOWN_DOCUMENT),
        (Focus(document=7), ErrorCode.UNKNOWN_DOCUMENT),
        (DesignClose(document=1), ErrorCode.UNKNOWN_DOCUMENT),
        (DesignSelection(document=1, page="p", nodes=(), total=0), ErrorCode.UNKNOWN_DOCUMENT),
    ],
)
def test_what_fails_alone_leaves_the_document_sound(event: Event, code: ErrorCode) -> None:
    context = Context()
    context.apply(open_("abc"))
    assert context.codes(event) == [code]
    assert not context.context.documents[1].is_stale
    assert context.codes(edit(1)) == []


def test_a_text_may_not_take_the_alias_of_a_design_even_under_its_uri() -> None:
    context = Context()
    context.apply(design(uri="file:///1.py"))
    assert context.codes(open_("abc")) == [ErrorCode.ALIAS_IN_USE]
    assert context.text() is None


def test_the_third_unfit_text_in_a_row_closes_the_document_and_a_fitting_one_begins_the_count_anew() -> None:
    context = Context()
    unfit = snapshot("no", 2, hash_="x")
    context.apply(open_("abc"))
    assert context.codes(unfit, unfit, snapshot("yes", 3)) == [ErrorCode.HASH_MISMATCH, "request"] * 2
    unfit = snapshot("no", 4, hash_="x")
    assert context.codes(unfit, unfit, unfit)[-1] == ErrorCode.UNVERIFIABLE
    assert context.text() is None
    assert context.codes(edit(3), snapshot("late", 9), cursor(1)) == []
    assert isinstance(context.shown()[-1], Close)
    assert context.codes(open_("anew")) == []
    assert context.codes(edit(1)) == []


def test_a_document_at_its_size_limit_is_taken_and_one_byte_more_closes_it() -> None:
    context = Context()
    head = Open(document=1, uri="u", version=1, length=20, hash=hash_of("x" * 20), parts=2)
    parts = [Part(document=1, version=1, index=index, text="x" * 10) for index in range(2)]
    assert context.codes(head, *parts) == []
    assert context.codes(edit(1, "y")) == [ErrorCode.TOO_LARGE]
    assert context.text() is None
    assert context.codes(edit(1), snapshot("small", 9)) == []


def test_an_edit_near_the_size_limit_counts_what_it_removes() -> None:
    context = Context()
    context.apply(open_("x" * 10), edit(1, "y" * 10))
    change = Change(0, 0, 0, 10, "z" * 10)
    assert context.codes(Edit(document=1, base=2, version=3, changes=(change,))) == []


def test_a_text_in_one_message_may_have_the_limit_and_no_byte_more() -> None:
    assert Context().codes(open_("é" * 5)) == []
    assert Context().codes(open_("é" * 5 + "x")) == [ErrorCode.TOO_LARGE]


def test_one_document_more_than_allowed_is_refused_and_its_events_are_dropped() -> None:
    context = Context()
    assert context.codes(open_("a"), open_("b", document=2)) == []
    assert context.codes(open_("c", document=3), cursor(1, document=3), Close(document=3)) == [
        ErrorCode.LIMIT
    ]
    assert context.codes(Close(document=2), open_("c", document=3)) == []


def test_the_budget_of_all_texts_counts_edits_and_is_given_back() -> None:
    context = Context(budget=14)
    assert context.codes(open_("12345"), open_("12345", document=2)) == []
    assert context.codes(edit(1, "1234")) == []
    assert context.budget.used_bytes == 14
    assert context.codes(edit(2, "5")) == [ErrorCode.LIMIT]
    assert context.budget.used_bytes == 5
    context.context.end()
    assert context.budget.used_bytes == 0


def test_a_text_over_the_budget_is_never_told_of() -> None:
    context = Context(budget=4)
    assert context.codes(open_("12345")) == [ErrorCode.LIMIT]
    assert context.shown() == []
    assert context.budget.used_bytes == 0


def test_the_state_tells_of_a_document_now_and_not_how_its_open_fared() -> None:
    context = Context()
    context.apply(msgspec.structs.replace(open_("a"), is_offline=True, queued_ms=5000))
    [told] = [event for event in context.state() if isinstance(event, Open)]
    assert (told.is_offline, told.queued_ms) == (False, 0)


def test_an_excluded_document_leaves_no_trace() -> None:
    context = Context()
    assert context.codes(open_("password", uri="file:///secret")) == [ErrorCode.EXCLUDED]
    assert context.codes(edit(1), cursor(1), Save(document=1, version=1), State(document=1, dirty=True)) == []
    assert context.context.documents == {}
    assert list(context.context.presence()) == []
    assert context.shown() == []
    assert len(context.state()) == 1  # The attachment.
    assert context.context.is_refused(1)
    assert context.codes(Close(document=1)) == []
    assert context.codes(edit(1)) == [ErrorCode.UNKNOWN_DOCUMENT]


def test_a_focus_on_an_excluded_document_is_shown_as_none_also_if_it_comes_first() -> None:
    context = Context()
    context.apply(open_("abc", document=2), Focus(document=2))
    context.apply(Focus(document=1), cursor(1), in_order=False)
    assert context.shown()[-1] == Focus(document=2)
    context.apply(open_("password", uri="file:///secret"))
    assert list(context.context.presence()) == [Focus()]
    context.apply(Focus(document=2), Focus(document=1))
    assert list(context.context.presence()) == [Focus()]
    assert all(getattr(event, "document", None) != 1 for event in context.shown() + context.state())


def test_presence_ahead_of_a_gap_waits_for_its_document() -> None:
    context = Context()
    assert context.apply(cursor(2, 1), Focus(document=1), State(document=1, dirty=True), in_order=False) == []
    assert context.shown() == []
    context.apply(open_("abc"))
    assert set(map(type, context.context.presence())) == {Focus, State}
    context.apply(edit(1))
    assert cursor(2, 1) in list(context.context.presence())


def test_an_older_event_of_a_key_has_no_effect() -> None:
    context = Context()
    context.apply(open_("abc"))
    context.context.apply(9, cursor(1, 2), in_order=False)
    context.context.apply(5, cursor(1, 1), in_order=True)
    assert list(context.context.presence()) == [cursor(1, 2)]
    assert context.context.counters.superseded == 1


def test_a_cursor_of_a_later_version_waits_and_one_of_an_earlier_is_kept_unchecked() -> None:
    context = Context()
    context.apply(open_("abc"), cursor(2, 4))
    assert list(context.context.presence()) == []
    context.apply(edit(1))
    assert list(context.context.presence()) == [cursor(2, 4)]
    assert context.codes(cursor(1, 99)) == []
    assert list(context.context.presence()) == [cursor(1, 99)]


def test_presence_waits_while_a_document_is_stale() -> None:
    context = Context()
    context.apply(open_("abc"), edit(7), cursor(1, 3))
    assert list(context.context.presence()) == []
    context.apply(snapshot("abc", 2))
    assert list(context.context.presence()) == [cursor(1, 3)]


def test_a_mention_of_a_stale_document_is_shown_unchecked() -> None:
    context = Context()
    mention = Mention(document=1, version=1, range=(5, 0, 5, 0))
    context.apply(open_("abc"), edit(7))
    assert context.codes(mention) == []
    assert context.shown()[-1] == mention


def test_a_text_in_parts_replaces_the_old_one_in_one_step() -> None:
    context = Context()
    context.apply(open_("abc"))
    head = Snapshot(document=1, version=2, length=4, hash=hash_of("wxyz"), parts=2)
    context.apply(head, Part(document=1, version=2, index=0, text="wx"), cursor(1, 3))
    assert context.text() == "abc"
    assert context.state()[1].text == "abc"  # type: ignore[union-attr]
    context.apply(Part(document=1, version=2, index=1, text="yz"))
    assert context.text() == "wxyz"
    assert isinstance(context.shown()[-1], Snapshot)


@pytest.mark.parametrize("is_stale", [False, True])
def test_an_edit_between_parts_is_refused_and_ends_them(is_stale: bool) -> None:
    context = Context()
    context.apply(open_("abc"), *([edit(7)] if is_stale else []))
    context.apply(Snapshot(document=1, version=2, length=4, hash=hash_of("wxyz"), parts=2))
    assert context.codes(edit(2)) == [ErrorCode.BAD_PART, "request"]
    assert context.codes(*[Part(document=1, version=2, index=index, text="wx") for index in range(2)]) == []
    assert context.text() == "abc"


def test_an_open_that_was_never_whole_is_shown_as_open_when_a_snapshot_completes_it() -> None:
    context = Context()
    context.apply(
        Open(document=1, uri="u", version=1, length=4, hash=hash_of("wxyz"), parts=2, language="py")
    )
    context.apply(snapshot("abc", 2))
    (shown,) = context.shown()
    assert isinstance(shown, Open)
    assert (shown.text, shown.version, shown.language, shown.parts) == ("abc", 2, "py", None)


def test_a_loss_makes_every_document_stale_and_asks_again_for_one_that_was_stale() -> None:
    context = Context()
    context.apply(open_("a"), open_("b", document=2), edit(7))
    context.apply(Snapshot(document=1, version=9, length=4, hash=hash_of("wxyz"), parts=2))
    answers = context.context.lose(None, ask=True)
    assert [
        (answer.document, answer.reason) for answer in answers if isinstance(answer, SnapshotRequest)
    ] == [
        (1, "lost"),
        (2, "lost"),
    ]
    assert not context.context.documents[1].is_receiving
    assert sum(isinstance(event, Stale) for event in context.shown()) == 2


def test_a_version_above_raises_the_document_if_the_text_is_unchanged() -> None:
    context = Context()
    assert context.codes(open_("abc"), version_of("abc", 8), edit(8)) == []


def test_a_closed_document_takes_its_keys_along_and_the_focus_stays() -> None:
    context = Context()
    context.apply(open_("abc"), cursor(1), Focus(document=1), Close(document=1))
    assert list(context.context.presence()) == [Focus(document=1)]
    assert context.context.state_events(Unit.UTF_16)[-1] == (Focus(document=1), "")


def test_the_texts_of_nodes_are_dropped_unless_they_are_captured() -> None:
    context = Context()
    node = DesignNode(id="1", kind="text", name="n", text="words")
    selection = DesignSelection(document=1, page="p", nodes=(node,), total=1)
    context.apply(selection, in_order=False)
    context.apply(design())
    assert context.shown()[-1].nodes[0].text is None  # type: ignore[union-attr]
    context.apply(selection)
    assert context.shown()[-1].nodes[0].text is None  # type: ignore[union-attr]
    context.apply(design(capture="selection"), selection)
    assert context.shown()[-1].nodes[0].text == "words"  # type: ignore[union-attr]


def test_a_design_whose_plugin_was_closed_stays_and_is_stale() -> None:
    context = Context()
    context.apply(design(), DesignClose(document=1, reason="plugin_closed"))
    assert context.state()[1:] == [design(), Stale(document=1, reason="plugin_closed")]
    context.apply(design())
    assert context.state()[1:] == [design()]
    context.apply(DesignClose(document=1))
    assert len(context.state()) == 1


def positions_shown(context: Context, unit: Unit) -> list[list[object]]:
    """The cursors that an observer in a unit is shown live, and in the state when it comes now."""
    entries = context.context.feed.since(context.context.feed.first_offset)
    assert entries is not None
    live = [entry.variants.get(unit, entry.event) for entry in entries if isinstance(entry.event, Cursor)]
    state: list[object] = [
        event for event, _ in context.context.state_events(unit) if isinstance(event, Cursor)
    ]
    return [[event for event in live if event is not None], state]


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        # The text was changed since, and units differ before, after, or between.
        ([open_("é"), edit(1), cursor(1, 1)], []),
        ([open_("é"), snapshot("e", 2), cursor(1, 1)], []),
        ([open_("e"), edit(1, "é"), cursor(1, 1)], []),
        ([open_("e"), edit(1, "é"), snapshot("e", 3), cursor(1, 1)], []),
        ([open_("e"), edit(1, "é"), snapshot("e", 3), edit(3), cursor(2, 1)], []),
        # It is the present one.
        ([open_("é"), version_of("é", 3), cursor(1, 1)], [cursor(1, 2)]),
        ([open_("é"), version_of("é", 3), cursor(2, 1)], [cursor(2, 2)]),
        # It was not checked, and no position of that text.
        ([open_("é"), version_of("é", 3), cursor(1, 9)], []),
        # All units have counted alike since.
        ([open_("e"), edit(1), cursor(1, 1)], [cursor(1, 1)]),
        ([open_("e"), edit(1), cursor(1, 9)], [cursor(1, 9)]),
        ([open_("é"), snapshot("e", 2), edit(2), cursor(2, 1)], [cursor(2, 1)]),
    ],
)
@pytest.mark.parametrize("is_early", [True, False])
def test_positions_of_an_earlier_version_are_said_in_another_unit_only_if_they_surely_can(
    events: list[Event], shown: list[Cursor], is_early: bool
) -> None:
    context = Context(units=[Unit.UTF_8] if is_early else [])
    assert context.apply(*events) == []
    live, state = positions_shown(context, Unit.UTF_8)
    assert state == shown
    if is_early:
        assert live == shown
    assert positions_shown(context, Unit.UTF_16) == [[events[-1]]] * 2


def test_what_a_producer_counts_in_bytes_is_not_known_to_be_the_same_in_other_units() -> None:
    context = Context(unit=Unit.UTF_8, units=[Unit.UTF_16])
    context.apply(open_("e"), edit(1), cursor(1, 1))
    assert positions_shown(context, Unit.UTF_16) == [[], []]
    context.apply(cursor(2, 1))
    assert positions_shown(context, Unit.UTF_16) == [[cursor(2, 1)]] * 2


def test_a_mention_of_an_earlier_text_is_shown_in_every_unit_as_well_as_can_be_guessed() -> None:
    context = Context(units=[Unit.UTF_8])
    mention = Mention(document=1, version=1, range=(0, 0, 0, 1))
    context.apply(open_("é"), edit(1), mention)
    entries = context.context.feed.since(context.context.feed.offset - 1)
    assert entries is not None
    (entry,) = entries
    assert entry.variants.get(Unit.UTF_8, entry.event) == mention


def test_a_kept_cursor_that_another_unit_cannot_say_does_not_stop_its_state() -> None:
    context = Context()
    context.apply(open_("é"), cursor(1, 1), edit(1), cursor(1, 9))
    assert cursor(1, 9) in context.state()
    assert positions_shown(context, Unit.UTF_8)[1] == []
    context.apply(cursor(2, 2))
    assert positions_shown(context, Unit.UTF_8)[1] == [cursor(2, 3)]


def counts(context: Context) -> dict[str, int]:
    """What became of events, where there is any."""
    found = context.context.counts()
    healed = found.pop("healed")
    assert healed >= 0
    assert sum(found.values()) == context.sequence
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize(
    ("ahead", "events", "expected"),
    [
        ([], [open_("abc"), edit(1), cursor(2)], {"applied": 3}),
        ([], [open_("abc"), edit(7), edit(1)], {"applied": 1, "refused": 1, "dropped": 1}),
        ([], [open_("abc"), cursor(2)], {"applied": 1, "waiting": 1}),
        ([], [open_("abc"), cursor(2), cursor(3)], {"applied": 1, "superseded": 1, "waiting": 1}),
        ([], [open_("abc"), cursor(2), cursor(1)], {"applied": 2, "superseded": 1}),
        ([], [open_("abc"), cursor(2), edit(1)], {"applied": 3}),
        ([], [open_("abc"), cursor(2, 9), edit(1)], {"applied": 2, "waiting": 1}),
        ([], [open_("abc"), cursor(2), Close(document=1)], {"applied": 2, "superseded": 1}),
        ([], [open_("abc"), Focus(document=1), Close(document=1)], {"applied": 3}),
        (
            [],
            [open_("abc", uri="secret"), cursor(1), Focus(document=1)],
            {"refused": 1, "dropped": 1, "applied": 1},
        ),
        ([], [open_("abc", uri="secret"), Close(document=1)], {"refused": 1, "dropped": 1}),
        ([Focus(document=1)], [open_("abc")], {"applied": 2}),
        ([Focus(document=1)], [Focus(document=1)], {"waiting": 1, "refused": 1}),
        ([cursor(1), Focus(document=1)], [open_("abc", uri="secret")], {"superseded": 2, "refused": 1}),
        ([State(document=1, dirty=True)], [design()], {"applied": 2}),
    ],
)
def test_every_event_is_counted_once_and_as_what_became_of_it(
    ahead: list[Event], events: list[Event], expected: dict[str, int]
) -> None:
    context = Context()
    context.apply(*ahead, in_order=False)
    context.apply(*events)
    assert counts(context) == expected


@pytest.mark.parametrize("seed", range(20))
def test_every_event_of_a_random_life_is_counted_once(seed: int) -> None:
    dice = random.Random(seed)
    context = Context(limits=replace(LIMITS, supersedable_keys_max=4))
    for _ in range(200):
        alias, version = dice.randint(1, 4), dice.randint(1, 6)
        presence: list[Event] = [
            cursor(version, dice.randint(0, 9), document=alias),
            Viewport(document=alias, version=version, first_line=0, last_line=0),
            Focus(document=dice.choice([None, alias])),
            State(document=alias, dirty=True),
            DesignSelection(document=alias, page="p", nodes=(), total=0),
        ]
        durable: list[Event] = [
            open_("abc", document=alias, version=version, uri=dice.choice([None, "secret"])),
            open_("abc", document=alias, hash_=dice.choice(["", "x"])),
            Open(
                document=alias, uri=f"file:///{alias}.py", version=1, length=3, hash=hash_of("abc"), parts=2
            ),
            Part(document=alias, version=1, index=dice.randint(0, 1), text="ab"),
            Edit(document=alias, base=version, version=version + 1, changes=(Change(0, 0, 0, 0, "x"),)),
            Version(document=alias, version=version, length=3, hash=hash_of("abc")),
            Save(document=alias, version=version),
            Mention(document=alias, version=version, range=(0, 0, 0, 1)),
            Close(document=alias),
            design(alias, uri=f"design:///{alias}"),
            DesignClose(document=alias, reason=dice.choice(["plugin_closed", "file_closed"])),
        ]
        if dice.random() < 0.5:
            context.apply(dice.choice(presence), in_order=dice.random() < 0.7)
        else:
            context.apply(dice.choice(durable))
        counts(context)
