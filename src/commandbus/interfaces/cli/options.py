"""Options that many commands share, written once."""

from __future__ import annotations

import getpass
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from commandbus.interfaces.cli import completing, output, text
from commandbus.interfaces.cli.exits import CliError, Exit

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The store: sqlite:///file.db or postgresql://…"),
]
ListenUrl = Annotated[
    str | None,
    typer.Option(
        "--listen-url",
        metavar="URL",
        envvar="COMMANDBUS_LISTEN_URL",
        show_envvar=False,
        help="A direct connection for wake-ups, where --url goes through a pooler.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document with stable keys.")]
Domain = Annotated[
    str | None,
    typer.Option("--domain", "-d", help="Only this domain.", autocompletion=completing.domains),
]
Type = Annotated[
    str | None,
    typer.Option("--type", "-t", help="Only this command type.", autocompletion=completing.types),
]
Status = Annotated[
    str | None,
    typer.Option(
        "--status",
        "-s",
        help="pending, running, completed, failed, canceled or parked.",
        autocompletion=completing.statuses,
    ),
]
CommandId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The command's id.", autocompletion=completing.ids("command")),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="CURSOR", help="Continue after this cursor.")
]
Threads = Annotated[bool, typer.Option("--threads", help="Use threads instead of an event loop.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Operator = Annotated[
    str | None,
    typer.Option("--operator", help="Who acts; kept in the audit trail.", show_default="your login"),
]

Columns = Annotated[
    str | None,
    typer.Option("--columns", metavar="NAMES", help="Only these columns of the table: id,status."),
]
Sort = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="NAMES", help="By these columns: domain,-created; - is the largest first."
    ),
]
Watch = Annotated[
    str | None,
    typer.Option(
        "--watch", metavar="[SECONDS]", help="Refresh every 2 s, or at this interval, until Ctrl-C."
    ),
]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show secrets; otherwise they are masked.")]

SearchTime = Annotated[
    str | None,
    typer.Option("--timeout", metavar="TIME", help="Stop searching after: 30s, 5m.", show_default="1m"),
]

Priority = Annotated[
    str | None, typer.Option("--priority", "-p", help="high, normal, low or a number.")
]


def priority(given: str | None) -> str | int | None:
    """A priority's label or number."""
    if given is None:
        return None
    try:
        return int(given)
    except ValueError:
        return given


def seconds(value: str | None, name: str) -> float | None:
    """A duration option as seconds."""
    if value is None:
        return None
    try:
        return text.parse_duration(value, name)
    except ValueError as error:
        raise CliError(f"{error}.", Exit.USAGE) from None


def moment(value: str | None, name: str) -> datetime | None:
    """A moment, or so long ago."""
    if value is None:
        return None
    try:
        return text.after_now(-text.parse_duration(value, name))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise CliError(
            f"{name} must be a time ago such as 30m, 2h or 3d, or a moment such as 2030-05-17T08:00Z, "
            f"not {value!r}.",
            Exit.USAGE,
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def acting(operator: str | None) -> str:
    """Who acts: the option, else the login name."""
    if operator:
        return operator
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may have no user database
        return "unknown"


def document(source: str | None, what: str = "data") -> Any:
    """JSON from the argument itself, from @file, or from standard input for `-`."""
    if source is None:
        return None
    import msgspec

    if source == "-":
        raw, where = sys.stdin.buffer.read(), "standard input"
    elif source.startswith("@"):
        where = source[1:]
        try:
            raw = Path(where).read_bytes()
        except OSError as error:
            raise CliError(f"{where} cannot be read: {error.strerror}.", Exit.USAGE) from None
    else:
        raw, where = source.encode("utf-8", "surrogateescape"), f"the {what} argument"
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CliError(
            f"{where} is not JSON: {error}. Quote it for the shell, as in '{{\"amount\": 12}}', or "
            "give @file or - (standard input).",
            Exit.USAGE,
        ) from None


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Without a terminal, --yes is needed."""
    if yes:
        return
    if not output.is_interactive():
        raise CliError(f"{question} There is no terminal to ask on: repeat it with --yes.", Exit.USAGE)
    if not typer.confirm(text.line(question), default=False, err=True):
        output.note("Nothing was changed.")
        raise typer.Exit(Exit.FAILURE)
