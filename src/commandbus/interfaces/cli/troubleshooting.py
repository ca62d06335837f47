"""`tsq`: the troubleshooting queue, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.errors import CommandBusError
from commandbus.interfaces.cli import cases, commands, options, output, target, text
from commandbus.interfaces.cli.cases import assign, comment
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.operations.redrive import FailureGroup
    from commandbus.sync import SyncTroubleshootingQueue
    from commandbus.worker.handlers import HandlerRegistry

__all__ = ["assign", "cancel", "comment", "complete", "count", "list_", "retry", "show"]

PAGE = 500

COLUMNS = (
    Column("id", field_of("command_id"), keep=True),
    Column("domain", field_of("domain"), wide=True),
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
GROUP_COLUMNS = (
    Column("count", field_of("count"), lambda group: f"{group.count:,}", right=True, style="bold"),
    Column("group", field_of("fingerprint"), keep=True),
    Column("domain", field_of("domain"), wide=True),
    Column("type", field_of("command_type")),
    Column("code", field_of("error_code"), style="yellow"),
    Column("exception", field_of("exception"), pipe=True),
    Column("frame", field_of("frame"), pipe=True),
    Column(
        "newest",
        lambda group: text.moment(group.newest),
        lambda group: text.age(group.newest),
        right=True,
        wide=True,
    ),
    Column("message", field_of("message")),
)
EMPTY = "nobody needs a person: the troubleshooting queue is empty"

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The commands' ids.")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters, instead of ids.")]
Code = Annotated[str | None, typer.Option("--code", "-c", help="Only with this error code.")]
InGroup = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only this group of `list --groups`.")
]


@dataclass(frozen=True, slots=True)
class Choice:
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


def list_(
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    groups: Annotated[bool, typer.Option("--groups", "-g", help="Count by error instead.")] = False,
    assignee: Annotated[
        str | None, typer.Option("--assignee", help="Only those that somebody takes care of.")
    ] = None,
    limit: options.Limit = 20,
    after: options.After = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """List parked commands, newest first."""
    from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue

    if after is not None and (code is not None or assignee is not None):
        raise CliError("--after does not go with --code and --assignee; raise --limit.", Exit.USAGE)
    chosen, following, more = Choice(domain, command_type, code), None, False
    with target.opened(url) as bus:
        queue = SyncTroubleshootingQueue(bus)
        if groups:
            _print_groups(chosen.groups(queue), json)
            return
        if assignee is not None or code is not None:
            found = chosen.records(queue) if assignee is None else chosen.assigned(queue, assignee)
            records = list(islice(found, limit + 1))
            records, more = records[:limit], len(records) > limit
        else:
            page = queue.list_troubleshooting(domain, command_type, after=after, limit=limit)
            records, following = list(page), page.next
        known = queue.list_cases(records)
    if json:
        output.json_document({"commands": records, "cases": list(known), "next": following})
        return
    output.table(records, COLUMNS + cases.columns(records, known), empty=EMPTY)
    if following is not None:
        output.note(f"more with --after {following}, or by error with --groups")
    elif more:
        output.note("more with a larger --limit, or by error with --groups")


def _print_groups(found: list[FailureGroup], json: bool) -> None:
    if json:
        output.json_document({"groups": found})
        return
    output.table(found, GROUP_COLUMNS, empty=EMPTY)
    if found and output.is_terminal():
        output.note("act on one with `commandbus tsq retry --all --group GROUP`, cancel or complete")


def show(
    command_id: Annotated[str, typer.Argument(metavar="ID", help="The command's id.")],
    domain: options.Domain = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a parked command: payload, error with traceback, timeline."""
    commands.show(command_id, domain, url, json)


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


def retry(
    ids: Ids = None,
    everything: All = False,
    data: Annotated[
        str | None, typer.Option("--data", help="A corrected payload: JSON, @file or -.")
    ] = None,
    app: Annotated[
        str | None,
        typer.Option("--app", help="module:registry, to check --data against the handler's type."),
    ] = None,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    group: InGroup = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send parked commands back to work with fresh attempts.

    By id, or with --all every one that matches --domain, --type, --code and --group.
    """
    edit: dict[str, Any] = {}
    if data is not None:
        if everything or len(ids or []) != 1:
            raise CliError("--data corrects one command: give exactly one ID.", Exit.USAGE)
        edit["data"] = options.document(data, "--data")
    action = Action("retry", "sent back to work", reason, edit)
    chosen = Choice(domain, command_type, code, group)
    registry = None
    if app is not None:
        from commandbus.interfaces.cli.apps import load_registry

        registry = load_registry(app)
    how = How(dry_run, yes, json, operator)
    carry_out(action, ids, everything, chosen, url, how, registry)


def cancel(
    ids: Ids = None,
    everything: All = False,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    group: InGroup = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")] = (
        "canceled by an operator"
    ),
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """End parked commands as canceled.

    By id, or with --all every one that matches --domain, --type, --code and --group.
    """
    action = Action("cancel", "canceled", reason)
    chosen = Choice(domain, command_type, code, group)
    carry_out(action, ids, everything, chosen, url, How(dry_run, yes, json, operator))


def complete(
    ids: Ids = None,
    everything: All = False,
    result: Annotated[
        str | None, typer.Option("--result", help="The result you vouch for: JSON, @file or -.")
    ] = None,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    group: InGroup = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """End parked commands as completed, because somebody did their work by hand.

    By id, or with --all every one that matches --domain, --type, --code and --group.
    """
    vouched = {"result": options.document(result, "--result")}
    action = Action("complete", "completed", reason, vouched)
    chosen = Choice(domain, command_type, code, group)
    carry_out(action, ids, everything, chosen, url, How(dry_run, yes, json, operator))


@dataclass(frozen=True, slots=True)
class Action:
    """What an operator does to parked commands."""

    verb: str
    past: str
    reason: str | None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else the verb takes."""

    def one(self, queue: SyncTroubleshootingQueue, record: CommandRecord) -> None:
        act = getattr(queue, f"operator_{self.verb}")
        act(record.command_id, domain=record.domain, reason=self.reason, **self.fields)


@dataclass(frozen=True, slots=True)
class How:
    """Whether it is done, asked about before, told as a document, and who does it."""

    dry_run: bool
    yes: bool
    json: bool
    operator: str | None = None

    def preview(
        self, action: Action, count: int, rows: Sequence[Any], columns: Sequence[Column]
    ) -> None:
        """What would be done."""
        if self.json:
            output.json_document({"would": action.verb, "matched": count})
            return
        what = text.plural(count, "parked command") if count else "nothing"
        output.note(f"would {action.verb} {what}{':' if rows else ''}")
        output.table(rows, columns)


def carry_out(
    action: Action,
    ids: list[str] | None,
    everything: bool,
    chosen: Choice,
    url: str | None,
    how: How,
    registry: HandlerRegistry | None = None,
) -> None:
    """Act on the commands named, or on all that are chosen; never both, never neither."""
    from commandbus.runtimes.threads.bus import SyncTroubleshootingQueue

    if everything == bool(ids):
        raise CliError("Give the ids of commands, or --all with filters; not both.", Exit.USAGE)
    with target.acting(url, how.operator) as bus:
        queue = SyncTroubleshootingQueue(bus, registry)
        if everything:
            done, refused = _act_on_all(queue, action, chosen, how)
        else:
            records = [commands.find(bus, one, chosen.domain) for one in ids or []]
            done, refused = _act_on_each(queue, action, records, how)
    if how.json and not how.dry_run:
        output.json_document({"done": done, "refused": refused})
    elif done or refused:
        output.done(f"{text.plural(done, 'command')} {action.past}")
    if refused:
        raise typer.Exit(Exit.FAILURE)


def _act_on_each(
    queue: SyncTroubleshootingQueue, action: Action, records: list[CommandRecord], how: How
) -> tuple[int, int]:
    """What is refused is reported, and the rest goes on."""
    if how.dry_run:
        parked = [record for record in records if record.status == "IN_TROUBLESHOOTING_QUEUE"]
        how.preview(action, len(parked), parked, commands.COLUMNS)
        for record in records:
            if record not in parked:
                output.warn(f"{record.command_id} is not parked, but {record.status}")
        return 0, 0
    refused = 0
    for record in records:
        try:
            action.one(queue, record)
        except CommandBusError as error:
            if len(records) == 1:
                raise
            refused += 1
            output.error(f"{record.command_id}: {error}")
    return len(records) - refused, refused


def _act_on_all(
    queue: SyncTroubleshootingQueue, action: Action, chosen: Choice, how: How
) -> tuple[int, int]:
    """Domain by domain, after a look at what it will be."""
    groups = chosen.groups(queue)
    count = sum(group.count for group in groups)
    if how.dry_run:
        how.preview(action, count, groups, GROUP_COLUMNS)
        return 0, 0
    if not groups:
        output.note("no parked command matches")
        return 0, 0
    if output.is_interactive() and not how.yes:
        output.table(groups, GROUP_COLUMNS)
    what = f"{action.verb} {text.plural(count, 'parked command')}"
    options.confirm(f"{what.capitalize()}?", yes=how.yes)
    done = refused = 0
    with output.progress(action.verb, count) as advance:
        for domain in sorted({group.domain for group in groups}):
            report = queue.bulk(
                action.verb,
                reason=action.reason,
                domain=domain,
                command_type=chosen.command_type,
                error_code=chosen.code,
                group=chosen.group,
                progress=lambda number, matched: advance(),
                **action.fields,
            )
            done, refused = done + report.done, refused + report.refused
    if refused:
        output.warn(f"{text.plural(refused, 'command')} had been taken care of by somebody else")
    return done, refused
