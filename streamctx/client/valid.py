"""Arguments that cannot be sent are refused where they are given, and not by the server later."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from streamctx.errors import LocalProtocolError
from streamctx.wire.messages import Event

__all__ = ["valid"]

E = TypeVar("E", bound=Event)


def valid(event: E) -> E:
    """Return the event, whose constructor checked nothing, with its fields checked.

    Raises:
        LocalProtocolError: If one is of another type, or out of range.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(event), type(event))
    except (msgspec.ValidationError, TypeError) as error:
        raise LocalProtocolError(f"{type(event).__name__.lower()}: {error}") from error
