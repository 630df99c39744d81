"""Runs the command line as `python -m streamctx`."""

from __future__ import annotations

from streamctx.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
