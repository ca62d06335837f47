"""`tsq`: the troubleshooting queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from commandbus.interfaces.cli import cases, commands, completing, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of, id_column

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.operations.bulk_troubleshooting import FailureGroup
    from commandbus.sync import SyncTroubleshootingQueue

PAGE = 500

COLUMNS = (
    id_column("id", field_of("command_id")),
    Column("domain", field_of("domain")),
    Column("type", field_of("command_type")),
    Column("code", field_of("error_code"), lambda record: record.error_code or "", style="yellow"),
    Column("attempts", field_of("attempts"), wide=True, right=True),
    Column(
        "parked",
        lambda record: text.moment(record.finished_at),
        lambda record: text.age(record.finished_at),
        right=True,
    ),
    Column("message", field_of("error_message"), lambda record: record.error_message or ""),
)


def _moment(name: str) -> Column:
    """When a command of a group was parked."""
    moment = field_of(name)
    return Column(
        name,
        lambda group: text.moment(moment(group)),
        lambda group: text.age(moment(group)),
        right=True,
        wide=True,
    )


GROUP_COLUMNS = (
    Column("count", field_of("count"), lambda group: f"{group.count:,}", right=True, style="bold"),
    Column("group", field_of("fingerprint"), keep=True),
    Column("domain", field_of("domain")),
    Column("type", field_of("command_type")),
    Column("code", field_of("error_code"), style="yellow"),
    Column("exception", field_of("exception"), pipe=True),
    Column("frame", field_of("frame"), pipe=True),
    _moment("oldest"),
    _moment("newest"),
    Column("message", field_of("message")),
)
MORE = "more"
"""In the place of a cursor, for a list that goes on and has none."""
EMPTY = "the troubleshooting queue is empty"

Code = Annotated[str | None, typer.Option("--code", "-c", help="Only with this error code.")]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which parked commands are meant."""

    domain: str | None
    command_type: str | None
    code: str | None
    group: str | None = None

    def groups(self, queue: SyncTroubleshootingQueue) -> list[FailureGroup]:
        """What is meant, by how it failed; the largest group first."""
        return [
            group
            for group in queue.group_failures(self.domain, self.command_type)
            if self.code in (None, group.error_code) and self.group in (None, group.fingerprint)
        ]

    def fits(self, record: CommandRecord) -> bool:
        return (
            self.domain in (None, record.domain)
            and self.command_type in (None, record.command_type)
            and self.code in (None, record.error_code)
        )

    def assigned(self, queue: SyncTroubleshootingQueue, assignee: str) -> Iterator[CommandRecord]:
        """What of it is assigned to a person, read as far as it is asked for."""
        after = None
        while True:
            page = queue.list_assigned(assignee, after=after, limit=PAGE)
            yield from filter(self.fits, page)
            if page.next is None:
                return
            after = page.next

    def records(self, queue: SyncTroubleshootingQueue) -> Iterator[CommandRecord]:
        """What is meant, newest first, read as far as it is asked for."""
        after = None
        while True:
            page = queue.list_troubleshooting(self.domain, self.command_type, after=after, limit=PAGE)
            yield from (record for record in page if self.code in (None, record.error_code))
            if page.next is None:
                return
            after = page.next


@listing(times="Parked", paged=True, secrets=True)
def list_(
    look: Look,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    groups: Annotated[bool, typer.Option("--groups", "-g", help="Count by error instead.")] = False,
    assignee: Annotated[
        str | None, typer.Option("--assignee", help="Only those assigned to this person.")
    ] = None,
) -> Found:
    """List parked commands, newest first.

    They come in the order in which they were sent. --sort -parked sorts by the time of parking.
    """
    from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue

    chosen, queue = Selection(domain, command_type, code), SyncTroubleshootingQueue(look.bus)
    if groups:
        return _found_groups(look.choose(chosen.groups(queue), lambda group: group.newest))
    if assignee is None and code is None and not look.has_bounds:
        page = queue.list_troubleshooting(domain, command_type, after=look.after, limit=look.limit)
        more = (f"more with --after {page.next}, or by error with --groups",) if page.next else ()
        return _found(list(page), queue, page.next, more)
    if look.after is not None:
        raise CliError(
            "--after does not go with --code, --assignee, --since and --until; raise --limit.",
            Exit.USAGE,
        )
    matching = chosen.records(queue) if assignee is None else chosen.assigned(queue, assignee)
    with output.working("reading parked commands"):
        fitting = (record for record in matching if look.covers(record.finished_at))
        records = list(islice(fitting, look.limit + 1))
    if len(records) <= look.limit:
        return _found(records, queue)
    more = ("more with a larger --limit, or by error with --groups",)
    return _found(records[: look.limit], queue, MORE, more)


def _found(
    records: list[CommandRecord],
    queue: SyncTroubleshootingQueue,
    following: str | None = None,
    notes: tuple[str, ...] = (),
) -> Found:
    known = queue.list_cases(records)
    cases_of = {(r.domain, r.command_id): case for r, case in zip(records, known, strict=True)}
    cursor = None if following is MORE else following

    def document(rows: Sequence[CommandRecord]) -> dict[str, object]:
        ordered = [cases_of[row.domain, row.command_id] for row in rows]
        return {"commands": list(rows), "cases": ordered, "next": cursor}

    columns = COLUMNS + cases.columns(cases_of)
    return Found("commands", records, columns, EMPTY, following, document=document, notes=notes)


def _found_groups(found: list[FailureGroup]) -> Found:
    act = "act on one with `commandbus tsq retry --all --group GROUP`, cancel or complete"
    notes = (act,) if found and output.is_terminal() else ()
    return Found("groups", found, GROUP_COLUMNS, EMPTY, notes=notes)


def show(
    command_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The command's id.",
            autocompletion=completing.ids("command", fitting=("IN_TROUBLESHOOTING_QUEUE",)),
        ),
    ],
    domain: options.Domain = None,
    reveal: options.Reveal = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a parked command: payload, error with traceback, timeline."""
    commands.show(command_id, domain, reveal, url, json)


def count(
    domain: options.Domain = None,
    command_type: options.Type = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Count parked commands."""
    from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue

    with target.opened(url) as bus:
        number = SyncTroubleshootingQueue(bus).count(domain, command_type)
    if json:
        output.json_document({"count": number})
    else:
        output.write(str(number))
