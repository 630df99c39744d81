"""JSON Schema of the messages, generated from the structs.

`python -m streamctx.wire.schema --check` compares `protocol/schema/v1.json` with what the
structs say now; without `--check` it writes the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from streamctx.wire.messages import ClientMessage, ServerMessage

__all__ = ["main", "schema"]

SCHEMA_PATH = Path(__file__).parents[2] / "protocol" / "schema" / "v1.json"


def schema() -> dict[str, object]:
    """The schema of both directions: `client` and `server` name the two unions."""
    (client, server), components = msgspec.json.schema_components(
        [ClientMessage, ServerMessage], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "streamctx protocol, version 1: message bodies",
        "description": "Generated from the message structs. SPEC.md is normative.",
        "anyOf": [{"$ref": "#/$defs/client"}, {"$ref": "#/$defs/server"}],
        "$defs": {"client": client, "server": server, **dict(sorted(components.items()))},
    }


def main(arguments: list[str]) -> int:
    """Write or check the schema file; the exit status is 1 where it is out of date."""
    text = json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
    if arguments == ["--check"]:
        if not SCHEMA_PATH.exists() or SCHEMA_PATH.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{SCHEMA_PATH} is out of date: run `make schema`\n")
            return 1
        return 0
    SCHEMA_PATH.parent.mkdir(parents=True, exist_ok=True)
    SCHEMA_PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
