"""A server process around the echo hub: `python -m tests.server.echo_server '{"uds": "/tmp/x"}'`.

It takes settings as JSON, limits by their names among them, and prints a line with its port when it listens.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from pathlib import Path

from streamctx.errors import ConfigurationError
from streamctx.limits import Limits
from streamctx.server.config import ServerConfig
from streamctx.server.serve import Server, run
from tests.server.echo_hub import TOKEN, EchoHub

__all__: list[str] = []


def _config(settings: dict[str, object]) -> ServerConfig:
    names = {field.name for field in dataclasses.fields(Limits)}
    limits = Limits(**{name: settings.pop(name) for name in names & settings.keys()})  # type: ignore[arg-type]
    for name in ("uds", "ready_file", "tls_cert", "tls_key"):
        if name in settings:
            settings[name] = Path(str(settings[name]))
    return ServerConfig(token=TOKEN, limits=limits, **settings)  # type: ignore[arg-type]


def _say_ready(server: Server) -> None:
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()


def main() -> int:
    logging.basicConfig(level=logging.DEBUG)
    try:
        return run(EchoHub(), _config(json.loads(sys.argv[1])), on_ready=_say_ready)
    except ConfigurationError as error:
        sys.stdout.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
