"""Reads: the answers behind every page and every GET of the API. Secrets are hidden
here, once, so that nothing further out ever sees them."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from commandbus.connect import create_administration
from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.presence import FleetStart, WorkerInfo, WorkerRestart
from commandbus.domain.process.values import ProcessRecord, StepKind
from commandbus.domain.reply import REPLY_TYPE
from commandbus.domain.schedule import ScheduleRecord
from commandbus.errors import (
    BatchNotFoundError,
    CommandBusError,
    CommandNotFoundError,
    ConfigurationError,
    InvalidOperationError,
    NotFoundError,
    ProcessNotFoundError,
)
from commandbus.interfaces.redaction import Redaction
from commandbus.interfaces.search import BoundedSearch, is_at, is_own, parse_search
from commandbus.interfaces.web import schemas as v
from commandbus.interfaces.web.failure_groups import FailureGroups
from commandbus.interfaces.web.health import attention_of, domain_view
from commandbus.interfaces.web.stores import Stores
from commandbus.interfaces.web.timeseries import Figures
from commandbus.interfaces.web.windows import window_of
from commandbus.operations.fleet_starts import list_starts, minute_of
from commandbus.operations.history import COUNT_MAX, Sample
from commandbus.operations.lookup import Kind
from commandbus.runtimes.asyncio.bus import TroubleshootingQueue
from commandbus.settings import VERSION
from commandbus.store.administration import Finding, Level
from commandbus.store.urls import shown_url

NO_ID = UUID(int=0)
"""Nothing has it."""
IDS_MAX = 20
IDS_SECONDS = 5.0
RUNNING_MAX, CRASHES_MAX = 200, 10
STEPS_MAX = 50
"""So many steps of a process have their attempts drawn."""
NEIGHBOURS = 5_000
"""Related commands are looked for among so many sent before and after."""
DOCTOR_SECONDS = 30.0
DOMAINS_MAX = 100
"""Each is asked for by itself."""
LISTED_BYTES_MAX = 8 * 1024
"""A larger payload or result is left out of lists, of which a page may have hundreds."""


class Reads:
    def __init__(self, stores: Stores, redaction: Redaction) -> None:
        self.stores = stores
        self.redaction = redaction
        self.figures = Figures(stores)
        self.failure_groups = FailureGroups(stores)
        self._examined: tuple[float, list[Finding]] | None = None

    async def overview(self) -> v.Overview:
        bus = await self.stores.reading()
        shown = await self.domains()
        workers = await bus.list_workers()
        breakers = await bus.list_breakers()
        return v.Overview(
            attention_of(shown.domains, breakers),
            shown.domains,
            len(workers),
            sum(w.concurrency for w in workers if w.claims),
            shown.left_out,
        )

    async def domains(self) -> v.Domains:
        bus = await self.stores.reading()
        workers = await bus.list_workers()
        views = [await self._view(name, workers) for name in sorted(await self._urgent())]
        return v.Domains(views, len(await self.figures.now()) - len(views))

    async def _urgent(self) -> list[str]:
        """As many domains as can be asked for one by one, first those that need attention."""
        samples = await self.figures.now()
        return sorted(samples, key=lambda name: _calm(samples[name]))[:DOMAINS_MAX]

    async def _view(self, name: str, workers: Sequence[WorkerInfo]) -> v.DomainView:
        bus = await self.stores.reading()
        rate = self.figures.rate(name)
        return domain_view(await bus.stats(name, cap=COUNT_MAX), workers, rate)

    async def domain(self, name: str) -> v.DomainDetail:
        """Raises NotFoundError for a domain without a command, a worker and a limit."""
        bus = await self.stores.reading()
        workers = await bus.list_workers()
        if not await self._is_known(name, workers):
            raise NotFoundError(
                f"There is no domain {name!r}: no command was sent to it, and no worker serves it."
            )
        stats = await bus.stats(name, cap=COUNT_MAX)
        return v.DomainDetail(domain_view(stats, workers, self.figures.rate(name)), stats)

    async def _is_known(self, name: str, workers: Sequence[WorkerInfo]) -> bool:
        bus = await self.stores.reading()
        return (
            name in await bus.list_domains()
            or any(name in worker.domains for worker in workers)
            or bool(await bus.list_limits(name))
        )

    async def history(self, query: v.HistoryQuery) -> v.History:
        points = await self.figures.points(window_of(datetime.now(UTC), query.span), query.domain)
        return v.History([point for point in points if point is not None])

    async def commands(self, query: v.CommandsQuery) -> v.SearchPage:
        bus = await self.stores.reading()
        search = parse_search(query.q, self.redaction.is_secret)
        if search.command_id is not None:
            record = await self._find(search.command_id, search.conditions.get("domain"))
            return v.SearchPage([self.redaction.record(record)] if record else [], None, exhausted=True)
        conditions = dict(search.conditions)
        for noun, digits in search.parts.items():
            ids = await self.ids(digits, noun)
            if noun == "command":
                records = [await self._find(one, conditions.get("domain")) for one in ids]
                return v.SearchPage(self.listed(filter(None, records)), None, exhausted=True)
            conditions["batch_id"] = ids[0] if len(ids) == 1 else NO_ID
        shown = search.shown.items()

        def keep(record: CommandRecord) -> bool:
            if not (search.named or is_own(record)):
                return False
            hidden = self.redaction.hide(record.data) if shown else None
            return all(is_at(hidden, path, text) for path, text in shown)

        look = BoundedSearch(
            conditions, query.limit, query.after, keep if shown or not search.named else None
        )
        while (asked := look.asked()) is not None:
            look.add(await bus.query_commands(**asked))
        return v.SearchPage(self.listed(look.found), look.next, look.exhausted)

    def listed(self, records: Iterable[CommandRecord]) -> list[CommandRecord]:
        """Records of a list: without large values, and with secrets hidden."""
        return [
            self.redaction.record(
                msgspec.structs.replace(
                    record, data=_listed_value(record.data), result=_listed_value(record.result)
                )
            )
            for record in records
        ]

    async def ids(self, digits: str, kind: Kind) -> list[UUID]:
        """The ids that digits may stand for: all of a few, looked for as long as a page may take."""
        bus = await self.stores.reading()
        began, after = time.monotonic(), None
        found: list[UUID] = []
        while True:
            page = await bus.look_up(digits, kind, after=after)
            found += page
            after = page.next
            if after is None or len(found) > IDS_MAX or time.monotonic() - began > IDS_SECONDS:
                return found[:IDS_MAX]

    async def _find(self, command_id: UUID, domain: str | None) -> CommandRecord | None:
        """The command with an id, whose domain need not be known."""
        bus = await self.stores.reading()
        try:
            return await bus.get_command(command_id, domain=domain)
        except InvalidOperationError:  # several domains have one; any of them leads further
            trail = await bus.get_audit_trail(command_id)
            return await bus.get_command(command_id, domain=trail[0].domain)

    async def raw_command(self, domain: str, command_id: UUID) -> CommandRecord:
        """With its secrets: for actions only, never to be shown."""
        bus = await self.stores.reading()
        record = await bus.get_command(command_id, domain=domain)
        if record is None:
            raise CommandNotFoundError(domain, command_id)
        return record

    async def command(self, domain: str, command_id: UUID) -> v.CommandDetail:
        bus = await self.stores.reading()
        record = await self.raw_command(domain, command_id)
        trail = await bus.get_audit_trail(command_id, domain=domain)
        why = await bus.why(command_id, domain=domain)
        return v.CommandDetail(
            self.redaction.record(record),
            [self.redaction.event(event) for event in trail],
            why,
            await self._related(record),
            (await TroubleshootingQueue(bus).list_cases([record]))[0],
        )

    async def _related(self, record: CommandRecord) -> list[v.Related]:
        bus = await self.stores.reading()
        page = await bus.query_commands(
            correlation_id=record.correlation_id,
            after=str(record.sequence + NEIGHBOURS),
            scan=2 * NEIGHBOURS,
            limit=20,
        )
        related: list[v.Related] = []
        for other in page:
            if (other.domain, other.command_id) == (record.domain, record.command_id):
                continue
            relation = "correlated"
            if other.command_type == REPLY_TYPE and other.causation_id == record.command_id:
                relation = "reply"
            elif other.causation_id == record.command_id:
                relation = "consequence"
            elif record.causation_id == other.command_id:
                relation = "cause"
            related.append(v.Related(self.listed([other])[0], relation))  # type: ignore[arg-type]
        return related

    async def troubleshooting(self, query: v.TroubleQuery) -> v.Trouble:
        queue = TroubleshootingQueue(await self.stores.reading())
        page = await queue.list_troubleshooting(
            query.domain, query.command_type, after=query.after, limit=query.limit
        )
        count = await self._parked(query.domain)
        cases = await queue.list_cases(page)
        return v.Trouble(self.listed(page), list(cases), page.next, count)

    async def parked(self) -> v.Parked:
        return v.Parked(await self._parked(None))

    async def _parked(self, domain: str | None) -> int:
        """From the figures, which need not count."""
        samples = await self.figures.now()
        return sum(sample.parked for name, sample in samples.items() if domain in (None, name))

    async def groups(self, query: v.TroubleQuery) -> v.Groups:
        return await self.failure_groups.get(query.domain, query.command_type)

    async def batches(self, query: v.BatchesQuery) -> v.Batches:
        bus = await self.stores.reading()
        page = await bus.list_batches(domain=query.domain or None, after=query.after, limit=query.limit)
        return v.Batches([self.redaction.batch(one) for one in page], page.next)

    async def batch(self, batch_id: UUID, query: v.BatchesQuery) -> v.BatchDetail:
        bus = await self.stores.reading()
        batch = await bus.get_batch(batch_id)
        if batch is None:
            raise BatchNotFoundError(batch_id)
        page = await bus.list_batch_commands(batch_id, after=query.after, limit=query.limit)
        return v.BatchDetail(self.redaction.batch(batch), self.listed(page), page.next)

    async def processes(self, query: v.ProcessesQuery) -> v.Processes:
        bus = await self.stores.reading()
        page = await bus.list_processes(
            status=query.status,
            process_type=query.process_type,
            after=query.after,
            limit=query.limit,
        )
        return v.Processes([self.redaction.process(record) for record in page], page.next)

    async def process(self, process_id: UUID) -> v.ProcessDetail:
        bus = await self.stores.reading()
        record = await bus.get_process(process_id)
        if record is None:
            raise ProcessNotFoundError(process_id)
        trail = [self.redaction.shown(event) for event in await bus.get_process_audit(process_id)]
        return v.ProcessDetail(self.redaction.process(record), trail)

    async def step_trails(self, record: ProcessRecord) -> dict[UUID, list[AuditEvent]]:
        """What happened to the commands of the newest steps of a process."""
        bus = await self.stores.reading()
        return {
            step.command_id: await bus.get_audit_trail(step.command_id, domain=step.domain)
            for step in record.steps[-STEPS_MAX:]
            if step.kind is StepKind.COMMAND
        }

    async def schedules(self) -> v.Schedules:
        bus = await self.stores.reading()
        return v.Schedules([self.redaction.schedule(record) for record in await bus.list_schedules()])

    async def raw_schedule(self, name: str) -> ScheduleRecord:
        """With its secrets: for actions only, never to be shown."""
        record = await (await self.stores.reading()).get_schedule(name)
        if record is None:
            raise NotFoundError(f"There is no schedule {name!r}.")
        return record

    async def limits(self, domain: str | None = None) -> v.Limits:
        return v.Limits(list(await (await self.stores.reading()).list_limits(domain)))

    async def workers(self) -> v.Workers:
        return v.Workers(list(await (await self.stores.reading()).list_workers()))

    async def running(self) -> dict[str, list[CommandRecord]]:
        """What runs now, by worker, the oldest first."""
        bus = await self.stores.reading()
        page = await bus.query_commands(status=CommandStatus.IN_PROGRESS, limit=RUNNING_MAX)
        found: dict[str, list[CommandRecord]] = {}
        for record in sorted(page, key=lambda one: one.started_at or one.created_at):
            found.setdefault(record.worker or "", []).append(record)
        return found

    async def crashes(self) -> list[v.AuditItem]:
        """The newest commands whose worker died."""
        query = v.AuditQuery(event=AuditEventType.WORKER_LOST, limit=CRASHES_MAX)
        return (await self.audit(query)).events

    async def starts(self, domain: str | None = None) -> list[FleetStart]:
        """When workers were started, of all domains or of one: those that live, and those that are
        gone."""
        bus = await self.stores.reading()
        kept = await bus.session.run(list_starts(bus.scope), read=True)
        known = {(minute_of(one.at), one.version) for one in kept}
        found = kept + [
            FleetStart(one.started_at, one.version, 1, one.domains)
            for one in await bus.list_workers()
            if not one.processes and (minute_of(one.started_at), one.version) not in known
        ]
        return [one for one in found if domain in (None, *one.domains)]

    async def restarts(self) -> list[WorkerRestart]:
        return list(await (await self.stores.reading()).list_restarts(limit=CRASHES_MAX))

    async def breakers(self) -> v.Breakers:
        return v.Breakers(list(await (await self.stores.reading()).list_breakers()))

    async def audit(self, query: v.AuditQuery) -> v.Audit:
        bus = await self.stores.reading()
        page = await bus.search_audit(
            domain=query.domain or None,
            event_type=query.event or None,
            actor=query.actor or None,
            after=query.after,
            limit=query.limit,
        )
        items = [
            v.AuditItem(
                entry.command_type,
                self.redaction.event(
                    msgspec.structs.replace(
                        entry.event,
                        details={k: _listed_value(part) for k, part in entry.event.details.items()},
                    )
                ),
            )
            for entry in page
        ]
        return v.Audit(items, page.next)

    async def actions(self, query: v.ActionsQuery) -> v.Actions:
        bus = await self.stores.reading()
        page = await bus.list_actions(after=query.after, limit=query.limit)
        items = [v.ActionItem(a.actor, a.action, a.subject, a.reason, a.at) for a in page]
        return v.Actions(items, page.next)

    async def system(self) -> v.System:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        return v.System(VERSION, python, shown_url(self.stores.url), await self._examine())

    async def _examine(self) -> list[Finding]:
        """The doctor's findings, asked for no more often than they change."""
        if self._examined is not None and time.monotonic() - self._examined[0] < DOCTOR_SECONDS:
            return self._examined[1]
        try:
            administration = create_administration(self.stores.url)
            findings = await asyncio.to_thread(administration.doctor)
        except ConfigurationError:
            advice = "Name an SQLite file or a PostgreSQL database to keep commands."
            findings = [Finding("durability", Level.WARNING, "in memory, lost at exit", advice)]
        except CommandBusError as error:
            findings = [Finding("store", Level.ERROR, str(error))]
        self._examined = (time.monotonic(), findings)
        return findings


def _listed_value(value: Any) -> Any:
    size = len(msgspec.json.encode(value))
    return value if size <= LISTED_BYTES_MAX else {"$left_out": f"{size:,} bytes"}


def _calm(sample: Sample) -> tuple[float, ...]:
    """Domains with parked or old work come first, then busy ones."""
    return (-sample.parked, -(sample.oldest or 0.0), -sample.ready, -sample.running, -sample.scheduled)
