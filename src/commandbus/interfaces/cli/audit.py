"""`audit`: the trail of a command, and the restarts of workers."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column, field_of

COLUMNS = (
    Column("time", lambda event: text.moment(event.timestamp)),
    Column("event", field_of("event_type")),
    Column("domain", field_of("domain")),
    Column("details", lambda event: text.compact_json(event.details)),
)


RESTARTS = (
    Column("time", lambda restart: text.moment(restart.at)),
    Column("worker", field_of("worker"), keep=True),
    Column("host", field_of("host"), wide=True),
    Column("pid", field_of("pid"), right=True, wide=True),
    Column("reason", field_of("reason")),
)


def _show_restarts(url: str | None, json: bool) -> None:
    with target.opened(url) as bus:
        found = bus.list_restarts()
    if json:
        output.json_document({"restarts": found})
    else:
        output.table(found, RESTARTS, empty="no worker was restarted within the last month")


def audit(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="The command's id.")] = "",
    domain: options.Domain = None,
    restarts: Annotated[
        bool, typer.Option("--restarts", help="Restarts of ill workers instead.")
    ] = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show what happened to a command, in order, or which workers were restarted."""
    if restarts:
        _show_restarts(url, json)
        return
    if not command_id:
        raise CliError("Name a command by its id, or ask for --restarts.", Exit.USAGE)
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
