"""`process`: how far processes are, and what an operator can do about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import completing, finding, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of, id_column

if TYPE_CHECKING:
    from rich.text import Text

    from commandbus.domain.process.values import ProcessEvent, ProcessRecord, ProcessStep
    from commandbus.sync import SyncCommandBus

STATUSES = {"troubleshooting": "WAITING_FOR_TROUBLESHOOTING"}
"""Short forms of statuses."""


def _status(record: ProcessRecord) -> Text:
    return output.status(record.status)


def _where(step: ProcessStep) -> str:
    return f"signal {step.domain}" if step.kind == "signal" else step.domain


COLUMNS = (
    id_column("id", field_of("process_id")),
    Column("type", field_of("process_type")),
    Column("status", field_of("status"), _status),
    Column("step", lambda record: ", ".join(record.current_steps)),
    Column("error", lambda record: record.error.code if record.error else "", wide=True),
    Column("batch", field_of("batch_id"), pipe=True),
    Column("parent", field_of("parent_id"), pipe=True),
    Column(
        "created",
        lambda record: text.moment(record.created_at),
        lambda record: text.age(record.created_at),
        right=True,
    ),
)
STEP_COLUMNS = (
    Column("step", field_of("name")),
    Column("status", lambda step: "PARKED" if step.parked else step.status),
    Column("domain", field_of("domain"), _where),
    Column("type", field_of("command_type")),
    Column("undoes", field_of("compensates")),
    id_column("command", field_of("command_id")),
)
EVENT_COLUMNS = (
    Column("time", lambda event: text.moment(event.timestamp), keep=True),
    Column("event", field_of("event_type")),
    Column("step", field_of("step")),
    Column("command", field_of("command_id"), wide=True),
    Column("details", lambda event: text.compact_json(event.details) if event.details else ""),
)

Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="The process's id.", autocompletion=completing.ids("process")),
]
App = Annotated[
    str, typer.Argument(metavar="APP", help="module:Process, or a module that declares some.")
]


@listing(times="Started", paged=True, secrets=True)
def list_(
    look: Look,
    process_type: Annotated[
        str | None,
        typer.Option("--type", "-t", help="Only this type.", autocompletion=completing.process_types),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            "-s",
            help="running, compensating, waiting, completed, compensated, failed or canceled.",
            autocompletion=completing.process_statuses,
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="ID",
            help="Only of this batch.",
            autocompletion=completing.ids("batch"),
        ),
    ] = None,
    parent: Annotated[
        str | None,
        typer.Option(
            "--parent",
            metavar="ID",
            help="Only parts of this process.",
            autocompletion=completing.ids("process"),
        ),
    ] = None,
) -> Found:
    """List processes, newest first."""
    page = look.bus.list_processes(
        process_type=process_type,
        status=None if status is None else STATUSES.get(status.lower(), status.upper()),
        batch_id=batch and finding.whole_id(look.bus, batch, "batch"),
        parent_id=parent and finding.whole_id(look.bus, parent, "process"),
        created_after=look.since,
        created_before=look.until,
        after=look.after,
        limit=look.limit,
    )
    return Found.of_page("processes", page, COLUMNS, "no process matches", order="-created")


def show(
    process_id: Id,
    reveal: options.Reveal = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a process: state, steps, error."""
    with target.opened(url) as bus:
        record = output.masked(find(bus, process_id), reveal)
        trail = bus.get_process_audit(record.process_id) if record.compensation_failed else []
    if json:
        output.json_document(record)
        return
    _print(record)
    _advise(record, trail)


def find(bus: SyncCommandBus, process_id: str) -> ProcessRecord:
    from commandbus.errors import ProcessNotFoundError

    wanted = finding.whole_id(bus, process_id, "process")
    record = bus.get_process(wanted)
    if record is None:
        raise ProcessNotFoundError(wanted)
    return record


def _print(record: ProcessRecord) -> None:
    from rich.text import Text

    from commandbus.interfaces.cli.details import ago, document, labelled

    out = output.console()
    out.print(Text.assemble((text.line(record.process_type), "bold"), "  ", _status(record)))
    facts = [("id", str(record.process_id)), ("started", ago(record.created_at))]
    if record.finished_at is not None:
        took = text.duration((record.finished_at - record.created_at).total_seconds())
        facts.append(("ended", f"{ago(record.finished_at)}, took {took}"))
    if record.due_at is not None and record.status != "WAITING_FOR_TROUBLESHOOTING":
        facts.append(("deadline", text.age(record.due_at)))  # it stands while an operator is awaited
    for label, other in (("parent", record.parent_id), ("batch", record.batch_id)):
        facts += [(label, str(other))] if other is not None else []
    if record.error is not None:
        where = f" in {record.error.step}" if record.error.step else ""
        facts.append(("error", f"{record.error.code}{where}: {record.error.message}"))
    for label, value in facts:
        out.print(labelled(label, text.line(value)), soft_wrap=True)
    document("state", record.state)
    output.table(record.steps, STEP_COLUMNS)


def _advise(record: ProcessRecord, trail: list[ProcessEvent]) -> None:
    """The actions that an operator can take."""
    parked = [step for step in record.steps if step.parked]
    for step in parked:
        output.note(f"{step.name} waits for an operator: commandbus tsq show {step.command_id}")
    refused = [event for event in trail if event.event_type == "COMPENSATION_FAILED"]
    if refused:
        why = refused[-1].details
        output.note(f"{refused[-1].step} was refused: {why.get('code')}: {why.get('message')}")
        output.note(f"try it again:       commandbus process retry {record.process_id}")
        output.note(f"go on without it:   commandbus process skip {record.process_id} --reason '…'")
    elif record.status == "WAITING_FOR_TROUBLESHOOTING" and not parked:
        output.note(f"it waits for an operator: commandbus process retry {record.process_id}")


@listing(times="Happened", secrets=True)
def audit(look: Look, process_id: Id) -> Found:
    """Show everything that happened to a process and its steps, in order."""
    wanted = finding.whole_id(look.bus, process_id, "process")
    events = look.bus.get_process_audit(wanted)
    if not events:
        find(look.bus, str(wanted))
    return Found("events", look.choose(events, field_of("timestamp")), EVENT_COLUMNS)


def draw(
    app: App,
    process_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Colour it by this process.",
            autocompletion=completing.ids("process"),
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", "-f", help="mermaid or svg.")] = "mermaid",
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Draw a process from its declaration, coloured by how far one is."""
    from commandbus.domain.process.picture import mermaid, svg

    painters = {"mermaid": mermaid, "svg": svg}
    if form not in painters:
        raise CliError(f"--format must be mermaid or svg, not {form!r}.", Exit.USAGE)
    declarations = _declarations(app)
    record = None
    if process_id is not None:
        with target.opened(url) as bus:
            record = find(bus, process_id)
        declarations = [d for d in declarations if d.process_type == record.process_type]
    if len(declarations) != 1:
        names = ", ".join(d.__name__ for d in declarations) or "none that fits"
        raise CliError(f"{app!r} declares {names}; name one, as in module:Process.", Exit.USAGE)
    picture = painters[form](declarations[0], record)
    if json:
        output.json_document({"process_type": declarations[0].process_type, form: picture})
    else:
        output.write(picture.rstrip())


def _declarations(app: str) -> list[Any]:
    """The declarations that `module:Process` names, or all of a module."""
    from commandbus.domain.process.declaration import Process
    from commandbus.interfaces.cli.apps import find_attribute, import_app

    module_name, _, attribute = app.partition(":")
    module = import_app(module_name)
    named = [find_attribute(module, attribute)] if attribute else list(vars(module).values())
    found = [
        value
        for value in dict.fromkeys(v for v in named if isinstance(v, type))
        if issubclass(value, Process) and value.steps
    ]
    if not found:
        raise CliError(f"{app!r} declares no process with @step methods.", Exit.NO_APP)
    return found


def route(
    app: App,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Loops.")] = 1,
    threads: options.Threads = False,
    verbose: options.Verbose = False,
    url: options.Url = None,
) -> None:
    """Drive the processes of an app on with the replies to their commands, until a signal."""
    from commandbus.interfaces.cli.routing import serve_router
    from commandbus.interfaces.cli.serving import configure_logging

    declarations = _declarations(app)
    configure_logging(verbose)
    serve_router(target.find_url(url), declarations, concurrency, threads=threads)
