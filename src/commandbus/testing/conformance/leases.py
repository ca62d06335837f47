"""Leases: at any moment at most one is valid, and who lost it can change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import LeaseLost
from commandbus.services.reclaimer import LOOK_SECONDS, Reclaimer
from commandbus.testing.conformance.helpers import about, crash, registry_of, spy_on
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.base import ReceivedCommand
from commandbus.worker.keeper import LeaseKeeper

Report = Callable[[Harness, Any, ReceivedCommand], object]

REPORTS: dict[str, Report] = {
    "complete": lambda bus, worker, taken: bus.call(worker.complete, taken),
    "fail": lambda bus, worker, taken: bus.call(worker.fail, taken, "late"),
    "park": lambda bus, worker, taken: bus.call(worker.fail, taken, "late", is_transient=False),
    "release": lambda bus, worker, taken: bus.call(worker.release, taken),
    "extend": lambda bus, _, taken: bus.call(taken.context.extend_visibility, 60),
    "progress": lambda bus, _, taken: bus.call(taken.context.progress, 50, "half"),
}
every_report = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)


@contextmanager
def one_claimed_ahead(bus: Harness) -> Iterator[tuple[list[UUID], Gate, LeaseKeeper]]:
    """Two commands under leases of a worker with one slot, of which the first runs."""
    ids = [bus.send() for _ in range(2)]
    with (
        Gate() as gate,
        bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=1) as running,
    ):
        gate.wait_for(1)
        eventually(lambda: running.metrics.commands_received == 2)
        yield ids, gate, running.worker._keeper


class LeasesSuite:
    def test_a_command_whose_lease_ended_comes_back_as_a_crash(self, bus: Harness) -> None:
        command_id = bus.send()
        crash(bus)
        again = bus.take(bus.worker())
        assert again.command.command_id == command_id
        assert (again.attempt, again.claimed.crashes) == (2, 1)

    def test_a_command_does_not_come_back_before_its_lease_ends(self, bus: Harness) -> None:
        bus.send()
        bus.take(bus.worker(), visibility_timeout=30)
        bus.advance(25)
        assert bus.receive(bus.worker()) == []

    def test_the_length_of_a_lease_may_be_chosen_for_one_claim(self, bus: Harness) -> None:
        bus.send()
        bus.take(bus.worker(visibility_timeout=10), visibility_timeout=600)
        bus.advance(500)
        assert bus.receive(bus.worker()) == []
        bus.advance(101)
        assert bus.receive(bus.worker())

    def test_the_lease_of_a_worker_has_its_visibility_timeout(self, bus: Harness) -> None:
        bus.send()
        bus.take(bus.worker(visibility_timeout=120))
        bus.advance(100)
        assert bus.receive(bus.worker()) == []
        bus.advance(21)
        assert bus.receive(bus.worker())

    @every_report
    def test_an_ended_lease_is_refused_before_another_worker_took_over(
        self, bus: Harness, report: Report
    ) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker, visibility_timeout=30)
        before = bus.get(command_id), bus.kinds(command_id)
        bus.advance(31)
        with pytest.raises(LeaseLost, match=str(command_id)):
            report(bus, worker, taken)
        assert bus.kinds(command_id) == before[1]
        assert bus.get(command_id).progress is None
        assert bus.take(bus.worker()).command.command_id == command_id

    @every_report
    def test_a_worker_that_was_replaced_changes_nothing(self, bus: Harness, report: Report) -> None:
        command_id, slow, quick = bus.send(), bus.worker(name="slow"), bus.worker(name="quick")
        stale = bus.take(slow)
        bus.advance(31)
        fresh = bus.take(quick)
        with pytest.raises(LeaseLost):
            report(bus, slow, stale)
        record = bus.get(command_id)
        assert (record.status, record.worker) == (CommandStatus.IN_PROGRESS, quick.name)
        bus.call(quick.complete, fresh, "mine")
        assert bus.get(command_id).result == "mine"

    @every_report
    def test_a_stale_report_after_the_end_changes_nothing(self, bus: Harness, report: Report) -> None:
        command_id, slow, quick = bus.send(), bus.worker(name="slow"), bus.worker(name="quick")
        stale = bus.take(slow)
        bus.advance(31)
        bus.call(quick.complete, bus.take(quick), "mine")
        before = bus.get(command_id)
        with pytest.raises(LeaseLost):
            report(bus, slow, stale)
        assert bus.get(command_id) == before

    def test_extending_keeps_the_command(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker()
        taken = bus.take(worker, visibility_timeout=30)
        bus.advance(20)
        bus.call(taken.context.extend_visibility, 30)
        bus.advance(20)
        assert bus.receive(bus.worker()) == []
        bus.call(worker.complete, taken)
        assert bus.get(command_id).status is CommandStatus.COMPLETED

    def test_extending_never_shortens(self, bus: Harness) -> None:
        bus.send()
        taken = bus.take(bus.worker(), visibility_timeout=60)
        bus.call(taken.context.extend_visibility, 1)
        bus.advance(30)
        assert bus.receive(bus.worker()) == []

    def test_only_what_was_unfinished_comes_back(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(3)]
        worker = bus.worker()
        batch = bus.receive(worker, 3)
        bus.call(worker.complete, batch[1])
        bus.advance(31)
        back = bus.receive(bus.worker(), 10)
        assert [taken.command.command_id for taken in back] == [ids[0], ids[2]]

    def test_a_crash_leaves_its_error_behind(self, bus: Harness) -> None:
        command_id = bus.send()
        crash(bus)
        bus.take(bus.worker())
        record = bus.get(command_id)
        assert record.crashes == 1
        assert record.error_code == "WORKER_LOST"

    def test_the_third_crash_parks_the_command(self, bus: Harness) -> None:
        command_id = bus.send(max_attempts=10)
        for _ in range(2):
            crash(bus)
        assert bus.get(command_id).status is not CommandStatus.IN_TROUBLESHOOTING_QUEUE
        crash(bus)
        assert bus.receive(bus.worker()) == []
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert (record.reason, record.error_code) == ("WORKER_LOST", "WORKER_LOST")
        assert (record.attempts, record.crashes) == (3, 3)

    def test_a_crash_uses_no_attempt(self, bus: Harness) -> None:
        command_id, worker = bus.send(max_attempts=2), bus.worker()
        crash(bus)
        bus.call(worker.fail, bus.take(worker), "once")
        assert bus.get(command_id).status is CommandStatus.PENDING
        bus.advance(60)
        bus.call(worker.fail, bus.take(worker), "twice")
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert (record.reason, record.attempts, record.crashes) == ("EXHAUSTED", 3, 1)

    def test_a_rescued_command_keeps_its_place(self, bus: Harness) -> None:
        first = bus.send()
        bus.take(bus.worker())
        bus.send()
        bus.advance(31)
        assert bus.take(bus.worker()).command.command_id == first

    def test_a_running_worker_counts_what_it_rescued(self, bus: Harness) -> None:
        handler = Recorder()
        command_id = bus.send()
        crash(bus)
        with bus.run_worker(registry_of(ship=handler)) as running:
            assert bus.wait(command_id).crashes == 1
        assert running.metrics.rescued == 1
        assert handler.contexts[0].crashes == 1

    def test_a_crash_is_no_attempt_of_the_handler(self, bus: Harness) -> None:
        handler = Recorder()
        command_id = bus.send(max_attempts=2)
        crash(bus)
        with bus.run_worker(registry_of(ship=handler)):
            bus.wait(command_id)
        context = handler.contexts[0]
        assert (context.attempt, context.crashes, context.is_last_attempt) == (2, 1, False)

    def test_a_long_handler_keeps_its_lease(self, bus: Harness) -> None:
        command_id = bus.send()
        with (
            Gate() as gate,
            spy_on(bus.store, "renew") as renewals,
            bus.run_worker(registry_of(ship=gate), visibility_timeout=0.9),
        ):
            gate.wait_for(1)
            for _ in range(4):
                bus.advance(0.4)
                renewals.wait_for(renewals.calls + 2)  # the second began after the first took effect
            assert bus.receive(bus.worker()) == []
            gate.open()
            record = bus.wait(command_id)
        assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 1)

    def test_a_lost_lease_fences_the_outcome_of_its_handler(self, bus: Harness) -> None:
        command_id = bus.send()
        with (
            Gate(result="stale") as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=1) as running,
        ):
            gate.wait_for(1)
            bus.advance(31)
            other = bus.worker(name="other")
            fresh = bus.take(other)
            gate.open()
            running.wait_until_idle()
            assert running.metrics.leases_lost == 1
            bus.call(other.complete, fresh, "fresh")
        assert bus.get(command_id).result == "fresh"

    def test_nothing_begins_under_a_lease_that_may_have_run_out(self, bus: Harness) -> None:
        with one_claimed_ahead(bus) as (ids, gate, keeper):
            with keeper._changed:  # as in a process that was stopped for a while
                keeper._ends = dict.fromkeys(keeper._ends, 0.0)
            gate.open()
            records = [bus.wait(command_id) for command_id in ids]
        assert [record.attempts for record in records] == [1, 1]
        assert "RELEASED" not in bus.kinds(ids[0])
        assert "RELEASED" in bus.kinds(ids[1])

    def test_nothing_begins_under_a_lease_whose_end_the_worker_is_about_to_hear_of(
        self, bus: Harness
    ) -> None:
        with one_claimed_ahead(bus) as (ids, gate, keeper):
            keeper.forget(list(keeper._ends))  # a renewal was refused
            gate.open()
            assert [bus.wait(command_id).attempts for command_id in ids] == [1, 1]
        assert "RELEASED" in bus.kinds(ids[1])

    def test_a_lost_lease_cancels_an_async_handler(self, bus: Harness) -> None:
        canceled: list[int] = []

        async def ship(command: Command[Any], context: Any) -> str:
            if context.attempt > 1:
                return "second run"
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                canceled.append(context.attempt)
                raise
            return "first run"

        command_id = bus.send()
        worker = bus.run_worker(registry_of(ship=ship), visibility_timeout=0.3, concurrency=1)
        with worker as running:
            eventually(lambda: running.worker.in_flight_count)
            bus.advance(2)
            record = bus.wait(command_id)
        assert (record.result, record.crashes, canceled) == ("second run", 1, [1])


class ReclaimerSuite:
    """An idle worker learns of the end of others' leases, without a notification."""

    def look(self, bus: Harness, worker: str = "me") -> float:
        return bus.run(Reclaimer(worker, [DOMAIN], 30.0).work(bus.bus.scope))

    def rest(self, bus: Harness, seconds: float) -> Any:
        """With a session it looks often, but not at the store."""
        return LOOK_SECONDS if bus.store.session else about(seconds)

    def test_without_leases_it_looks_again_after_a_lease_length(self, bus: Harness) -> None:
        assert self.look(bus) == self.rest(bus, 30.0)

    def test_it_looks_when_the_first_lease_of_another_ends(self, bus: Harness) -> None:
        bus.send()
        other = bus.worker(name="other")
        bus.take(other, visibility_timeout=12)
        assert self.look(bus) == self.rest(bus, 12)
        assert self.look(bus, other.name) == self.rest(bus, 30.0)

    def test_it_wakes_a_worker_when_a_lease_has_ended(self, bus: Harness) -> None:
        bus.send()
        bus.take(bus.worker(name="other"), visibility_timeout=5)
        bus.advance(6)
        woken: list[str] = []
        waiter = bus.engine.hub.register([DOMAIN], lambda source, due_in: woken.append(source))
        bus.engine.hub.arm(waiter)
        self.look(bus)
        bus.engine.hub.unregister(waiter)
        assert woken == ["notify"]
