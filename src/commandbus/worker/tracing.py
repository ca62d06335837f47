"""The spans of a worker's runs."""

from __future__ import annotations

from typing import Protocol

from commandbus.worker.handlers import Handler


class Tracing(Protocol):
    """What follows the traces that commands carry in their headers."""

    def enter(self) -> None:
        """Called once for every slot, in the context of which each run gets a copy."""

    def wrap(self, handler: Handler) -> Handler:
        """The same handler, for a command that has headers."""
        ...
