"""Routing: replies, signals and time drive processes on.

Routing a batch of replies is one transaction: it settles the replies, writes the processes and the
audit, and sends the next commands, or does none of it. Rows are locked while it is decided about
them, so any number of routers can work at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import CommandRecord
from commandbus.domain.failure import Failure, FailureKind, classify
from commandbus.domain.lifecycle import FINAL, PARKED, CommandStatus
from commandbus.domain.moment import as_microseconds
from commandbus.domain.outcome import Outcome, Parked, Succeeded, decide_unknown_handler
from commandbus.domain.page import LIMIT_MAX
from commandbus.domain.process.decisions import Decision
from commandbus.domain.process.values import ProcessEventType, ProcessStatus, StepKind, StepRun
from commandbus.domain.process.work import DecisionError
from commandbus.domain.reply import Reply
from commandbus.operations.evidence import (
    Control,
    Declarations,
    Event,
    InDoubt,
    Signal,
    Undecodable,
    Unproven,
    confirmed,
)
from commandbus.operations.process_writes import (
    SIGNAL_TYPE,
    Work,
    decide,
    decode_progress,
    follow,
    write,
)
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.processes import ProcessEventRow, ProcessRow
from commandbus.store.records import Claimed, CommandFilter, Settlement

logger = logging.getLogger("commandbus.processes")


class RouteReport(msgspec.Struct, frozen=True):
    routed: int = 0
    batches: tuple[UUID, ...] = ()
    """Batches in which processes ended: one of them may be complete now."""


def route(
    scope: Scope, declarations: Declarations, claimed: Sequence[Claimed], worker: str
) -> Op[RouteReport]:
    """Let claimed replies drive their processes on; one transaction."""
    ids = sorted({command.correlation_id for command in claimed})
    rows = {row.process_id: row for row in (yield from scope.store.lock_processes(ids))}
    events = yield from confirmed(scope, declarations, claimed, rows)
    work, outcomes = _decide_all(scope, declarations, claimed, rows, events)
    settlements = [
        Settlement(command.seq, command.lease_id, command.attempt, outcome)
        for command, outcome in zip(claimed, outcomes, strict=True)
    ]
    lost = set((yield from scope.store.settle(settlements)).lost)
    if lost:
        # Their lease ran out and another router has them: decide again without them.
        claimed = [command for command in claimed if command.seq not in lost]
        work, _ = _decide_all(scope, declarations, claimed, rows, events)
    yield from write(scope, work, worker)
    return RouteReport(len(claimed), tuple(work.batches))


def unsettled(scope: Scope, claimed: Sequence[Claimed]) -> Op[list[Claimed]]:
    """Those that a routing whose commit is unknown has not settled. The others led to their decisions
    already; a second one would put them on record as replies that came twice."""
    held: list[Claimed] = []
    for command in claimed:
        records = yield from scope.store.find(command.command_id, command.domain)
        if any(record.status is CommandStatus.IN_PROGRESS for record in records):
            held.append(command)
    return held


def park_reply(scope: Scope, command: Claimed, error: BaseException) -> Op[None]:
    """A reply that cannot even be decided about is for an operator."""
    outcome = Parked(classify(error), "NOT_ROUTED")
    settlement = Settlement(command.seq, command.lease_id, command.attempt, outcome)
    yield from scope.store.settle([settlement])


def _decide_all(
    scope: Scope,
    declarations: Declarations,
    claimed: Iterable[Claimed],
    rows: Mapping[UUID, ProcessRow],
    events: Mapping[int, Event],
) -> tuple[Work, list[Outcome]]:
    work, outcomes = Work(), []
    for command in claimed:
        # Several may belong to one process: each sees what the one before has led to.
        row = work.changed.get(command.correlation_id) or rows.get(command.correlation_id)
        led, outcome = _decide_one(scope, declarations, command, row, events[command.seq])
        work.add(led)
        outcomes.append(outcome)
    return work, outcomes


def _decide_one(
    scope: Scope,
    declarations: Declarations,
    command: Claimed,
    row: ProcessRow | None,
    event: Event,
) -> tuple[Work, Outcome]:
    """What one command of a reply queue leads to, and what becomes of it."""
    if isinstance(event, Undecodable):
        failure = Failure(FailureKind.PERMANENT, "UNDECODABLE", event.message)
        return Work(), Parked(failure, "UNDECODABLE")
    if row is None:
        logger.warning("a reply names the process %s, which does not exist", command.correlation_id)
        return _ignored(command, "there is no such process"), Succeeded()
    declaration = declarations.get(row.process_type)
    if declaration is None and row.ended:
        return _ignored(command, "the process has ended"), Succeeded()
    if declaration is None:
        # Another router may know it, or a newer one that is being deployed.
        return Work(), decide_unknown_handler(command.domain, row.process_type, command.releases)
    try:
        decision = decide(row, declaration)
        _tell(decision, command, event)
        return follow(scope, decision, row), Succeeded()
    except DecisionError as error:
        if row.ended:
            return _ignored(command, "the process has ended"), Succeeded()
        return _halted(row, error), _parked(row, error)


def _tell(
    decision: Decision, command: Claimed, event: Reply | InDoubt | Signal | Control | Unproven
) -> None:
    match event:
        case Reply():
            decision.replied(event)
        case InDoubt(reply):
            decision.replied(reply, in_doubt=True)
        case Signal(signal, data):
            decision.signaled(signal, data)
        case Control("retry", _, actor):
            decision.retry(actor)
        case Control("skip", reason, actor):
            decision.skip(reason or "", actor)
        case Control(_, reason, actor):
            decision.cancel(reason or "", actor)
        case Unproven(reason, said):
            logger.warning(
                "%s %s to process %s is ignored: %s",
                command.command_type, command.command_id, command.correlation_id, reason,
            )  # fmt: skip
            decision.ignored(reason, said, command.causation_id)


def _ignored(command: Claimed, reason: str) -> Work:
    details = msgspec.json.encode({"reason": reason}).decode()
    event = ProcessEventRow(
        command.correlation_id, ProcessEventType.REPLY_IGNORED, None, command.causation_id, details
    )
    return Work(events=[event])


def _parked(row: ProcessRow, error: DecisionError) -> Parked:
    logger.error("process %s %s cannot decide: %s", row.process_type, row.process_id, error)
    message = f"Step {error.step!r} of process {row.process_id}: {error.message}"
    return Parked(Failure(FailureKind.PERMANENT, error.code, message), "DECISION_FAILED")


def _halted(row: ProcessRow, error: DecisionError, *, by_itself: bool = False) -> Work:
    """The process waits for an operator; its state is as before."""
    status = row.status if row.ended else ProcessStatus.WAITING_FOR_TROUBLESHOOTING
    changed = msgspec.structs.replace(
        row,
        status=status,
        progress=_halted_progress(row, by_itself),
        due_in=None if by_itself else row.due_in,
    )
    details = msgspec.json.encode({"code": error.code, "message": error.message}).decode()
    event = ProcessEventRow(row.process_id, ProcessEventType.DECISION_FAILED, error.step, None, details)
    return Work(changed={row.process_id: changed}, events=[event])


def _halted_progress(row: ProcessRow, by_itself: bool) -> str:
    """What cannot be read stays as it is, for an operator."""
    try:
        progress = decode_progress(row)
    except (msgspec.DecodeError, RecursionError):
        return row.progress
    progress.halted = progress.halted or by_itself
    return msgspec.json.encode(progress).decode()


def fire_timers(scope: Scope, declarations: Declarations, worker: str, limit: int) -> Op[RouteReport]:
    """Let time pass for processes whose deadlines have; one transaction."""
    work = Work()
    rows = yield from scope.store.due_processes(list(declarations), limit)
    for row in rows:
        try:
            decision = decide(row, declarations[row.process_type])
            decision.time_passed((yield from _restarted(scope, row)))
            work.add(follow(scope, decision, row))
        except DecisionError as error:
            _parked(row, error)
            work.add(_halted(row, error, by_itself=True))
    yield from write(scope, work, worker)
    return RouteReport(len(rows), tuple(work.batches))


def _restarted(scope: Scope, row: ProcessRow) -> Op[dict[UUID, int]]:
    """When the time of steps that are over it began again, in microseconds after the start: now, while
    its command is parked or its reply waits for a router; else when an operator retried it."""
    restarted: dict[UUID, int] = {}
    late = [run for run in decode_progress(row).pending() if run.due is not None and run.due <= row.age]
    answers = (yield from _answers(scope, row)) if late else []
    for run in late:
        waits = any(_answers_to(answer, run) for answer in answers)
        if not waits and run.kind is StepKind.COMMAND:
            waits = any(r.status is PARKED for r in (yield from scope.store.find(run.id, run.target)))
            for event in (yield from scope.store.audit_trail(run.id, run.target)):
                if event.event_type is AuditEventType.OPERATOR_RETRY:
                    restarted[run.id] = as_microseconds(event.timestamp, "timestamp") - row.created_at
        if waits:
            restarted[run.id] = row.age
    return restarted


def _answers(scope: Scope, row: ProcessRow) -> Op[list[CommandRecord]]:
    """What has come in for a process and is not routed yet."""
    wanted = CommandFilter(domain=row.reply_to, correlation_id=row.process_id, limit=LIMIT_MAX)
    return [record for record in (yield from scope.store.query(wanted)) if record.status not in FINAL]


def _answers_to(answer: CommandRecord, run: StepRun) -> bool:
    if answer.command_type == SIGNAL_TYPE:
        return run.kind is StepKind.SIGNAL and (
            isinstance(answer.data, dict) and answer.data.get("signal") == run.target
        )
    return answer.causation_id == run.id
