"""Looking after a store: creating it, checking it, diagnosing it."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True):
    """One thing a doctor looked at."""

    subject: str
    level: Level
    value: str
    advice: str = ""
    """What to do about it; empty when nothing needs doing."""


OVERDUE_SECONDS = 30


def overdue_leases(count: int, first: int | None) -> Finding:
    """About leases that ended more than OVERDUE_SECONDS ago and are still there."""
    if not count:
        return Finding("leases", Level.OK, "all that ended were taken back")
    return Finding(
        "leases",
        Level.WARNING,
        f"{count:,} ended over {OVERDUE_SECONDS} s ago and were not taken back, the first: {first}",
        "Any running worker takes them back. If one runs, its health and its log say why a lease "
        "cannot be taken back; its commands stay IN_PROGRESS until then.",
    )


class Administration(Protocol):
    """What an engine offers to its administrator. Nothing here needs an open bus."""

    def upgrade(self) -> str:
        """Bring the store to this version, creating what is missing; returns the version's name.
        Repeating it is harmless. Raises SchemaOutdated when the store is newer than this program."""
        ...

    def verify(self) -> str:
        """Check without changing anything that the store has this version; returns its name.
        Raises SchemaOutdated, or StoreUnavailable."""
        ...

    def sql(self) -> str:
        """The statements that `upgrade` would run on an empty store, for other migration tools."""
        ...

    def roles(self) -> str:
        """The statements that create roles with few rights, for programs that only send, work or look.
        Raises ConfigurationError where the store has no roles."""
        ...

    def doctor(self) -> list[Finding]:
        """Look at everything that could hurt, and say what to do about it."""
        ...
