"""Whether all copies are equal, and what is not: the demand that a run ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from streamctx.core.documents.presence import Key, key_of
from streamctx.core.session.client_session import ClientSession
from streamctx.core.session.observed import ObservedSession
from streamctx.core.session.server_session import ServerSession
from streamctx.core.session.state import ClientState
from streamctx.hub.registry import Registry
from streamctx.wire.messages import SupersedableEvent
from tests.sim.editor import Editor
from tests.sim.journal import read_journal
from tests.sim.ledger import SECRET

if TYPE_CHECKING:
    from tests.sim.actors import Client
    from tests.sim.watch import Watch

__all__ = ["Equality"]


class Equality:
    """Compares what the clients have with what a server has, and that with what observers see."""

    def __init__(self, watch: Watch, clients: Mapping[str, Client], registry: Registry) -> None:
        self.watch = watch
        self.clients = clients
        self.registry = registry

    def difference(self) -> str | None:
        """What is not equal yet; `None` once all is."""
        registry = self.registry
        for client in self.clients.values():
            if not client.is_alive or client.session.state is not ClientState.ESTABLISHED:
                continue
            held = registry.get(client.session.session_id or "")
            if held is not None and not held.session.delivery.is_settled:
                return f"not all that was sent to {client.plan.name} is acknowledged"
        for client in self.clients.values():
            if (
                isinstance(client, Editor)
                and client.is_alive
                and client.session.state is not ClientState.CLOSED
            ):
                session_id = client.session.session_id
                held = None if session_id is None else registry.get(session_id)
                if held is None:
                    return f"{client.plan.name} has no session"
                difference = self._server_differs(client, held.session) or self._journal_differs(held.session)
                if difference is not None:
                    return f"{client.plan.name}: {difference}"
        for client in self.clients.values():
            if client.is_alive and client.session.state is ClientState.ESTABLISHED:
                difference = self._observer_differs(client)
                if difference is not None:
                    return f"{client.plan.name}: {difference}"
        return None

    def _server_differs(self, editor: Editor, session: ServerSession) -> str | None:
        context = session.context
        theirs = {alias: document.uri for alias, document in context.documents.items()}
        ours = {
            alias: document.metadata.uri
            for alias, document in editor.session.documents.items()
            if document.refused is None
        }
        if theirs != ours:
            return f"the server has the documents {theirs}, not {ours}"
        for document in editor.documents:
            copy = context.documents.get(document.alias)
            if copy is None or copy.buffer is None:
                return f"{document.metadata.uri} is not there ({document.refused})"
            text = editor.texts[document.alias]
            if copy.is_stale or copy.version != document.version or copy.buffer.text() != text:
                found = f"{copy.version}, stale {copy.is_stale}, {copy.buffer.text()[:200]!r}"
                return f"{document.metadata.uri} is at {found}, not at {document.version}, {text[:200]!r}"
            if SECRET in text:
                self.watch.fail("Secret", f"{document.metadata.uri} is kept")
        if set(context.designs) != set(editor.session.designs):
            return f"the server has the designs {set(context.designs)}, not {set(editor.session.designs)}"
        present = _present(context.presence())
        wanted = _present(editor.present.values())
        if ("focus", 0, "") not in wanted:
            present.pop(("focus", 0, ""), None)  # It stays with a document that was closed (PRS-5).
        if present != wanted:
            return f"presence: {_odd_ones(present, wanted)}"
        return None

    def _journal_differs(self, session: ServerSession) -> str | None:
        epoch = self.watch.epochs[session.epoch]
        if epoch.lost or any(key[0] == session.epoch for key in self.watch.diverged):
            return None
        texts = read_journal(epoch.journal, session.source_unit)
        for alias, document in session.context.documents.items():
            if document.uri in self.watch.diverged_uris or document.buffer is None:
                continue
            if alias in texts and texts[alias] is not None and texts[alias] != document.buffer.text():
                self.watch.fail("CrashOnly", f"{document.uri}: the journal makes {texts[alias]!r:.200}")
        return None

    def _observer_differs(self, client: Client) -> str | None:
        session = client.session
        for subscription, subscribe in session.subscriptions.items():
            for held in self.registry:
                source = held.session
                if not source.produces or source.principal != session.settings.token:
                    continue
                if source.session_id == session.session_id:
                    continue
                observed = session.observed.get((subscription, source.session_id))
                if observed is None or not observed.is_synced:
                    return f"{source.session_id} is not synced"
                difference = _copy_differs(
                    session,
                    subscribe.documents,
                    observed,
                    source,
                    presence=subscribe.presence,
                    # Nobody is there to say the hash of what rotted.
                    rotten=set() if source.context.is_connected else self.watch.diverged_uris,
                )
                if difference is not None:
                    return difference
        return None


def _copy_differs(
    session: ClientSession,
    patterns: tuple[str, ...] | None,
    observed: ObservedSession,
    source: ServerSession,
    *,
    presence: bool,
    rotten: set[str],
) -> str | None:
    context = source.context
    if observed.is_connected is not context.is_connected:
        return f"{source.session_id} is seen as connected: {observed.is_connected}"
    for alias, document in context.documents.items():
        if (patterns is not None and not document.uri.endswith("/0.py")) or document.buffer is None:
            continue
        copy = observed.documents.get(alias)
        if document.uri in rotten:
            continue
        if copy is None or copy.buffer is None:
            return f"{document.uri} is not seen"
        seen = (copy.uri, copy.version, copy.is_stale, copy.buffer.text())
        wanted = (document.uri, document.version, document.is_stale, document.buffer.text())
        if seen != wanted:
            return f"{document.uri} is seen as {seen!r:.300}, not {wanted!r:.300}"
    for alias in observed.documents:
        if alias not in context.documents:
            return f"document {alias} of {source.session_id} is seen and closed"
    if patterns is None and set(observed.designs) != set(context.designs):
        return f"the designs {set(observed.designs)} are seen, not {set(context.designs)}"
    if presence and patterns is None and session.settings.unit is source.source_unit:
        seen_now, wanted_now = _present(observed.presence.values()), _present(context.presence())
        if seen_now != wanted_now:
            return f"presence as seen: {_odd_ones(seen_now, wanted_now)}"
    return None


def _present(events: Iterable[SupersedableEvent]) -> dict[Key, SupersedableEvent]:
    return {key_of(event): msgspec.structs.replace(event, is_offline=False, queued_ms=0) for event in events}


def _odd_ones(found: dict[Key, SupersedableEvent], wanted: dict[Key, SupersedableEvent]) -> str:
    keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    return "; ".join(f"{key} is {found.get(key)}, not {wanted.get(key)}" for key in keys)
