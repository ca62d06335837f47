"""The command line: `commandbus …`, and `python -m commandbus …`.

Each command group has a file. They import what they need inside their functions, so that `--help` and
completion stay quick: of the extras only typer is loaded before a command runs.
"""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec


def main() -> None:
    """The console entry point. Ends the process with one of the documented exit codes."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(
            f"The command line needs {' and '.join(missing)}, which is not installed.\n"
            "Install it with: pip install 'durable-commandbus[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from commandbus.interfaces.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character gets an escape rather than an error.
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="commandbus")


__all__ = ["main"]
