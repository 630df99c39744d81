from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from streamctx.core.session.state import (
    CLIENT_TRANSITIONS,
    SERVER_TRANSITIONS,
    ClientInput,
    ClientState,
    ServerInput,
    ServerState,
    client_transition,
    server_transition,
)
from streamctx.errors import LocalProtocolError

__all__: list[str] = []

SPEC = Path(__file__).parents[3] / "protocol" / "SPEC.md"


@pytest.mark.parametrize(("state", "input_"), list(itertools.product(ClientState, ClientInput)))
def test_every_client_input_leads_where_the_table_says_or_is_an_error(
    state: ClientState, input_: ClientInput
) -> None:
    if (state, input_) in CLIENT_TRANSITIONS:
        assert client_transition(state, input_) is CLIENT_TRANSITIONS[state, input_]
    else:
        with pytest.raises(LocalProtocolError):
            client_transition(state, input_)


@pytest.mark.parametrize(("state", "input_"), list(itertools.product(ServerState, ServerInput)))
def test_every_server_input_leads_where_the_table_says_or_is_an_error(
    state: ServerState, input_: ServerInput
) -> None:
    if (state, input_) in SERVER_TRANSITIONS:
        assert server_transition(state, input_) is SERVER_TRANSITIONS[state, input_]
    else:
        with pytest.raises(LocalProtocolError):
            server_transition(state, input_)


def test_what_has_ended_stays_ended() -> None:
    assert all(state is not ClientState.CLOSED for state, _ in CLIENT_TRANSITIONS)
    assert all(state is not ServerState.ENDED for state, _ in SERVER_TRANSITIONS)


def test_the_diagrams_name_every_state_and_input() -> None:
    section = SPEC.read_text("utf-8").split("## 6. Session states")[1].split("## 7.")[0]
    client, server = section.split("The server's side")
    for diagram, states, inputs in (
        (client, ClientState, ClientInput),
        (server, ServerState, ServerInput),
    ):
        words = set(re.findall(r"\w+", diagram))
        assert {state.name for state in states} <= words
        assert {input_.value for input_ in inputs} <= words
