"""The session scripts are well formed; `protocol/vectors/sessions/README.md` describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from streamctx.vocabulary import Encoding
from streamctx.wire.codec import Malformed, UnknownType, client_decoder
from tests.vectors.reading import VECTORS, Case, expand

__all__: list[str] = []

SCRIPTS = sorted((VECTORS / "sessions").glob("*.json"))
FORMS: dict[str, set[str]] = {
    "connect": {"token", "encoding", "refused"},
    "from": {"send", "same_bytes_as", "sequence", "name", "corrupt"},
    "acknowledge": set(),
    "cut": set(),
    "close": {"code"},
    "restart": set(),
    "repeat": {"steps"},
    "expect": {"message", "sequence", "stream", "skipping", "repeated"},
    "pass_over": {"types"},
    "expect_ack": {"message"},
    "expect_nothing": set(),
    "expect_close": {"code"},
    "expect_events": {"stream", "events"},
    "expect_parts": {"stream", "document", "text"},
    "expect_document": {"document", "text", "version", "stale", "absent"},
}
"""What a step is named by, and what else it may have beside `at`."""
NOT_MESSAGES = {"malformed", "malformed_unnumbered", "malformed_relations", "hello_malformed", "unknown_type"}
"""Scripts that send bodies which are no messages on purpose."""

every_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)


def script(path: Any) -> Case:
    value: Case = json.loads(path.read_text("utf-8"))
    return value


def flat(steps: list[Case]) -> Iterator[Case]:
    for step in steps:
        yield step
        yield from flat(step.get("steps", []))


def filled(value: Any) -> Any:
    """Replace what only a run knows by values of the same kind."""
    match value:
        case {"$use": str(name)}:
            return name
        case {"$step": [int(first), int()]}:
            return first
        case {"$concatenate": [*parts]}:
            return "".join(str(filled(part)) for part in parts)
        case {"$repeat": _}:
            return expand(value)
        case dict():
            return {key: filled(item) for key, item in value.items()}
        case list():
            return [filled(item) for item in value]
        case _:
            return value


def names(value: Any, key: str) -> set[str]:
    """The names that a step captures or uses."""
    match value:
        case dict():
            found = {value[key]} if key in value else set()
            return found.union(*(names(item, key) for item in value.values()))
        case list():
            return set().union(*(names(item, key) for item in value))
        case _:
            return set()


@every_script
def test_a_script_has_a_description_requirements_and_steps(path: Any) -> None:
    assert set(script(path)) == {"description", "requirements", "steps"}


@every_script
def test_every_step_has_one_known_form(path: Any) -> None:
    for step in flat(script(path)["steps"]):
        (form,) = set(step) & set(FORMS)
        assert set(step) - {form, "at"} <= FORMS[form], step


@every_script
def test_time_never_falls_and_starts_at_zero(path: Any) -> None:
    times = [step["at"] for step in flat(script(path)["steps"]) if "at" in step]
    assert times[0] == 0
    assert times == sorted(times)


@every_script
def test_every_value_is_captured_before_it_is_used(path: Any) -> None:
    captured: set[str] = set()
    for step in script(path)["steps"]:
        assert names(step, "$use") <= captured, step
        captured |= names(step, "$capture")


@every_script
def test_every_connection_is_opened_before_it_is_used(path: Any) -> None:
    opened: set[str] = set()
    kept: set[str] = set()
    for step in flat(script(path)["steps"]):
        (form,) = set(step) & set(FORMS)
        if form == "connect":
            assert step["connect"] not in opened
            opened.add(step["connect"])
        elif form not in ("restart", "repeat"):
            assert step[form] in opened, step
        if "name" in step:
            kept.add(step["name"])
        assert step.get("same_bytes_as", "x") in kept | {"x"}


@every_script
def test_what_clients_send_are_messages(path: Any) -> None:
    for step in flat(script(path)["steps"]):
        if "send" in step and path.stem not in NOT_MESSAGES:
            body = json.dumps(filled(step["send"])).encode()
            assert not isinstance(client_decoder(Encoding.JSON).decode(body), Malformed | UnknownType), step
