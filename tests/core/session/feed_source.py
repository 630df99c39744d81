"""A producer's session, as far as feeds look."""

from __future__ import annotations

from streamctx.core.documents.text_digest import text_hash
from streamctx.core.documents.units import length_in
from streamctx.core.session.feed_log import FeedLog
from streamctx.core.session.live_context import LiveContext, TextBudget
from streamctx.limits import Limits
from streamctx.vocabulary import HashAlgorithm, Unit
from streamctx.wire.messages import ClientInfo, Event, FeedEvent, Open, Workspace

__all__ = ["Source", "opening"]


class Source:
    """A live context with what a feed wants beside it."""

    session_id = "s"
    epoch = "e"
    client = ClientInfo(name="c")
    workspace: Workspace | None = None

    def __init__(self, unit: Unit, limits: Limits) -> None:
        self.source_unit = unit
        self.sequence = 0
        self.context = LiveContext(
            unit=unit,
            hash_algorithm=HashAlgorithm.XXH3_64,
            limits=limits,
            is_excluded=lambda uri: False,
            budget=TextBudget(10**9),
        )

    @property
    def log(self) -> FeedLog:
        return self.context.feed

    def state_events(self, unit: Unit) -> list[tuple[FeedEvent, str | None]]:
        return self.context.state_events(unit)

    def apply(self, *events: Event) -> None:
        for event in events:
            self.sequence += 1
            assert self.context.apply(self.sequence, event, in_order=True) == ()

    def open(self, text: str, *, document: int = 1, uri: str = "file:///a.py") -> None:
        self.apply(opening(text, self.source_unit, document=document, uri=uri))


def opening(text: str, unit: Unit, *, document: int = 1, uri: str = "file:///a.py") -> Open:
    """Say that a document is open, with its text."""
    return Open(
        document=document,
        uri=uri,
        version=1,
        length=length_in(text, unit),
        hash=text_hash(text, HashAlgorithm.XXH3_64),
        text=text,
    )
