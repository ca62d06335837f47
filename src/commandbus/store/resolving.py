"""What ends or returns a command that no worker runs: decided once here, written by each engine in its
own way. An engine says where the command stands, under its locks, and carries out the writes."""

from __future__ import annotations

from typing import Protocol

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.failure import Failure
from commandbus.domain.lifecycle import CommandStatus, Transition, after, refuse_cancel
from commandbus.store.reading import read_failure
from commandbus.store.records import OperatorAction
from commandbus.store.settling import AuditRow, OutcomeRow, QueueRow, Writes

EXPIRED = "EXPIRED"
"""The reason of what was not begun in time."""


class Standing(msgspec.Struct, frozen=True):
    """A command that no worker runs. The counts are those of its waiting place, or of its outcome."""

    seq: int
    status: CommandStatus
    attempts: int
    crashes: int
    error: Failure | None = None


class StandingColumns(Protocol):
    """Where a command stands, as an engine reads it: an outcome has a status, and counts of its own."""

    @property
    def seq(self) -> int: ...
    @property
    def status(self) -> str | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def error(self) -> str | None: ...
    @property
    def waits(self) -> bool: ...
    @property
    def waiting_attempts(self) -> int: ...
    @property
    def waiting_crashes(self) -> int: ...


def standing_of(row: StandingColumns) -> Standing:
    if row.status is not None:
        status, error = CommandStatus(row.status), read_failure(row.error)
        return Standing(row.seq, status, row.attempts, row.crashes, error)
    status = CommandStatus.PENDING if row.waits else CommandStatus.IN_PROGRESS
    return Standing(row.seq, status, row.waiting_attempts, row.waiting_crashes)


class Resolution(msgspec.Struct, frozen=True):
    """What an operator's decision writes, beside the end of the parking: `act` is counted, and a
    command that goes back gets the edited payload, if there is one."""

    act: str
    writes: Writes
    back: bool


def plan_cancel(standing: Standing, reason: str, actor: str | None) -> Writes:
    """The end of a waiting command. Raises InvalidOperationError when it runs or has ended."""
    if standing.status is not CommandStatus.PENDING:
        refuse_cancel(standing.status)
    details = {"reason": reason} | ({"actor": actor} if actor else {})
    return _canceled(standing, reason, AuditRow(standing.seq, AuditEventType.CANCELED, details))


def plan_expired(standing: Standing) -> Writes:
    """The end of a command that was not begun in time."""
    note = AuditRow(standing.seq, AuditEventType.EXPIRED, {"reason": EXPIRED})
    return _canceled(standing, EXPIRED, note)


def plan_revoked(standing: Standing, reason: str) -> Writes:
    """The end of a parked command that its process calls off; it keeps its error."""
    note = AuditRow(standing.seq, AuditEventType.CANCELED, {"reason": reason})
    return _canceled(standing, reason, note)


def plan_resolution(standing: Standing, data: str, action: OperatorAction) -> Resolution:
    """What an operator decided about a parked command with this payload. Raises InvalidOperationError
    when it is not parked."""
    transition = Transition(f"operator_{action.kind}")
    status = after(standing.status, transition)
    act = transition.upper()
    writes = Writes(audits=[AuditRow(standing.seq, AuditEventType(act), action.details(data))])
    if status is CommandStatus.PENDING:
        writes.requeues.append(QueueRow(standing.seq, 0, 0, 0, delay=0))
        return Resolution(act, writes, back=True)
    writes.outcomes.append(
        OutcomeRow(
            standing.seq,
            status,
            standing.attempts,
            standing.crashes,
            None,
            None,
            ran=0,
            result=action.result,
            error=standing.error,
            reason=action.reason,
        )
    )
    return Resolution(act, writes, back=False)


def _canceled(standing: Standing, reason: str, note: AuditRow) -> Writes:
    outcome = OutcomeRow(
        standing.seq,
        CommandStatus.CANCELED,
        standing.attempts,
        standing.crashes,
        None,
        None,
        ran=0,
        error=standing.error,
        reason=reason,
    )
    return Writes(outcomes=[outcome], audits=[note])
