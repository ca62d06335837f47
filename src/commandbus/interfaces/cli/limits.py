"""`limit`: how much of a domain, a type or a key runs at once and starts per second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.errors import InvalidArgumentError
from commandbus.interfaces.cli import options, output, target
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
    Column("per second", lambda limit: "" if limit.rate is None else f"{limit.rate:g}", right=True),
    Column("burst", lambda limit: "" if limit.rate is None else limit.burst, right=True),
)

Domain = Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain.")]
Type = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only this type, not the whole domain.")
]
PerSender = Annotated[bool, typer.Option("--per-sender", help="Sends of each sender by itself.")]
PerKey = Annotated[bool, typer.Option("--per-key", help="Each group key by itself.")]


def list_(
    domain: Annotated[
        str | None, typer.Argument(metavar="[DOMAIN]", help="Only this domain.", show_default=False)
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """List the limits that are set."""
    with target.opened(url) as bus:
        found = bus.list_limits(domain)
    if json:
        output.json_document({"limits": list(found)})
        return
    output.table(found, COLUMNS, empty="no limit is set")


def set_(
    domain: Domain,
    command_type: Type = None,
    per_key: PerKey = False,
    per_sender: PerSender = False,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", metavar="N", help="So many at once.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="So many starts per second (see --per).")
    ] = None,
    per: Annotated[str, typer.Option("--per", metavar="TIME", help="What the rate is about.")] = "1s",
    burst: Annotated[
        int | None, typer.Option("--burst", metavar="N", help="So many starts at once after a pause.")
    ] = None,
    operator: options.Operator = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Limit a domain, a type, or each group key; for the whole fleet, at once.

    What waits already is limited too; what runs goes on.
    """
    if concurrency is None and rate is None:
        raise InvalidArgumentError(
            "Say what to limit: --concurrency, --rate or both; `limit clear` takes a limit away."
        )
    seconds = options.seconds(per, "--per") or 0.0
    with target.acting(url, operator) as bus:
        limit = bus.set_limit(
            domain,
            command_type,
            per_key=per_key,
            concurrency=concurrency,
            rate=rate,
            per=seconds,
            burst=burst,
            per_sender=per_sender,
        )
    if json:
        output.json_document({"limit": limit})
        return
    output.done(f"limited to {limit}")


def clear(
    domain: Domain,
    command_type: Type = None,
    per_key: PerKey = False,
    per_sender: PerSender = False,
    operator: options.Operator = None,
    url: options.Url = None,
) -> None:
    """Take a limit away; what waited for it goes on."""
    with target.acting(url, operator) as bus:
        bus.clear_limit(domain, command_type, per_key=per_key, per_sender=per_sender)
    output.done(f"the limit in {domain} is taken away")
