"""The end of a process that no router can carry to one.

A router decides with the declaration of a process, its state and its progress. When one of them is gone
or cannot be read, a request to cancel waits for ever; so the operator ends the process here, in one
transaction and without a router. Nothing is undone.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.batch import BatchCounts
from commandbus.domain.lifecycle import PARKED
from commandbus.domain.names import as_text
from commandbus.domain.page import LIMIT_MAX
from commandbus.domain.process.decisions import DONE, UNDONE
from commandbus.domain.process.values import (
    Parent,
    ProcessError,
    ProcessEventType,
    ProcessStatus,
    Progress,
    StepKind,
    StepStatus,
)
from commandbus.operations.actions import record_action
from commandbus.operations.canceling import end_parked
from commandbus.operations.process_writes import Work, control, decode_progress, report_end, write
from commandbus.operations.processes import ProcessRef, id_of, require_going
from commandbus.operations.scope import Scope
from commandbus.store.batching import TOPIC as BATCHES
from commandbus.store.op import Op
from commandbus.store.processes import ProcessEventRow, ProcessRow
from commandbus.store.records import CommandFilter, OperatorAction

ENDED_BY_OPERATOR = "ENDED_BY_OPERATOR"


class EndProcessResult(msgspec.Struct, frozen=True):
    """The process has ended as FAILED."""

    process_id: UUID
    not_done: list[str]
    """What a router would have done, in words."""


def end_process(scope: Scope, process_id: ProcessRef, reason: str) -> Op[EndProcessResult]:
    """End a process where it stands, without a router: one whose record cannot be read, or whose
    declaration no program has any more. It is FAILED with the code ENDED_BY_OPERATOR. Nothing is
    undone; the result says what was left. `cancel_process` undoes the steps of any other process.

    Raises ProcessNotFoundError, or InvalidOperationError when the process has ended.
    """
    checked = as_text(reason, "reason", longest=500)
    key = id_of(process_id)
    yield from scope.store.lock_processes([key])
    row = yield from require_going(scope, key, "end")
    error = ProcessError(ENDED_BY_OPERATOR, checked)
    progress, not_done = _known(row)
    details = {"code": error.code, "message": checked, "actor": scope.by, "not_done": not_done}
    work = Work()
    for run in progress.pending():
        if run.kind is StepKind.COMMAND:
            work.revokes.append((run, checked))
        elif run.kind is StepKind.PROCESS:
            run.called_off = True
            work.commands.append(control(run.target, run.id, "cancel", checked, None))
        run.status = StepStatus.CANCELED
    after = msgspec.structs.replace(
        row,
        status=ProcessStatus.FAILED,
        progress=_json(progress),
        error=_json(error),
        due_in=None,
        ended=True,
    )
    work.changed[key] = after
    work.events = [ProcessEventRow(key, ProcessEventType.FAILED, None, None, _json(details))]
    if row.batch_id is not None:
        work.batches[row.batch_id] = BatchCounts(failed=1)
    above = (yield from scope.store.get_process(row.parent_id)) if row.parent_id else None
    if above is not None:
        parent = Parent(above.process_id, above.reply_to, key)
        work.commands.append(report_end(after, parent, error))
    yield from write(scope, work, "")
    if work.batches:
        yield from scope.store.announce(BATCHES)
    yield from _end_parked_replies(scope, row, checked)
    yield from record_action(scope, "end_process", str(key), checked)
    return EndProcessResult(key, not_done)


def _known(row: ProcessRow) -> tuple[Progress, list[str]]:
    """How far a process is, and what is not done about that."""
    try:
        progress = decode_progress(row)
    except (msgspec.DecodeError, RecursionError) as problem:
        consequence = "what it sent or started was not called off, and nothing was undone"
        return Progress(), [f"its steps cannot be read ({problem}), so {consequence}"]
    undone = {run.undoes for run in progress.runs if run.undoes and run.status in UNDONE}
    forward = [run for run in progress.runs if run.undoes is None and run.number not in undone]
    done = [run.name for run in forward if run.status is StepStatus.COMPLETED]
    doubtful = [run.name for run in forward if run.rank and run.status in DONE and run.name not in done]
    pending = [run.name for run in progress.pending() if run.kind is StepKind.COMMAND]
    left = [f"completed steps were not undone: {', '.join(done)}"] if done else []
    if doubtful:
        left.append(f"steps that may have taken effect were not undone: {', '.join(doubtful)}")
    if pending:
        left.append(
            f"what these steps have begun was not awaited, and is not undone: {', '.join(pending)}"
        )
    return progress, left


def _end_parked_replies(scope: Scope, row: ProcessRow, reason: str) -> Op[None]:
    """What came in for the process and was parked, as no router could decide about it."""
    action = OperatorAction("cancel", scope.by, reason)
    wanted = CommandFilter(
        domain=row.reply_to, status=PARKED, correlation_id=row.process_id, limit=LIMIT_MAX
    )
    for reply in (yield from scope.store.query(wanted)):
        yield from end_parked(scope, reply, action)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
