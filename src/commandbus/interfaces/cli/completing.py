"""What a shell offers for a value: asked of the store, and silent where it has no answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commandbus.sync import SyncCommandBus

NEWEST = 200
"""Types are those of so many commands."""


def _offered(ask: Callable[[SyncCommandBus], Iterable[str]]) -> Callable[[Any, str], list[str]]:
    def complete(ctx: Any, incomplete: str) -> list[str]:
        from commandbus.interfaces.cli import target

        try:
            with target.opened(ctx.params.get("url")) as bus:
                return sorted({name for name in ask(bus) if name.startswith(incomplete)})
        except Exception:  # a shell that completes must not print errors into its line
            return []

    return complete


def statuses(incomplete: str) -> list[str]:
    known = ("pending", "running", "completed", "failed", "canceled", "parked")
    return [status for status in known if status.startswith(incomplete.lower())]


domains = _offered(lambda bus: bus.list_domains())
types = _offered(lambda bus: {record.command_type for record in bus.query_commands(limit=NEWEST)})
schedules = _offered(lambda bus: [record.schedule.name for record in bus.list_schedules()])
