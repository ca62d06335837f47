"""A worker that is known to be dead: what ran counts a crash, the rest goes back unharmed, at once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.audit import AuditEventType
from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import CRASHES_MAX, NOT_RECORDED, STOPS_MAX
from commandbus.errors import LeaseLost
from commandbus.operations.deaths import recover
from commandbus.store.deaths import NOT_BEGUN, NOT_BLAMED, SPARED_MAX, DeathReport, WorkerDeath
from commandbus.store.op import Op
from commandbus.store.records import Claimed, ClaimRequest
from commandbus.testing.conformance.helpers import require
from commandbus.testing.harness import DOMAIN, Harness

WORKER = "doomed"
CAUSE = "Its worker process 4711 was killed by SIGKILL"
LEASE_SECONDS = 30.0


def claim(
    bus: Harness,
    limit: int = 10,
    worker: str = WORKER,
    *,
    lease_per_command: bool = False,
    chain: int = 0,
) -> list[Claimed]:
    request = ClaimRequest(
        (DOMAIN,),
        limit,
        worker,
        LEASE_SECONDS,
        lease_per_command=lease_per_command,
        followers=chain,
        chain=chain,
    )
    claimed: list[Claimed] = bus.run(bus.store.claim(request)).claimed
    return claimed


def runs(claimed: list[Claimed]) -> frozenset[tuple[int, int]]:
    return frozenset((one.lease_id, one.seq) for one in claimed)


def die(
    bus: Harness,
    running: list[Claimed],
    finished: list[Claimed] | None = None,
    worker: str = WORKER,
    **known: Any,
) -> DeathReport:
    death = WorkerDeath(worker, CAUSE, runs(running), runs(finished or []), **known)
    report: DeathReport = bus.run(recover(bus.bus.scope, death))
    return report


def state_of(bus: Harness, command_id: UUID) -> tuple[int, int]:
    """Attempt and crashes of its next delivery."""
    (again,) = [one for one in claim(bus, 50, "next") if one.command_id == command_id]
    return again.attempt, again.crashes


class DeathsSuite:
    def test_what_ran_counts_a_crash_and_is_claimed_again_at_once(self, bus: Harness) -> None:
        command_id = bus.send()
        assert die(bus, claim(bus)) == DeathReport(crashed=1)
        assert state_of(bus, command_id) == (2, 1)

    def test_the_crash_has_the_cause_of_the_death_as_its_error(self, bus: Harness) -> None:
        command_id = bus.send()
        die(bus, claim(bus))
        event = bus.trail(command_id)[-1]
        assert event.event_type is AuditEventType.WORKER_LOST
        assert event.details["error"]["message"] == f"{CAUSE} (crash 1 of {CRASHES_MAX})."

    def test_what_was_only_claimed_goes_back_as_if_it_had_never_been_delivered(
        self, bus: Harness
    ) -> None:
        ids = [bus.send() for _ in range(5)]
        assert die(bus, claim(bus)[:1]) == DeathReport(crashed=1, released=4)
        again = claim(bus, worker="next")
        assert [one.command_id for one in again] == ids
        assert [(one.attempt, one.crashes, one.releases) for one in again[1:]] == [(1, 0, 0)] * 4
        event = next(e for e in bus.trail(ids[4]) if e.event_type is AuditEventType.RELEASED)
        assert event.details["reason"] == NOT_BEGUN

    def test_what_was_finished_and_not_recorded_counts_no_crash(self, bus: Harness) -> None:
        command_id = bus.send()
        assert die(bus, [], claim(bus)) == DeathReport(released=1)
        event = bus.trail(command_id)[-1]
        assert (event.event_type, event.details["reason"]) == (AuditEventType.RELEASED, NOT_RECORDED)
        (again,) = claim(bus, worker="next")
        assert (again.attempt, again.crashes, again.releases) == (1, 0, 1)

    def test_what_finishes_before_each_death_is_parked_in_the_end(self, bus: Harness) -> None:
        command_id = bus.send()
        for _ in range(STOPS_MAX + 1):
            die(bus, [], claim(bus))
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert record.error is not None
        assert record.error.code == "NEVER_FINISHED"

    def test_a_killer_is_parked_with_its_cause_after_its_third_run(self, bus: Harness) -> None:
        killer, neighbour = bus.send(), bus.send()
        for _ in range(CRASHES_MAX):
            claimed = claim(bus)
            die(bus, [one for one in claimed if one.command_id == killer])
        record = bus.get(killer)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert record.error is not None
        assert CAUSE in record.error.message
        assert state_of(bus, neighbour) == (1, 0)

    @pytest.mark.parametrize("from_inside", [None, False], ids=["unknown", "from outside"])
    def test_a_third_death_beside_others_parks_nobody_without_evidence(
        self, bus: Harness, from_inside: bool | None
    ) -> None:
        ids = [bus.send(), bus.send()]
        for _ in range(CRASHES_MAX - 1):
            die(bus, claim(bus), from_inside=from_inside)
        assert die(bus, claim(bus), from_inside=from_inside) == DeathReport(released=2)
        again = claim(bus, worker="next")
        assert [one.command_id for one in again] == ids
        assert {(one.attempt, one.crashes, one.releases) for one in again} == {(3, 2, 1)}
        event = bus.trail(ids[0])[-2]
        assert (event.event_type, event.details["reason"]) == (
            AuditEventType.RELEASED,
            f"{NOT_BLAMED}: {CAUSE}",
        )

    def test_a_third_death_from_outside_parks_not_even_what_ran_alone(self, bus: Harness) -> None:
        command_id = bus.send()
        for _ in range(CRASHES_MAX):
            die(bus, claim(bus), from_inside=False)
        assert state_of(bus, command_id) == (3, 2)

    def test_a_third_death_from_inside_parks_whatever_ran_beside_it(self, bus: Harness) -> None:
        command_id, _ = bus.send(), bus.send()
        for _ in range(CRASHES_MAX):
            die(bus, claim(bus), from_inside=True)
        assert bus.get(command_id).status is CommandStatus.IN_TROUBLESHOOTING_QUEUE

    def test_without_evidence_a_command_is_parked_in_the_end(self, bus: Harness) -> None:
        command_id = bus.send()
        for _ in range(CRASHES_MAX - 1 + SPARED_MAX):
            die(bus, claim(bus), from_inside=False)
        assert bus.get(command_id).status is CommandStatus.PENDING
        die(bus, claim(bus), from_inside=False)
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert record.crashes == CRASHES_MAX

    def test_a_second_recovery_finds_nothing(self, bus: Harness) -> None:
        command_id = bus.send()
        claimed = claim(bus)
        die(bus, claimed)
        again = claim(bus, worker="next")
        kinds = bus.kinds(command_id)
        assert die(bus, claimed) == DeathReport()
        assert bus.kinds(command_id) == kinds
        assert bus.run(bus.store.renew([again[0].lease_id], LEASE_SECONDS)) == []

    def test_other_workers_keep_what_they_hold(self, bus: Harness) -> None:
        bus.send()
        bus.send()
        mine, others = claim(bus, 1), claim(bus, 1, "living")
        assert die(bus, [*mine, *others]) == DeathReport(crashed=1)
        assert bus.run(bus.store.renew([others[0].lease_id], LEASE_SECONDS)) == []

    def test_a_worker_that_lives_after_all_is_refused(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker)
        die(bus, [], worker=worker.name)
        with pytest.raises(LeaseLost):
            bus.call(worker.complete, taken)
        assert bus.get(command_id).status is CommandStatus.PENDING

    def test_without_a_complete_recorder_everything_counts_a_crash(self, bus: Harness) -> None:
        ids = [bus.send(), bus.send()]
        claimed = claim(bus)
        assert die(bus, claimed[:1], complete=False) == DeathReport(crashed=2)
        assert {one.crashes for one in claim(bus, worker="next")} == {1}
        assert [bus.kinds(one)[-2] for one in ids] == ["WORKER_LOST"] * 2

    def test_a_lease_that_has_ended_and_was_not_taken_back_is_recovered_the_same_way(
        self, bus: Harness
    ) -> None:
        ids = [bus.send(), bus.send()]
        claimed = claim(bus)
        bus.advance(LEASE_SECONDS + 1)
        assert die(bus, claimed[:1]) == DeathReport(crashed=1, released=1)
        again = claim(bus, worker="next")
        assert [(one.command_id, one.attempt) for one in again] == [(ids[0], 2), (ids[1], 1)]

    def test_a_recovery_that_fails_lengthens_no_lease(self, bus: Harness) -> None:
        def fail() -> Op[None]:
            yield from bus.store.held_by(WORKER)
            raise RuntimeError("the recovery failed")

        command_id = bus.send()
        claim(bus)
        with pytest.raises(RuntimeError, match="the recovery failed"):
            bus.run(fail())
        bus.advance(LEASE_SECONDS + 1)
        assert state_of(bus, command_id) == (2, 1)

    def test_a_rescue_by_the_end_of_a_lease_asks_what_had_begun(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(3)]
        claimed = claim(bus)
        death = WorkerDeath(WORKER, CAUSE, runs(claimed[:1]), runs(claimed[1:2]))
        bus.store.consult({WORKER: death}.get)
        bus.advance(LEASE_SECONDS + 1)
        again = claim(bus, worker="next")
        found = [(one.command_id, one.attempt, one.crashes, one.releases) for one in again]
        assert found == [(ids[0], 2, 1, 0), (ids[1], 1, 0, 1), (ids[2], 1, 0, 0)]
        details = [bus.trail(one)[-2].details for one in ids]
        assert details[0]["error"]["message"] == f"{CAUSE} (crash 1 of {CRASHES_MAX})."
        assert [one["reason"] for one in details[1:]] == [NOT_RECORDED, NOT_BEGUN]

    @pytest.mark.parametrize("complete", [True, False])
    def test_a_lease_that_ended_for_another_reason_than_its_commands_counts_no_crash(
        self, bus: Harness, complete: bool
    ) -> None:
        ids = [bus.send() for _ in range(3)]
        claimed = claim(bus)
        running, finished = runs(claimed[:1]), runs(claimed[1:2])
        death = WorkerDeath(WORKER, CAUSE, running, finished, complete, excused=True)
        bus.store.consult({WORKER: death}.get)
        bus.advance(LEASE_SECONDS + 1)
        again = claim(bus, worker="next")
        found = [(one.command_id, one.attempt, one.crashes, one.releases) for one in again]
        begun = [(ids[0], 1, 0, 1), (ids[1], 1, 0, 1), (ids[2], 1, 0, 0 if complete else 1)]
        assert found == begun

    def test_leases_of_one_command_each_are_recovered_together(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(3)]
        claimed = claim(bus, lease_per_command=True)
        assert die(bus, claimed[1:2]) == DeathReport(crashed=1, released=2)
        assert sorted(one.command_id for one in claim(bus, worker="next")) == sorted(ids)

    def test_an_outcome_that_was_recorded_before_the_death_stands(self, bus: Harness) -> None:
        done, open_one, worker = bus.send(), bus.send(), bus.worker()
        taken = bus.receive(worker, 2)
        bus.call(worker.complete, taken[0])
        assert die(bus, [one.claimed for one in taken], worker=worker.name) == DeathReport(crashed=1)
        assert bus.get(done).status is CommandStatus.COMPLETED
        assert bus.get(open_one).status is CommandStatus.PENDING

    def test_a_group_goes_on_in_its_order(self, bus: Harness) -> None:
        require(bus, "gates")
        ids = [bus.send(group_key="g") for _ in range(3)]
        claimed = claim(bus, chain=5)
        die(bus, claimed[:1])
        worker = bus.worker()
        for expected in ids:
            taken = bus.take(worker)
            assert taken.command.command_id == expected
            bus.call(worker.complete, taken)

    def test_a_unique_key_stays_with_its_command(self, bus: Harness) -> None:
        command_id = bus.send(unique_key="k")
        die(bus, [], claim(bus))
        assert bus.send_result(DOMAIN, "ship", unique_key="k").command_id == command_id

    def test_a_batch_counts_a_killer_that_is_parked(self, bus: Harness) -> None:
        members = [SendRequest(DOMAIN, "ship"), SendRequest(DOMAIN, "ship")]
        made = bus.call(bus.bus.create_batch, members)
        for _ in range(CRASHES_MAX):
            claimed = claim(bus)
            die(bus, claimed[:1])
        assert bus.call(bus.bus.get_batch, made.batch_id).in_troubleshooting == 1
