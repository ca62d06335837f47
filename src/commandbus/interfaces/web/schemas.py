"""The values of requests and answers, one set for pages and API."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from commandbus.domain.audit import AuditEvent
from commandbus.domain.batch import BatchRecord
from commandbus.domain.breaker import BreakerSnapshot
from commandbus.domain.command import CommandRecord
from commandbus.domain.limits import Limit
from commandbus.domain.presence import Why, WorkerInfo
from commandbus.domain.process.values import ProcessEvent, ProcessRecord
from commandbus.domain.schedule import ScheduleRecord
from commandbus.interfaces.web.windows import Point
from commandbus.operations.bulk_troubleshooting import FailureGroup
from commandbus.operations.parked_notes import Case
from commandbus.store.administration import Finding
from commandbus.store.records import OPTIONAL, QueueStats

Text = Annotated[str, Meta(max_length=500)]
Cursor = Annotated[str, Meta(max_length=200)]
PageSize = Annotated[int, Meta(ge=1, le=200)]
Span = Literal["10m", "1h", "24h", "7d"]

# What is asked.


class CommandsQuery(Struct, frozen=True):
    q: Annotated[str, Meta(max_length=1_000, description="The filter, such as status:parked.")] = ""
    after: Cursor | None = None
    limit: PageSize = 50


class TroubleQuery(Struct, frozen=True):
    domain: Text | None = None
    command_type: Text | None = None
    after: Cursor | None = None
    limit: PageSize = 50


class BatchesQuery(Struct, frozen=True):
    domain: Text | None = None
    after: Cursor | None = None
    limit: PageSize = 50


class AuditQuery(Struct, frozen=True):
    domain: Text | None = None
    event: Text | None = None
    actor: Text | None = None
    after: Cursor | None = None
    limit: PageSize = 50


class ActionsQuery(Struct, frozen=True):
    after: Cursor | None = None
    limit: PageSize = 50


class ProcessesQuery(Struct, frozen=True):
    status: Text | None = None
    process_type: Text | None = None
    after: Cursor | None = None
    limit: PageSize = 50


class HistoryQuery(Struct, frozen=True):
    span: Span = "1h"
    domain: Text | None = None


# What is to be done.


class _SendBody(Struct, frozen=True):
    domain: Text
    command_type: Text
    data: Any = None
    priority: str | int | None = None
    delay: Annotated[float, Meta(ge=0, le=31_536_000)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    tags: Annotated[list[Text], Meta(max_length=50)] = []
    command_id: UUID | None = None


if TYPE_CHECKING:

    class SendBody(_SendBody, frozen=True):
        """With the optional columns of a command that are texts."""

        def __init__(
            self, domain: str, command_type: str, data: Any = None, **options: Any
        ) -> None: ...
else:
    SendBody = msgspec.defstruct(
        "SendBody",
        [
            (column.name, Annotated[Text, Meta(description=column.meaning)] | None, None)
            for column in OPTIONAL
            if column.kind == "text" and column.check is not None
        ],
        bases=(_SendBody,),
        module=__name__,
        frozen=True,
    )


# What is answered.


class Attention(Struct, frozen=True):
    """Something that a person should look at, and where."""

    level: Literal["warning", "critical"]
    text: str
    place: str
    """The page about it, below the dashboard's prefix."""


class DomainView(Struct, frozen=True):
    """A domain, how it is doing, and who serves it."""

    domain: str
    health: Literal["ok", "idle", "paused", "warning", "critical"]
    note: str
    ready: int
    scheduled: int
    running: int
    parked: int
    completed: int
    failed: int
    canceled: int
    oldest_ready_age: float | None
    paused: bool
    workers: int
    slots: int
    rate: float
    """Commands that ended per second, recently."""
    drain_seconds: float | None
    """How long what waits will take at that rate; None when nothing waits or nothing ends."""


class Overview(Struct, frozen=True):
    """Of many domains, those that need attention the most; `left_out` more are not shown."""

    attention: list[Attention]
    domains: list[DomainView]
    workers: int
    slots: int
    left_out: int


class DomainDetail(Struct, frozen=True):
    view: DomainView
    stats: QueueStats


class Domains(Struct, frozen=True):
    """Of many domains, those that need attention the most; `left_out` more are not shown."""

    domains: list[DomainView]
    left_out: int


class SearchPage(Struct, frozen=True):
    """Newest first. In lists, a large `data` or `result` is an object with the only key `$left_out`;
    the command itself has all of it. `exhausted` is false when the look ended before everything was
    looked at: `next` goes on from there."""

    commands: list[CommandRecord]
    next: str | None
    exhausted: bool


class Related(Struct, frozen=True):
    """A command of the same correlation."""

    command: CommandRecord
    relation: Literal["cause", "consequence", "reply", "correlated"]


class CommandDetail(Struct, frozen=True):
    command: CommandRecord
    trail: list[AuditEvent]
    why: Why
    related: list[Related]
    case: Case


class Trouble(Struct, frozen=True):
    """`cases` are what people said and arranged about the commands, in their order."""

    commands: list[CommandRecord]
    cases: list[Case]
    next: str | None
    count: int


class Parked(Struct, frozen=True):
    """How many commands of all domains are parked, a second ago at most."""

    count: int


class Groups(Struct, frozen=True):
    """All parked commands by how they failed; `count` of them in all, at most five seconds ago."""

    groups: list[FailureGroup]
    count: int
    counted_at: datetime


class Batches(Struct, frozen=True):
    batches: list[BatchRecord]
    next: str | None


class BatchDetail(Struct, frozen=True):
    batch: BatchRecord
    commands: list[CommandRecord]
    next: str | None


class Processes(Struct, frozen=True):
    processes: list[ProcessRecord]
    next: str | None


class ProcessDetail(Struct, frozen=True):
    process: ProcessRecord
    trail: list[ProcessEvent]


class Schedules(Struct, frozen=True):
    schedules: list[ScheduleRecord]


class Limits(Struct, frozen=True):
    limits: list[Limit]


class Workers(Struct, frozen=True):
    workers: list[WorkerInfo]


class Breakers(Struct, frozen=True):
    breakers: list[BreakerSnapshot]


class AuditItem(Struct, frozen=True):
    command_type: str
    event: AuditEvent


class Audit(Struct, frozen=True):
    events: list[AuditItem]
    next: str | None


class ActionItem(Struct, frozen=True):
    actor: str
    action: str
    subject: str
    reason: str | None
    at: datetime


class Actions(Struct, frozen=True):
    actions: list[ActionItem]
    next: str | None


class System(Struct, frozen=True):
    version: str
    python: str
    store: str
    """The URL without its password."""
    findings: list[Finding]


class HandlerView(Struct, frozen=True):
    """A command type that can be sent from a form, with the schema of its payload."""

    domain: str
    command_type: str
    payload_type: str
    schema: dict[str, Any]


class Handlers(Struct, frozen=True):
    handlers: list[HandlerView]


class History(Struct, frozen=True):
    points: list[Point]


class Problem(Struct, frozen=True):
    """What went wrong, and what to do about it."""

    error: str
    message: str


def plain(value: Any) -> Any:
    """A value as JSON knows it."""
    return msgspec.to_builtins(value, enc_hook=str)
