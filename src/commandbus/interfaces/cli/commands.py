"""`list`, `show` and `watch`: what became of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.domain.page import Page
from commandbus.interfaces.cli import finding, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of, id_column

if TYPE_CHECKING:
    from commandbus.domain.audit import AuditEvent
    from commandbus.domain.command import CommandRecord
    from commandbus.sync import SyncCommandBus

OWN_DOMAIN = "The command's domain, where several domains have this id."

COLUMNS = (
    id_column("id", field_of("command_id")),
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
ORDER = "-created"


@listing(times="Sent", paged=True, secrets=True)
def list_(
    look: Look,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILTER",
            help="As in the dashboard: status:parked error:TIMEOUT 'age:<2h' data.account:42",
            show_default=False,
        ),
    ] = None,
    domain: options.Domain = None,
    command_type: options.Type = None,
    status: options.Status = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this tag.")] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="With the commands of the bus itself, such as replies.")
    ] = False,
    timeout: options.SearchTime = None,
) -> Found:
    """List commands, newest first.

    A search goes on until the page is full or everything was looked at. One that takes longer than
    --timeout prints what it has found and where to go on, and ends with exit code 8.
    """
    from commandbus.interfaces.search import BoundedSearch, is_own, parse_search

    seconds = finding.SECONDS if timeout is None else options.seconds(timeout, "--timeout")
    search = parse_search(" ".join(words or ()))
    named: dict[str, Any] = {
        "domain": domain,
        "command_type": command_type,
        "status": as_status(status),
        "tag": tag,
        "created_after": look.since,
        "created_before": look.until,
    }
    internal = internal or command_type is not None
    conditions = search.conditions | {name: value for name, value in named.items() if value is not None}
    wanted = search.parts.get("command")
    if search.command_id is not None:
        wanted = str(search.command_id)
    if wanted is not None:
        return found_page(Page([find(look.bus, wanted, conditions.get("domain"))]))
    if "batch" in search.parts:
        conditions["batch_id"] = finding.whole_id(look.bus, search.parts["batch"], "batch")
    keep = None if internal or search.named else is_own
    bounded = BoundedSearch(conditions, look.limit, look.after, keep, seconds)
    finding.fill(look.bus, bounded)
    return found_page(Page(bounded.found, bounded.next), exhausted=bounded.exhausted)


def found_page(page: Page[CommandRecord], *, exhausted: bool = True) -> Found:
    """A page of commands, and how to get the next."""
    more = {"exhausted": exhausted}
    if exhausted:
        return Found.of_page("commands", page, COLUMNS, "no command matches", order=ORDER, more=more)
    stopped = f"the search stopped before everything was looked at; go on with --after {page.next}"
    return Found(
        "commands",
        list(page),
        COLUMNS,
        "no command matches so far",
        page.next,
        ORDER,
        paged=True,
        more=more,
        warnings=(stopped,),
        code=Exit.TIMED_OUT,
    )


def as_status(name: str | None) -> str | None:
    """A status of commands by one of the words that a filter takes, in any case."""
    from commandbus.errors import InvalidArgumentError
    from commandbus.interfaces.search import QUALIFIERS, STATUSES

    if name is None:
        return None
    status = STATUSES.get(name.lower().replace("-", "_"))
    if status is None:
        raise InvalidArgumentError(f"Unknown status {name!r}; use {QUALIFIERS['status']}.")
    return status


def find(bus: SyncCommandBus, command_id: str, domain: str | None) -> CommandRecord:
    """The command with this id, or the only one whose id has these digits; whatever its domain. Raises
    CommandNotFoundError, and CliError when there are several."""
    from commandbus.errors import CommandNotFoundError, InvalidOperationError

    wanted = finding.whole_id(bus, command_id, "command")
    try:
        record = bus.get_command(wanted, domain=domain)
    except InvalidOperationError as error:
        raise CliError(str(error).replace("domain=", "--domain"), Exit.USAGE) from None
    if record is None:
        raise CommandNotFoundError(domain, wanted)
    return record


def show(
    command_id: options.CommandId,
    domain: Annotated[str | None, typer.Option("--domain", "-d", help=OWN_DOMAIN)] = None,
    reveal: options.Reveal = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a command: record, payload, error, timeline.

    Values under keys that name a secret are masked, as in the dashboard, unless --reveal is given.
    """
    from commandbus.sync import SyncTroubleshootingQueue

    with target.opened(url) as bus:
        record = output.masked(find(bus, command_id, domain), reveal)
        trail = _trail(bus, record, reveal)
        (case,) = SyncTroubleshootingQueue(bus).list_cases([record])
    if json:
        output.json_document(
            text.as_plain(record) | {"audit": text.as_plain(trail), "case": text.as_plain(case)}
        )
        return
    from commandbus.interfaces.cli.details import print_record

    print_record(record, trail, case)
    advise(record)


def _trail(bus: SyncCommandBus, record: CommandRecord, reveal: bool) -> list[AuditEvent]:
    trail = bus.get_audit_trail(record.command_id, domain=record.domain)
    return [output.masked(event, reveal) for event in trail]


def advise(record: CommandRecord) -> None:
    """What an operator can do about a parked command."""
    if record.status != "IN_TROUBLESHOOTING_QUEUE":
        return
    one = record.command_id
    output.note(f"try it again:          commandbus tsq retry {one} --reason '…'")
    output.note(f"with another payload:  commandbus tsq retry {one} --data '…' --reason '…'")
    output.note(f"end it:                commandbus tsq complete {one}, or tsq cancel")


def watch(
    command_id: options.CommandId,
    domain: Annotated[str | None, typer.Option("--domain", "-d", help=OWN_DOMAIN)] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Give up after: 30s, 5m.")
    ] = None,
    reveal: options.Reveal = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Wait for a command's outcome.

    What happens meanwhile is shown, with secrets masked, unless --reveal is given.
    Exit code 0 when it completed, 1 when it failed, was canceled or is parked, 8 when time ran out.
    """
    import time

    from commandbus.interfaces.cli.details import print_events

    limit = options.seconds(timeout, "--timeout")
    deadline = None if limit is None else time.monotonic() + limit
    with target.opened(url) as bus:
        record, seen = find(bus, command_id, domain), 0
        while True:
            trail = _trail(bus, record, reveal)
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
            trail = _trail(bus, record, reveal)
            break
    _report(output.masked(record, reveal), trail[seen:], json)


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
