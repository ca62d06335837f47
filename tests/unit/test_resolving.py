"""What ends or returns a command that no worker runs, as it is planned for all engines."""

from __future__ import annotations

import pytest

from commandbus.domain.audit import AuditEventType
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.errors import InvalidOperationError
from commandbus.store.records import OperatorAction
from commandbus.store.resolving import (
    Standing,
    plan_cancel,
    plan_expired,
    plan_resolution,
    plan_revoked,
)
from commandbus.store.settling import QueueRow

FAILURE = Failure(FailureKind.PERMANENT, "BROKEN", "no such article")
WAITING = Standing(7, CommandStatus.PENDING, attempts=2, crashes=1)
STUCK = Standing(7, PARKED, attempts=3, crashes=0, error=FAILURE)


def test_a_canceled_command_keeps_its_counts_and_names_the_actor() -> None:
    writes = plan_cancel(WAITING, "no use", "ada")
    (outcome,), (note,) = writes.outcomes, writes.audits
    assert (outcome.status, outcome.attempts, outcome.crashes) == (CommandStatus.CANCELED, 2, 1)
    assert (note.kind, note.details) == (
        AuditEventType.CANCELED,
        {"reason": "no use", "actor": "ada"},
    )
    assert not writes.requeues


@pytest.mark.parametrize("status", [CommandStatus.IN_PROGRESS, CommandStatus.COMPLETED, PARKED])
def test_only_a_waiting_command_is_canceled(status: CommandStatus) -> None:
    with pytest.raises(InvalidOperationError):
        plan_cancel(Standing(7, status, 0, 0), "no use", None)


def test_an_expired_command_ends_with_that_reason() -> None:
    writes = plan_expired(WAITING)
    assert [row.reason for row in writes.outcomes] == ["EXPIRED"]
    assert [row.kind for row in writes.audits] == [AuditEventType.EXPIRED]


def test_a_revoked_command_keeps_its_error() -> None:
    (outcome,) = plan_revoked(STUCK, "rolled back").outcomes
    assert (outcome.status, outcome.error) == (CommandStatus.CANCELED, FAILURE)


def test_a_retry_by_an_operator_resets_attempts_and_keeps_the_payload_that_was_edited() -> None:
    resolution = plan_resolution(STUCK, '{"n": 1}', OperatorAction("retry", "ada", data='{"n": 2}'))
    assert resolution.back
    assert resolution.act == "OPERATOR_RETRY"
    assert resolution.writes.requeues == [QueueRow(7, 0, 0, 0, delay=0)]
    assert not resolution.writes.outcomes
    (note,) = resolution.writes.audits
    assert (note.details["original_data"], note.details["edited_data"]) == ({"n": 1}, {"n": 2})


def test_a_completion_by_an_operator_records_its_result() -> None:
    resolution = plan_resolution(STUCK, "{}", OperatorAction("complete", "ada", result="42"))
    (outcome,) = resolution.writes.outcomes
    assert not resolution.back
    assert (outcome.status, outcome.result, outcome.attempts) == (CommandStatus.COMPLETED, "42", 3)


def test_only_a_parked_command_is_resolved() -> None:
    with pytest.raises(InvalidOperationError):
        plan_resolution(WAITING, "{}", OperatorAction("retry", "ada"))
