"""`check`: what waits, against the handlers of new code."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.output import Column, field_of

COLUMNS = (
    Column("domain", field_of("domain")),
    Column("type", field_of("command_type"), keep=True),
    Column("waiting", field_of("waiting"), right=True),
    Column("parked", field_of("parked"), right=True),
    Column("example", lambda misfit: misfit.examples[0], wide=True),
    Column("problem", field_of("problem")),
)


def check(
    app: Annotated[
        str | None, typer.Argument(metavar="MODULE:REGISTRY", help="The handlers of the new code.")
    ] = None,
    domain: Annotated[
        list[str] | None, typer.Option("--domain", "-d", help="Only this domain; repeatable.")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Only this many of the newest per domain and status."),
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Check what waits or is parked against the handlers of new code.

    For the time before a deploy; no handler is called. Exit code 1 when some payloads do not fit, or
    a type has no handler.
    """
    from commandbus.interfaces.cli.apps import load_registry

    registry = load_registry(target.find_app(app))
    with target.opened(url) as bus:
        report = bus.check_payloads(registry, domains=domain or None, sample=sample)
    if json:
        output.json_document(report)
    elif report.misfits:
        output.table(report.misfits, COLUMNS)
    message = f"{text.plural(report.checked, 'command')} checked"
    if not report.complete:
        message += ", and there are more"
    if not report.misfits:
        output.done(f"{message}: all of them fit")
        return
    count = sum(misfit.waiting + misfit.parked for misfit in report.misfits)
    output.error(f"{message}: {count} would not be carried out")
    raise typer.Exit(Exit.FAILURE)
