"""`breaker`: circuit breakers, as the whole fleet shares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from rich.text import Text

    from commandbus.domain.breaker import BreakerSnapshot

STYLES = {"OPEN": ("open", "red"), "HALF_OPEN": ("half open", "yellow"), "CLOSED": ("closed", "green")}


def _state(breaker: BreakerSnapshot) -> Text:
    from rich.text import Text

    return Text(*STYLES[breaker.state])


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

Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="What the breaker guards, such as a bank.")
]


def list_(url: options.Url = None, json: options.Json = False) -> None:
    """List the breakers that ever opened."""
    with target.opened(url) as bus:
        found = bus.list_breakers()
    if json:
        output.json_document({"breakers": list(found)})
        return
    output.table(found, COLUMNS, empty="no breaker has ever opened")


def open_(
    name: Target,
    cooldown: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long nothing gets through.")
    ] = "5m",
    reason: Annotated[str | None, typer.Option("--reason", help="Why; shown in the list.")] = None,
    operator: options.Operator = None,
    url: options.Url = None,
) -> None:
    """Stop calling a target, in the whole fleet.

    Its commands wait without using an attempt. When the time is over, some are let through to see
    whether the target answers.
    """
    seconds = options.seconds(cooldown, "--for") or 0.0
    with target.acting(url, operator) as bus:
        bus.open_breaker(name, seconds, reason=reason)
    output.done(f"nothing gets through to {name} for {text.duration(seconds)}")


def reset(
    name: Target,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; shown in the list.")] = None,
    operator: options.Operator = None,
    url: options.Url = None,
) -> None:
    """Call a target again, because it is known to answer."""
    with target.acting(url, operator) as bus:
        if bus.get_breaker(name) is None:
            raise CliError(
                f"No breaker of {name!r} has ever opened; `commandbus breaker list` names those that "
                "have.",
                Exit.NOT_FOUND,
            )
        bus.reset_breaker(name, reason=reason)
    output.done(f"{name} is called again")
