"""`breaker`: circuit breakers, as the whole fleet shares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commandbus.interfaces.cli import output, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from rich.text import Text

    from commandbus.domain.breaker import BreakerSnapshot
    from commandbus.sync import SyncCommandBus


def _state(breaker: BreakerSnapshot) -> Text:
    return output.status(breaker.state)


COLUMNS = (
    Column("target", field_of("target"), keep=True),
    Column("state", field_of("state"), _state),
    Column(
        "probe",
        lambda breaker: text.moment(breaker.open_until),
        lambda breaker: text.age(breaker.open_until) if breaker.state == "OPEN" else "",
        right=True,
    ),
    Column("failures", field_of("failures"), right=True),
    Column(
        "changed",
        lambda breaker: text.moment(breaker.changed_at),
        lambda breaker: text.age(breaker.changed_at),
        right=True,
    ),
    Column("by", field_of("changed_by")),
    Column("reason", field_of("reason"), lambda breaker: breaker.reason or ""),
)
"""`probe` is when the next call is let through, to see whether the target answers again."""


@listing(times="Changed")
def list_(look: Look) -> Found:
    """List the breakers that ever opened."""
    found = look.choose(look.bus.list_breakers(), field_of("changed_at"))
    return Found("breakers", found, COLUMNS, "no breaker has ever opened")


def find(bus: SyncCommandBus, name: str) -> BreakerSnapshot:
    """The breaker of a target. Raises CliError when it never opened."""
    breaker = bus.get_breaker(name)
    if breaker is None:
        raise CliError(
            f"No breaker of {name!r} has ever opened; `commandbus breaker list` names those that have.",
            Exit.NOT_FOUND,
        )
    return breaker
