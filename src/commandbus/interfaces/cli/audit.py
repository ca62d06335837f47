"""`audit`: the trail of a command."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.output import Column, field_of

COLUMNS = (
    Column("time", lambda event: text.moment(event.timestamp)),
    Column("event", field_of("event_type")),
    Column("domain", field_of("domain")),
    Column("details", lambda event: text.compact_json(event.details)),
)


def audit(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="The command's id.")],
    domain: options.Domain = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show everything that happened to a command, in order."""
    from commandbus.domain.ids import as_id
    from commandbus.errors import CommandNotFoundError
    from commandbus.interfaces.cli.details import print_events

    with target.opened(url) as bus:
        trail = bus.get_audit_trail(command_id, domain)
    if not trail:
        raise CommandNotFoundError(domain, as_id(command_id, "ID"))
    if json:
        output.json_document(trail)
    elif output.is_terminal():
        print_events(trail)
    else:
        output.tsv(trail, COLUMNS)
