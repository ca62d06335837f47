"""`db erase`: the data of a subject."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit

Subject = Annotated[
    list[str],
    typer.Option(
        "--subject",
        "-s",
        metavar="WHERE=VALUE",
        help="data.PATH=VALUE, header.PATH=VALUE or tag=VALUE; all that are given must hold.",
    ),
]


def erase(
    subject: Subject,
    domain: Annotated[
        list[str] | None, typer.Option("--domain", "-d", help="Only in this domain; repeatable.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the audit trails.")] = (
        "erasure on request of the subject"
    ),
    operator: options.Operator = None,
    cancel_waiting: Annotated[
        bool, typer.Option("--cancel-waiting", help="Cancel what waits or is parked, and erase it.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Erase what the commands of a data subject carried; ids, times and outcomes stay.

    What runs is left, and what waits, too, without --cancel-waiting: then the exit code is 1, and it
    can be repeated.
    """
    conditions = _conditions(subject)
    if not dry_run:
        options.confirm(f"Erase the data of commands with {', '.join(subject)} for good?", yes=yes)
    with target.acting(url, operator) as bus:
        report = bus.erase(
            reason=reason,
            data=conditions["data"],
            headers=conditions["header"],
            tag=conditions["tag"].get(""),
            domains=domain or None,
            cancel_waiting=cancel_waiting,
            dry_run=dry_run,
        )
    if json:
        output.json_document(report)
    elif dry_run:
        output.note(f"would erase {text.plural(report.erased, 'command')}")
    else:
        output.done(
            f"{text.plural(report.erased, 'command')} erased, {report.canceled} canceled before"
        )
    if report.waiting:
        output.warn(f"{text.plural(report.waiting, 'command')} not ended; see --cancel-waiting")
    if report.running:
        output.warn(f"{text.plural(report.running, 'command')} running; repeat it when they have ended")
    if not report.complete:
        raise typer.Exit(Exit.FAILURE)


def _conditions(subject: list[str]) -> dict[str, dict[str, str]]:
    """By where the value is, and the path there."""
    found: dict[str, dict[str, str]] = {"data": {}, "header": {}, "tag": {}}
    for condition in subject:
        where, is_one, value = condition.partition("=")
        place, _, path = where.partition(".")
        if not is_one or place not in found or (place == "tag") == bool(path):
            raise CliError(
                f"{condition!r} does not say whose data: write data.account=42, header.tenant=7 or "
                "tag=customer-42.",
                Exit.USAGE,
            )
        found[place][path] = value
    return found
