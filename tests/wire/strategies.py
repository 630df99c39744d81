"""Hypothesis strategies of every message, within the bounds of the specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from streamctx.vocabulary import INTEGER_MAX
from streamctx.wire import messages as m
from streamctx.wire.changes import Change

__all__ = ["MESSAGES"]

natural = st.integers(0, INTEGER_MAX)
positive = st.integers(1, INTEGER_MAX)
alias = st.integers(1, 2**31 - 1)
# No surrogates: they do not travel (CNV-4).
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
name = text
identifier = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
half_open = st.tuples(st.integers(0, 2**52), st.integers(1, 1000)).map(lambda pair: (pair[0], sum(pair)))
span = st.tuples(natural, natural, natural, natural)
ending = st.sampled_from(["closed", "expired"])
eol = st.sampled_from(["lf", "crlf", "cr", "mixed"])


def few(items: SearchStrategy[Any], minimum: int = 0) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=minimum, max_size=3).map(tuple)


def optional(values: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | values


change = st.builds(
    Change,
    start_line=natural,
    start_character=natural,
    end_line=natural,
    end_character=natural,
    text=text,
    old_length=optional(natural),
)
client_info = st.builds(m.ClientInfo, name=name, version=optional(name))
workspace = st.builds(
    m.Workspace, folders=few(identifier), trusted=st.booleans(), remote_authority=optional(name)
)
resume = st.builds(
    m.Resume,
    session=identifier,
    secret=identifier,
    epoch=identifier,
    expects=positive,
    next=positive,
    lost=few(half_open),
    documents=few(alias),
)
document_action = st.builds(
    m.DocumentAction, document=alias, action=st.sampled_from(["keep", "snapshot"]), version=natural
)
limits = st.fixed_dictionaries(dict.fromkeys(m.NegotiatedLimits.__struct_fields__, positive)).map(
    lambda values: m.NegotiatedLimits(**values)
)
diagnostic = st.builds(
    m.Diagnostic,
    range=span,
    severity=st.integers(1, 4),
    message=text,
    source=optional(name),
    code=optional(name),
)
page = st.builds(m.DesignPage, id=name, name=name, order=natural)
number = st.floats(-(2.0**53), 2.0**53)
box = st.builds(m.Box, x=number, y=number, width=number, height=number)
node = st.builds(
    m.DesignNode,
    id=name,
    kind=name,
    name=name,
    box=optional(box),
    parent=optional(name),
    text=optional(text),
)


def marks(of: type[m.Message], **more: SearchStrategy[Any]) -> SearchStrategy[m.Message]:
    return st.builds(
        of,
        received=positive,
        applied=positive,
        durable=positive,
        limit=positive,
        ranges=few(half_open),
        **more,
    )


def event(of: type[m.Event], **fields: SearchStrategy[Any]) -> SearchStrategy[m.Message]:
    return st.builds(of, is_offline=st.booleans(), queued_ms=natural, **fields)


def of_document(of: type[m.Event], **fields: SearchStrategy[Any]) -> SearchStrategy[m.Message]:
    return event(of, document=alias, **fields)


whole_text: dict[str, SearchStrategy[Any]] = {"version": natural, "length": natural, "hash": name}


def with_text(of: type[m.Event], **fields: SearchStrategy[Any]) -> SearchStrategy[m.Message]:
    """Exactly one of `text` and `parts` is there."""
    fields |= whole_text
    return of_document(of, text=text, **fields) | of_document(of, parts=positive, **fields)


EVENTS: dict[type[m.Message], SearchStrategy[m.Message]] = {
    m.Open: with_text(
        m.Open,
        uri=identifier,
        language=optional(name),
        eol=optional(eol),
        bom=st.booleans(),
        encoding=optional(name),
    ),
    m.Part: of_document(m.Part, version=natural, index=natural, text=text),
    m.Edit: of_document(
        m.Edit,
        base=natural,
        version=natural,
        changes=few(change, 1),
        mode=st.sampled_from(["seq", "sim"]),
        length=optional(natural),
    ),
    m.Version: of_document(m.Version, cause=optional(name), **whole_text),
    m.Save: of_document(m.Save, version=natural),
    m.Close: of_document(m.Close),
    m.Snapshot: with_text(m.Snapshot),
    m.Cursor: of_document(m.Cursor, version=natural, position=st.tuples(natural, natural), view=name),
    m.Selection: of_document(m.Selection, version=natural, ranges=few(span), view=name),
    m.Viewport: of_document(m.Viewport, version=natural, first_line=natural, last_line=natural, view=name),
    m.Focus: event(m.Focus, document=optional(alias), view=name),
    m.Diagnostics: of_document(m.Diagnostics, version=natural, items=few(diagnostic)),
    m.State: of_document(m.State, dirty=st.booleans(), language=optional(name), eol=optional(eol)),
    m.Mention: of_document(m.Mention, version=natural, range=span, text=optional(text), note=optional(text)),
    m.DesignOpen: of_document(
        m.DesignOpen,
        uri=identifier,
        tool=st.builds(m.DesignTool, name=name, version=optional(name)),
        file_name=name,
        pages=few(page),
        current_page=optional(name),
        editor_type=optional(st.sampled_from(["design", "board", "slides", "dev"])),
        units=optional(name),
        read_only=st.booleans(),
        capture=st.sampled_from(["off", "selection", "page", "file"]),
    ),
    m.DesignSelection: of_document(
        m.DesignSelection, page=name, nodes=few(node), total=natural, truncated=st.booleans()
    ),
    m.DesignClose: of_document(m.DesignClose, reason=st.sampled_from(["plugin_closed", "file_closed"])),
}
IN_UPDATE: dict[type[m.Message], SearchStrategy[m.Message]] = {
    m.Stale: st.builds(m.Stale, document=alias, reason=name),
    m.Attachment: st.builds(m.Attachment, connected=st.booleans()),
}


build: Callable[..., SearchStrategy[Any]] = st.builds
MESSAGES: dict[type[m.Message], SearchStrategy[m.Message]] = {
    **EVENTS,
    m.Hello: build(
        m.Hello,
        attempt=positive,
        role=st.sampled_from(["produce", "observe", "both"]),
        client=client_info,
        auth=optional(text),
        digests=few(name),
        units=few(name),
        hash=name,
        resume=optional(resume),
        workspace=optional(workspace),
    ),
    m.Welcome: build(
        m.Welcome,
        attempt=positive,
        session=identifier,
        secret=identifier,
        epoch=identifier,
        lease=positive,
        verdict=st.sampled_from(["new", "resumed", "resynced", "rejected"]),
        reason=optional(name),
        expects=positive,
        ranges=few(half_open),
        next=positive,
        lost=few(half_open),
        documents=few(document_action),
        digest=name,
        unit=name,
        hash=name,
        durability=st.sampled_from(["none", "full"]),
        limits=limits,
        server=st.builds(m.ServerInfo, name=name, version=name),
    ),
    m.GoAway: build(m.GoAway, reason=name, retry_ms=natural),
    m.Ack: marks(m.Ack),
    m.Heartbeat: marks(m.Heartbeat, next=positive),
    m.Nack: build(m.Nack, ranges=few(half_open, 1), reason=optional(name)),
    m.Skip: build(
        m.Skip,
        ranges=few(half_open, 1),
        reason=st.sampled_from(["superseded", "evicted"]),
        documents=few(alias),
    ),
    m.ErrorMessage: build(
        m.ErrorMessage,
        code=name,
        message=text,
        temporary=st.booleans(),
        reference=optional(natural),
        document=optional(alias),
        subscription=optional(alias),
        expected=optional(natural | name),
        change=optional(natural),
    ),
    m.SnapshotRequest: build(
        m.SnapshotRequest,
        document=alias,
        reason=st.sampled_from(["refused", "mismatch", "lost"]),
        version=natural,
    ),
    m.Subscribe: build(
        m.Subscribe,
        subscription=alias,
        session=identifier,
        documents=optional(few(identifier)),
        presence=st.booleans(),
        min_interval_ms=st.integers(0, 60_000),
    ),
    m.Unsubscribe: build(m.Unsubscribe, subscription=alias),
    m.Subscribed: build(m.Subscribed, subscription=alias, sessions=few(identifier)),
    m.Sync: build(
        m.Sync,
        session=identifier,
        epoch=identifier,
        offset=natural,
        reason=st.sampled_from(["subscribed", "slow", "resynced"]),
        client=client_info,
        workspace=optional(workspace),
    ),
    m.Update: build(
        m.Update,
        session=identifier,
        from_=natural,
        to=natural,
        events=few(st.one_of(*EVENTS.values(), *IN_UPDATE.values())),
    ),
    m.Synced: build(m.Synced, session=identifier, offset=natural),
    m.Ended: build(m.Ended, session=identifier, reason=ending),
}
"""A strategy for each type that is a message of its own."""
