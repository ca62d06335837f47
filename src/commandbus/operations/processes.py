"""Processes: started, looked at, signaled, called off. What happens in between is `routing`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.cause import running
from commandbus.domain.command import SendRequest
from commandbus.domain.ids import as_id, as_optional_id
from commandbus.domain.lifecycle import PARKED
from commandbus.domain.moment import (
    Duration,
    as_datetime,
    as_microseconds,
    as_optional_datetime,
    as_seconds,
)
from commandbus.domain.names import as_member, as_name, as_reason, as_text
from commandbus.domain.page import LIMIT_MAX, Page, as_cursor, as_limit
from commandbus.domain.process.declaration import Process
from commandbus.domain.process.values import (
    ENDED,
    ProcessCount,
    ProcessError,
    ProcessEvent,
    ProcessEventType,
    ProcessRecord,
    ProcessStatus,
    ProcessStep,
    Progress,
    StepKind,
    StepRun,
    StepStatus,
)
from commandbus.domain.process.work import DecisionError
from commandbus.errors import (
    DuplicateProcessError,
    InvalidArgumentError,
    InvalidOperationError,
    ProcessNotFoundError,
)
from commandbus.operations.actions import record_action
from commandbus.operations.batch_documents import grow_batch
from commandbus.operations.batches import open_batch
from commandbus.operations.canceling import withdraw
from commandbus.operations.evidence import control_details
from commandbus.operations.ledger import Link, link, link_event, written
from commandbus.operations.process_writes import (
    SIGNAL_TYPE,
    TIMERS,
    Work,
    begin,
    control,
    decode_error,
    decode_progress,
    flow_of,
)
from commandbus.operations.scope import Await, Flow, Scope
from commandbus.store.op import Op
from commandbus.store.processes import ProcessFilter, ProcessRow, shown_status
from commandbus.store.reading import UNREADABLE
from commandbus.store.records import Capacity, CommandFilter, OperatorAction
from commandbus.store.replies import follow_up
from commandbus.store.trail import read_details

COUNT_MAX = 100_000


class ProcessStart(msgspec.Struct, frozen=True):
    """One process of a bulk start."""

    state: Any = None
    process_id: UUID | str | None = None


class StartProcessResult(msgspec.Struct, frozen=True):
    """The start is durable. What takes the id of a process takes this as well."""

    process_id: UUID
    process_type: str


ProcessRef = UUID | str | StartProcessResult | ProcessRecord
"""A process: its id, what its start returned, or its record."""


class CreateProcessBatchResult(msgspec.Struct, frozen=True):
    batch_id: UUID
    process_ids: list[UUID]
    """In the order of the states."""


def start_processes(
    scope: Scope,
    declaration: type[Process[Any]],
    starts: Iterable[Any],
    batch_id: UUID | str | None = None,
) -> Op[list[StartProcessResult]]:
    """Start processes, all or none: rows and first commands in one transaction. Checked and decided
    before, in the caller's thread."""
    batch = as_optional_id(batch_id, "batch_id")
    work, ids = _begin_all(scope, declaration, starts, batch)
    results = [StartProcessResult(process_id, declaration.process_type) for process_id in ids]
    return _started(scope, _start(scope, declaration.reply_to, work, ids, batch), results)


def _started(
    scope: Scope, start: Op[None], results: list[StartProcessResult]
) -> Op[list[StartProcessResult]]:
    yield from start
    if scope.actor is not None and results:  # a person starts them: that is an operator action
        subject = f"{results[0].process_type} {results[0].process_id}"
        if len(results) > 1:
            subject = f"{len(results)} processes of {results[0].process_type}"
        yield from record_action(scope, "start_process", subject)
    return results


def _begin_all(
    scope: Scope, declaration: type[Process[Any]], starts: Iterable[Any], batch: UUID | None
) -> tuple[Work, list[UUID]]:
    work, ids = Work(), []
    flow = flow_of(scope, declaration, running.get())
    for item in starts:
        wanted = item if isinstance(item, ProcessStart) else ProcessStart(item)
        process_id = as_optional_id(wanted.process_id, "process_id") or scope.new_id()
        try:
            state = declaration.new_state(wanted.state)
            begun = begin(scope, declaration, state, process_id, batch_id=batch, flow=flow)
        except DecisionError as error:
            raise InvalidOperationError(
                f"Process {declaration.process_type!r} cannot start, step {error}; nothing was started."
            ) from error
        work.add(begun)
        ids.append(process_id)
    if len(set(ids)) < len(ids):
        raise DuplicateProcessError(next(key for key in ids if ids.count(key) > 1))
    return work, ids


def _start(
    scope: Scope,
    reply_to: str,
    work: Work,
    ids: list[UUID],
    batch: UUID | None,
    opening: Op[None] | None = None,
) -> Op[None]:
    if not ids:
        return
    taken = yield from scope.store.add_processes(work.new, work.events)
    if taken:
        raise DuplicateProcessError(taken[0])
    if work.commands:
        yield from scope.insert(work.commands, Capacity(scope.settings.max_pending))
    if opening is not None:
        yield from opening
    if batch is not None:
        yield from grow_batch(scope, batch, [reply_to] * len(ids))
        yield from scope.store.add_batch_counts(work.batches, "")
    if work.hastens:
        yield from scope.store.announce(TIMERS)


def create_process_batch(
    scope: Scope,
    declaration: type[Process[Any]],
    starts: Iterable[Any],
    *,
    batch_id: UUID | str | None = None,
    name: str | None = None,
    custom_data: Any = None,
    on_complete: SendRequest | None = None,
) -> Op[CreateProcessBatchResult]:
    """Start processes as a batch, which is complete when the last of them has ended."""
    key = as_optional_id(batch_id, "batch_id") or scope.new_id()
    work, ids = _begin_all(scope, declaration, starts, key)
    if not ids:
        raise InvalidArgumentError("A batch needs at least one process.")
    opening = open_batch(scope, key, name, custom_data, on_complete)
    return _create_batch(scope, declaration.reply_to, work, ids, key, opening)


def _create_batch(
    scope: Scope, reply_to: str, work: Work, ids: list[UUID], key: UUID, opening: Op[None]
) -> Op[CreateProcessBatchResult]:
    yield from _start(scope, reply_to, work, ids, key, opening)
    if scope.actor is not None:
        yield from record_action(scope, "create_batch", str(key))
    return CreateProcessBatchResult(key, ids)


def id_of(process: ProcessRef) -> UUID:
    """The id that was given in one of its forms."""
    if isinstance(process, StartProcessResult | ProcessRecord):
        return process.process_id
    return as_id(process, "process_id")


def get_process(scope: Scope, process_id: ProcessRef) -> Op[ProcessRecord | None]:
    """Everything known about a process, or None when there is none with this id."""
    row = yield from scope.store.get_process(id_of(process_id))
    if row is None:
        return None
    parked = yield from _parked_runs(scope, row)
    return _record(row, {run.id for run in parked})


def _parked_runs(scope: Scope, row: ProcessRow) -> Op[list[StepRun]]:
    """The steps whose commands wait for an operator."""
    found: list[StepRun] = []
    if row.parked:
        for run in _read(row)[0].pending():
            if run.kind is StepKind.COMMAND:
                records = yield from scope.store.find(run.id, run.target)
                found += [run for record in records if record.status is PARKED]
    return found


def count_processes(scope: Scope) -> Op[list[ProcessCount]]:
    """How many processes have not ended, by type and status; counted up to 100,000."""
    counted = yield from scope.store.count_processes(COUNT_MAX)
    return [ProcessCount(kind, status, count) for (kind, status), count in sorted(counted.items())]


def list_processes(
    scope: Scope,
    *,
    process_type: str | None = None,
    status: ProcessStatus | str | None = None,
    batch_id: UUID | str | None = None,
    parent_id: UUID | str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    after: str | None = None,
    limit: int = 100,
) -> Op[Page[ProcessRecord]]:
    """Processes that meet all conditions, newest first, a page at a time; `after` is the `next` of
    the page before."""
    as_limit(limit)
    wanted = ProcessFilter(
        process_type,
        as_member(ProcessStatus, status),
        as_optional_id(batch_id, "batch_id"),
        as_optional_id(parent_id, "parent_id"),
        None if created_after is None else as_microseconds(created_after, "created_after"),
        None if created_before is None else as_microseconds(created_before, "created_before"),
        as_cursor(after),
        limit + 1,
    )
    rows = yield from scope.store.query_processes(wanted)
    page = [_record(row) for row in rows[:limit]]
    return Page(page, str(page[-1].sequence) if len(rows) > limit else None)


_TROUBLE = {
    AuditEventType.MOVED_TO_TSQ: ProcessEventType.STEP_PARKED,
    AuditEventType.OPERATOR_RETRY: ProcessEventType.STEP_RESUMED,
    AuditEventType.OPERATOR_COMPLETE: ProcessEventType.STEP_RESUMED,
    AuditEventType.OPERATOR_CANCEL: ProcessEventType.STEP_RESUMED,
}


_BEGINS = (ProcessEventType.STEP_SENT, ProcessEventType.COMPENSATION_SENT)


def get_process_audit(scope: Scope, process_id: ProcessRef) -> Op[list[ProcessEvent]]:
    """Everything that happened to a process and its steps, in order: sent, completed, failed, parked,
    compensated, and what was ignored. Empty when there is no such process."""
    key = id_of(process_id)
    events = [
        ProcessEvent(key, e.kind, as_datetime(e.at), e.step, e.command_id, read_details(e.details))
        for e in (yield from scope.store.process_events(key))
    ]
    row = yield from scope.store.get_process(key)
    runs = [] if row is None else _read(row)[0].runs
    for run in runs:
        if run.kind is StepKind.COMMAND and run.status is not StepStatus.SKIPPED:
            for event in (yield from scope.store.audit_trail(run.id, run.target)):
                kind = _TROUBLE.get(event.event_type)
                if kind is not None:
                    _insert(
                        events,
                        ProcessEvent(key, kind, event.timestamp, run.name, run.id, event.details),
                    )
    return events


def _insert(events: list[ProcessEvent], event: ProcessEvent) -> None:
    """Put an event in its place by time; at equal times, before the end of its own step."""
    for position, other in enumerate(events):
        if other.event_type in _TROUBLE.values():
            continue
        ends_it = other.command_id == event.command_id and other.event_type not in _BEGINS
        if other.timestamp > event.timestamp or (ends_it and other.timestamp >= event.timestamp):
            events.insert(position, event)
            return
    events.append(event)


def wait_process(
    scope: Scope, process_id: ProcessRef, timeout: Duration | None = None
) -> Flow[ProcessRecord]:
    """Wait until a process has ended or waits for an operator, and return its record. Raises
    TimeoutError after `timeout` seconds, and ProcessNotFoundError."""
    key = id_of(process_id)
    seconds = None if timeout is None else as_seconds(timeout, "timeout")
    now = yield Await(0)
    deadline = None if seconds is None else now + seconds
    waiting = ProcessStatus.WAITING_FOR_TROUBLESHOOTING
    while True:
        record = yield get_process(scope, key)
        if record is None:
            raise ProcessNotFoundError(key)
        if record.status in ENDED or record.status is waiting:
            return record  # type: ignore[no-any-return]
        left = 1.0 if deadline is None else min(1.0, deadline - now)
        if left <= 0:
            raise TimeoutError(
                f"Process {key} is still {record.status} after {seconds:g} s; wait again, or see "
                "whether a router and workers serve it."
            )
        now = yield Await(left)


def signal_process(
    scope: Scope, process_id: ProcessRef, signal: str, data: Any = None, *, reason: str | None = None
) -> Op[None]:
    """Tell a process that something happened, for the step that waits for it now or later. A signal is
    a message between programs; on a bus from `acting` it is an operator action with its record.

    Raises ProcessNotFoundError, or InvalidOperationError when the process has ended.
    """
    name = as_name(signal, "signal")
    body = payload.encode({"signal": name, "data": data}, bytes_max=scope.settings.payload_bytes_max)
    because = as_reason(reason)
    row = yield from require_going(scope, process_id, "signal")
    command = follow_up(row.reply_to, SIGNAL_TYPE, body, row.process_id, row.process_id)
    yield from scope.insert([command], Capacity())
    if scope.actor is not None:
        yield from record_action(scope, "signal_process", f"{row.process_id} {name}", because)


def cancel_process(
    scope: Scope, process_id: ProcessRef, reason: str = "canceled by the starter"
) -> Op[None]:
    """Call a process off: nothing new is begun, and what was done is undone; a router does it.

    Raises ProcessNotFoundError, or InvalidOperationError when the process has ended.
    """
    checked = as_text(reason, "reason", longest=500)
    row = yield from require_going(scope, process_id, "cancel")
    yield from _control(scope, row, "cancel", checked)
    yield from record_action(scope, "cancel_process", str(row.process_id), checked)


def retry_process(scope: Scope, process_id: ProcessRef, *, reason: str | None = None) -> Op[None]:
    """Let a process that waits for troubleshooting try again: parked commands go back to work with
    fresh attempts, and a compensation or decision that failed is repeated.

    Raises ProcessNotFoundError, or InvalidOperationError when it does not wait for an operator.
    """
    because = as_reason(reason)
    row = yield from require_going(scope, process_id, "retry")
    places = [(run.target, run.id) for run in (yield from _parked_runs(scope, row))]
    wanted = CommandFilter(
        domain=row.reply_to, status=PARKED, correlation_id=row.process_id, limit=LIMIT_MAX
    )
    if row.parked:
        replies = yield from scope.store.query(wanted)
        places += [(reply.domain, reply.command_id) for reply in replies]
    links: list[Link] = []
    for domain, command_id in places:
        yield from scope.store.resolve(domain, command_id, OperatorAction("retry", scope.by, because))
        yield from withdraw(scope, domain, command_id)
        retried = AuditEventType.OPERATOR_RETRY
        links.append((yield from written(scope, domain, command_id, retried)))
    if places:
        yield from link(scope, links)
    else:
        _require_stuck(row)
        yield from _control(scope, row, "retry", because)
    yield from record_action(scope, "retry_process", str(row.process_id), because)


def skip_compensation(scope: Scope, process_id: ProcessRef, reason: str) -> Op[None]:
    """Let a process go on without the compensation that failed; a person vouches for it.

    Raises ProcessNotFoundError, or InvalidOperationError when no compensation has failed.
    """
    checked = as_text(reason, "reason", longest=500)
    row = yield from require_going(scope, process_id, "skip a compensation of")
    _require_stuck(row)
    if not _compensation_failed(row):
        raise InvalidOperationError(
            f"No compensation of process {row.process_id} has failed; retry_process lets it go on."
        )
    yield from _control(scope, row, "skip", checked)
    yield from record_action(scope, "skip_compensation", str(row.process_id), checked)


def _compensation_failed(row: ProcessRow) -> bool:
    waits = row.status is ProcessStatus.WAITING_FOR_TROUBLESHOOTING
    return waits and _read(row)[0].stuck is not None


def _require_stuck(row: ProcessRow) -> None:
    if row.status is not ProcessStatus.WAITING_FOR_TROUBLESHOOTING:
        raise InvalidOperationError(
            f"Process {row.process_id} is {row.status} and waits for no operator."
        )


def _control(scope: Scope, row: ProcessRow, action: str, reason: str | None) -> Op[None]:
    """Ask a process something, and put on record that an operator did: routers look for the link."""
    command = control(row.reply_to, row.process_id, action, reason, scope.by)
    yield from scope.insert([command], Capacity())
    domain, key, kind = command.domain, command.command_id, AuditEventType.OPERATOR_CONTROL
    yield from scope.store.note(domain, key, kind, control_details(action, reason, scope.by))
    yield from link_event(scope, domain, key, kind)


def require_going(scope: Scope, process_id: ProcessRef, action: str) -> Op[ProcessRow]:
    """A process that has not ended. Raises ProcessNotFoundError and InvalidOperationError."""
    key = id_of(process_id)
    row = yield from scope.store.get_process(key)
    if row is None:
        raise ProcessNotFoundError(key)
    if row.ended:
        raise InvalidOperationError(
            f"Cannot {action} process {key}: it is {row.status}, which is final."
        )
    return row


def _record(row: ProcessRow, parked: set[UUID] = frozenset()) -> ProcessRecord:  # type: ignore[assignment]
    progress, error = _read(row)
    names = {run.number: run.name for run in progress.runs}
    steps = [
        ProcessStep(
            run.name,
            run.kind,
            run.status,
            run.id,
            run.target,
            run.command_type,
            None if run.due is None else as_datetime(row.created_at + run.due),
            None if run.undoes is None else names[run.undoes],
            run.id in parked,
        )
        for run in progress.runs
    ]
    return ProcessRecord(
        row.process_id,
        row.process_type,
        shown_status(row),
        payload.read(row.state),
        steps,
        error,
        row.reply_to,
        as_datetime(row.created_at),
        as_datetime(row.updated_at),
        as_optional_datetime(row.finished_at),
        None if row.due_in is None else as_datetime(row.created_at + row.due_in),
        row.batch_id,
        row.parent_id,
        row.version,
        row.seq,
        row.status is ProcessStatus.WAITING_FOR_TROUBLESHOOTING and progress.stuck is not None,
        progress.flow.correlation_id or row.process_id,
        progress.flow.causation_id,
    )


def _read(row: ProcessRow) -> tuple[Progress, ProcessError | None]:
    """How far a process is, for readers; one that cannot be read says so in place of its error."""
    try:
        return decode_progress(row), decode_error(row)
    except (msgspec.DecodeError, RecursionError) as problem:
        message = f"What the store keeps of this process cannot be read: {problem}."
        return Progress(), ProcessError(UNREADABLE, message)
