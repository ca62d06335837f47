"""`tsq comment` and `tsq assign`, and how cases are shown in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import commands, options, output, target
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column

if TYPE_CHECKING:
    from commandbus.domain.command import CommandRecord
    from commandbus.operations.cases import Case

Id = Annotated[str, typer.Argument(metavar="ID", help="The command's id.")]


def columns(records: Sequence[CommandRecord], cases: Sequence[Case]) -> tuple[Column, ...]:
    """What a list of these commands shows of their cases."""
    known = {(r.domain, r.command_id): case for r, case in zip(records, cases, strict=True)}

    def of(name: str) -> Any:
        return lambda record: getattr(known[record.domain, record.command_id], name) or ""

    def escalated(record: CommandRecord) -> str:
        return "yes" if known[record.domain, record.command_id].escalated_at else ""

    return (
        Column("assignee", of("assignee"), filled=True),
        Column("escalated", escalated, style="red", filled=True),
        Column("comment", of("comment"), wide=True, filled=True),
    )


def comment(
    command_id: Id,
    words: Annotated[str, typer.Argument(metavar="TEXT", help="What you have to say about it.")],
    domain: options.Domain = None,
    operator: options.Operator = None,
    url: options.Url = None,
) -> None:
    """Say something about a command; it is kept in its trail."""
    from commandbus.sync import SyncTroubleshootingQueue

    with target.acting(url, operator) as bus:
        record = commands.find(bus, command_id, domain)
        queue = SyncTroubleshootingQueue(bus)
        queue.comment(record.command_id, words, domain=record.domain)
    output.done("the comment is in the command's trail")


def assign(
    command_id: Id,
    assignee: Annotated[str, typer.Argument(metavar="NAME", help="Who takes care of it.")] = "",
    nobody: Annotated[bool, typer.Option("--nobody", help="Nobody does any more.")] = False,
    domain: options.Domain = None,
    operator: options.Operator = None,
    url: options.Url = None,
) -> None:
    """Say who takes care of a parked command."""
    from commandbus.sync import SyncTroubleshootingQueue

    if nobody == bool(assignee):
        raise CliError("Name somebody, or say --nobody; not both.", Exit.USAGE)
    with target.acting(url, operator) as bus:
        record = commands.find(bus, command_id, domain)
        queue = SyncTroubleshootingQueue(bus)
        queue.assign(record.command_id, assignee or None, domain=record.domain)
    output.done(f"{assignee or 'nobody'} takes care of it")
