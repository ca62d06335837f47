"""`reschedule`, `reprioritise`, `resend`: edits of waiting commands, and ended ones sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import commands, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from commandbus.records import EditReport
    from commandbus.sync import SyncCommandBus

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Commands by their ids.")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters.")]
Tag = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]


def reschedule(
    ids: Ids = None,
    everything: All = False,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Due so long from now; 0s is now.")
    ] = None,
    due_at: Annotated[
        str | None, typer.Option("--at", metavar="MOMENT", help="Due then, such as 2030-05-17T08:00Z.")
    ] = None,
    domain: options.Domain = None,
    command_type: options.Type = None,
    tag: Tag = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Let waiting commands become due at another time.

    By id, or with --all every waiting one that matches --domain, --type and --tag.
    """
    if (delay is None) == (due_at is None):
        raise CliError("Say when: give either --delay or --at.", Exit.USAGE)
    when: dict[str, Any] = {"delay": options.seconds(delay, "--delay")}
    if due_at is not None:
        when = {"due_at": _moment(due_at)}
    _carry_out(
        "reschedule",
        "rescheduled",
        lambda bus, chosen: bus.reschedule_many(reason=reason, **when, **chosen),
        (ids, everything, domain, command_type, tag),
        (operator, dry_run, yes, url, json),
    )


def reprioritise(
    ids: Ids = None,
    everything: All = False,
    priority: Annotated[
        str, typer.Option("--priority", "-p", help="high, normal, low or a number.")
    ] = "high",
    domain: options.Domain = None,
    command_type: options.Type = None,
    tag: Tag = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Give waiting commands another priority.

    By id, or with --all every waiting one that matches --domain, --type and --tag.
    """
    number = options.priority(priority)
    assert number is not None
    _carry_out(
        "reprioritise",
        "reprioritised",
        lambda bus, chosen: bus.reprioritise_many(number, reason=reason, **chosen),
        (ids, everything, domain, command_type, tag),
        (operator, dry_run, yes, url, json),
    )


def resend(
    ids: Ids = None,
    everything: All = False,
    data: Annotated[
        str | None, typer.Option("--data", help="Another payload: JSON, @file or -; for one ID.")
    ] = None,
    status: Annotated[
        str, typer.Option("--status", help="With --all: completed, failed or canceled.")
    ] = "failed",
    domain: options.Domain = None,
    command_type: options.Type = None,
    tag: Tag = None,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send ended commands again, as new commands.

    By id, or with --all every one that ended with --status and matches --domain, --type and --tag.
    """
    chosen = (ids, everything, domain, command_type, tag)
    if everything:
        if data is not None:
            raise CliError("--data is for one command: give exactly one ID.", Exit.USAGE)
        _carry_out(
            "resend",
            "sent again",
            lambda bus, wanted: bus.resend_many(status.upper(), reason=reason, **wanted),
            chosen,
            (operator, dry_run, yes, url, json),
        )
        return
    if data is not None and len(ids or []) != 1:
        raise CliError("--data is for one command: give exactly one ID.", Exit.USAGE)
    _require_choice(ids, everything)
    edited: Any = {} if data is None else {"data": options.document(data, "--data")}
    sent = []
    with target.acting(url, operator) as bus:
        records = [commands.find(bus, one, domain) for one in ids or []]
        if dry_run:
            _preview("resend", len(records), records, json)
            return
        for record in records:
            one = bus.resend(record.command_id, domain=record.domain, reason=reason, **edited)
            sent.append(one)
    if json:
        output.json_document({"sent": [{"command_id": one.command_id} for one in sent]})
        return
    for one in sent:
        told = "a command holds its unique key:" if one.duplicate else "sent again as"
        output.done(f"{told} {one.domain}/{one.command_id}")


def _carry_out(
    verb: str,
    past: str,
    act: Callable[[SyncCommandBus, dict[str, Any]], EditReport],
    choice: tuple[list[str] | None, bool, str | None, str | None, str | None],
    how: tuple[str | None, bool, bool, str | None, bool],
) -> None:
    """Act on the commands named, or on all that match; never both, never neither."""
    ids, everything, domain, command_type, tag = choice
    operator, dry_run, yes, url, json = how
    _require_choice(ids, everything)
    if everything and not any((domain, command_type, tag)):
        raise CliError("Say which: --all needs --domain, --type or --tag.", Exit.USAGE)
    with target.acting(url, operator) as bus:
        wanted: dict[str, Any] = {"domain": domain, "command_type": command_type, "tag": tag}
        if not everything:
            wanted["command_ids"] = [commands.find(bus, one, domain).command_id for one in ids or []]
        seen = act(bus, wanted | {"preview": True})
        if dry_run:
            _preview(verb, seen.matched, seen.examples, json)
            return
        if everything and seen.matched:
            options.confirm(f"{verb.capitalize()} {text.plural(seen.matched, 'command')}?", yes=yes)
        report = act(bus, wanted)
    missed = 0 if everything else len(wanted["command_ids"]) - report.done
    refused = max(report.refused, missed)
    if json:
        output.json_document({"done": report.done, "refused": refused})
    else:
        output.done(f"{text.plural(report.done, 'command')} {past}")
    if refused:
        output.warn(f"{text.plural(refused, 'command')} not in a state for it")
        raise typer.Exit(Exit.FAILURE)


def _require_choice(ids: list[str] | None, everything: bool) -> None:
    if everything == bool(ids):
        raise CliError("Give the ids of commands, or --all with filters; not both.", Exit.USAGE)


def _preview(verb: str, count: int, examples: list[Any], json: bool) -> None:
    if json:
        ids = [record.command_id for record in examples]
        output.json_document({"would": verb, "matched": count, "examples": ids})
        return
    output.note(f"would {verb} {text.plural(count, 'command')}{':' if examples else ''}")
    output.table(examples, commands.COLUMNS)


def _moment(given: str) -> Any:
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise CliError(
            f"--at must be a moment such as 2030-05-17T08:00Z, not {given!r}.", Exit.USAGE
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
