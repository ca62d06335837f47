"""`schedule`: commands that are sent again and again."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.output import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from commandbus.domain.schedule import Schedule, ScheduleRecord
    from commandbus.sync import SyncCommandBus

UPCOMING = 3
"""So many runs ahead are shown by `schedule show`."""


def _when(schedule: Schedule) -> str:
    """The times of a schedule in a few characters."""
    if schedule.cron is None:
        return f"every {text.duration(schedule.every)}"
    return schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} {schedule.timezone}"


def _next(record: ScheduleRecord) -> Text:
    from rich.text import Text

    if not record.schedule.enabled:
        return Text("disabled", "yellow")
    return Text(_until(record.next_run), "cyan")


def _until(moment: datetime | None) -> str:
    """A run that is due is sent as soon as a worker looks."""
    age = text.age(moment)
    return age if moment is None or age.startswith("in ") else f"due {age} ago"


COLUMNS = (
    Column("name", lambda record: record.schedule.name, keep=True),
    Column("domain", lambda record: record.schedule.domain),
    Column("type", lambda record: record.schedule.command_type),
    Column("when", lambda record: _when(record.schedule)),
    Column("state", lambda record: "enabled" if record.schedule.enabled else "disabled", pipe=True),
    Column("next", lambda record: text.moment(record.next_run), _next, right=True),
    Column(
        "last",
        lambda record: text.moment(record.last_run),
        lambda record: text.age(record.last_run),
        right=True,
    ),
    Column("last id", lambda record: record.last_command_id, pipe=True),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]


def list_(domain: options.Domain = None, url: options.Url = None, json: options.Json = False) -> None:
    """List all schedules with their next and last run."""
    with target.opened(url) as bus:
        found = [one for one in bus.list_schedules() if domain in (None, one.schedule.domain)]
    if json:
        output.json_document({"schedules": [_plain(record) for record in found]})
        return
    output.table(found, COLUMNS, empty="no schedule yet: add one with `commandbus schedule add`")


def _plain(record: ScheduleRecord) -> dict[str, Any]:
    """Every key always, also where a schedule keeps to the default."""
    from msgspec.structs import asdict

    fields = asdict(record.schedule) | asdict(record)
    return {key: value for key, value in fields.items() if key not in ("schedule", "request")}


def show(name: Name, url: options.Url = None, json: options.Json = False) -> None:
    """Show a schedule: its command, its times, its next runs."""
    with target.opened(url) as bus:
        record = _find(bus, name)
    if json:
        output.json_document(_plain(record))
        return
    from rich.text import Text

    from commandbus.interfaces.cli.details import document, labelled

    schedule, out = record.schedule, output.console()
    state = ("enabled", "green") if schedule.enabled else ("disabled", "yellow")
    out.print(Text.assemble((text.line(schedule.name), "bold"), "  ", state))
    for label, value in _facts(record):
        out.print(labelled(label, value), soft_wrap=True)
    document("data", schedule.data)


def _facts(record: ScheduleRecord) -> Iterator[tuple[str, str]]:
    from commandbus.interfaces.cli.details import ago

    schedule = record.schedule
    yield "command", f"{schedule.domain}/{schedule.command_type}"
    yield "when", _when(schedule)
    yield (
        "misfire",
        {
            "skip": "skip: missed runs are dropped",
            "once": "once: one command stands for all missed runs",
            "all": "all: each missed run is made up for",
        }[schedule.misfire],
    )
    if schedule.overlap == "skip":
        yield "overlap", "skip: a run is left out while the command of an earlier one has not ended"
    if schedule.priority is not None:
        yield "priority", str(schedule.priority)
    for name, value in (text.as_plain(schedule.options) if schedule.options else {}).items():
        yield name.replace("_", " "), text.compact_json(value)
    if record.next_run is not None:
        later = islice(schedule.slots_after(record.next_run), UPCOMING - 1)
        for label, run in zip(("next", *[""] * UPCOMING), (record.next_run, *later), strict=False):
            yield label, ago(run)
    if record.last_run is not None:
        yield "last", ago(record.last_run)
        yield "last id", str(record.last_command_id)


def _find(bus: SyncCommandBus, name: str) -> ScheduleRecord:
    record = bus.get_schedule(name)
    if record is None:
        raise CliError(
            f"There is no schedule {name!r}; `commandbus schedule list` names them all.", Exit.NOT_FOUND
        )
    return record


def add(
    name: Name,
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain to send to.")],
    command_type: Annotated[str, typer.Argument(metavar="TYPE", help="The command to send.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="JSON, @file, or - for standard input.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="FIELDS", help='Five fields, as "*/5 * * * *".')
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", metavar="TIME", help="At this interval: 60, 5m, 2h.")
    ] = None,
    timezone: Annotated[
        str, typer.Option("--timezone", metavar="ZONE", help="Of --cron, as Europe/Berlin.")
    ] = "UTC",
    misfire: Annotated[
        str, typer.Option("--misfire", help="Runs that nobody was there for: skip, once or all.")
    ] = "once",
    priority: options.Priority = None,
    disabled: Annotated[bool, typer.Option("--disabled", help="Send nothing before `enable`.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change one that exists.")] = False,
    operator: options.Operator = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send a command again and again, by --cron or --every.

    Any running worker sends it, whatever its domains; of a whole fleet, exactly one for each run.
    """
    from commandbus.domain.schedule import Schedule

    schedule = Schedule(
        name=name,
        domain=domain,
        command_type=command_type,
        data=options.document(data),
        cron=cron,
        every=options.seconds(every, "--every"),
        timezone=timezone,
        misfire=misfire.lower(),  # type: ignore[arg-type]  # checked with everything else
        priority=options.priority(priority),
        enabled=not disabled,
    )
    if (cron is None) == (every is None):
        raise CliError("Say when: give either --cron or --every.", Exit.USAGE)
    with target.acting(url, operator, create=True) as bus:
        if not replace and bus.get_schedule(schedule.name) is not None:
            raise CliError(f"There is a schedule {name!r} already; change it with --replace.")
        record = bus.put_schedule(schedule)
    if json:
        output.json_document(_plain(record))
        return
    told = "is disabled" if disabled else f"sends {domain}/{command_type} {_until(record.next_run)}"
    output.done(f"{name} {told}")


def enable(name: Name, operator: options.Operator = None, url: options.Url = None) -> None:
    """Let a schedule send again, from its next run on."""
    with target.acting(url, operator) as bus:
        _find(bus, name)
        bus.enable_schedule(name)
        record = _find(bus, name)
    output.done(f"{name} is enabled; next run {_until(record.next_run)}")


def disable(name: Name, operator: options.Operator = None, url: options.Url = None) -> None:
    """Stop a schedule until `schedule enable`; it stays in the list."""
    with target.acting(url, operator) as bus:
        _find(bus, name)
        bus.disable_schedule(name)
    output.done(f"{name} is disabled")


def trigger(
    name: Name,
    operator: options.Operator = None,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Send a schedule's command now, beside its runs.

    In a pipe, prints the command's id and nothing else.
    """
    with target.acting(url, operator) as bus:
        schedule = _find(bus, name).schedule
        sent = bus.trigger_schedule(name)
    if json:
        output.json_document({"command_id": sent.command_id, "domain": sent.domain})
        return
    if output.is_terminal():
        output.done(f"sent {schedule.domain}/{schedule.command_type}")
    output.write(str(sent.command_id))


def delete(
    name: Name,
    reason: options.Reason = None,
    operator: options.Operator = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    url: options.Url = None,
) -> None:
    """Forget a schedule. What it has sent stays."""
    with target.acting(url, operator) as bus:
        schedule = _find(bus, name).schedule
        what = f"{name}, which sends {schedule.domain}/{schedule.command_type} ({_when(schedule)})"
        if dry_run:
            output.note(f"would forget {what}")
            return
        options.confirm(f"Forget {what}?", yes=yes)
        bus.delete_schedule(name, reason=reason)
    output.done(f"forgot {name}")
