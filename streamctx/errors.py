"""Every exception of the product, and the error codes that travel on the wire.

StreamctxError
├── LocalProtocolError      our caller broke the rules; state is unchanged
├── RemoteProtocolError     the peer did; carries the code and the close code
├── EventRefused            one event cannot be accepted; nothing else is harmed
├── SessionClosed           the session ended and cannot be resumed
└── ConfigurationError      a setting is wrong, before anything was started
"""

from __future__ import annotations

import enum

__all__ = [
    "CloseCode",
    "ConfigurationError",
    "ErrorCode",
    "EventRefused",
    "LocalProtocolError",
    "RemoteProtocolError",
    "SessionClosed",
    "StreamctxError",
]


class ErrorCode(enum.StrEnum):
    """Stable names of what can go wrong (SPEC section 14)."""

    MALFORMED = "malformed"
    """The digest is good and the body cannot be decoded or breaks its schema."""
    UNSUPPORTED = "unsupported"
    """The message type, protocol version or capability is not known here."""
    TOO_LARGE = "too_large"
    """A frame, text or document is over its limit."""
    BAD_POSITION = "bad_position"
    """A position is outside the text or inside a character."""
    OLD_LENGTH_MISMATCH = "old_len_mismatch"
    """The replaced text does not have the length that the edit states."""
    LENGTH_MISMATCH = "length_mismatch"
    """The whole text does not have the length that was stated."""
    HASH_MISMATCH = "hash_mismatch"
    """The whole text does not have the hash that was stated."""
    BAD_VERSION = "bad_version"
    """The version does not rise, or the base is not the present version."""
    BAD_TEXT = "bad_text"
    """A text holds what the protocol does not carry, such as a lone surrogate."""
    BAD_PART = "bad_part"
    """A part is out of order, or no text in parts is under way."""
    BAD_CHANGE = "bad_change"
    """Changes of one `sim` batch overlap, or a range ends before it starts."""
    UNKNOWN_DOCUMENT = "unknown_document"
    """No document is open under that alias."""
    ALIAS_IN_USE = "alias_in_use"
    """Another document is open under that alias."""
    EXCLUDED = "excluded"
    """The document is on the redaction list: nothing of it is taken or shown."""
    UNVERIFIABLE = "unverifiable"
    """Three snapshots in a row did not fit their own hash; the document is closed."""
    NOT_FOUND = "not_found"
    """There is no such session or document, or it is not yours."""
    LIMIT = "limit"
    """A quota is used up: sessions, documents, subscriptions, bytes."""
    UNAUTHORIZED = "unauthorized"
    """The token is missing or wrong."""
    FORBIDDEN = "forbidden"
    """The role of this session does not allow that message."""
    SUPERSEDED = "superseded"
    """A newer attempt owns the session."""
    CONFLICT = "conflict"
    """Two different frames carried one sequence number."""
    HELLO_TIMEOUT = "hello_timeout"
    """No valid HELLO came in time."""
    BAD_FRAME = "bad_frame"
    """The frame header itself breaks the rules although its digest is good."""
    BAD_SEQUENCE = "bad_sequence"
    """A number is out of range, or a frame that must be numbered is not."""
    SLOW = "slow"
    """The peer does not read or acknowledge what it is sent."""
    CORRUPTION = "corruption"
    """More than half of the last 64 frames had a bad digest."""
    INTERNAL = "internal"
    """The server failed; its operator finds the reason in the log."""
    DRAINING = "draining"
    """The server is shutting down."""
    DAMAGED = "damaged"
    """What was stored of a session is not what was written; over HTTP alone."""
    UNAVAILABLE = "unavailable"
    """The server cannot store anything at present: its disk is full, or slow."""


class CloseCode(enum.IntEnum):
    """WebSocket close codes of the protocol (SPEC section 14).

    4000-4099 are terminal, after 4100-4199 a client backs off and resumes,
    after 4200-4299 it resumes at once.
    """

    NORMAL = 1000
    TOO_BIG = 1009
    BAD_HELLO = 4000
    UNAUTHORIZED = 4003
    VERSION = 4004
    ROLE = 4005
    LIMIT = 4006
    CONFLICT = 4009
    SUPERSEDED = 4010
    HELLO_TIMEOUT = 4101
    BAD_FRAME = 4102
    SLOW = 4103
    CORRUPTION = 4110
    INTERNAL = 4111
    UNAVAILABLE = 4112
    DRAINING = 4200
    HEARTBEAT = 4204

    @property
    def is_terminal(self) -> bool:
        """Whether connecting again unchanged is pointless."""
        return 4000 <= self < 4100


class StreamctxError(Exception):
    """Base of all exceptions that streamctx raises on purpose."""


class LocalProtocolError(StreamctxError):
    """Our caller asked for what the protocol does not allow; nothing was changed."""


class RemoteProtocolError(StreamctxError):
    """The peer broke the protocol, and this connection must end.

    Args:
        code: What to put into the ERROR that precedes the close.
        close_code: The WebSocket close code.
        message: What was found and what was expected, without document text.
        retry_after_s: When it is worth trying again; 0 if that is not known.
    """

    def __init__(
        self, code: ErrorCode, close_code: CloseCode, message: str, *, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.close_code = close_code
        self.message = message
        self.retry_after_s = retry_after_s


class EventRefused(StreamctxError):
    """One event cannot be accepted; its number is consumed and nothing else is harmed.

    Args:
        code: The code of the ERROR that answers the event.
        message: What was found and what was expected, without document text.
        expected: The value that would have been right, where there is one.
        change_index: Which change of an edit batch was refused, zero-based.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        expected: int | str | None = None,
        change_index: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.expected = expected
        self.change_index = change_index


class SessionClosed(StreamctxError):
    """The session has ended and will not be resumed.

    Args:
        code: The error code that ended it, or `None` if it was closed by us.
        message: What happened and what to do about it.
    """

    def __init__(self, code: ErrorCode | None, message: str) -> None:
        super().__init__(message if code is None else f"{code}: {message}")
        self.code = code
        self.message = message


class ConfigurationError(StreamctxError):
    """A setting is wrong; the message names it, its value and what is allowed."""
