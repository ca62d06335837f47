"""`limit`: how much of a domain, a type or a key runs at once and starts per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.domain.limits import rate_in_words
from commandbus.interfaces.cli import completing
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from commandbus.domain.limits import Limit


def _scope(limit: Limit) -> str:
    if limit.per_key:
        return "each group key"
    if limit.per_sender:
        return "each sender"
    return limit.command_type or "the domain"


COLUMNS = (
    Column("domain", field_of("domain"), keep=True),
    Column("of", _scope, keep=True),
    Column("at once", lambda limit: "" if limit.concurrency is None else limit.concurrency, right=True),
    Column(
        "rate",
        lambda limit: "" if limit.rate is None else f"{limit.rate:g}",
        lambda limit: "" if limit.rate is None else rate_in_words(limit.rate),
        right=True,
        key=field_of("rate"),
    ),
    Column("burst", lambda limit: "" if limit.rate is None else limit.burst, right=True),
)


@listing()
def list_(
    look: Look,
    domain: Annotated[
        str | None,
        typer.Argument(
            metavar="[DOMAIN]",
            help="Only this domain.",
            show_default=False,
            autocompletion=completing.domains,
        ),
    ] = None,
) -> Found:
    """List the limits that are set."""
    return Found("limits", list(look.bus.list_limits(domain)), COLUMNS, "no limit is set")
