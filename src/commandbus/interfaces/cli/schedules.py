"""`schedule`: commands that are sent again and again."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commandbus.interfaces.cli import completing, options, output, target, text
from commandbus.interfaces.cli.exits import CliError, Exit
from commandbus.interfaces.cli.lists import Found, Look, listing
from commandbus.interfaces.cli.output import Column, field_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from commandbus.domain.schedule import Schedule, ScheduleRecord
    from commandbus.sync import SyncCommandBus

UPCOMING = 3
"""So many runs ahead are shown by `schedule show`."""


def when(schedule: Schedule) -> str:
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
    Column("when", lambda record: when(record.schedule)),
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

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The schedule's name.", autocompletion=completing.schedules),
]


@listing(times="Last run", secrets=True)
def list_(look: Look, domain: options.Domain = None) -> Found:
    """List all schedules with their next and last run."""
    own = [one for one in look.bus.list_schedules() if domain in (None, one.schedule.domain)]
    return Found(
        "schedules",
        look.choose(own, field_of("last_run")),
        COLUMNS,
        "no schedule yet: add one with `commandbus schedule add`",
        document=lambda rows: {"schedules": [_plain(record) for record in rows]},
    )


def _plain(record: ScheduleRecord) -> dict[str, Any]:
    """Every key always, also where a schedule keeps to the default."""
    from msgspec.structs import asdict

    fields = asdict(record.schedule) | asdict(record)
    return {key: value for key, value in fields.items() if key not in ("schedule", "request")}


def show(
    name: Name,
    reveal: options.Reveal = False,
    url: options.Url = None,
    json: options.Json = False,
) -> None:
    """Show a schedule: its command, its times, its next runs."""
    with target.opened(url) as bus:
        record = output.masked(find(bus, name), reveal)
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
    yield "when", when(schedule)
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
        later = islice(schedule.occurrences_after(record.next_run), UPCOMING - 1)
        for label, run in zip(("next", *[""] * UPCOMING), (record.next_run, *later), strict=False):
            yield label, ago(run)
    if record.last_run is not None:
        yield "last", ago(record.last_run)
        yield "last id", str(record.last_command_id)


def find(bus: SyncCommandBus, name: str) -> ScheduleRecord:
    record = bus.get_schedule(name)
    if record is None:
        raise CliError(
            f"There is no schedule {name!r}; `commandbus schedule list` names them all.", Exit.NOT_FOUND
        )
    return record
