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


PROBLEMS = (
    Column("what", field_of("what"), style="red"),
    Column("link", field_of("number"), right=True),
    Column("entry", field_of("entry")),
)


def _verify(url: str | None, json: bool, expect: str | None) -> None:
    with target.opened(url) as bus:
        report = bus.verify_audit(expect=expect)
    if json:
        output.json_document(report)
    elif report.problems:
        output.table(report.problems, PROBLEMS)
    else:
        told = f"{text.plural(report.links, 'action')} as recorded"
        output.done(f"{told}, {report.erased} erased, {report.forgotten} forgotten by retention")
        output.write(report.hash)
    if report.problems:
        output.error(f"{text.plural(len(report.problems), 'entry', 'entries')} not as recorded")
        raise typer.Exit(Exit.FAILURE)


def audit(
    command_id: Annotated[
        str, typer.Argument(metavar="ID", help="The command's id; or `verify`, see below.")
    ] = "",
    domain: options.Domain = None,
    restarts: Annotated[
        bool, typer.Option("--restarts", help="Restarts of ill workers instead.")
    ] = False,
    expect: Annotated[
        str | None, typer.Option("--expect", metavar="HASH", help="With verify: told before.")
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show what happened to a command, in order, or which workers were restarted.

    `commandbus audit verify` checks the chain over what operators did: exit code 1, with a list, when
    an entry was changed, removed or inserted; else the hash of the last one, to be kept elsewhere.
    """
    if command_id == "verify":
        _verify(url, json, expect)
        return
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
