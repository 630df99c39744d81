"""`streamctx serve` with other limits: `python -m tests.chaos.server_process PORT READY_FILE LIMITS`.

LIMITS is JSON, such as `{"dead_s": 3}`. Loop, signals and files are those of the command, which has no
options for its limits.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from streamctx.limits import Limits
from streamctx.server.config import ServerConfig
from streamctx.server.embedding import hub_for
from streamctx.server.serve import run

__all__: list[str] = []


def main() -> int:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    port, ready_file, limits = sys.argv[1:]
    config = ServerConfig(port=int(port), ready_file=Path(ready_file), limits=Limits(**json.loads(limits)))
    return run(hub_for(config), config)


if __name__ == "__main__":
    sys.exit(main())
