"""Loggers of the server, and one for libraries whose lines would carry what must not be logged."""

from __future__ import annotations

import logging

__all__ = ["library_logger", "logger"]

logger = logging.getLogger("streamctx.server")

# Libraries log whole frames and paths at DEBUG and two lines per connection at INFO. This one passes errors
# only. It is made by hand and not by getLogger, so that no configuration of the program can lower its level.
library_logger = logging.Logger("streamctx.server.library", logging.ERROR)
library_logger.parent = logger
