"""Wake-ups: an idle worker hears of work at once, one worker per event, and none polls."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.command import Command, SendRequest
from commandbus.domain.ids import new_id
from commandbus.domain.lifecycle import CommandStatus
from commandbus.operations import sending
from commandbus.store.op import Op
from commandbus.store.records import ClaimRequest
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import registry_of, require
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness, RunningWorker
from commandbus.testing.waiting import eventually


def claims(running: RunningWorker) -> int:
    return int(running.metrics.empty_receives + running.metrics.batches_processed)


def others_of(running: list[RunningWorker]) -> int:
    """Wake-ups that no send has caused."""
    return sum(worker.wakeups(only=["watch", "timer"]) for worker in running)


def heard_at_most(bus: Harness) -> int:
    """How many wake-ups one send may cause: a store that tells other processes may also tell this
    one what it did itself."""
    return 2 if bus.capabilities.many_processes else 1


def taken_and_forgotten(bus: Harness, lease_seconds: float) -> UUID:
    """A command that a worker took the moment it was there, and then died; idle ones slept on."""
    command_id = new_id()

    def send_and_claim() -> Op[None]:
        yield from sending.send(bus.bus.scope, DOMAIN, "ship", command_id=command_id)
        yield from bus.store.claim(ClaimRequest((DOMAIN,), 1, "doomed", lease_seconds))

    bus.run(send_and_claim())
    return command_id


class WakeupsSuite:
    def test_a_send_wakes_an_idle_worker(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
            assert running.wakeups(without=["fallback"]) >= 1
            assert "fallback" not in running.metrics.wakeups

    def test_a_bulk_send_wakes_every_domain_it_reaches(self, bus: Harness) -> None:
        orders, billing = Recorder(), Recorder()
        with (
            bus.run_worker(registry_of("orders", ship=orders), "orders") as one,
            bus.run_worker(registry_of("billing", ship=billing), "billing") as other,
        ):
            one.wait_until_idle()
            other.wait_until_idle()
            bus.send_many([SendRequest("orders", "ship"), SendRequest("billing", "ship")])
            assert orders.wait_for(1)
            assert billing.wait_for(1)

    def test_a_send_to_another_domain_wakes_no_worker(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            before = claims(running)
            for _ in range(20):
                bus.send("billing")
            # A send to its own domain wakes it, so whatever the others did has happened by then.
            bus.wait(bus.send())
            running.wait_until_idle()
            assert running.wakeups() <= heard_at_most(bus)
            assert claims(running) - before <= 1 + heard_at_most(bus)

    def test_an_idle_worker_claims_nothing(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            before = claims(running)
            for _ in range(50):
                bus.stats()
                bus.query()
            assert claims(running) == before

    def test_one_send_wakes_one_of_several_workers(self, bus: Harness) -> None:
        with ExitStack() as workers:
            registry = registry_of(ship=Recorder())
            running = [workers.enter_context(bus.run_worker(registry)) for _ in range(4)]
            for worker in running:
                worker.wait_until_idle()
            before = sum(map(claims, running)) - others_of(running)
            bus.wait(bus.send())
            for worker in running:
                worker.wait_until_idle()
            # One is woken and finds it, and then nothing more. Where commits of other processes are
            # watched for, the watcher may see this one, too, before it is claimed; and a process that
            # could not announce its sleep at once looks again by a timer.
            assert sum(worker.wakeups(without=["timer", "watch"]) for worker in running) == 1
            assert sum(map(claims, running)) - others_of(running) - before == 2

    def test_a_due_time_makes_one_of_several_workers_claim(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        with ExitStack() as workers:
            registry = registry_of(ship=Recorder())
            running = [workers.enter_context(bus.run_worker(registry)) for _ in range(4)]
            for worker in running:
                worker.wait_until_idle()
            sent = bus.send(delay=0.4)
            for worker in running:
                worker.wait_until_idle()
            before = [claims(worker) for worker in running]
            bus.wait(sent)
            for worker in running:
                worker.wait_until_idle()
            asked = [claims(worker) - earlier for worker, earlier in zip(running, before, strict=True)]
            timers = sum(worker.wakeups(only=["timer"]) for worker in running)
            watched = sum(worker.wakeups(only=["watch"]) for worker in running)
            assert sum(asked) <= 1 + timers + watched, "each claim has its cause"
            # Not four: a second one is the look of a process that could not announce its sleep at once.
            assert timers == 1 or (bus.capabilities.many_processes and timers == 2)

    def test_a_burst_needs_about_one_wakeup_per_worker(self, bus: Harness) -> None:
        with ExitStack() as workers:
            registry = registry_of(ship=Recorder())
            running = [
                workers.enter_context(bus.run_worker(registry, concurrency=1, prefetch=0))
                for _ in range(4)
            ]
            for worker in running:
                worker.wait_until_idle()
            for result in bus.send_many([SendRequest(DOMAIN, "ship")] * 100):
                bus.wait(result.command_id)
            for worker in running:
                worker.wait_until_idle()
            assert sum(worker.wakeups() for worker in running) <= 12

    def test_under_sustained_load_no_worker_waits_or_is_woken(self, bus: Harness) -> None:
        """Each worker finds the next command by its own claim, so the poll interval is no matter."""
        begun, ending = threading.Barrier(5), threading.Barrier(5)

        def ship(command: Command[Any], context: Any) -> None:
            if command.data is not None:
                {"first": begun, "last": ending}[command.data].wait(20)

        def counted() -> list[tuple[int, int]]:
            return [(worker.wakeups(), worker.metrics.empty_receives) for worker in running]

        with ExitStack() as workers:
            registry = registry_of(ship=ship)
            running = [
                workers.enter_context(bus.run_worker(registry, concurrency=1, prefetch=0))
                for _ in range(4)
            ]
            kinds = [*["first"] * 4, *[None] * 60, *["last"] * 4]
            bus.send_many(SendRequest(DOMAIN, "ship", kind) for kind in kinds)
            eventually(lambda: begun.n_waiting == 4)
            before = counted()
            begun.wait(20)
            eventually(lambda: ending.n_waiting == 4)
            after = counted()
            ending.wait(20)
        assert after == before

    def test_events_go_round_among_idle_workers(self, bus: Harness) -> None:
        with ExitStack() as workers:
            registry = registry_of(ship=Recorder())
            running = [workers.enter_context(bus.run_worker(registry)) for _ in range(3)]
            for _ in range(12):
                for worker in running:
                    worker.wait_until_idle()
                bus.wait(bus.send())
            shares = [worker.metrics.commands_received for worker in running]
            assert sum(shares) == 12
            assert min(shares) >= 1, "one of them was never woken"

    def test_a_burst_wakes_one_worker_after_another(self, bus: Harness) -> None:
        together = threading.Barrier(4)

        def ship(command: Command[Any], context: Any) -> None:
            together.wait(10)  # returns only if four workers are at it at once

        with ExitStack() as workers:
            registry = registry_of(ship=ship)
            running = [
                workers.enter_context(bus.run_worker(registry, concurrency=1, prefetch=0))
                for _ in range(4)
            ]
            for worker in running:
                worker.wait_until_idle()
            results = bus.send_many([SendRequest(DOMAIN, "ship")] * 4)
            statuses = [bus.wait(result.command_id).status for result in results]
            assert statuses == [CommandStatus.COMPLETED] * 4
            assert [worker.metrics.commands_received for worker in running] == [1, 1, 1, 1]
            assert all("fallback" not in worker.metrics.wakeups for worker in running)

    @pytest.mark.parametrize("count", [2, 3])
    def test_a_busy_worker_does_not_swallow_the_wakeup_of_an_idle_one(
        self, bus: Harness, count: int
    ) -> None:
        with Gate() as gate, ExitStack() as workers:
            registry = registry_of(ship=gate)
            running = [
                workers.enter_context(bus.run_worker(registry, concurrency=1, prefetch=0))
                for _ in range(count)
            ]
            for number in range(1, count + 1):
                # A worker that was woken for nothing sleeps again, and the next event may go to the
                # busy.
                for worker in running:
                    if not worker.worker.in_flight_count:
                        worker.wait_until_idle()
                bus.send()
                gate.wait_for(number)
            assert gate.inside == count
            assert all("fallback" not in worker.metrics.wakeups for worker in running)

    def test_a_release_wakes_another_worker(self, bus: Harness) -> None:
        command_id, by_hand = bus.send(), bus.worker()
        taken = bus.take(by_hand)
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            bus.call(by_hand.release, taken)
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
            assert "fallback" not in running.metrics.wakeups

    def test_a_free_slot_is_used_at_once(self, bus: Harness) -> None:
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=0):
            bus.send_many([SendRequest(DOMAIN, "ship")] * 3)
            for count in (1, 2, 3):
                gate.wait_for(count)
                gate.let_one_go()
            assert gate.most_inside == 1

    def test_a_worker_that_died_is_noticed_at_the_end_of_its_lease(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        command_id = bus.send()
        bus.take(bus.worker(name="doomed"), visibility_timeout=0.3)
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            record = bus.wait(command_id)
        assert (record.status, record.crashes) == (CommandStatus.COMPLETED, 1)
        assert "fallback" not in running.metrics.wakeups

    def test_a_death_after_the_others_went_idle_is_noticed(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            command_id = taken_and_forgotten(bus, lease_seconds=0.3)
            record = bus.wait(command_id)
            assert (record.status, record.crashes) == (CommandStatus.COMPLETED, 1)
            assert "fallback" not in running.metrics.wakeups

    def test_a_send_through_another_bus_on_the_store_wakes_a_worker(
        self, bus: Harness, open_bus: OpenBus
    ) -> None:
        require(bus, "many_processes")
        other = open_bus()
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            assert other.wait(other.send()).status is CommandStatus.COMPLETED
            assert "fallback" not in running.metrics.wakeups

    def test_a_delayed_send_through_another_bus_is_begun_when_it_is_due(
        self, open_bus: OpenBus
    ) -> None:
        bus = open_bus(real_time=True)
        require(bus, "many_processes")
        other = open_bus(real_time=True)
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            record = other.wait(other.send(delay=0.3))
            assert record.started_at is not None
            assert record.started_at >= record.due_at
            assert "fallback" not in running.metrics.wakeups

    def test_a_resume_through_another_bus_wakes_a_worker(self, bus: Harness, open_bus: OpenBus) -> None:
        require(bus, "many_processes")
        other = open_bus()
        bus.pause()
        command_id = bus.send()
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            other.resume()
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
            assert "fallback" not in running.metrics.wakeups

    def test_a_stopping_worker_leaves_its_wakeup_to_another(self, bus: Harness) -> None:
        registry = registry_of(ship=Recorder())
        with bus.run_worker(registry) as stays, bus.run_worker(registry) as leaves:
            stays.wait_until_idle()
            leaves.wait_until_idle()
            ids = [bus.send() for _ in range(2)]
            leaves.stop()
            assert [bus.wait(i).status for i in ids] == [CommandStatus.COMPLETED] * 2

    def test_the_fallback_poll_finds_unannounced_work(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder()), poll_interval=0.1) as running:
            running.wait_until_idle()
            command_id = bus.send(delay=3_600)
            running.wait_until_idle()
            clock = bus.configuration.clock
            if clock is not None:
                clock.advance(3_601)  # no worker is woken: only the interval can find it
            else:
                bus.advance(3_601)
            assert bus.wait(command_id).status is CommandStatus.COMPLETED
