"""A document of this client, as the application edits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from streamctx.client.valid import valid
from streamctx.core.session.client_document import ClientDocument
from streamctx.errors import LocalProtocolError
from streamctx.wire.changes import Change
from streamctx.wire.messages import Cursor, Diagnostic, Diagnostics, Mention, Selection, State, Viewport

if TYPE_CHECKING:
    from streamctx.client.client import Client

__all__ = ["ChangeTuple", "Changes", "Document", "Eol", "Position", "Span"]

Position: TypeAlias = tuple[int, int]
"""Line and character, from 0; the character in the session's unit."""

Span: TypeAlias = tuple[int, int, int, int]
"""Start line and character, end line and character; of a selection: anchor, then active end."""

ChangeTuple: TypeAlias = tuple[int, int, int, int, str]
"""Start line and character, end line and character, and the text to put between them."""

Changes: TypeAlias = Change | ChangeTuple | Sequence[Change | ChangeTuple]
Eol: TypeAlias = Literal["lf", "crlf", "cr", "mixed"]


class Document:
    """One open document; `Client.open` makes it.

    Its text here is the authority: the server's copy follows it, over lost connections and servers. No method
    blocks or waits, and what does not fit the text changes nothing. All raise `SessionClosed` once the
    session has ended, and `LocalProtocolError` once the document is closed.
    """

    def __init__(self, client: Client, document: ClientDocument) -> None:
        """Made by the client."""
        self._client = client
        self._document = document

    @property
    def alias(self) -> int:
        """Its number within the session."""
        return self._document.alias

    @property
    def uri(self) -> str:
        """Its address, as it was opened."""
        return self._document.metadata.uri

    @property
    def text(self) -> str:
        """The whole present text; it is put together at each call."""
        return self._document.buffer.text()

    @property
    def version(self) -> int:
        """The present version."""
        return self._document.version

    @property
    def refused(self) -> str | None:
        """The code with which the server has refused it, such as `excluded`; nothing more is sent then."""
        return self._document.refused

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return self._client.session.documents.get(self.alias) is self._document

    def edit(
        self, changes: Changes, *, version: int | None = None, mode: Literal["seq", "sim"] = "seq"
    ) -> int:
        """Change the text and send the change.

        Args:
            changes: One change or several.
            version: What it leads to; `None` counts on from the present one.
            mode: `seq`: each change is made on the result of the one before; `sim`: all on the present text.

        Returns:
            The new version.

        Raises:
            EventRefused: If a change does not fit the text.
            LocalProtocolError: If there is no change, one cannot be one, or the version does not rise.
        """
        session = self._client.open_session()
        new = session.edit(self.alias, _as_changes(changes), self._client.now(), version=version, mode=mode)
        self._client.wake()
        return new

    def replace(self, text: str, *, version: int | None = None) -> int:
        """Replace the whole text, as after a reload from disk; returns the new version."""
        session = self._client.open_session()
        new = session.replace_text(self.alias, text, self._client.now(), version=version)
        self._client.wake()
        return new

    def snapshot(self) -> None:
        """Send the whole present text, in place of edits that were not sent yet. It is never necessary."""
        self._client.open_session().snapshot(self.alias)
        self._client.wake()

    def save(self) -> None:
        """Say that the present text is on disk."""
        self._client.open_session().save(self.alias, self._client.now())
        self._client.wake()

    def cursor(self, position: Position, *, view: str = "") -> None:
        """Say where the cursor is; only the newest value of each view is sent."""
        self._client.put(
            Cursor(document=self.alias, version=self.version, position=position, view=view),
        )

    def select(self, ranges: Sequence[Span], *, view: str = "") -> None:
        """Say what is selected."""
        self._client.put(
            Selection(document=self.alias, version=self.version, ranges=tuple(ranges), view=view),
        )

    def viewport(self, first_line: int, last_line: int, *, view: str = "") -> None:
        """Say which lines are visible, both included."""
        self._client.put(
            Viewport(
                document=self.alias,
                version=self.version,
                first_line=first_line,
                last_line=last_line,
                view=view,
            ),
        )

    def state(self, *, dirty: bool, language: str | None = None, eol: Eol | None = None) -> None:
        """Say whether there are changes that are not on disk, and how the editor sees the file."""
        self._client.put(State(document=self.alias, dirty=dirty, language=language, eol=eol))

    def diagnostics(self, items: Sequence[Diagnostic]) -> None:
        """Say what a language server or a linter found; replaces what was said before."""
        self._client.put(
            Diagnostics(document=self.alias, version=self.version, items=tuple(items)),
        )

    def mention(self, span: Span, *, text: str | None = None, note: str | None = None) -> None:
        """Point agents at a passage. It is not lost, and kept apart from the selection."""
        session = self._client.open_session()
        mention = valid(Mention(document=self.alias, version=self.version, range=span, text=text, note=note))
        session.mention(mention, self._client.now())
        self._client.wake()

    def close(self) -> None:
        """Close it for all observers."""
        self._client.open_session().close_document(self.alias, self._client.now())
        self._client.wake()


def _as_changes(changes: Changes) -> tuple[Change, ...]:
    if isinstance(changes, Change):
        return (changes,)
    if isinstance(changes, tuple) and changes and isinstance(changes[0], int):
        return (_as_change(changes),)
    return tuple(_as_change(change) for change in changes)  # type: ignore[arg-type]


def _as_change(change: Change | ChangeTuple) -> Change:
    if isinstance(change, Change):
        return change
    try:
        return msgspec.convert(change, Change)
    except msgspec.ValidationError as error:
        raise LocalProtocolError(
            "a change is (start_line, start_character, end_line, end_character, text), "
            f"optionally with the length of what it replaces: {error}"
        ) from error
