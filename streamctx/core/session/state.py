"""The states of a session on both sides, as tables (SPEC section 6).

Nothing else decides what state follows; the diagrams in SPEC.md show these tables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from streamctx.errors import LocalProtocolError

__all__ = [
    "CLIENT_TRANSITIONS",
    "SERVER_TRANSITIONS",
    "ClientInput",
    "ClientState",
    "ServerInput",
    "ServerState",
    "client_transition",
    "server_transition",
]


class ClientState(enum.Enum):
    """Where a client's session stands."""

    DETACHED = "detached"
    """There is no connection; events wait."""
    GREETING = "greeting"
    """HELLO was sent, WELCOME has not come."""
    ESTABLISHED = "established"
    CLOSED = "closed"
    """It has ended and will not connect again."""


class ClientInput(enum.Enum):
    """What moves a client's session."""

    CONNECTED = "connected"
    WELCOMED = "welcomed"
    DISCONNECTED = "disconnected"
    TERMINATED = "terminated"


class ServerState(enum.Enum):
    """Where a session stands on the server."""

    DETACHED = "detached"
    """It is kept, and no connection has it."""
    ATTACHED = "attached"
    ENDED = "ended"
    """It is forgotten."""


class ServerInput(enum.Enum):
    """What moves a session on the server."""

    ATTACH = "attach"
    DETACH = "detach"
    EXPIRE = "expire"
    END = "end"


CLIENT_TRANSITIONS: Mapping[tuple[ClientState, ClientInput], ClientState] = {
    (ClientState.DETACHED, ClientInput.CONNECTED): ClientState.GREETING,
    (ClientState.GREETING, ClientInput.WELCOMED): ClientState.ESTABLISHED,
    (ClientState.GREETING, ClientInput.DISCONNECTED): ClientState.DETACHED,
    (ClientState.ESTABLISHED, ClientInput.DISCONNECTED): ClientState.DETACHED,
    (ClientState.DETACHED, ClientInput.TERMINATED): ClientState.CLOSED,
    (ClientState.GREETING, ClientInput.TERMINATED): ClientState.CLOSED,
    (ClientState.ESTABLISHED, ClientInput.TERMINATED): ClientState.CLOSED,
}

SERVER_TRANSITIONS: Mapping[tuple[ServerState, ServerInput], ServerState] = {
    (ServerState.DETACHED, ServerInput.ATTACH): ServerState.ATTACHED,
    # A takeover: the connection that had the session is fenced off.
    (ServerState.ATTACHED, ServerInput.ATTACH): ServerState.ATTACHED,
    (ServerState.ATTACHED, ServerInput.DETACH): ServerState.DETACHED,
    (ServerState.DETACHED, ServerInput.EXPIRE): ServerState.ENDED,
    (ServerState.ATTACHED, ServerInput.END): ServerState.ENDED,
    (ServerState.DETACHED, ServerInput.END): ServerState.ENDED,
}


def client_transition(state: ClientState, input_: ClientInput) -> ClientState:
    """The state that follows.

    Raises:
        LocalProtocolError: If the input is not possible in that state.
    """
    try:
        return CLIENT_TRANSITIONS[state, input_]
    except KeyError:
        raise LocalProtocolError(f"{input_.value} is not possible while {state.value}") from None


def server_transition(state: ServerState, input_: ServerInput) -> ServerState:
    """The state that follows.

    Raises:
        LocalProtocolError: If the input is not possible in that state.
    """
    try:
        return SERVER_TRANSITIONS[state, input_]
    except KeyError:
        raise LocalProtocolError(f"{input_.value} is not possible while {state.value}") from None
