"""An editor: it types into a model of the text that is as plain as can be, and tells its client."""

from __future__ import annotations

import contextlib
import copy
import sys
from typing import TYPE_CHECKING

import msgspec

from streamctx.core.documents.presence import Key, key_of
from streamctx.core.session.client_session import (
    ClientDocument,
    ClientSession,
    DocumentRefusal,
    SessionEnd,
)
from streamctx.core.session.state import ClientState
from streamctx.errors import LocalProtocolError
from streamctx.wire.changes import Change
from streamctx.wire.messages import (
    Cursor,
    DesignClose,
    DesignOpen,
    DesignSelection,
    DesignTool,
    Diagnostic,
    Diagnostics,
    Focus,
    Mention,
    Selection,
    State,
    SupersedableEvent,
    Viewport,
)
from tests.sim.actors import Client
from tests.sim.dice import Dice
from tests.sim.ledger import SECRET
from tests.sim.model import positions_of, without_surrogates
from tests.sim.plan import ActorPlan

if sys.version_info >= (3, 12):
    from typing import override
else:
    from typing_extensions import override

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["Editor"]

_PIECES = (
    *("a", "b", "word ", "x = 1\n", ""),
    *("\n", "\r\n", "\r", "\u2028", "\x0c"),
    *("é", "😀", "👩\u200d👩\u200d👧", "\ud800", "e\u0301"),
)
_TEXT_MAX = 160
_DOCUMENTS_MAX = 3


class Editor(Client):
    """A client that pushes: it types into a model of the text that is as plain as can be."""

    def __init__(self, world: World, plan: ActorPlan, session: ClientSession | None = None) -> None:
        super().__init__(world, plan, session)
        self.documents: list[ClientDocument] = []
        self.texts: dict[int, str] = {}
        self.designs: list[DesignOpen] = []
        self.present: dict[Key, SupersedableEvent] = {}
        """The last value of every key, as it is to be seen in the end."""
        self._opened = 0
        self._mentions = 0

    @override
    def told(self, event: object) -> None:
        """Forget what the server refuses to keep."""
        if isinstance(event, DocumentRefusal):
            self._forget_states(event.alias)
        elif isinstance(event, SessionEnd):
            self.documents.clear()
            self.present.clear()

    def act(self, do: str, dice: Dice) -> None:
        """Do one thing that editors do."""
        if self.session.state is ClientState.CLOSED or not self.is_alive or self.is_asleep:
            return
        if do == "edits":
            for _ in range(dice.between(2, 12)):
                self._edit(dice)
        elif do == "design":
            self._design(dice)
        elif do == "secret":
            self._open_secret(dice)
        elif do == "open" or not self.documents:
            self._open(dice)
        else:
            getattr(self, f"_{do}")(dice)
        self.pump()

    def _document(self, dice: Dice) -> ClientDocument | None:
        return dice.pick(self.documents) if self.documents else None

    def _note(self, document: ClientDocument, text: str) -> None:
        text = without_surrogates(text)
        self.texts[document.alias] = text
        self.world.watch.typed(document.metadata.uri, document.version, text)

    def _open(self, dice: Dice) -> None:
        if len(self.documents) >= _DOCUMENTS_MAX:
            return
        text = "".join(dice.pick(_PIECES) for _ in range(dice.pick((0, 3, 12))))
        name = self._opened
        self._opened += 1
        uri = f"file:///{self.name}{'' if not name else f'/{name}'}/{name % 2}.py"
        document = self.session.open(uri, text, self.now, language="python")
        self.documents.append(document)
        self._note(document, text)

    def _open_secret(self, dice: Dice) -> None:
        self._opened += 1
        uri = f"file:///{self.name}/{self._opened}/.env"
        document = self.session.open(uri, SECRET, self.now)
        if dice.happens(0.5):
            self.session.edit(document.alias, [Change(0, 0, 0, 0, SECRET)], self.now)
        if dice.happens(0.5):
            self.session.close_document(document.alias, self.now)

    def _edit(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is None:
            return
        text = self.texts[document.alias]
        unit = self.plan.unit
        count = dice.pick((1, 1, 1, 2, 3))
        if count > 1 and dice.happens(0.5):
            text = self._edit_at_once(document, text, count, dice)
        else:
            changes = []
            for _ in range(count):
                points = positions_of(text, unit)
                start, stop = sorted((dice.below(len(points)), dice.below(len(points))))
                if len(text) < _TEXT_MAX and dice.happens(0.6):
                    stop = start
                piece = dice.pick(_PIECES)
                (at, start_point), (end, stop_point) = points[start], points[stop]
                changes.append(Change(*start_point, *stop_point, piece))
                text = without_surrogates(text[:at] + piece + text[end:])
            self.session.edit(document.alias, changes, self.now)
        self._note(document, text)
        if dice.happens(0.5):
            self._point_in(document, dice)

    def _edit_at_once(self, document: ClientDocument, text: str, count: int, dice: Dice) -> str:
        points = positions_of(text, self.plan.unit)
        cuts = sorted(dice.below(len(points)) for _ in range(2 * count))
        changes: list[Change] = []
        result, end = "", 0
        for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
            if changes and points[start][0] <= end:
                continue
            piece = dice.pick(_PIECES)
            changes.append(Change(*points[start][1], *points[stop][1], piece))
            result += text[end : points[start][0]] + piece
            end = points[stop][0]
        result += text[end:]
        self.session.edit(document.alias, changes, self.now, mode="sim")
        return result

    def _put(self, event: SupersedableEvent) -> None:
        self.present[key_of(event)] = event
        self.session.put(event, self.now)

    def _point(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is not None:
            self._point_in(document, dice)

    def _point_in(self, document: ClientDocument, dice: Dice) -> None:
        alias, version = document.alias, document.version
        points = positions_of(self.texts[alias], self.plan.unit)
        view = dice.pick(("", "", "2"))
        kind = dice.below(5)
        here, there = dice.pick(points)[1], dice.pick(points)[1]
        if kind < 3:
            self._put(Cursor(document=alias, version=version, position=here, view=view))
        elif kind == 3:
            start, stop = sorted((here, there))
            self._put(Selection(document=alias, version=version, ranges=((*start, *stop),), view=view))
        else:
            self._put(Focus(document=alias, view=view))

    def _state(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is None:
            return
        alias, version = document.alias, document.version
        kind = dice.below(3)
        if kind == 0:
            self._put(State(document=alias, dirty=dice.happens(0.5)))
        elif kind == 1:
            lines = positions_of(self.texts[alias], self.plan.unit)[-1][1][0] + 1
            self._put(Viewport(document=alias, version=version, first_line=0, last_line=dice.below(lines)))
        else:
            item = Diagnostic(range=(0, 0, 0, 0), severity=1, message=str(dice.below(100)))
            self._put(Diagnostics(document=alias, version=version, items=(item,)))

    def _save(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is not None:
            self.session.save(document.alias, self.now)

    def save_all(self) -> None:
        """Save every document."""
        if self.is_alive and self.session.state is not ClientState.CLOSED:
            for document in self.documents:
                self.session.save(document.alias, self.now)
            self.pump()

    def _mention(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is None:
            return
        self._mentions += 1
        mention = Mention(
            document=document.alias,
            version=document.version,
            range=(0, 0, 0, 0),
            text=f"look {self._mentions}",
        )
        with contextlib.suppress(LocalProtocolError):  # Too much may wait already.
            self.session.mention(mention, self.now)

    def _close(self, dice: Dice) -> None:
        if len(self.documents) < 2:
            return
        document = self.documents.pop(dice.below(len(self.documents)))
        self.session.close_document(document.alias, self.now)
        self._forget_states(document.alias)

    def _forget_states(self, alias: int) -> None:
        for key in [key for key, event in self.present.items() if alias in (key[1], event.document)]:
            del self.present[key]

    def _reload(self, dice: Dice) -> None:
        document = self._document(dice)
        if document is not None:
            text = "".join(dice.pick(_PIECES) for _ in range(dice.pick((0, 5, 20))))
            self.session.replace_text(
                document.alias, text, self.now, version=document.version + dice.between(1, 9)
            )
            self._note(document, text)

    def _insert(self, dice: Dice) -> None:
        """Insert so much at once that few of such edits fill a window, and take it away later."""
        document = self._document(dice)
        if document is None:
            return
        text = self.texts[document.alias]
        end = positions_of(text, self.plan.unit)[-1][1]
        if len(text) > 2 * _TEXT_MAX:
            change, text = Change(0, 0, *end, ""), ""
        else:
            piece = dice.pick(("some words ", "é😀", "line\n")) * dice.pick((20, 60, 120))
            change, text = Change(*end, *end, piece), text + piece
        self.session.edit(document.alias, [change], self.now)
        self._note(document, text)

    def _paste(self, dice: Dice) -> None:
        """Make a text that goes in parts under small limits, and take most of it away later."""
        document = self._document(dice)
        if document is None:
            return
        text = self.texts[document.alias]
        if len(text) > 2 * _TEXT_MAX:
            text = text[:10].rstrip("\r")
        else:
            text += "".join(
                dice.pick(("line\n", "é😀\r\n", "0123456789 ")) for _ in range(dice.pick((40, 400)))
            )
        self.session.replace_text(document.alias, text, self.now)
        self._note(document, text)

    def _design(self, dice: Dice) -> None:
        if not self.designs or dice.happens(0.3):
            if len(self.designs) < 2:
                tool = DesignTool(name="sim")
                uri = f"figma:///{self.name}/{len(self.designs)}"
                self.designs.append(
                    self.session.open_design(
                        DesignOpen(document=1, uri=uri, tool=tool, file_name="f", pages=()), self.now
                    )
                )
            return
        design = dice.pick(self.designs)
        if dice.happens(0.2):
            self.designs.remove(design)
            self.session.close_design(DesignClose(document=design.document), self.now)
            self._forget_states(design.document)
        else:
            self._put(DesignSelection(document=design.document, page="1", nodes=(), total=dice.below(9)))

    # What befalls it.

    def twin(self, name: str) -> Editor | None:
        """Another process starts from a copy of this one's state, and types on; not amid a text in parts."""
        try:
            session = copy.deepcopy(self.session)
        except TypeError:
            return None
        watch = self.world.watch
        watch.forked(self.session, session)
        plan = msgspec.structs.replace(self.plan, name=name)
        other = Editor(self.world, plan, session)
        if session.state is not ClientState.DETACHED:
            session.disconnected(self.now, None)
        other._clock = self._clock
        other.documents = [session.documents[d.alias] for d in self.documents if d.alias in session.documents]
        other.texts = dict(self.texts)
        other.designs = list(self.designs)
        other.present = dict(self.present)
        other._opened = self._opened + 1000
        other._mentions = self._mentions + 1000
        return other

    def reborn(self, name: str) -> Editor:
        """The editor is started again after it died, without its state; it opens what it had."""
        plan = msgspec.structs.replace(self.plan, name=name)
        other = Editor(self.world, plan)
        for document in self.documents[:2]:
            copy_ = other.session.open(
                f"{document.metadata.uri}'{name}/0.py", self.texts[document.alias], other.now
            )
            other.documents.append(copy_)
            other._note(copy_, self.texts[document.alias])
        other._opened = 1
        return other
