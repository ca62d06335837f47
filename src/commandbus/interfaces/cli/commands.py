"""`list`, `show` and `watch`: what became of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from commandbus.domain.audit import AuditEvent
    from commandbus.domain.command import CommandRecord
    from commandbus.store.records import CommandPage
    from commandbus.sync import SyncCommandBus

OWN_DOMAIN = "The command's domain, where several domains have this id."

COLUMNS = (
    Column("id", field_of("command_id"), keep=True),
    Column("domain", field_of("domain")),
    Column("type", field_of("command_type")),
    Column("status", field_of("status"), lambda record: output.status(record.status)),
    Column("priority", field_of("priority"), wide=True, right=True),
    Column("attempts", field_of("attempts"), wide=True, right=True),
    Column(
        "created",
        lambda record: text.moment(record.created_at),
        lambda record: text.age(record.created_at),
        right=True,
    ),
    Column("error", field_of("error_code"), lambda record: record.error_code or "", wide=True),
)


def list_(
    domain: options.Domain = None,
    command_type: options.Type = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status", "-s", help="pending, in_progress, completed, failed, canceled or parked."
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this tag.")] = None,
    limit: options.Limit = 20,
    after: options.After = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """List commands, newest first."""
    with target.opened(url) as bus:
        page = bus.query_commands(
            domain=domain,
            command_type=command_type,
            status=as_status(status),
            tag=tag,
            limit=limit,
            after=after,
        )
    print_page(page, json)


def print_page(page: CommandPage, json: bool) -> None:
    """A page of commands, and how to get the next."""
    if json:
        output.json_document(page)
        return
    output.table(page.commands, COLUMNS, empty="no command matches")
    if page.next is not None:
        output.note(f"more with --after {page.next}")


def as_status(name: str | None) -> str | None:
    """A status by its full name, in any case, or `parked`."""
    if name is None:
        return None
    wanted = name.upper().replace("-", "_")
    return "IN_TROUBLESHOOTING_QUEUE" if wanted in ("PARKED", "TSQ") else wanted


def find(bus: SyncCommandBus, command_id: str, domain: str | None) -> CommandRecord:
    """The command with this id, whatever its domain. Raises CommandNotFoundError, and CliError when
    several domains have one."""
    from commandbus.domain.ids import as_id
    from commandbus.errors import CommandNotFoundError, InvalidArgumentError

    try:
        wanted = as_id(command_id, "ID")
    except InvalidArgumentError:
        raise CliError(
            f"{command_id!r} is not the UUID of a command; give the whole of it, as `list` shows it.",
            Exit.USAGE,
        ) from None
    domains = {event.domain for event in bus.get_audit_trail(wanted, domain)}
    if len(domains) > 1:
        names = ", ".join(sorted(domains))
        raise CliError(
            f"Several domains have a command {wanted} ({names}); say which with --domain.", Exit.USAGE
        )
    record = bus.get_command(domains.pop(), wanted) if domains else None
    if record is None:
        raise CommandNotFoundError(domain, wanted)
    return record


def show(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="The command's id.")],
    domain: Annotated[str | None, typer.Option("--domain", "-d", help=OWN_DOMAIN)] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a command: record, payload, error, timeline."""
    from commandbus.sync import SyncTroubleshootingQueue

    with target.opened(url) as bus:
        record = find(bus, command_id, domain)
        trail = bus.get_audit_trail(record.command_id, record.domain)
        (case,) = SyncTroubleshootingQueue(bus).list_cases([record])
    if json:
        output.json_document(
            text.as_plain(record) | {"audit": text.as_plain(trail), "case": text.as_plain(case)}
        )
        return
    from commandbus.interfaces.cli.details import print_record

    print_record(record, trail, case)


def watch(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="The command's id.")],
    domain: Annotated[str | None, typer.Option("--domain", "-d", help=OWN_DOMAIN)] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after: 30s, 5m.")
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Wait for a command's outcome.

    What happens meanwhile is shown.
    Exit code 0 when it completed, 1 when it failed, was canceled or is parked, 8 when time ran out.
    """
    import time

    from commandbus.interfaces.cli.details import print_events

    limit = options.seconds(timeout, "--timeout")
    deadline = None if limit is None else time.monotonic() + limit
    with target.opened(url) as bus:
        record, seen = find(bus, command_id, domain), 0
        while True:
            trail = bus.get_audit_trail(record.command_id, record.domain)
            if not json and len(trail) > seen:
                print_events(trail[seen:])
                seen = len(trail)
            left = 0.5 if deadline is None else min(0.5, max(0.0, deadline - time.monotonic()))
            try:
                record = bus.wait(record.command_id, left, domain=record.domain)
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise CliError(
                        f"Command {record.command_id} has no outcome after {text.duration(limit)}; "
                        f"`commandbus why {record.command_id}` says what it waits for.",
                        Exit.TIMED_OUT,
                    ) from None
                continue
            trail = bus.get_audit_trail(record.command_id, record.domain)
            break
    _report(record, trail[seen:], json)


def _report(record: CommandRecord, rest: list[AuditEvent], json: bool) -> None:
    """How the watched command ended, and the exit code for it."""
    from commandbus.interfaces.cli.details import print_events

    if json:
        output.json_document(record)
    else:
        print_events(rest)
        if record.status == "COMPLETED":
            output.done(f"completed{_with_result(record)}")
        elif record.error is not None:
            output.error(f"{record.error.code}: {record.error.message}")
        else:
            output.error(record.reason or str(record.status))
    if record.status != "COMPLETED":
        raise typer.Exit(Exit.FAILURE)


def _with_result(record: CommandRecord) -> str:
    return "" if record.result is None else f": {text.compact_json(record.result)}"
