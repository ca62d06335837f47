"""Settling: what is recorded when a command ends, and that recording twice changes nothing."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import Canceled, Outcome, Parked, Rejected, Succeeded
from commandbus.errors import (
    BusinessRuleException,
    CommandCanceled,
    LeaseLost,
    PayloadError,
    PermanentCommandError,
    TransientCommandError,
)
from commandbus.store.records import Settlement
from commandbus.testing.conformance.helpers import about, park
from commandbus.testing.harness import DOMAIN, Harness


class SettlingSuite:
    def test_completing_records_the_result_and_who_when(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.complete, bus.take(worker), {"parcel": 9})
        record = bus.get(command_id)
        assert record.status is CommandStatus.COMPLETED
        assert record.result == {"parcel": 9}
        assert (record.worker, record.attempts, record.error) == (worker.name, 1, None)
        assert bus.seconds_until(record.finished_at) == about(0)

    def test_a_completed_command_is_not_given_out_again(self, bus: Harness) -> None:
        bus.send()
        worker = bus.worker()
        bus.call(worker.complete, bus.take(worker))
        bus.advance(3_600)
        assert bus.receive(worker) == []

    def test_completing_without_a_result_keeps_none(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.complete, bus.take(worker))
        assert bus.get(command_id).result is None

    def test_a_result_that_is_not_json_is_refused_and_the_command_stays(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        with pytest.raises(PayloadError, match="result"):
            bus.call(worker.complete, taken, {"x": float("inf")})
        assert bus.get(command_id).status is CommandStatus.IN_PROGRESS
        bus.call(worker.complete, taken, {"x": 1})
        assert bus.get(command_id).result == {"x": 1}

    def test_a_transient_failure_waits_for_its_retry_with_the_error(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        error = TransientCommandError("BUSY", "try later", {"queue": 3})
        bus.call(worker.fail, bus.take(worker), error)
        record = bus.get(command_id)
        assert record.status is CommandStatus.PENDING
        assert record.attempts == 1
        assert (record.error_code, record.error_message) == ("BUSY", "try later")
        assert record.error is not None
        assert record.error.details == {"queue": 3}
        assert bus.seconds_until(record.due_at) == about(10)

    def test_failing_with_a_text_is_transient(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), "printer on fire")
        record = bus.get(command_id)
        assert record.status is CommandStatus.PENDING
        assert (record.error_code, record.error_message) == ("FAILED", "printer on fire")

    def test_a_failure_that_is_not_transient_parks(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), KeyError("article"), is_transient=False)
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert (record.reason, record.error_code) == ("PERMANENT", "KeyError")

    def test_a_business_failure_by_hand_is_final(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.fail, bus.take(worker), BusinessRuleException("SOLD_OUT", "none left"))
        record = bus.get(command_id)
        assert (record.status, record.error_code) == (CommandStatus.FAILED, "SOLD_OUT")
        assert record.finished_at is not None

    def test_a_release_gives_the_attempt_back(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        bus.call(worker.release, bus.take(worker))
        record = bus.get(command_id)
        assert (record.status, record.attempts) == (CommandStatus.PENDING, 0)
        assert bus.take(worker).attempt == 1

    def test_a_release_with_a_delay_waits(self, bus: Harness) -> None:
        bus.send()
        worker = bus.worker()
        bus.call(worker.release, bus.take(worker), 60)
        assert bus.receive(worker) == []
        bus.advance(61)
        assert bus.take(worker).attempt == 1

    def test_a_released_command_keeps_its_place(self, bus: Harness) -> None:
        first, _ = bus.send(), bus.send()
        worker = bus.worker()
        bus.call(worker.release, bus.take(worker))
        assert bus.take(worker).command.command_id == first

    def test_repeating_a_completion_is_harmless(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        bus.call(worker.complete, taken, "first")
        before = bus.get(command_id)
        bus.call(worker.complete, taken, "second")
        assert bus.get(command_id) == before
        assert bus.stats().completed == 1

    def test_repeating_a_completion_after_the_lease_ended_is_harmless(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        bus.call(worker.complete, taken, "first")
        bus.advance(3_600)
        bus.call(worker.complete, taken, "first")
        assert bus.get(command_id).result == "first"

    def test_an_outcome_is_not_replaced_by_another(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        bus.call(worker.complete, taken)
        with suppress(LeaseLost):
            bus.call(worker.fail, taken, "changed my mind", is_transient=False)
        assert bus.get(command_id).status is CommandStatus.COMPLETED
        assert bus.stats().parked == 0

    @pytest.mark.parametrize("recorded", ["parked", "refused", "canceled"])
    def test_a_success_after_another_outcome_of_the_same_run_is_refused(
        self, bus: Harness, recorded: str
    ) -> None:
        """The effects of a transaction that settles as its last statement are undone by it."""
        errors = {
            "parked": PermanentCommandError("BROKEN", "no"),
            "refused": BusinessRuleException("NO", "no"),
            "canceled": CommandCanceled("unneeded"),
        }
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        bus.call(worker.fail, taken, errors[recorded])
        before = bus.get(command_id)
        with pytest.raises(LeaseLost):
            bus.call(worker.complete, taken)
        assert bus.get(command_id) == before

    def test_every_outcome_may_be_recorded_again(self, bus: Harness) -> None:
        """As a worker does whose commit is unknown, with the whole batch."""
        failure = Failure(FailureKind.PERMANENT, "BROKEN", "no")
        outcomes: tuple[Outcome, ...] = (
            Succeeded('"done"'), Rejected(failure), Parked(failure, "PERMANENT"), Canceled("unneeded"),
        )  # fmt: skip
        ids = [bus.send() for _ in outcomes]
        batch = [
            Settlement(taken.claimed.seq, taken.claimed.lease_id, taken.claimed.attempt, outcome)
            for taken, outcome in zip(bus.receive(bus.worker(), 4), outcomes, strict=True)
        ]
        assert bus.run(bus.store.settle(batch)).lost == ()
        before = [(bus.get(one), bus.kinds(one)) for one in ids]
        assert bus.run(bus.store.settle(batch)).lost == ()
        for settlement in batch:
            assert bus.run(bus.store.settle([settlement])).lost == ()
        assert [(bus.get(one), bus.kinds(one)) for one in ids] == before
        stats = bus.stats()
        assert (stats.completed, stats.failed, stats.parked, stats.canceled) == (1, 1, 1, 1)

    def test_repeating_a_retry_changes_nothing(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        bus.call(worker.fail, taken, "once")
        before = bus.get(command_id), bus.kinds(command_id)
        with suppress(LeaseLost):
            bus.call(worker.fail, taken, "twice")
        assert (bus.get(command_id), bus.kinds(command_id)) == before
        assert bus.stats().scheduled == 1

    def test_a_settlement_from_before_an_operators_retry_is_refused(self, bus: Harness) -> None:
        bus.send()
        worker = bus.worker()
        taken = bus.take(worker)
        bus.call(worker.fail, taken, "no", is_transient=False)
        bus.operator_retry(taken.command.command_id)
        with pytest.raises(LeaseLost):
            bus.call(worker.complete, taken)
        assert bus.take(worker).attempt == 1

    def test_commands_of_one_claim_end_one_by_one(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(4)]
        worker = bus.worker()
        first, second, third, _ = bus.receive(worker, 4)
        bus.call(worker.complete, second)
        bus.call(worker.fail, first, "no", is_transient=False)
        bus.call(worker.release, third)
        assert [bus.get(command_id).status for command_id in ids] == [
            CommandStatus.IN_TROUBLESHOOTING_QUEUE,
            CommandStatus.COMPLETED,
            CommandStatus.PENDING,
            CommandStatus.IN_PROGRESS,
        ]

    def test_a_lease_that_never_was_is_refused(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        forged = msgspec.structs.replace(
            taken, claimed=msgspec.structs.replace(taken.claimed, lease_id=taken.claimed.lease_id + 99)
        )
        with pytest.raises(LeaseLost, match=str(command_id)):
            bus.call(worker.complete, forged)
        assert bus.get(command_id).status is CommandStatus.IN_PROGRESS

    def test_a_lease_on_another_command_is_refused(self, bus: Harness) -> None:
        mine, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        other = bus.get(bus.send())
        stolen = Settlement(other.sequence, taken.claimed.lease_id, 1, Succeeded())
        assert bus.run(bus.store.settle([stolen])).lost == (other.sequence,)
        assert bus.get(other.command_id).status is CommandStatus.PENDING
        assert bus.get(mine).status is CommandStatus.IN_PROGRESS

    def test_an_attempt_of_another_number_is_refused(self, bus: Harness) -> None:
        bus.send()
        claimed = bus.take(bus.worker()).claimed
        wrong = Settlement(claimed.seq, claimed.lease_id, claimed.attempt + 1, Succeeded())
        assert bus.run(bus.store.settle([wrong])).lost == (claimed.seq,)

    def test_a_batch_of_settlements_refuses_only_the_stale_ones(self, bus: Harness) -> None:
        bus.send_many(SendRequest(DOMAIN, "ship") for _ in range(3))
        batch = [taken.claimed for taken in bus.receive(bus.worker(), 3)]
        good = [Settlement(c.seq, c.lease_id, c.attempt, Succeeded()) for c in batch]
        bad = msgspec.structs.replace(good[1], lease_id=good[1].lease_id + 99)
        report = bus.run(bus.store.settle([good[0], bad, good[2]]))
        assert report.lost == (bad.seq,)
        assert (bus.stats().completed, bus.stats().running) == (2, 1)

    def test_a_parked_command_is_not_given_out(self, bus: Harness) -> None:
        park(bus)
        bus.advance(3_600)
        assert bus.receive(bus.worker()) == []
