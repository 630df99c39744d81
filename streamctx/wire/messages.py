"""Every message of the protocol as a frozen struct: the one authored source of the schema.

SPEC section 7 is the table of these; the sections that it names say what the
fields mean. Field order here is the order on the wire, which nobody relies on.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from streamctx.vocabulary import INTEGER_MAX
from streamctx.wire.changes import Change

__all__ = [
    "CLIENT_MESSAGES",
    "DURABLE_TYPES",
    "SERVER_MESSAGES",
    "SUPERSEDABLE_TYPES",
    "UNNUMBERED_TYPES",
    "Ack",
    "Attachment",
    "Box",
    "ClientInfo",
    "ClientMessage",
    "Close",
    "Cursor",
    "DesignClose",
    "DesignNode",
    "DesignOpen",
    "DesignPage",
    "DesignSelection",
    "DesignTool",
    "Diagnostic",
    "Diagnostics",
    "DocumentAction",
    "DurableEvent",
    "Edit",
    "Ended",
    "ErrorMessage",
    "Event",
    "FeedEvent",
    "Focus",
    "GoAway",
    "Heartbeat",
    "Hello",
    "Mention",
    "Message",
    "Nack",
    "NegotiatedLimits",
    "Open",
    "Part",
    "Range",
    "Resume",
    "Save",
    "Selection",
    "ServerInfo",
    "ServerMessage",
    "Skip",
    "Snapshot",
    "SnapshotRequest",
    "Stale",
    "State",
    "Subscribe",
    "Subscribed",
    "SupersedableEvent",
    "Sync",
    "Synced",
    "Unsubscribe",
    "Update",
    "Version",
    "Viewport",
    "Welcome",
    "Workspace",
]

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Alias: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Uri: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]
View: TypeAlias = Annotated[str, Meta(max_length=100)]
Identifier: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Range: TypeAlias = tuple[Natural, Natural]
"""Half-open: `(start, stop)` (CNV-2)."""
Ranges: TypeAlias = Annotated[tuple[Range, ...], Meta(max_length=64)]
Position: TypeAlias = tuple[Natural, Natural]
"""`(line, character)`."""
Pixels: TypeAlias = Annotated[float, Meta(ge=-(2**53), le=2**53)]
"""With both bounds neither NaN nor an infinity passes, which JSON cannot say to an observer."""
Span: TypeAlias = tuple[Natural, Natural, Natural, Natural]
"""`(line, character, line, character)`."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", gc=False):
    """Base of everything that has a `type` on the wire."""


class Value(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of objects inside messages."""


class Event(Message, frozen=True):
    """Base of events (EVT-1): how the event fared before it was first encoded."""

    is_offline: bool = False
    queued_ms: Natural = 0


# Handshake: SPEC sections 5 and 9.


class ClientInfo(Value, frozen=True, kw_only=True):
    """Who connects, for people."""

    name: Name
    version: Name | None = None


class ServerInfo(Value, frozen=True, kw_only=True):
    """Who answers, for people."""

    name: Name
    version: Name


class Workspace(Value, frozen=True, kw_only=True):
    """The folders that the editor has open."""

    folders: Annotated[tuple[Uri, ...], Meta(max_length=100)] = ()
    trusted: bool = False
    remote_authority: Name | None = None


class Resume(Value, frozen=True, kw_only=True):
    """Where a client wants to go on (SPEC 9.1)."""

    session: Identifier
    secret: Identifier
    epoch: Identifier
    expects: Positive
    next: Positive
    lost: Annotated[tuple[Range, ...], Meta(max_length=1024)] = ()
    documents: Annotated[tuple[Alias, ...], Meta(max_length=1024)] = ()


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """First frame of a connection (SPEC 5.1)."""

    attempt: Positive
    client: ClientInfo
    digests: Annotated[tuple[Name, ...], Meta(max_length=16)]
    role: Literal["produce", "observe", "both"] = "both"
    auth: Annotated[str, Meta(max_length=4096)] | None = None
    units: Annotated[tuple[Name, ...], Meta(max_length=16)] = ("utf-16",)
    hash: Name = "xxh3-64"
    resume: Resume | None = None
    workspace: Workspace | None = None


class DocumentAction(Value, frozen=True, kw_only=True):
    """What becomes of one document on a resume."""

    document: Alias
    action: Literal["keep", "snapshot"]
    version: Natural


class NegotiatedLimits(Value, frozen=True, kw_only=True):
    """The limits that a client obeys (SPEC section 15)."""

    frame_bytes: Positive
    window_events: Positive
    window_bytes: Positive
    part_text_bytes: Positive
    document_bytes: Positive
    documents: Positive
    changes: Positive
    heartbeat_ms: Positive
    dead_ms: Positive
    retain_ms: Natural


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """Answer to HELLO (SPEC 5.2)."""

    attempt: Positive
    session: Identifier
    secret: Identifier
    epoch: Identifier
    lease: Positive
    verdict: Literal["new", "resumed", "resynced", "rejected"]
    expects: Positive
    next: Positive
    digest: Name
    unit: Name
    hash: Name
    durability: Literal["none", "relaxed", "full"]
    limits: NegotiatedLimits
    server: ServerInfo
    reason: Name | None = None
    ranges: tuple[Range, ...] = ()
    lost: tuple[Range, ...] = ()
    documents: tuple[DocumentAction, ...] = ()
    restored: bool = False


class GoAway(Message, tag="goaway", frozen=True, kw_only=True):
    """The server is about to close (SPEC 9.5)."""

    reason: Name
    retry_ms: Natural


# Delivery: SPEC section 8.


class Ack(Message, tag="ack", frozen=True, kw_only=True):
    """What has arrived, was applied and is durable, and how far the peer may send."""

    received: Positive
    applied: Positive
    durable: Positive
    limit: Positive
    ranges: Annotated[tuple[Range, ...], Meta(max_length=32)] = ()
    lost: Annotated[tuple[Range, ...], Meta(max_length=512)] = ()


class Heartbeat(Message, tag="heartbeat", frozen=True, kw_only=True):
    """An ACK that also tells the next number (HBT-1)."""

    next: Positive
    received: Positive
    applied: Positive
    durable: Positive
    limit: Positive
    ranges: Annotated[tuple[Range, ...], Meta(max_length=32)] = ()
    lost: Annotated[tuple[Range, ...], Meta(max_length=512)] = ()


class Nack(Message, tag="nack", frozen=True, kw_only=True):
    """Ask for numbers to be sent again."""

    ranges: Annotated[tuple[Range, ...], Meta(min_length=1, max_length=64)]
    reason: Name | None = None


class Skip(Message, tag="skip", frozen=True, kw_only=True):
    """Numbers that will not be sent (again)."""

    ranges: Annotated[tuple[Range, ...], Meta(min_length=1, max_length=64)]
    reason: Literal["superseded", "evicted"]
    documents: Annotated[tuple[Alias, ...], Meta(max_length=1024)] = ()


class ErrorMessage(Message, tag="error", frozen=True, kw_only=True):
    """What was refused, or why the connection is about to close (SPEC section 14)."""

    code: Name
    message: Annotated[str, Meta(max_length=500)]
    temporary: bool = False
    reference: Natural | None = None
    document: Alias | None = None
    subscription: Alias | None = None
    expected: Natural | Name | None = None
    change: Natural | None = None
    retry_after_ms: Natural = 0


# Documents: SPEC section 10.


class Open(Event, tag="open", frozen=True, kw_only=True):
    """A document is open in the editor, with this text."""

    document: Alias
    uri: Uri
    version: Natural
    length: Natural
    hash: Name
    text: str | None = None
    parts: Positive | None = None
    language: Name | None = None
    eol: Literal["lf", "crlf", "cr", "mixed"] | None = None
    bom: bool = False
    encoding: Annotated[str, Meta(max_length=100)] | None = None


class Part(Event, tag="part", frozen=True, kw_only=True):
    """One piece of a text that `open` or `snapshot` announced."""

    document: Alias
    version: Natural
    index: Natural
    text: str


class Edit(Event, tag="edit", frozen=True, kw_only=True):
    """A batch of changes that leads from one version to the next."""

    document: Alias
    base: Natural
    version: Natural
    changes: Annotated[tuple[Change, ...], Meta(min_length=1, max_length=10_000)]
    mode: Literal["seq", "sim"] = "seq"
    length: Natural | None = None


class Version(Event, tag="version", frozen=True, kw_only=True):
    """Length and hash of the whole text at a version."""

    document: Alias
    version: Natural
    length: Natural
    hash: Name
    cause: Name | None = None


class Save(Event, tag="save", frozen=True, kw_only=True):
    """The text of that version is on disk."""

    document: Alias
    version: Natural


class Close(Event, tag="close", frozen=True, kw_only=True):
    """The document is no longer open."""

    document: Alias


class Snapshot(Event, tag="snapshot", frozen=True, kw_only=True):
    """The whole text again; it heals a stale document."""

    document: Alias
    version: Natural
    length: Natural
    hash: Name
    text: str | None = None
    parts: Positive | None = None


class SnapshotRequest(Message, tag="snapshot_request", frozen=True, kw_only=True):
    """The server asks for the whole text (SPEC 10.6)."""

    document: Alias
    reason: Literal["refused", "mismatch", "lost"]
    version: Natural


# Presence and other state: SPEC section 11.


class Cursor(Event, tag="cursor", frozen=True, kw_only=True):
    """Where the caret is."""

    document: Alias
    version: Natural
    position: Position
    view: View = ""


class Selection(Event, tag="selection", frozen=True, kw_only=True):
    """What is selected; the active end of each range comes second."""

    document: Alias
    version: Natural
    ranges: Annotated[tuple[Span, ...], Meta(max_length=1000)]
    view: View = ""


class Viewport(Event, tag="viewport", frozen=True, kw_only=True):
    """Which lines are on the screen, the last one included."""

    document: Alias
    version: Natural
    first_line: Natural
    last_line: Natural
    view: View = ""


class Focus(Event, tag="focus", frozen=True, kw_only=True):
    """Which document the person is in, if any."""

    document: Alias | None = None
    view: View = ""


class Diagnostic(Value, frozen=True, kw_only=True):
    """One finding of a linter or compiler."""

    range: Span
    severity: Annotated[int, Meta(ge=1, le=4)]
    message: Annotated[str, Meta(max_length=2000)]
    source: Name | None = None
    code: Name | None = None


class Diagnostics(Event, tag="diagnostics", frozen=True, kw_only=True):
    """All findings of a document."""

    document: Alias
    version: Natural
    items: Annotated[tuple[Diagnostic, ...], Meta(max_length=1000)]


class State(Event, tag="state", frozen=True, kw_only=True):
    """Whether the buffer differs from the disk, and what it is taken for."""

    document: Alias
    dirty: bool
    language: Name | None = None
    eol: Literal["lf", "crlf", "cr", "mixed"] | None = None


class Mention(Event, tag="mention", frozen=True, kw_only=True):
    """The person points an agent at a passage."""

    document: Alias
    version: Natural
    range: Span
    text: Annotated[str, Meta(max_length=16 * 1024)] | None = None
    note: Annotated[str, Meta(max_length=2000)] | None = None


# Design documents: SPEC section 12.


class DesignTool(Value, frozen=True, kw_only=True):
    """The design tool."""

    name: Name
    version: Name | None = None


class DesignPage(Value, frozen=True, kw_only=True):
    """One page of a design document."""

    id: Name
    name: Name
    order: Natural


class Box(Value, frozen=True, kw_only=True):
    """A rectangle in page space, y down, in pixels."""

    x: Pixels
    y: Pixels
    width: Pixels
    height: Pixels


class DesignNode(Value, frozen=True, kw_only=True):
    """One selected node."""

    id: Name
    kind: Name
    name: Name
    box: Box | None = None
    parent: Name | None = None
    text: Annotated[str, Meta(max_length=2048)] | None = None


class DesignOpen(Event, tag="design.open", frozen=True, kw_only=True):
    """A design document is open."""

    document: Alias
    uri: Uri
    tool: DesignTool
    file_name: Name
    pages: Annotated[tuple[DesignPage, ...], Meta(max_length=1000)]
    current_page: Name | None = None
    editor_type: Literal["design", "board", "slides", "dev"] | None = None
    units: Name | None = None
    read_only: bool = False
    capture: Literal["off", "selection", "page", "file"] = "off"


class DesignSelection(Event, tag="design.selection", frozen=True, kw_only=True):
    """What is selected in a design document."""

    document: Alias
    page: Name
    nodes: Annotated[tuple[DesignNode, ...], Meta(max_length=100)]
    total: Natural
    truncated: bool = False


class DesignClose(Event, tag="design.close", frozen=True, kw_only=True):
    """The plugin or the file was closed."""

    document: Alias
    reason: Literal["plugin_closed", "file_closed"] = "file_closed"


# Observers: SPEC section 13.


class Subscribe(Message, tag="subscribe", frozen=True, kw_only=True):
    """Ask to be shown one session, or all."""

    subscription: Alias
    session: Identifier
    documents: Annotated[tuple[Uri, ...], Meta(max_length=100)] | None = None
    presence: bool = True
    min_interval_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0


class Unsubscribe(Message, tag="unsubscribe", frozen=True, kw_only=True):
    """Stop showing."""

    subscription: Alias


class Subscribed(Message, tag="subscribed", frozen=True, kw_only=True):
    """The subscription is in force; these sessions are shown now."""

    subscription: Alias
    sessions: tuple[Identifier, ...]


class Sync(Message, tag="sync", frozen=True, kw_only=True):
    """Forget what is held of this session; its state follows."""

    session: Identifier
    epoch: Identifier
    offset: Natural
    reason: Literal["subscribed", "slow", "resynced"]
    client: ClientInfo
    workspace: Workspace | None = None


class Synced(Message, tag="synced", frozen=True, kw_only=True):
    """The state is complete."""

    session: Identifier
    offset: Natural


class Ended(Message, tag="ended", frozen=True, kw_only=True):
    """Nothing more comes of this session."""

    session: Identifier
    reason: Literal["closed", "expired"]


class Stale(Message, tag="stale", frozen=True, kw_only=True):
    """The text shown of a document is not, or may not be, the editor's."""

    document: Alias
    reason: Name


class Attachment(Message, tag="attachment", frozen=True, kw_only=True):
    """Whether the producer is connected."""

    connected: bool


DurableEvent: TypeAlias = (
    Open | Part | Edit | Version | Save | Close | Snapshot | Mention | DesignOpen | DesignClose
)
SupersedableEvent: TypeAlias = Cursor | Selection | Viewport | Focus | Diagnostics | State | DesignSelection
FeedEvent: TypeAlias = DurableEvent | SupersedableEvent | Stale | Attachment
"""What `update` carries."""


class Update(Message, tag="update", frozen=True, kw_only=True):
    """Events of a session, from one feed offset to another."""

    session: Identifier
    from_: Natural = msgspec.field(name="from")
    to: Natural
    events: tuple[FeedEvent, ...]


Control: TypeAlias = Ack | Nack | Skip | Heartbeat
ClientMessage: TypeAlias = (
    Hello | Control | ErrorMessage | DurableEvent | SupersedableEvent | Subscribe | Unsubscribe
)
ServerMessage: TypeAlias = (
    Welcome | Control | GoAway | ErrorMessage | SnapshotRequest | Subscribed | Sync | Update | Synced | Ended
)

DURABLE_TYPES: tuple[type[Event], ...] = (
    Open,
    Part,
    Edit,
    Version,
    Save,
    Close,
    Snapshot,
    Mention,
    DesignOpen,
    DesignClose,
)
SUPERSEDABLE_TYPES: tuple[type[Event], ...] = (
    Cursor,
    Selection,
    Viewport,
    Focus,
    Diagnostics,
    State,
    DesignSelection,
)
UNNUMBERED_TYPES: tuple[type[Message], ...] = (Hello, Welcome, Ack, Nack, Skip, Heartbeat, GoAway)
"""An ErrorMessage may be either (ERR-1)."""
CLIENT_MESSAGES: tuple[type[Message], ...] = (
    Hello,
    Ack,
    Nack,
    Skip,
    Heartbeat,
    ErrorMessage,
    *DURABLE_TYPES,
    *SUPERSEDABLE_TYPES,
    Subscribe,
    Unsubscribe,
)
SERVER_MESSAGES: tuple[type[Message], ...] = (
    Welcome,
    Ack,
    Nack,
    Skip,
    Heartbeat,
    GoAway,
    ErrorMessage,
    SnapshotRequest,
    Subscribed,
    Sync,
    Update,
    Synced,
    Ended,
)
