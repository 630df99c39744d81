"""The past of documents: which versions can be read back, and the text of each.

It is found by letting happen again what was stored. This is pure, and takes as long as the past is: do it
beside the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from streamctx.core.documents.document import Document
from streamctx.core.documents.text_buffer import TextBuffer
from streamctx.core.session.live_context import LiveContext, TextBudget
from streamctx.core.session.stored import JournalItem, SessionState, Spoilt
from streamctx.engine.base import History
from streamctx.errors import StreamctxError
from streamctx.limits import Limits
from streamctx.vocabulary import INTEGER_MAX, HashAlgorithm, Unit
from streamctx.wire.messages import Open

__all__ = ["DocumentPast", "Moment", "NotInHistory", "PastText", "SessionPast"]


class NotInHistory(StreamctxError):
    """There is no such text in what is kept.

    Args:
        reason: `unknown`: no such document; `never`: no such version; `old`: it is older than all that is
            kept; `stale`: the server's text was not the editor's then; `opening`: it was not opened so often.
        message: The same for people.
        nearest: The versions below and above that can be read back, of those that there are.
    """

    def __init__(
        self,
        reason: Literal["unknown", "never", "old", "stale", "opening"],
        message: str,
        *,
        nearest: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.nearest = nearest


class Moment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version of a document. A struct of msgspec, since there is one for every edit."""

    document: int
    uri: str
    version: int
    at: float | None
    """When its text was stored, in seconds since 1970; `None` if that was before all that is kept."""
    opened: int
    """In which opening of the document: 1 is the newest, 2 the one before."""
    length: int
    """In the session's unit."""
    byte_length: int
    is_verified: bool
    """Whether the editor's hash of this version was equal to the server's."""
    is_stale: bool
    """Whether it was not: the text was not the editor's."""


@dataclass(frozen=True, slots=True)
class DocumentPast:
    """The versions of a document.

    `moments` are in the order in which they came; `is_complete` says whether they begin where the session
    did. One that was told twice within an opening, since a snapshot healed it, is there once, healed.
    """

    moments: tuple[Moment, ...]
    is_complete: bool

    def find(self, version: int, *, opened: int | None = None) -> Moment:
        """The newest moment of a version that can be read back.

        Args:
            version: Which one.
            opened: In which opening; `None` for the newest that reached it.

        Raises:
            NotInHistory: If there is none; the message names what is nearest.
        """
        moments = [moment for moment in self.moments if opened in (None, moment.opened)]
        if not moments:
            raise self._no_opening(opened)
        found = [moment for moment in moments if moment.version == version]
        if not found:
            raise self._no_version(version, moments)
        sound = [moment for moment in found if not moment.is_stale]
        if not sound:
            nearest = _nearest(version, moments)
            raise NotInHistory(
                "stale",
                f"version {version} was stale: what the server had was not the editor's text"
                f"{_nearest_text(nearest)}",
                nearest=nearest,
            )
        return min(sound, key=lambda moment: moment.opened)

    def openings_of(self, version: int) -> list[Moment]:
        """All moments of a version that can be read back, the newest first."""
        found = (moment for moment in self.moments if moment.version == version and not moment.is_stale)
        return sorted(found, key=lambda moment: moment.opened)

    def _no_opening(self, opened: int | None) -> NotInHistory:
        count = max((moment.opened for moment in self.moments), default=0)
        if not count:
            return NotInHistory("unknown", "no such document is in what is kept of the session")
        return NotInHistory(
            "opening", f"the document was opened {count} times in what is kept; {opened} is asked for"
        )

    def _no_version(self, version: int, moments: Sequence[Moment]) -> NotInHistory:
        nearest = _nearest(version, moments)
        near = _nearest_text(nearest)
        if not self.is_complete and version < min(moment.version for moment in moments):
            return NotInHistory("old", f"version {version} is older than what is kept{near}", nearest=nearest)
        if version > max(moment.version for moment in moments):
            return NotInHistory(
                "never", f"the document has not been at version {version}{near}", nearest=nearest
            )
        return NotInHistory("never", f"the document never was at version {version}{near}", nearest=nearest)


@dataclass(frozen=True, slots=True)
class PastText:
    """A text, and the moment that it is of. `openings` are all moments of that version, the newest first."""

    moment: Moment
    openings: tuple[Moment, ...]
    language: str | None
    unit: Unit
    line_count: int
    hash: str
    text: str


class SessionPast:
    """The past of one session."""

    def __init__(self, history: History, *, is_excluded: Callable[[str], bool], limits: Limits) -> None:
        """Take over what was stored.

        Args:
            history: From `Engine.tail`.
            is_excluded: Whether a URI is on the redaction list now: nothing is told of it then (SEC-3).
            limits: Those of the session.
        """
        self._history = history
        self._is_excluded = is_excluded
        self._limits = limits

    @property
    def is_complete(self) -> bool:
        """Whether nothing was cut off: it begins where the session did."""
        return self._history.state is None

    @property
    def since(self) -> float | None:
        """When what is kept begins, as far as that is known, in seconds since 1970."""
        batches = self._history.batches
        return batches[0][0] if batches else None

    def document(self, name: str) -> DocumentPast:
        """All versions of a document, named by alias or URI; without any if it is not known."""
        newest: dict[tuple[int, int], Moment] = {}
        for moment, _ in self._replay(name):
            newest[moment.opened, moment.version] = moment
        count = max((moment.opened for moment in newest.values()), default=0)
        moments = tuple(
            msgspec.structs.replace(moment, opened=count + 1 - moment.opened) for moment in newest.values()
        )
        return DocumentPast(moments, self.is_complete)

    def text(self, name: str, version: int, *, opened: int | None = None) -> PastText:
        """The text of a document at a version.

        Args:
            name: Its alias or URI.
            version: Which version.
            opened: As `DocumentPast.find`.

        Raises:
            NotInHistory: As `DocumentPast.find`.
        """
        past = self.document(name)
        wanted = past.find(version, opened=opened)
        opening = max(moment.opened for moment in past.moments) + 1 - wanted.opened
        found: PastText | None = None
        for moment, document in self._replay(name):
            buffer = document.buffer
            if (moment.opened, moment.version) == (opening, version) and buffer is not None:
                found = PastText(
                    moment=wanted,
                    openings=tuple(past.openings_of(version)),
                    language=document.metadata.language,
                    unit=document.unit,
                    line_count=buffer.line_count,
                    hash=buffer.hash(document.hash_algorithm),
                    text=buffer.text(),
                )
        assert found is not None
        return found

    def _replay(self, name: str) -> Iterator[tuple[Moment, Document]]:
        """Each change of a document's version or standing; openings are counted from the oldest, 1, here.

        A moment comes again where more is known of it, or where a snapshot has healed it.
        """
        state = self._history.state
        aliases = self._aliases_of(name)
        context = LiveContext(
            unit=Unit(self._history.unit),
            hash_algorithm=HashAlgorithm(self._history.hash),
            limits=self._limits,
            is_excluded=self._is_excluded,
            budget=TextBudget(INTEGER_MAX),
        )
        context.feed.set_observed(False)
        follower = _Follower(context, None if _is_alias(name) and aliases == {int(name)} else name)
        if state is not None:
            context.restore(_only(state, aliases))
            yield from follower.begin()
        for at, batch in self._history.batches:
            for sequence, item in batch.entries:
                touched = _aliases_in(item, context)
                if item is None or touched is None or aliases.isdisjoint(touched):
                    continue
                announced = follower.announced(touched)
                context.replay(sequence, item)
                for alias in aliases.intersection(touched):
                    source = item if isinstance(item, Open) else announced.get(alias)
                    yield from follower.look(alias, at, is_opened=isinstance(source, Open))

    def _aliases_of(self, name: str) -> set[int]:
        """The aliases under which a document was opened; an alias itself, if it was ever used."""
        state = self._history.state
        opened = [document.metadata for document in (state.documents if state is not None else ())]
        opened += [
            item for _, batch in self._history.batches for _, item in batch.entries if isinstance(item, Open)
        ]
        if _is_alias(name) and any(each.document == int(name) for each in opened):
            return {int(name)}
        return {each.document for each in opened if each.uri == name}


class _Follower:
    """Tells what becomes of documents: of all, or of those with one URI."""

    def __init__(self, context: LiveContext, uri: str | None) -> None:
        self._context = context
        self._uri = uri
        self._moments: dict[int, Moment] = {}
        self._buffers: dict[int, TextBuffer] = {}
        self._openings = 0

    def begin(self) -> Iterator[tuple[Moment, Document]]:
        """Tell of what was open where the past begins."""
        for alias in self._context.documents:
            yield from self.look(alias, None, is_opened=True)

    def announced(self, aliases: set[int]) -> dict[int, object]:
        """The messages whose texts in parts are under way."""
        documents = self._context.documents
        return {alias: documents[alias].announced for alias in aliases if alias in documents}

    def look(self, alias: int, at: float | None, *, is_opened: bool) -> Iterator[tuple[Moment, Document]]:
        """Tell of a document, if anything has become of it.

        Args:
            alias: Which one.
            at: When.
            is_opened: Whether a text that is new comes from an `open`.
        """
        document = self._context.documents.get(alias)
        if document is None:
            self._moments.pop(alias, None)
            self._buffers.pop(alias, None)
            return
        buffer = document.buffer
        if buffer is None or self._uri not in (None, document.uri):
            return
        before = self._moments.get(alias)
        is_new_text = self._buffers.get(alias) is not buffer
        if before is None or (is_new_text and is_opened):
            self._openings += 1
        is_new = before is None or is_new_text or before.version != document.version
        moment = Moment(
            document=alias,
            uri=document.uri,
            version=document.version,
            at=at if is_new or before is None else before.at,
            opened=self._openings if before is None or (is_new_text and is_opened) else before.opened,
            length=buffer.length,
            byte_length=buffer.byte_length,
            is_verified=document.verified_version == document.version,
            # Where events were lost or refused, the text is that of the version: what came after is missing.
            is_stale=document.is_stale and document.stale_reason == "mismatch",
        )
        if is_new or moment != before:
            self._moments[alias], self._buffers[alias] = moment, buffer
            yield moment, document


def _is_alias(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 12


def _only(state: SessionState, aliases: set[int]) -> SessionState:
    return SessionState(
        stop=state.stop,
        documents=tuple(document for document in state.documents if document.metadata.document in aliases),
        # An alias of one of these is not free for a text.
        designs=tuple(design for design in state.designs if design.document in aliases),
        refused=tuple((alias, code) for alias, code in state.refused if alias in aliases),
    )


def _aliases_in(item: JournalItem, context: LiveContext) -> set[int] | None:
    """What an item concerns; `None` for nothing."""
    if item is None:
        return None
    if isinstance(item, Spoilt):
        return set(context.documents if item.documents is None else item.documents)
    alias: int | None = getattr(item, "document", None)
    return None if alias is None else {alias}


def _nearest(version: int, moments: Sequence[Moment]) -> tuple[int, ...]:
    sound = {moment.version for moment in moments if not moment.is_stale} - {version}
    below = max((each for each in sound if each < version), default=None)
    above = min((each for each in sound if each > version), default=None)
    return tuple(each for each in (below, above) if each is not None)


def _nearest_text(nearest: tuple[int, ...]) -> str:
    if not nearest:
        return ""
    names = " and ".join(map(str, nearest))
    return f"; nearest {'is' if len(nearest) == 1 else 'are'} {names}"
