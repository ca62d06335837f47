"""Checks of the events of a reply queue against the store.

A reply queue is a domain like any other, so whatever is in it may have been written by another program.
A router therefore takes no event at its word. How a command or a process ended is read from the store,
in the transaction that drives the process on; a control counts when the ledger has the operator's
action, or when the process that started this one has called it off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain import payload
from commandbus.domain.audit import AuditEventType
from commandbus.domain.lifecycle import ReplyOutcome
from commandbus.domain.process.declaration import Process
from commandbus.domain.process.effects import may_have_taken_effect
from commandbus.domain.process.values import ProcessStatus, Progress, StepKind, StepRun
from commandbus.domain.process.work import DecisionError
from commandbus.domain.reply import REPLY_TYPE, Reply, reply_outcome
from commandbus.operations.ledger import is_linked
from commandbus.operations.process_writes import (
    CONTROL_TYPE,
    SIGNAL_TYPE,
    decide,
    decode_error,
    decode_progress,
)
from commandbus.operations.scope import Scope
from commandbus.store.op import Op
from commandbus.store.processes import ProcessRow
from commandbus.store.records import Claimed, Ended

Declarations = Mapping[str, type[Process[Any]]]


class Signal(msgspec.Struct, frozen=True):
    signal: str
    data: Any = None


class Control(msgspec.Struct, frozen=True):
    action: str
    reason: str | None = None
    actor: str | None = None


class InDoubt(msgspec.Struct, frozen=True):
    """The reply to a command that was canceled after it had begun: it may have taken effect."""

    reply: Reply


class Unproven(msgspec.Struct, frozen=True):
    """An event that the store does not confirm: it is recorded, and changes nothing."""

    reason: str
    said: dict[str, Any]


class Undecodable(msgspec.Struct, frozen=True):
    """Not an event: it is parked for an operator."""

    message: str


Event = Reply | InDoubt | Signal | Control | Unproven | Undecodable

_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    REPLY_TYPE: msgspec.json.Decoder(Reply),
    SIGNAL_TYPE: msgspec.json.Decoder(Signal),
    CONTROL_TYPE: msgspec.json.Decoder(Control),
}
_OUTCOMES = {
    ProcessStatus.COMPLETED: ReplyOutcome.SUCCESS,
    ProcessStatus.CANCELED: ReplyOutcome.CANCELED,
}


def confirmed(
    scope: Scope,
    declarations: Declarations,
    claimed: Sequence[Claimed],
    rows: Mapping[UUID, ProcessRow],
) -> Op[dict[int, Event]]:
    """What the commands of a reply queue amount to, by sequence. One statement asks for the outcomes of
    all commands that are replied about."""
    events: dict[int, Event] = {command.seq: _decoded(command) for command in claimed}
    replied: dict[int, StepRun] = {}
    for command in claimed:
        event, row = events[command.seq], rows.get(command.correlation_id)
        if isinstance(event, Reply) and row is not None:
            # Replies to steps that do not wait are ignored anyway, each with its own reason.
            waiting = () if row.ended else _progress_of(row).pending()
            run = next((run for run in waiting if run.id == event.command_id), None)
            if run is not None:
                replied[command.seq] = run
        elif isinstance(event, Control) and row is not None:
            events[command.seq] = yield from _of_operator(scope, command, event, row)
    places = [(run.id, run.target) for run in replied.values() if run.kind is StepKind.COMMAND]
    endings = (yield from scope.store.endings(places)) if places else {}
    for command in claimed:
        run, event = replied.get(command.seq), events[command.seq]
        if run is None or not isinstance(event, Reply):
            continue
        if run.kind is StepKind.PROCESS:
            events[command.seq] = yield from _of_process(scope, declarations, event, run)
        else:
            said = _of_command(event, run, endings.get((run.id, run.target)))
            declaration = declarations.get(rows[command.correlation_id].process_type)
            if isinstance(said, Reply) and (yield from _is_in_doubt(scope, declaration, said, run)):
                said = InDoubt(said)
            events[command.seq] = said
    return events


def _decoded(command: Claimed) -> Event:
    decoder = _DECODERS.get(command.command_type)
    try:
        if decoder is None:
            raise msgspec.ValidationError(f"{command.command_type!r} is nothing that routers know")
        return decoder.decode(command.data)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, RecursionError) as error:
        return Undecodable(f"It came to a reply queue, but {error}.")


def _of_command(reply: Reply, run: StepRun, ended: Ended | None) -> Event:
    """The reply that the store would have sent."""
    outcome = None if ended is None else reply_outcome(ended.status)
    if ended is None or outcome is None or outcome is not reply.outcome:
        return _contradicted(reply, outcome)
    failed = outcome is ReplyOutcome.FAILED
    error = ended.error if failed else None
    try:
        result = None if ended.result is None else payload.decode(ended.result)
    except (msgspec.DecodeError, RecursionError) as problem:
        return Undecodable(f"The result of command {run.id} cannot be read: {problem}.")
    return Reply(
        run.id,
        run.target,
        run.command_type,
        reply.correlation_id,
        outcome,
        result,
        error.code if error else None,
        error.message if error else None,
        error.details if error else None,
        None if failed else ended.reason,
    )


def _is_in_doubt(
    scope: Scope, declaration: type[Process[Any]] | None, reply: Reply, run: StepRun
) -> Op[bool]:
    """Whether a canceled step may have taken effect. Only asked where it can be undone."""
    if reply.outcome is not ReplyOutcome.CANCELED or declaration is None or run.undoes is not None:
        return False
    declared = declaration.steps.get(run.name)
    if declared is None or declared.undo is None:
        return False
    return may_have_taken_effect((yield from scope.store.audit_trail(run.id, run.target)))


def _of_process(scope: Scope, declarations: Declarations, reply: Reply, run: StepRun) -> Op[Event]:
    """The same for a process that is a step of another. Its result is what its declaration makes of
    its state, where this router has the declaration."""
    row = yield from scope.store.get_process(run.id)
    outcome: ReplyOutcome | None = None
    if row is not None and row.ended:
        outcome = _OUTCOMES.get(row.status, ReplyOutcome.FAILED)
    if row is None or outcome is None or outcome is not reply.outcome:
        return _contradicted(reply, outcome)
    error = None if outcome is ReplyOutcome.SUCCESS else decode_error(row)
    result, declaration = reply.result, declarations.get(row.process_type)
    if outcome is not ReplyOutcome.SUCCESS:
        result = None
    elif declaration is not None:
        try:
            result = payload.decode(payload.encode(decide(row, declaration).outcome(), what="result"))
        except DecisionError as problem:
            return Undecodable(f"The result of process {run.id} cannot be made: {problem}.")
    code, message = (error.code, error.message) if error else (None, None)
    return Reply(
        run.id, row.reply_to, row.process_type, reply.correlation_id, outcome, result, code, message
    )


def _contradicted(reply: Reply, outcome: ReplyOutcome | None) -> Unproven:
    reason = "it has not ended" if outcome is None else f"its outcome is {outcome}"
    return Unproven(f"the store says otherwise: {reason}", {"outcome": str(reply.outcome)})


def _of_operator(scope: Scope, command: Claimed, control: Control, row: ProcessRow) -> Op[Event]:
    """A control behind which an operator's action stands, or the process that started this one."""
    parent = _progress_of(row).parent
    if parent is not None and (control.action, control.actor) == ("cancel", None):
        above = yield from scope.store.get_process(parent.process_id)
        runs = [] if above is None else _progress_of(above).runs
        if any(run.id == row.process_id and run.called_off for run in runs):
            return control
    details = control_details(control.action, control.reason, control.actor)
    for event in (yield from scope.store.audit_trail(command.command_id, command.domain)):
        named = event.event_type is AuditEventType.OPERATOR_CONTROL and event.details == details
        if named and (yield from is_linked(scope, event)):
            return control
    return Unproven("no operator is on record for it", {"action": control.action})


def _progress_of(row: ProcessRow) -> Progress:
    """One that cannot be read waits for nothing; the decision about it fails, and says why."""
    try:
        return decode_progress(row)
    except (msgspec.DecodeError, RecursionError):
        return Progress()


def control_details(action: str, reason: str | None, actor: str | None) -> dict[str, Any]:
    """What the trail of a control keeps of the operator's action."""
    return {"action": action, "reason": reason, "actor": actor}
