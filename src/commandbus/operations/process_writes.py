"""From decisions about processes to what is written: rows, events, commands; all in one transaction."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.batch import BatchCounts
from commandbus.domain.cause import TRACE_HEADERS
from commandbus.domain.command import Command, SendRequest
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.misfit import describe_misfit
from commandbus.domain.process.decisions import Decision
from commandbus.domain.process.declaration import Process, StartProcess, require_declaration
from commandbus.domain.process.values import (
    ENDED,
    Flow,
    Parent,
    ProcessError,
    ProcessStatus,
    Progress,
    StepRun,
    StepStatus,
)
from commandbus.domain.process.work import DecisionError
from commandbus.errors import CommandBusError, CommandNotFoundError, InvalidOperationError
from commandbus.operations.canceling import call_off
from commandbus.operations.commands import reply_to_sender
from commandbus.operations.scope import Scope
from commandbus.operations.sending import encode_request
from commandbus.store.op import Op
from commandbus.store.processes import ProcessEventRow, ProcessRow
from commandbus.store.reading import UNREADABLE
from commandbus.store.records import Capacity, NewCommand
from commandbus.store.replies import follow_up, reply_command

logger = logging.getLogger("commandbus.processes")

SIGNAL_TYPE = "commandbus.signal"
CONTROL_TYPE = "commandbus.control"
"""What operators and other processes ask of a process; carried out by a router, in order."""

TIMERS = "commandbus.process-timers"
"""Announced when a process has an earlier deadline than before, so that routers look again."""

ALONE = Flow()
"""Of a process that no handler and no other process started."""

_encode = msgspec.json.Encoder().encode
_progress = msgspec.json.Decoder(Progress)
_error = msgspec.json.Decoder(ProcessError)

_COUNTED = {ProcessStatus.COMPLETED: "completed", ProcessStatus.CANCELED: "canceled"}


class Work(msgspec.Struct):
    """What decisions lead to."""

    new: list[ProcessRow] = []
    changed: dict[UUID, ProcessRow] = {}
    events: list[ProcessEventRow] = []
    commands: list[NewCommand] = []
    revokes: list[tuple[StepRun, str]] = []
    batches: dict[UUID, BatchCounts] = {}
    hastens: bool = False
    """A deadline is earlier than before: routers that knew the old one have to hear of it."""

    def add(self, other: Work) -> None:
        self.new += other.new
        self.changed |= other.changed
        self.events += other.events
        self.commands += other.commands
        self.revokes += other.revokes
        self.hastens |= other.hastens
        for key, counts in other.batches.items():
            self.batches[key] = self.batches.get(key, BatchCounts()).plus(counts)


def decide(row: ProcessRow, declaration: type[Process[Any]]) -> Decision:
    """A working copy of a stored process. Raises DecisionError when it cannot be read."""
    try:
        state = declaration.decode_state(row.state)
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError) as error:
        raise DecisionError(
            "state", "UNDECODABLE", f"The state does not fit its type: {describe_misfit(error)}"
        ) from None
    try:
        progress, failed = decode_progress(row), decode_error(row)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise DecisionError(
            "state", UNREADABLE, f"What the store keeps cannot be read: {problem}"
        ) from None
    return Decision(declaration, row.process_id, row.status, state, progress, failed, row.age)


def decode_progress(row: ProcessRow) -> Progress:
    return _progress.decode(row.progress)


def decode_error(row: ProcessRow) -> ProcessError | None:
    return None if row.error is None else _error.decode(row.error)


def begin(
    scope: Scope,
    declaration: type[Process[Any]],
    state: Any,
    process_id: UUID,
    *,
    batch_id: UUID | None = None,
    parent: Parent | None = None,
    flow: Flow = ALONE,
) -> Work:
    """A new process with what its first step leads to. Raises DecisionError."""
    progress = Progress(parent=parent, seed=scope.new_id(), flow=flow)
    decision = Decision(
        declaration, process_id, ProcessStatus.RUNNING, state, progress, None, elapsed=0
    )
    decision.start()
    row = ProcessRow(
        process_id,
        declaration.process_type,
        declaration.reply_to,
        ProcessStatus.RUNNING,
        0,
        "",
        "",
        batch_id=batch_id,
        parent_id=parent.process_id if parent else None,
    )
    work = follow(scope, decision, row)
    work.new.insert(0, work.changed.pop(process_id))
    return work


def flow_of(scope: Scope, declaration: type[Process[Any]], cause: Command[Any] | None) -> Flow:
    """What a process that starts now continues: the flow and the trace of the command whose handler
    runs, or the trace of the program."""
    if scope.carry is not None:
        headers = scope.carry(SendRequest(declaration.reply_to, declaration.process_type))
    else:
        headers = {} if cause is None else cause.headers
    trace = {name: str(headers[name]) for name in TRACE_HEADERS if name in headers}
    if cause is None:
        return Flow(trace=trace) if trace else ALONE
    return Flow(cause.correlation_id, cause.command_id, trace)


def follow(scope: Scope, decision: Decision, row: ProcessRow) -> Work:
    """What a decision writes. Raises DecisionError when that cannot be written."""
    step = next((note.step for note in reversed(decision.notes) if note.step), None) or "state"
    try:
        state = payload.encode(decision.state, what="state", bytes_max=scope.settings.payload_bytes_max)
        commands = [encode_request(scope, request) for _, request in decision.sends]
    except CommandBusError as error:
        raise DecisionError(step, type(error).__name__, str(error)) from error
    after = _row_after(decision, row, state)
    work = Work(changed={row.process_id: after}, commands=commands)
    work.hastens = after.due_in is not None and (row.due_in is None or after.due_in < row.due_in)
    reason = decision.error.message if decision.error else "not needed any more"
    work.revokes = [(run, reason or "its process does not wait for it") for run in decision.revokes]
    work.events = [
        ProcessEventRow(
            row.process_id, note.kind, note.step, note.command_id, _encode(note.details).decode()
        )
        for note in decision.notes
    ]
    for run in decision.cancels:
        work.commands.append(control(run.target, run.id, "cancel", reason, None))
    for run, start in decision.starts:
        work.add(_begin_child(scope, decision, run, start))
    if after.ended and row.status not in ENDED:
        _tell_end(decision, after, work)
    return work


def _row_after(decision: Decision, row: ProcessRow, state: str) -> ProcessRow:
    error = decision.error
    return msgspec.structs.replace(
        row,
        status=decision.status,
        state=state,
        progress=_encode(decision.progress).decode(),
        error=None if error is None else _encode(error).decode(),
        due_in=decision.next_due(),
        ended=decision.status in ENDED,
    )


def _begin_child(scope: Scope, decision: Decision, run: StepRun, start: StartProcess) -> Work:
    parent = Parent(decision.process_id, decision.declaration.reply_to, run.id)
    try:
        declaration = require_declaration(start.process)
        state = declaration.new_state(start.state)
    except CommandBusError as error:
        raise DecisionError(run.name, type(error).__name__, str(error)) from error
    above = decision.progress.flow
    flow = Flow(above.correlation_id or decision.process_id, decision.process_id, above.trace)
    return begin(scope, declaration, state, run.id, parent=parent, flow=flow)


def _tell_end(decision: Decision, row: ProcessRow, work: Work) -> None:
    """A process that ended is counted in its batch, and reported to its parent."""
    if row.batch_id is not None:
        field = _COUNTED.get(row.status, "failed")
        work.batches[row.batch_id] = BatchCounts(**{field: 1})
    parent = decision.progress.parent
    if parent is None:
        return
    result = None
    if row.status is ProcessStatus.COMPLETED:
        result = payload.encode(decision.outcome(), what="result")
    work.commands.append(report_end(row, parent, decision.error, result))


def report_end(
    row: ProcessRow, parent: Parent, error: ProcessError | None, result: str | None = None
) -> NewCommand:
    """The reply to the process that started this one as a step."""
    succeeded = row.status is ProcessStatus.COMPLETED
    outcome = ReplyOutcome.SUCCESS if succeeded else ReplyOutcome.FAILED
    if row.status is ProcessStatus.CANCELED:
        outcome = ReplyOutcome.CANCELED
    failure = Failure(FailureKind.BUSINESS_RULE, error.code, error.message) if error else None
    return reply_command(
        parent.reply_to,
        command_id=parent.run_id,
        domain=row.reply_to,
        command_type=row.process_type,
        correlation_id=parent.process_id,
        outcome=outcome,
        result=result,
        failure=None if succeeded else failure,
    )


def control(
    reply_to: str, process_id: UUID, action: str, reason: str | None, actor: str | None
) -> NewCommand:
    """The command that asks something of a process."""
    data = _encode({"action": action, "reason": reason, "actor": actor}).decode()
    return follow_up(reply_to, CONTROL_TYPE, data, process_id, process_id)


def write(scope: Scope, work: Work, shard: str) -> Op[None]:
    """Write what was decided about processes that are locked; the transaction is the caller's."""
    if work.commands:
        yield from scope.insert(work.commands, Capacity())
    if work.new:
        taken = yield from scope.store.add_processes(work.new, [])
        if taken:
            raise InvalidOperationError(f"Process {taken[0]} exists already and cannot be a new step.")
    if work.changed or work.events:
        lost = yield from scope.store.put_processes(list(work.changed.values()), work.events)
        if lost:
            raise InvalidOperationError(f"Process {lost[0]} was changed by another router meanwhile.")
    if work.hastens:
        yield from scope.store.announce(TIMERS)
    if work.batches:
        yield from scope.store.add_batch_counts(work.batches, shard)
    for run, reason in work.revokes:
        yield from _revoke(scope, run, reason[:500])


def _revoke(scope: Scope, run: StepRun, reason: str) -> Op[None]:
    """Call off a command that waits or is parked. One that runs must not begin again when its worker
    dies or its attempt fails, and is asked to stop if it is not awaited any more."""
    try:
        yield from scope.store.revoke(run.target, run.id, reason)
    except CommandNotFoundError:
        return
    except InvalidOperationError:
        awaited = run.status not in (StepStatus.TIMED_OUT, StepStatus.CANCELED)
        yield from call_off(scope, run.target, run.id, reason, awaited=awaited)
        return
    yield from reply_to_sender(scope, run.target, run.id)
