"""`version`."""

from __future__ import annotations

from commandbus.interfaces.cli import output


def version() -> None:
    """Print the version."""
    from commandbus import __version__

    output.write(__version__)
