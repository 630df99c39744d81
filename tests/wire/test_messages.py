"""The structs are the messages of the specification, all of them and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from streamctx.vocabulary import Encoding
from streamctx.wire import messages
from streamctx.wire.changes import Change
from streamctx.wire.codec import client_decoder, encode_body
from streamctx.wire.messages import (
    CLIENT_MESSAGES,
    DURABLE_TYPES,
    SERVER_MESSAGES,
    SUPERSEDABLE_TYPES,
    UNNUMBERED_TYPES,
    ClientMessage,
    Edit,
    ErrorMessage,
    Event,
    FeedEvent,
    Message,
    ServerMessage,
)
from tests.wire.strategies import MESSAGES

__all__: list[str] = []

SPEC = Path(__file__).parents[2] / "protocol" / "SPEC.md"


def tag(message: type[Message]) -> str:
    return str(message.__struct_config__.tag)


def tags(*types: type[Message]) -> set[str]:
    return {tag(message) for message in types}


def message_table() -> dict[str, tuple[str, str]]:
    """Direction and class of each type in section 7."""
    section = SPEC.read_text("utf-8").split("## 7. Message table")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {name: (row[1], row[2]) for row in rows for name in re.findall(r"`([a-z_.]+)`", row[0])}


TABLE = message_table()


def rows(*, direction: str = "", kind: str = "") -> set[str]:
    return {name for name, (way, what) in TABLE.items() if direction in way and what.startswith(kind)}


def test_every_message_of_the_table_has_a_struct_and_every_struct_a_row() -> None:
    assert set(TABLE) == tags(*CLIENT_MESSAGES, *SERVER_MESSAGES) | {"stale", "attachment"}


def test_clients_send_what_the_table_says() -> None:
    assert tags(*CLIENT_MESSAGES) == rows(direction="C")


def test_servers_send_what_the_table_says() -> None:
    assert tags(*SERVER_MESSAGES) == rows(direction="S")


def test_classes_are_those_of_the_table() -> None:
    assert tags(*DURABLE_TYPES) == rows(kind="D")
    assert tags(*SUPERSEDABLE_TYPES) == rows(kind="L")
    assert tags(*UNNUMBERED_TYPES) == rows(kind="U")


def test_an_update_carries_all_events_and_what_only_it_carries() -> None:
    assert tags(*get_args(FeedEvent)) == rows(kind="D") | rows(kind="L") | {"stale", "attachment"}


def test_the_unions_hold_what_the_lists_hold() -> None:
    assert set(get_args(ClientMessage)) == set(CLIENT_MESSAGES)
    assert set(get_args(ServerMessage)) == set(SERVER_MESSAGES)


def test_events_and_only_events_tell_how_they_fared() -> None:
    for message in {*CLIENT_MESSAGES, *SERVER_MESSAGES}:
        assert issubclass(message, Event) == (message in (*DURABLE_TYPES, *SUPERSEDABLE_TYPES))
        assert ("is_offline" in message.__struct_fields__) == issubclass(message, Event)


def test_every_message_has_a_strategy() -> None:
    assert set(MESSAGES) == {*CLIENT_MESSAGES, *SERVER_MESSAGES}


def test_messages_cannot_be_changed() -> None:
    message = ErrorMessage(code="internal", message="")
    with pytest.raises(AttributeError):
        message.code = "other"  # type: ignore[misc]


def test_every_public_struct_is_exported() -> None:
    structs = {
        name
        for name, value in vars(messages).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct)
    }
    assert structs - set(messages.__all__) <= {"Change", "Value"} | {
        name for name in structs if name.startswith("Design") or name in {"Box", "Diagnostic"}
    }


def test_optional_fields_without_a_value_are_left_out() -> None:
    error = ErrorMessage(code="internal", message="")
    assert encode_body(error, Encoding.JSON) == b'{"type":"error","code":"internal","message":""}'


@pytest.mark.parametrize("change", [[0, 0, 0, 0, "x"], [0, 0, 0, 0, "x", None]])
def test_a_change_without_an_old_length_may_have_five_elements_or_a_null(change: list[object]) -> None:
    body = msgspec.json.encode({"type": "edit", "document": 1, "base": 1, "version": 2, "changes": [change]})
    edit = client_decoder(Encoding.JSON).decode(body)
    assert isinstance(edit, Edit)
    assert edit.changes == (Change(0, 0, 0, 0, "x"),)


def test_a_change_with_an_old_length_has_six_elements() -> None:
    edit = Edit(document=1, base=1, version=2, changes=(Change(0, 0, 0, 1, "x", 1),))
    assert msgspec.json.decode(encode_body(edit, Encoding.JSON))["changes"] == [[0, 0, 0, 1, "x", 1]]
