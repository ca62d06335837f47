"""The worker's loop: everything is done, never too much at once, and trouble is survived."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from commandbus.domain.command import Command, SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
    StoreUnavailable,
)
from commandbus.store.records import ClaimRequest
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import registry_of, spy_on
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.handlers import HandlerRegistry


class WorkerLoopSuite:
    def test_everything_that_was_sent_is_done_once(self, bus: Harness) -> None:
        handler = Recorder()
        sent = bus.send_many(SendRequest(DOMAIN, "ship", n) for n in range(200))
        with bus.run_worker(registry_of(ship=handler)) as running:
            handler.wait_for(200)
            running.wait_until_idle()
        assert sorted(command.data for command in handler.commands) == list(range(200))
        assert bus.stats().completed == len(sent)

    def test_commands_are_begun_in_order(self, bus: Harness) -> None:
        handler = Recorder()
        bus.send_many(SendRequest(DOMAIN, "ship", n) for n in range(50))
        with bus.run_worker(registry_of(ship=handler), concurrency=1):
            handler.wait_for(50)
        assert [command.data for command in handler.commands] == list(range(50))

    def test_one_worker_serves_several_domains(self, bus: Harness) -> None:
        registry = HandlerRegistry()
        handlers = {domain: Recorder(result=domain) for domain in ("orders", "billing", "mail")}
        for domain, handler in handlers.items():
            registry.register(domain, "ship", handler)
        ids = {domain: bus.send(domain) for domain in handlers}
        with bus.run_worker(registry, list(handlers)):
            results = {domain: bus.wait(command_id).result for domain, command_id in ids.items()}
        assert results == {domain: domain for domain in handlers}

    def test_concurrency_is_reached_and_never_exceeded(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 12)
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=3) as running:
            gate.wait_for(3)
            for begun in range(4, 13):
                gate.let_one_go()
                gate.wait_for(begun)
            gate.open()
            running.wait_until_idle()
        assert gate.most_inside == 3

    def test_no_more_is_claimed_than_slots_are_free(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 10)
        with (
            Gate() as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=3, prefetch=0) as running,
        ):
            gate.wait_for(3)
            stats = bus.stats()
            assert (stats.running, stats.ready) == (3, 7)
            assert running.worker.in_flight_count == 3

    def test_prefetching_claims_ahead_of_the_slots(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 10)
        with (
            Gate() as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=5) as running,
        ):
            gate.wait_for(1)
            eventually(lambda: running.worker.in_flight_count == 6)
            assert bus.stats().ready == 4
        assert gate.most_inside == 1

    def test_more_concurrency_takes_effect_at_once(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 3)
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=1) as running:
            gate.wait_for(1)
            running.worker.set_concurrency(3)
            gate.wait_for(3)
            assert gate.most_inside == 3
            assert running.worker.concurrency == 3

    def test_less_concurrency_takes_effect_as_handlers_end(self, bus: Harness) -> None:
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=3) as running:
            bus.send_many([SendRequest(DOMAIN, "ship")] * 3)
            gate.wait_for(3)
            running.worker.set_concurrency(1)
            eventually(lambda: running.worker.concurrency == 1)
            bus.send_many([SendRequest(DOMAIN, "ship")] * 2)
            for _ in range(3):
                gate.let_one_go()
            gate.wait_for(4)
            gate.most_inside = 0
            gate.let_one_go()
            gate.wait_for(5)
            assert gate.most_inside == 1

    @pytest.mark.parametrize("concurrency", [0, -1, True, 2.5, "4"])
    def test_a_concurrency_below_one_is_refused(self, bus: Harness, concurrency: Any) -> None:
        with pytest.raises(ConfigurationError, match="concurrency must be a whole number of at"):
            bus.worker(concurrency=concurrency)
        worker = bus.worker()
        with pytest.raises(ConfigurationError, match="concurrency must be a whole number of at"):
            worker.set_concurrency(concurrency)
        assert worker.concurrency == 4

    @pytest.mark.parametrize("seconds", [0.099, 0, -1, "1", float("nan")])
    def test_a_poll_interval_below_a_tenth_of_a_second_is_refused(
        self, bus: Harness, seconds: Any
    ) -> None:
        with pytest.raises((ConfigurationError, InvalidArgumentError), match="poll_interval must be"):
            bus.worker(poll_interval=seconds)
        with pytest.raises((ConfigurationError, InvalidArgumentError), match="poll_interval must be"):
            bus.worker().set_poll_interval(seconds)

    def test_a_poll_interval_may_be_changed_while_running(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder()), poll_interval=600) as running:
            running.wait_until_idle()
            assert "fallback" not in running.metrics.wakeups
            running.worker.set_poll_interval(0.1)
            eventually(lambda: running.metrics.wakeups.get("fallback", 0) >= 2)

    def test_settings_of_a_worker_that_does_not_run_yet_may_be_changed(self, bus: Harness) -> None:
        worker = bus.worker(registry=registry_of(ship=Recorder()))
        worker.set_concurrency(7)
        worker.set_poll_interval(5)
        assert worker.concurrency == 7

    def test_a_worker_without_handlers_does_not_run(self, bus: Harness) -> None:
        worker = bus.worker(registry=HandlerRegistry())
        with pytest.raises(ConfigurationError, match="no handlers"):
            bus.call(worker.run)
        assert not worker.is_running

    def test_a_running_worker_does_not_run_twice(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            with pytest.raises(InvalidOperationError, match="running already"):
                bus.call(running.worker.run)
            assert bus.wait(bus.send()).status is CommandStatus.COMPLETED

    def test_the_metrics_count_what_happened(self, bus: Harness) -> None:
        handler = Recorder()
        bus.send_many([SendRequest(DOMAIN, "ship")] * 10)
        with bus.run_worker(registry_of(ship=handler)) as running:
            handler.wait_for(10)
            running.wait_until_idle()
            metrics = running.metrics
            assert metrics.commands_received == metrics.commands_settled == metrics.processed == 10
            assert metrics.batches_processed >= 1
            assert metrics.empty_receives == 1
            assert (metrics.claim_failures, metrics.settle_failures, metrics.leases_lost) == (0, 0, 0)
            assert metrics.average_fetch_seconds > 0
            assert metrics.fetch_effectiveness > 0

    def test_the_average_time_of_handlers_is_theirs(self, bus: Harness) -> None:
        took: list[float] = []
        never = threading.Event()

        def ship(command: Command[Any], context: Any) -> None:
            began = time.perf_counter()
            never.wait(0.02)
            took.append(time.perf_counter() - began)

        bus.send_many([SendRequest(DOMAIN, "ship")] * 5)
        began = time.perf_counter()
        with bus.run_worker(registry_of(ship=ship), concurrency=1) as running:
            eventually(lambda: running.metrics.processed == 5)
            elapsed = time.perf_counter() - began
            average = running.metrics.average_process_seconds
        # Microseconds are cut off; all of them ran one after another in the time that passed.
        assert sum(took) / 5 - 0.001 <= average <= elapsed / 5

    def test_a_claim_that_fails_is_tried_again(self, bus: Harness) -> None:
        failures = [StoreUnavailable("down"), StoreUnavailable("still down")]
        with (
            spy_on(bus.store, "claim", *failures),
            bus.run_worker(registry_of(ship=Recorder())) as running,
        ):
            assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
            assert running.metrics.claim_failures == 2

    def test_a_settlement_that_fails_is_tried_again(self, bus: Harness) -> None:
        handler = Recorder(result="done")
        command_id = bus.send()
        with (
            spy_on(bus.store, "settle", StoreUnavailable("down")),
            bus.run_worker(registry_of(ship=handler)) as running,
        ):
            assert bus.wait(command_id).result == "done"
            assert running.metrics.settle_failures == 1
        assert len(handler.commands) == 1

    def test_a_settlement_that_can_never_be_written_takes_no_other_with_it(self, bus: Harness) -> None:
        ids = [bus.send() for _ in range(3)]
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=3) as running:
            gate.wait_for(3)
            # The whole batch is refused, then its first part alone.
            broken = [ValueError("cannot be written"), ValueError("cannot be written")]
            with spy_on(bus.store, "settle", *broken):
                gate.open()
                running.wait_until_idle()
        done = [bus.get(command_id).status for command_id in ids].count(CommandStatus.COMPLETED)
        assert done >= 1
        assert running.metrics.settle_failures == 2

    def test_handlers_of_many_commands_run_at_the_same_time(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship")] * 8)
        with Gate() as gate, bus.run_worker(registry_of(ship=gate), concurrency=8):
            gate.wait_for(8)
            assert gate.inside == 8

    def test_a_worker_that_runs_until_idle_drains_and_ends(self, bus: Harness) -> None:
        elsewhere, handler = bus.send(), Recorder()
        bus.run(bus.store.claim(ClaimRequest((DOMAIN,), 1, "another worker", 30.0)))
        late = bus.send(delay=3600)
        bus.send_many(SendRequest(DOMAIN, "ship", n) for n in range(5))
        worker = bus.worker(DOMAIN, registry_of(ship=handler))
        bus.call(worker.run, until_idle=True)
        assert worker.is_drained
        assert sorted(command.data for command in handler.commands) == list(range(5))
        assert bus.get(late).status is CommandStatus.PENDING, "what is due later waits for another run"
        assert bus.get(elsewhere).status is CommandStatus.IN_PROGRESS, (
            "what others run does not hold it"
        )

    def test_a_worker_that_runs_until_idle_waits_for_what_is_due_soon(self, open_bus: OpenBus) -> None:
        bus, handler = open_bus(real_time=True), Recorder()
        bus.send(delay=0.2)
        bus.call(bus.worker(DOMAIN, registry_of(ship=handler)).run, until_idle=0.4)
        assert len(handler.commands) == 1

    @pytest.mark.parametrize("until_idle", [-1, "soon", float("nan")])
    def test_an_idle_time_that_is_none_is_refused(self, bus: Harness, until_idle: Any) -> None:
        worker = bus.worker(DOMAIN, registry_of(ship=Recorder()))
        with pytest.raises(InvalidArgumentError, match="until_idle"):
            bus.call(worker.run, until_idle=until_idle)
