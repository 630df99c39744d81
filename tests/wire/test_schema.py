"""The schema file is what the structs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamctx.wire import schema as module
from streamctx.wire.messages import CLIENT_MESSAGES, SERVER_MESSAGES, Message
from streamctx.wire.schema import main, schema

__all__: list[str] = []


def test_the_schema_file_is_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_a_schema_file_that_is_missing_or_out_of_date_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "schema" / "v1.json"
    monkeypatch.setattr(module, "SCHEMA_PATH", path)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    path.write_text("{}")
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert json.loads(path.read_text()) == json.loads(json.dumps(schema()))


def test_times_are_whole_milliseconds() -> None:
    definitions = schema()["$defs"]
    assert isinstance(definitions, dict)
    fields = {
        f"{name}.{field}": value
        for name, definition in definitions.items()
        for field, value in definition.get("properties", {}).items()
    }
    times = {name: value for name, value in fields.items() if name.endswith("_ms")}
    assert {"GoAway.retry_ms", "NegotiatedLimits.dead_ms", "Subscribe.min_interval_ms"} <= set(times)
    assert {value["type"] for value in times.values()} == {"integer"}
    # No other field says a time in another unit.
    assert [
        name for name in fields if name.endswith(("_s", "_us", "_ns", "_at", "timeout", "interval"))
    ] == []


def test_the_schema_tells_the_messages_of_each_direction_apart_by_their_type() -> None:
    definitions = schema()["$defs"]
    assert isinstance(definitions, dict)

    def tags(types: tuple[type[Message], ...]) -> set[object]:
        return {message.__struct_config__.tag for message in types}

    for side, messages in (("client", CLIENT_MESSAGES), ("server", SERVER_MESSAGES)):
        assert set(definitions[side]["discriminator"]["mapping"]) == tags(messages)
