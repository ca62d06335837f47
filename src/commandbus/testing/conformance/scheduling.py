"""Time: nothing runs early, due work joins by priority, and what is too late is not begun."""

from __future__ import annotations

from datetime import timedelta

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.retry import RetryPolicy
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import about, registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness


class SchedulingSuite:
    @pytest.mark.parametrize("delay", [60, 60.5, timedelta(minutes=1)])
    def test_a_delayed_command_waits_until_it_is_due(self, bus: Harness, delay: float) -> None:
        command_id, worker = bus.send(delay=delay), bus.worker()
        assert bus.receive(worker) == []
        bus.advance(55)
        assert bus.receive(worker) == []
        bus.advance(6)
        assert bus.take(worker).command.command_id == command_id

    def test_a_command_may_name_its_moment(self, bus: Harness) -> None:
        moment = bus.now + timedelta(hours=2)
        command_id, worker = bus.send(due_at=moment), bus.worker()
        assert bus.get(command_id).due_at == moment
        bus.advance(7_100)
        assert bus.receive(worker) == []
        bus.advance(101)
        assert bus.take(worker).command.command_id == command_id

    def test_a_moment_in_the_past_is_now(self, bus: Harness) -> None:
        command_id = bus.send(due_at=bus.now - timedelta(hours=1))
        assert bus.take(bus.worker()).command.command_id == command_id

    def test_a_delay_of_nothing_is_now(self, bus: Harness) -> None:
        command_id = bus.send(delay=0)
        assert bus.take(bus.worker()).command.command_id == command_id

    def test_the_record_shows_when_a_command_is_due(self, bus: Harness) -> None:
        record = bus.get(bus.send(delay=90))
        assert record.status is CommandStatus.PENDING
        assert record.due_at - record.created_at == timedelta(seconds=90)

    def test_a_future_command_of_high_priority_delays_no_other(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", "later", priority="high", delay=60)
        bus.send(DOMAIN, "ship", "now", priority="low")
        assert bus.take(bus.worker()).command.data == "now"

    def test_due_commands_join_by_priority(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", "urgent", priority="high", delay=60)
        bus.send(DOMAIN, "ship", "usual")
        bus.advance(61)
        taken = bus.receive(bus.worker(), 2)
        assert [one.command.data for one in taken] == ["urgent", "usual"]

    def test_due_commands_of_one_priority_keep_the_order_of_sending(self, bus: Harness) -> None:
        for data, delay in (("a", 60), ("b", 20), ("c", 40), ("d", 0)):
            bus.send(DOMAIN, "ship", data, delay=delay)
        bus.advance(61)
        taken = bus.receive(bus.worker(), 9)
        assert [one.command.data for one in taken] == ["a", "b", "c", "d"]

    def test_only_what_is_due_is_given_out(self, bus: Harness) -> None:
        bus.send_many(SendRequest(DOMAIN, "ship", n, delay=10 * n) for n in range(100))
        bus.advance(495)
        taken = bus.receive(bus.worker(), 1_000)
        assert [one.command.data for one in taken] == list(range(50))

    def test_an_expired_command_is_canceled_instead_of_begun(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=60))
        bus.advance(61)
        assert bus.receive(bus.worker()) == []
        record = bus.get(command_id)
        assert (record.status, record.reason) == (CommandStatus.CANCELED, "EXPIRED")
        assert (record.attempts, record.started_at) == (0, None)
        assert record.finished_at is not None

    def test_a_command_has_expired_at_the_very_moment(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=60))
        bus.advance(60)
        assert bus.receive(bus.worker()) == []
        assert bus.get(command_id).reason == "EXPIRED"

    def test_a_command_runs_until_it_expires(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=60))
        bus.advance(50)
        assert bus.take(bus.worker()).command.command_id == command_id

    def test_a_begun_command_may_end_after_its_expiry(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=10))
        worker = bus.worker()
        taken = bus.take(worker)
        bus.advance(20)
        bus.call(worker.complete, taken)
        assert bus.get(command_id).status is CommandStatus.COMPLETED

    def test_expired_commands_do_not_stand_in_the_way(self, bus: Harness) -> None:
        soon = bus.now + timedelta(seconds=10)
        bus.send_many(SendRequest(DOMAIN, "ship", expires_at=soon) for _ in range(25))
        fit = bus.send()
        bus.advance(11)
        assert bus.take(bus.worker()).command.command_id == fit
        assert bus.stats().canceled == 25

    def test_a_delayed_command_that_expires_first_is_never_begun(self, bus: Harness) -> None:
        command_id = bus.send(delay=60, expires_at=bus.now + timedelta(seconds=30))
        bus.advance(61)
        assert bus.receive(bus.worker()) == []
        assert bus.get(command_id).reason == "EXPIRED"

    def test_a_retry_that_comes_too_late_is_canceled(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=5))
        worker = bus.worker()
        bus.call(worker.fail, bus.take(worker), "busy")
        bus.advance(11)
        assert bus.receive(worker) == []
        record = bus.get(command_id)
        assert (record.status, record.reason, record.attempts) == (
            CommandStatus.CANCELED,
            "EXPIRED",
            1,
        )

    def test_an_expired_command_ends_the_wait_for_it(self, bus: Harness) -> None:
        command_id = bus.send(expires_at=bus.now + timedelta(seconds=5))
        bus.advance(6)
        with bus.run_worker(registry_of(ship=Recorder())):
            assert bus.wait(command_id).reason == "EXPIRED"

    def test_a_running_worker_begins_a_delayed_command_when_it_is_due(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        handler = Recorder()
        with bus.run_worker(registry_of(ship=handler)) as running:
            running.wait_until_idle()
            command_id = bus.send(delay=0.2)
            record = bus.wait(command_id)
        assert record.started_at is not None
        assert record.started_at >= record.due_at, "begun early"
        # A watcher of the file that looks late, on a busy machine, finds it due as well.
        assert {"timer", "watch"} & running.metrics.wakeups.keys()
        assert "fallback" not in running.metrics.wakeups

    def test_an_earlier_moment_replaces_the_planned_one(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        with bus.run_worker(registry_of(ship=Recorder())) as running:
            running.wait_until_idle()
            late = bus.send(delay=3_600)
            soon = bus.send(delay=0.1)
            assert bus.wait(soon).status is CommandStatus.COMPLETED
            assert bus.get(late).status is CommandStatus.PENDING

    def test_a_retry_is_begun_when_it_is_due(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        handler = Recorder(ValueError("once"))
        command_id = bus.send()
        policy = RetryPolicy(3, [0.2])
        with bus.run_worker(registry_of(ship=handler), retry_policy=policy) as running:
            record = bus.wait(command_id)
        assert record.attempts == 2
        assert "fallback" not in running.metrics.wakeups

    def test_a_bulk_send_may_mix_now_and_later(self, bus: Harness) -> None:
        bus.send_many([SendRequest(DOMAIN, "ship", delay=60), SendRequest(DOMAIN, "ship")])
        stats = bus.stats()
        assert (stats.ready, stats.scheduled) == (1, 1)
        assert bus.seconds_until(bus.query(status="PENDING")[1].due_at) == about(60)

    def test_a_due_command_is_claimed_before_a_backlog_that_was_sent_later(self, bus: Harness) -> None:
        """Also by a worker whose claims have gone past its place in the queue."""
        due = bus.send(delay=600)
        backlog = [bus.send() for _ in range(6)]
        worker = bus.worker(visibility_timeout=3_600)
        for sent in backlog[:4]:
            assert bus.take(worker).command.command_id == sent
        bus.advance(601)
        assert bus.take(worker).command.command_id == due
        assert bus.take(worker).command.command_id == backlog[4]
