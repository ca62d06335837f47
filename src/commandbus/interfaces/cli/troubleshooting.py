"""`tsq`: the troubleshooting queue, and what a person can do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.errors import CommandBusError
from commandbus.interfaces.cli import commands, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue

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
    Column("message", field_of("error_message"), lambda record: record.error_message or "", wide=True),
)
GROUP_COLUMNS = (
    Column("count", lambda group: group[1], lambda group: f"{group[1]:,}", right=True, style="bold"),
    Column("domain", lambda group: group[0][0]),
    Column("type", lambda group: group[0][1]),
    Column("code", lambda group: group[0][2], style="yellow"),
    Column("message", lambda group: group[0][3]),
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The commands' ids.")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters, instead of ids.")]
Code = Annotated[str | None, typer.Option("--code", "-c", help="Only with this error code.")]


def groups_of(records: list[CommandRecord]) -> list[tuple[tuple[str, str, str, str], int]]:
    """Parked commands by what went wrong, the most frequent first; each with one of its messages."""
    counts: Counter[tuple[str, str, str]] = Counter()
    messages: dict[tuple[str, str, str], str] = {}
    for record in records:
        key = (record.domain, record.command_type, record.error_code or "")
        counts[key] += 1
        messages.setdefault(key, record.error_message or "")
    return [((*key, messages[key]), count) for key, count in counts.most_common()]


def list_(
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    groups: Annotated[bool, typer.Option("--groups", "-g", help="Count by error instead.")] = False,
    limit: options.Limit = 20,
    after: options.After = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """List parked commands, newest first."""
    following = None
    with target.opened(url) as bus:
        if groups or code is not None:
            records = list(_matching(bus, domain, command_type, code))
        else:
            from commandbus.sync import SyncTroubleshootingQueue

            page = SyncTroubleshootingQueue(bus).list_troubleshooting(
                domain, command_type, after=after, limit=limit
            )
            records, following = page.commands, page.next
    if groups:
        _print_groups(records, json)
        return
    records = records[:limit]
    if json:
        output.json_document({"commands": records, "next": following})
        return
    output.table(records, COLUMNS, empty="nobody needs a person: the troubleshooting queue is empty")
    if following is not None:
        output.note(f"more with --after {following}, or by error with --groups")


def _print_groups(records: list[CommandRecord], json: bool) -> None:
    found = groups_of(records)
    if json:
        names = ("domain", "command_type", "code", "message")
        output.json_document(
            {"groups": [dict(zip(names, key, strict=True)) | {"count": n} for key, n in found]}
        )
        return
    output.table(
        found, GROUP_COLUMNS, empty="nobody needs a person: the troubleshooting queue is empty"
    )


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
    from commandbus.sync import SyncTroubleshootingQueue

    with target.opened(url) as bus:
        number = SyncTroubleshootingQueue(bus).count(domain, command_type)
    if json:
        output.json_document({"count": number})
    else:
        output.write(str(number))


def _matching(
    bus: SyncCommandBus, domain: str | None, command_type: str | None, code: str | None
) -> Iterator[CommandRecord]:
    """Every parked command that meets the filters."""
    from commandbus.sync import SyncTroubleshootingQueue

    queue, after = SyncTroubleshootingQueue(bus), None
    while True:
        page = queue.list_troubleshooting(domain, command_type, after=after, limit=PAGE)
        yield from (record for record in page if code is None or record.error_code == code)
        if page.next is None:
            return
        after = page.next


def retry(
    ids: Ids = None,
    everything: All = False,
    data: Annotated[
        str | None, typer.Option("--data", help="A corrected payload: JSON, @file or -.")
    ] = None,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
) -> None:
    """Send parked commands back to work with fresh attempts.

    By id, or with --all every one that matches --domain, --type and --code.
    """
    edit: dict[str, Any] = {}
    if data is not None:
        if everything or len(ids or []) != 1:
            raise CliError("--data corrects one command: give exactly one ID.", Exit.USAGE)
        edit["data"] = options.document(data, "--data")
    who = options.acting(operator)

    def act(queue: SyncTroubleshootingQueue, record: CommandRecord) -> None:
        queue.operator_retry(record.domain, record.command_id, operator=who, reason=reason, **edit)

    with target.opened(url) as bus:
        chosen = _chosen(bus, ids, everything, domain, command_type, code)
        _carry_out(bus, chosen, "retry", act, ask=everything, dry_run=dry_run, yes=yes)


def cancel(
    ids: Ids = None,
    everything: All = False,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")] = (
        "canceled by an operator"
    ),
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
) -> None:
    """End parked commands as canceled.

    By id, or with --all every one that matches --domain, --type and --code.
    """
    who = options.acting(operator)

    def act(queue: SyncTroubleshootingQueue, record: CommandRecord) -> None:
        queue.operator_cancel(record.domain, record.command_id, reason, operator=who)

    with target.opened(url) as bus:
        chosen = _chosen(bus, ids, everything, domain, command_type, code)
        _carry_out(bus, chosen, "cancel", act, ask=everything, dry_run=dry_run, yes=yes)


def complete(
    ids: Ids = None,
    everything: All = False,
    result: Annotated[
        str | None, typer.Option("--result", help="The result you vouch for: JSON, @file or -.")
    ] = None,
    domain: options.Domain = None,
    command_type: options.Type = None,
    code: Code = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
) -> None:
    """End parked commands as completed, because somebody did their work by hand.

    By id, or with --all every one that matches --domain, --type and --code.
    """
    vouched, who = options.document(result, "--result"), options.acting(operator)

    def act(queue: SyncTroubleshootingQueue, record: CommandRecord) -> None:
        queue.operator_complete(record.domain, record.command_id, vouched, operator=who, reason=reason)

    with target.opened(url) as bus:
        chosen = _chosen(bus, ids, everything, domain, command_type, code)
        _carry_out(bus, chosen, "complete", act, ask=everything, dry_run=dry_run, yes=yes)


def _chosen(
    bus: SyncCommandBus,
    ids: list[str] | None,
    everything: bool,
    domain: str | None,
    command_type: str | None,
    code: str | None,
) -> list[CommandRecord]:
    """The commands to act on: by id, or by filter with --all; never both, never neither."""
    if everything == bool(ids):
        raise CliError("Give the ids of commands, or --all with filters; not both.", Exit.USAGE)
    if not everything:
        return [commands.find(bus, command_id, domain) for command_id in ids or []]
    return list(_matching(bus, domain, command_type, code))


def _carry_out(
    bus: SyncCommandBus,
    chosen: list[CommandRecord],
    verb: str,
    act: Callable[[SyncTroubleshootingQueue, CommandRecord], None],
    *,
    ask: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Do it to each of them; what is refused is reported, and the rest goes on."""
    from rich.progress import track

    from commandbus.sync import SyncTroubleshootingQueue

    what = text.plural(len(chosen), "parked command")
    if dry_run:
        output.note(f"would {verb} {what}:" if chosen else f"would {verb} nothing")
        output.table(groups_of(chosen), GROUP_COLUMNS)
        return
    if not chosen:
        output.note("no parked command matches")
        return
    if ask:
        output.table(groups_of(chosen), GROUP_COLUMNS) if output.is_interactive() else None
        options.confirm(f"{verb.capitalize()} {what}?", yes=yes)
    queue, refused = SyncTroubleshootingQueue(bus), 0
    progress = output.console(stderr=True)
    hidden = len(chosen) < 50 or not output.is_terminal()
    for record in track(chosen, f"{verb}", console=progress, transient=True, disable=hidden):
        try:
            act(queue, record)
        except CommandBusError as error:
            if len(chosen) == 1:
                raise
            refused += 1
            output.error(f"{record.command_id}: {error}")
    past = {"retry": "sent back to work", "cancel": "canceled", "complete": "completed"}[verb]
    output.done(f"{text.plural(len(chosen) - refused, 'command')} {past}")
    if refused:
        raise typer.Exit(Exit.FAILURE)
