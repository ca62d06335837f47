"""`audit`: the trail of a command, what happened to all of them, what people did, and restarts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import completing, options, output, text
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.lists import Found, Look, listing, read_page
from commandbus.interfaces.cli.output import Column, field_of, id_column

if TYPE_CHECKING:
    from commandbus.domain.audit import AuditEvent
    from commandbus.sync import SyncCommandBus

COLUMNS = (
    Column("time", lambda event: text.moment(event.timestamp)),
    Column("event", field_of("event_type")),
    Column("domain", field_of("domain")),
    Column("details", lambda event: text.compact_json(event.details)),
)

EVENTS = (
    Column(
        "time",
        lambda entry: text.moment(entry.event.timestamp),
        lambda entry: text.age(entry.event.timestamp),
    ),
    Column(
        "event",
        lambda entry: entry.event.event_type,
        lambda entry: text.event(entry.event.event_type),
    ),
    Column("domain", lambda entry: entry.event.domain),
    Column("type", field_of("command_type")),
    id_column("id", lambda entry: entry.event.command_id),
    Column(
        "details",
        lambda entry: text.compact_json(entry.event.details),
        lambda entry: _in_words(entry.event),
        wide=True,
    ),
)

ACTIONS = (
    Column("time", lambda action: text.moment(action.at), lambda action: text.age(action.at)),
    Column("who", field_of("actor"), keep=True),
    Column("action", field_of("action")),
    Column("on", field_of("subject")),
    Column("reason", field_of("reason")),
)

RESTARTS = (
    Column("time", lambda restart: text.moment(restart.at)),
    Column("worker", field_of("worker"), keep=True),
    Column("host", field_of("host"), wide=True),
    Column("pid", field_of("pid"), right=True, wide=True),
    Column("reason", field_of("reason")),
)


def _in_words(event: AuditEvent) -> str:
    from commandbus.interfaces.cli.details import summary

    return summary(event)


PROBLEMS = (
    Column("what", field_of("what"), style="red"),
    Column("link", field_of("number"), right=True),
    Column("entry", field_of("entry")),
)


def _verify(bus: SyncCommandBus, json: bool, expect: str | None) -> None:
    report = bus.verify_audit(expect=expect)
    if json:
        output.json_document(report)
    elif report.problems:
        output.table(report.problems, PROBLEMS)
    else:
        message = f"{text.plural(report.links, 'action')} as recorded"
        left = f", {report.open} not linked yet" if report.open else ""
        output.done(
            f"{message}, {report.erased} erased, {report.forgotten} forgotten by retention{left}"
        )
        if report.links:
            output.write(report.hash)
    if report.problems:
        output.error(f"{text.plural(len(report.problems), 'entry', 'entries')} not as recorded")
        raise typer.Exit(Exit.FAILURE)


@listing(times="Happened", paged=True, secrets=True)
def audit(
    look: Look,
    command_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The command's id; or `verify`, see above.",
            autocompletion=completing.ids("command"),
        ),
    ] = "",
    domain: options.Domain = None,
    event: Annotated[
        str | None,
        typer.Option("--event", metavar="EVENT", help="Only these, such as failed or parked."),
    ] = None,
    who: Annotated[str | None, typer.Option("--who", help="Only by this operator or worker.")] = None,
    people: Annotated[
        bool, typer.Option("--people", help="What people did to domains, schedules and breakers.")
    ] = False,
    restarts: Annotated[
        bool, typer.Option("--restarts", help="Restarts of unhealthy workers instead.")
    ] = False,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect", metavar="HASH", help="With verify: an earlier hash that must be in the chain."
        ),
    ] = None,
) -> Found:
    """Show what happened to a command or to all, what people did, who was restarted.

    One command's events come in order. Of all commands, failures, lost workers and operators' actions
    come newest first; that a command was sent, received and completed is in its own trail.

    `commandbus audit verify` checks the chain over what operators did: exit code 1, with a list, when
    an entry was changed, removed or inserted; else the hash of the last one, to be kept elsewhere.
    """
    bus = look.bus
    if command_id == "verify":
        _verify(bus, look.json, expect)
        raise typer.Exit
    if restarts:
        page = read_page(look, bus.list_restarts, field_of("at"))
        empty = "no worker was restarted within the last month"
        return Found.of_page("restarts", page, RESTARTS, empty, order="-time")
    if people:
        page = read_page(look, bus.list_actions, field_of("at"))
        return Found.of_page("actions", page, ACTIONS, "no operator action matches", order="-time")
    if command_id:
        return _trail(look, command_id, domain)
    kind = None if event is None else text.event_type(event)
    fetch = partial(bus.search_audit, domain=domain, event_type=kind, actor=who)
    page = read_page(look, fetch, lambda entry: entry.event.timestamp)
    return Found.of_page("entries", page, EVENTS, "no event matches", order="-time")


def _trail(look: Look, command_id: str, domain: str | None) -> Found:
    from commandbus.errors import CommandNotFoundError
    from commandbus.interfaces.cli.details import print_events
    from commandbus.interfaces.cli.finding import whole_id

    wanted = whole_id(look.bus, command_id, "command")
    trail = look.bus.get_audit_trail(wanted, domain=domain)
    if not trail:
        raise CommandNotFoundError(domain, wanted)
    events = look.choose(trail, field_of("timestamp"))
    return Found("events", events, COLUMNS, "no event matches", prints=print_events)
