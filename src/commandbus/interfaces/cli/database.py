"""`db`: the store itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.errors import ConfigurationError
from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import Exit
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from commandbus.store.administration import Administration, Finding

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}

COLUMNS = (
    Column("subject", field_of("subject")),
    Column("level", field_of("level")),
    Column("value", field_of("value")),
    Column("advice", field_of("advice")),
)


def _administration(url: str | None) -> Administration:
    from commandbus.connect import create_administration

    return create_administration(target.find_url(url))


def _carry_out(step: Any) -> Any:
    with target.opening():
        return step()


def upgrade(url: options.Url = None, json: options.Json = False) -> None:
    """Create the store's tables, or bring them to this version. Repeating it is harmless."""
    _tell_schema(_carry_out(_administration(url).upgrade), json)


def verify(url: options.Url = None, json: options.Json = False) -> None:
    """Check that the store has the tables of this version, without changing anything.

    Exit code 5 when it has not, 4 when it cannot be reached.
    """
    _tell_schema(_carry_out(_administration(url).verify), json)


def _tell_schema(version: str, json: bool) -> None:
    if json:
        output.json_document({"schema": version})
    else:
        output.done(f"the store is at {version}")


def sql(url: options.Url = None) -> None:
    """Print the statements that create the tables, for other migration tools. Needs no connection."""
    print(_administration(url).sql())


def install_pgmq(
    url: options.Url = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="FILE", help="PGMQ's SQL, instead of its package.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Bring PGMQ into a PostgreSQL database, with what transport="pgmq" needs beside it.

    As the extension where the server offers it, else from the SQL of the package `pgmq` or of a file.
    A PGMQ that is there already stays as it is; repeating it is harmless.
    """
    from commandbus.connect import install_pgmq as install

    found = _carry_out(lambda: install(target.find_url(url), sql))
    if json:
        output.json_document({"pgmq": found})
    else:
        output.done(f"the database has PGMQ ({found})")


def roles(url: options.Url = None) -> None:
    """Print the statements that create database roles for senders, workers, viewers and admins.

    Needs no connection; for the owner of the tables to run, again after every upgrade.
    """
    print(_carry_out(_administration(url).roles))


def doctor(
    accounts: Annotated[
        Path | None,
        typer.Option("--accounts", metavar="FILE", help="Also the dashboard's file of accounts."),
    ] = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Look at everything that could hurt the store, and say what to do about it.

    Exit code 6 when something is wrong; warnings alone are 0.
    """
    findings = _carry_out(_administration(url).doctor)
    if accounts is not None:
        findings.append(_accounts(accounts))
    if json:
        output.json_document({"findings": findings})
    elif output.is_terminal():
        out = output.console()
        for finding in findings:
            for row in _lines(finding):
                out.print(row)
    else:
        output.tsv(findings, COLUMNS)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(Exit.UNHEALTHY)


def _accounts(path: Path) -> Finding:
    """The file that `commandbus dashboard --accounts` gets: what would keep it from serving, and who
    else can read the hashes."""
    from commandbus.interfaces.cli.dashboard import need_web
    from commandbus.store.administration import Finding, Level

    need_web()
    from commandbus.interfaces.web.accounts import AccountsFile

    try:
        found = AccountsFile(path)()
    except ConfigurationError as error:
        return Finding("accounts", Level.ERROR, f"{path} cannot be used", str(error))
    value = f"{text.plural(len(found), 'account')} in {path}"
    mode = path.stat().st_mode & 0o777
    if os.name == "posix" and mode & 0o040:
        advice = f"Its group can read the hashes of secrets; `chmod 600 {path}` unless that is meant."
        return Finding("accounts", Level.WARNING, f"{value}, mode {mode:04o}", advice)
    return Finding("accounts", Level.OK, value)


def _lines(finding: Any) -> list[Any]:
    from rich.padding import Padding
    from rich.text import Text

    mark, style = _MARKS[str(finding.level)]
    shown: list[Any] = [
        Text.assemble((mark, style), f" {text.line(finding.subject):<12}", text.line(finding.value))
    ]
    if finding.advice:
        shown.append(Padding(Text(text.line(finding.advice), style), (0, 0, 0, 14)))
    return shown
