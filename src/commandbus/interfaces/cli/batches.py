"""`batch`: commands that belong together, and how far they are."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import completing, finding, options, output, target, text
from commandbus.interfaces.cli.commands import as_status, found_page
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing, read_page
from commandbus.interfaces.cli.output import Column, field_of, id_column

if TYPE_CHECKING:
    from rich.text import Text

    from commandbus.domain.batch import BatchRecord
    from commandbus.sync import SyncCommandBus

LOOK_SECONDS = 0.25
PARTS = (
    ("completed", "completed", "green"),
    ("failed", "failed", "red"),
    ("canceled", "canceled", "magenta"),
    ("in_troubleshooting", "parked", "yellow"),
)
"""What has become of a batch's commands: field, name and colour; the rest waits or runs."""


def _status(record: BatchRecord) -> Text:
    return output.status(record.status)


COLUMNS = (
    id_column("id", field_of("batch_id")),
    Column("domains", lambda record: ", ".join(record.domains)),
    Column("name", field_of("name"), wide=True),
    Column("status", field_of("status"), _status),
    Column("total", field_of("total"), pipe=True),
    Column("completed", field_of("completed"), pipe=True),
    Column("failed", field_of("failed"), pipe=True),
    Column("canceled", field_of("canceled"), pipe=True),
    Column("parked", field_of("in_troubleshooting"), pipe=True),
    Column(
        "done",
        lambda record: f"{record.progress:.4f}",
        lambda record: f"{record.total - record.remaining:,}/{record.total:,}",
        right=True,
    ),
    Column(
        "created",
        lambda record: text.moment(record.created_at),
        lambda record: text.age(record.created_at),
        right=True,
    ),
)
"""`done` is a share from 0 to 1 in a pipe."""

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="The batch's id.", autocompletion=completing.ids("batch")),
]


@listing(times="Created", paged=True, secrets=True)
def list_(
    look: Look,
    domain: options.Domain = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            "-s",
            help="pending, in_progress, completed or completed_with_failures.",
            autocompletion=completing.batch_statuses,
        ),
    ] = None,
) -> Found:
    """List batches, newest first."""
    fetch = partial(
        look.bus.list_batches,
        domain=domain,
        status=status and status.upper().replace("-", "_"),
    )
    # An application may choose the ids, by which batches are ordered: an old one may come early.
    page = read_page(look, fetch, field_of("created_at"), ordered=False)
    return Found.of_page("batches", page, COLUMNS, "no batch matches")


def find(bus: SyncCommandBus, batch_id: str) -> BatchRecord:
    from commandbus.errors import BatchNotFoundError

    wanted = finding.whole_id(bus, batch_id, "batch")
    record = bus.get_batch(wanted)
    if record is None:
        raise BatchNotFoundError(wanted)
    return record


def show(
    batch_id: Id,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Until it is complete.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Of --watch: 30s, 5m.")
    ] = None,
    reveal: options.Reveal = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a batch: progress, counts, data.

    With --watch, exit code 0 when all of it completed, 1 when some failed or were canceled, 8 when
    time ran out. A parked command holds its batch open until an operator decides.
    """
    limit = options.seconds(timeout, "--timeout")
    with target.opened(url) as bus:
        record = find(bus, batch_id)
        if watch:
            record = _watch(bus, record, limit, quiet=json)
    record = output.masked(record, reveal)
    if json:
        output.json_document(text.as_plain(record) | {"progress": round(record.progress, 4)})
    else:
        _print(record)
    if watch and record.status != "COMPLETED":
        raise typer.Exit(Exit.FAILURE)


def _watch(
    bus: SyncCommandBus, record: BatchRecord, limit: float | None, *, quiet: bool
) -> BatchRecord:
    """Look until it is complete, with a bar that grows on a terminal."""
    from rich.live import Live

    out = output.console(stderr=True)
    seen = record.completed_at is None and output.is_terminal() and out.is_terminal and not quiet
    live = Live(console=out, auto_refresh=False, transient=True) if seen else None
    deadline = None if limit is None else time.monotonic() + limit
    with live or nullcontext():
        while record.completed_at is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise CliError(
                    f"Batch {record.batch_id} is not complete after {text.duration(limit)}: "
                    f"{_counts(record).plain}.",
                    Exit.TIMED_OUT,
                )
            if live is not None:
                live.update(_bar(record, out.width), refresh=True)
            time.sleep(LOOK_SECONDS)
            record = bus.get_batch(record.batch_id) or record
    return record


def _print(record: BatchRecord) -> None:
    from rich.text import Text

    from commandbus.interfaces.cli.details import ago, document, labelled

    out = output.console()
    title = text.line(record.name or f"batch of {', '.join(record.domains)}")
    out.print(Text.assemble((title, "bold"), "  ", _status(record)))
    if output.is_terminal():
        out.print(_bar(record, out.width))
    facts = [
        ("id", str(record.batch_id)),
        ("domains", ", ".join(record.domains)),
        ("created", ago(record.created_at)),
    ]
    if record.completed_at is not None:
        took = text.duration((record.completed_at - record.created_at).total_seconds())
        facts.append(("completed", f"{ago(record.completed_at)}, took {took}"))
    for label, value in facts:
        out.print(labelled(label, value), soft_wrap=True)
    out.print(labelled("commands", "").append_text(_counts(record)), soft_wrap=True)
    if record.custom_data is not None:
        document("data", record.custom_data)
    if record.in_troubleshooting:
        for domain in record.domains:
            output.note(f"parked commands hold it open: commandbus tsq list --domain {domain}")


def _counts(record: BatchRecord) -> Text:
    """What has become of the commands, in words."""
    from rich.text import Text

    parts = [
        Text.assemble((f"{number:,}", style), f" {name}")
        for field, name, style in PARTS
        if (number := getattr(record, field))
    ]
    if left := record.remaining - record.in_troubleshooting:
        parts.append(Text.assemble((f"{left:,}", "cyan"), " to come"))
    return Text(", ").join(parts).append(f" of {record.total:,}")


def _bar(record: BatchRecord, width: int) -> Any:
    """The batch as one line: each part as long as its share, and the share that has ended."""
    from rich.text import Text

    room = max(10, min(60, width - 32))
    bar, drawn, reached = Text("  "), 0, 0
    for field, _, style in PARTS:
        reached += getattr(record, field)
        end = int(room * reached / record.total)
        bar.append("━" * (end - drawn), style)
        drawn = end
    bar.append("━" * (room - drawn), "bright_black")
    bar.append(f" {int(record.progress * 100):3}%", "bold")
    return bar.append(f"  {record.total - record.remaining:,}/{record.total:,}", "bright_black")


@listing(times="Sent", paged=True, secrets=True)
def commands(
    look: Look,
    batch_id: Id,
    status: options.Status = None,
) -> Found:
    """List the commands of a batch, newest first."""
    record = find(look.bus, batch_id)
    page = look.bus.query_commands(
        batch_id=record.batch_id,
        status=as_status(status),
        created_after=look.since,
        created_before=look.until,
        after=look.after,
        limit=look.limit,
    )
    return found_page(page)
