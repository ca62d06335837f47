"""Group keys: one at a time, in order within a priority."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import InvalidArgumentError, PermanentCommandError, TransientCommandError
from commandbus.testing.conformance.helpers import registry_of, require, together
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually


def take_all(bus: Harness, worker: Any, most: int = 100) -> list[Any]:
    """Everything that is eligible now, by its data."""
    return [received.command.data for received in bus.call(worker.receive, most, 100_000)]


class GroupsSuite:
    @pytest.fixture(autouse=True)
    def _with_gates(self, bus: Harness) -> None:
        require(bus, "gates")

    def test_a_group_runs_one_at_a_time_in_order(self, bus: Harness) -> None:
        for number in range(4):
            bus.send(DOMAIN, "ship", number, group_key="order-7")
        worker, seen = bus.worker(), []
        for _ in range(4):
            received = bus.call(worker.receive, 10)
            assert len(received) == 1
            assert take_all(bus, bus.worker()) == []
            seen.append(received[0].command.data)
            bus.call(worker.complete, received[0])
        assert seen == [0, 1, 2, 3]

    def test_groups_and_plain_commands_do_not_wait_for_each_other(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", "a1", group_key="a")
        bus.send(DOMAIN, "ship", "a2", group_key="a")
        bus.send(DOMAIN, "ship", "b1", group_key="b")
        bus.send(DOMAIN, "ship", "plain")
        assert take_all(bus, bus.worker()) == ["a1", "b1", "plain"]

    def test_a_group_of_one_domain_is_none_of_another(self, bus: Harness) -> None:
        bus.send("orders", "ship", 1, group_key="k")
        bus.send("billing", "ship", 2, group_key="k")
        assert sorted(take_all(bus, bus.worker(["orders", "billing"]))) == [1, 2]

    def test_within_a_group_priority_comes_first(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", "low", group_key="k", priority="low")
        bus.send(DOMAIN, "ship", "high", group_key="k", priority="high")
        assert take_all(bus, bus.worker()) == ["high"]

    def test_a_member_of_the_far_future_does_not_hold_up_the_ready_ones(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", "later", group_key="k", delay=3600)
        bus.send(DOMAIN, "ship", "now", group_key="k")
        worker = bus.worker()
        [received] = bus.call(worker.receive, 10)
        assert received.command.data == "now"
        bus.call(worker.complete, received)
        assert take_all(bus, worker) == []
        bus.advance(3601)
        assert take_all(bus, worker) == ["later"]

    def test_a_member_that_waits_for_its_retry_lets_the_others_pass(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", 1, group_key="k")
        bus.send(DOMAIN, "ship", 2, group_key="k")
        worker = bus.worker(retry_policy=RetryPolicy(3, [600]))
        [first] = bus.call(worker.receive, 10)
        bus.call(worker.fail, first, TransientCommandError("BUSY", "later"))
        [second] = bus.call(worker.receive, 10)
        assert second.command.data == 2
        bus.call(worker.complete, second)
        assert take_all(bus, worker) == []
        bus.advance(601)
        assert take_all(bus, worker) == [1]

    def test_a_member_that_is_given_back_keeps_its_place(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", 1, group_key="k")
        bus.send(DOMAIN, "ship", 2, group_key="k")
        worker = bus.worker()
        [first] = bus.call(worker.receive, 10)
        bus.call(worker.release, first)
        assert take_all(bus, worker) == [1]

    def test_a_parked_member_lets_the_others_pass(self, bus: Harness) -> None:
        first = bus.send(DOMAIN, "ship", 1, group_key="k")
        bus.send(DOMAIN, "ship", 2, group_key="k")
        worker = bus.worker()
        [received] = bus.call(worker.receive, 10)
        bus.call(worker.fail, received, PermanentCommandError("BROKEN", "no"))
        [second] = bus.call(worker.receive, 10)
        assert second.command.data == 2
        bus.operator_retry(first)
        assert take_all(bus, worker) == [], "its group is busy"
        bus.call(worker.complete, second)
        assert take_all(bus, worker) == [1]

    def test_a_group_goes_on_after_its_worker_died(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", 1, group_key="k")
        bus.send(DOMAIN, "ship", 2, group_key="k")
        assert len(bus.call(bus.worker(name="doomed").receive, 10, 30)) == 1
        bus.advance(31)
        worker = bus.worker()
        [first] = bus.call(worker.receive, 10)
        assert (first.command.data, first.claimed.crashes) == (1, 1)
        bus.call(worker.complete, first)
        assert take_all(bus, worker) == [2]

    def test_a_canceled_member_is_left_out(self, bus: Harness) -> None:
        ids = [bus.send(DOMAIN, "ship", number, group_key="k") for number in range(3)]
        worker = bus.worker()
        [first] = bus.call(worker.receive, 10)
        bus.cancel(ids[1])
        bus.call(worker.complete, first)
        assert take_all(bus, worker) == [2]

    def test_an_expired_member_does_not_hold_up_its_group(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", 1, group_key="k", expires_at=bus.now + timedelta(seconds=5))
        bus.send(DOMAIN, "ship", 2, group_key="k")
        bus.advance(10)
        worker = bus.worker()
        taken = take_all(bus, worker) or take_all(bus, worker)
        assert taken == [2]

    def test_a_bulk_of_groups_is_taken_group_by_group(self, bus: Harness) -> None:
        requests = [SendRequest(DOMAIN, "ship", n, group_key=f"g{n % 5}") for n in range(300)]
        bus.call(bus.bus.send_many, requests)
        assert sorted(take_all(bus, bus.worker())) == [0, 1, 2, 3, 4]
        assert bus.stats().depth == 295

    def test_any_text_names_a_group_in_a_bulk(self, bus: Harness) -> None:
        keys = ['a"b', "a\\b", "{}", "{", ",", "NULL", "k*{k:x}", "k:", "%", "_", "\t\n\r", "\\N", "'"]
        keys += [" ", "€" * 255, "\\" * 255, '"' * 255]
        requests = [SendRequest(DOMAIN, "ship", key, group_key=key) for _ in range(10) for key in keys]
        bus.call(bus.bus.send_many, requests)
        worker = bus.worker()
        for _ in range(10):
            received = bus.call(worker.receive, 100)
            assert sorted(one.command.data for one in received) == sorted(keys)
            for one in received:
                bus.call(worker.complete, one)

    def test_what_waits_for_its_group_is_pending_and_counted(self, bus: Harness) -> None:
        bus.send(DOMAIN, "ship", 1, group_key="k")
        second = bus.send(DOMAIN, "ship", 2, group_key="k")
        assert take_all(bus, bus.worker()) == [1]
        record = bus.get(second)
        assert (record.status, record.group_key) == ("PENDING", "k")
        stats = bus.stats()
        assert (stats.ready, stats.held, stats.running) == (1, 1, 1)

    def test_why_names_the_running_command(self, bus: Harness) -> None:
        first = bus.send(DOMAIN, "ship", 1, group_key="k")
        second = bus.send(DOMAIN, "ship", 2, group_key="k")
        assert take_all(bus, bus.worker()) == [1]
        answer = bus.call(bus.bus.why, second)
        assert "GROUP_BLOCKED" in [reason.code for reason in answer.reasons]
        assert str(first) in answer.summary

    def test_workers_keep_to_it_by_themselves(self, bus: Harness) -> None:
        lock, running, seen = threading.Lock(), set[str](), dict[str, list[int]]()

        def ship(command: Any, context: Any) -> None:
            key, number = command.data
            with lock:
                assert key not in running, "two of a group at once"
                running.add(key)
                seen.setdefault(key, []).append(number)
            with lock:
                running.discard(key)

        for number in range(40):
            bus.send(DOMAIN, "ship", [f"k{number % 4}", number], group_key=f"k{number % 4}")
        registry = registry_of(ship=ship)
        with bus.run_worker(registry), bus.run_worker(registry):
            eventually(lambda: bus.stats().completed == 40)
        assert all(numbers == sorted(numbers) for numbers in seen.values()), seen

    def test_of_claims_at_once_one_gets_the_member(self, bus: Harness) -> None:
        for number in range(8):
            bus.send(DOMAIN, "ship", number, group_key="k")
        workers = [bus.worker() for _ in range(8)]
        taken = together(8, lambda n: take_all(bus, workers[n]))
        assert sorted(taken, key=str) == [[0], *([[]] * 7)]

    @pytest.mark.parametrize("key", ["", "x" * 256, 7, "nul\0"])
    def test_a_group_key_is_a_short_text(self, bus: Harness, key: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="group_key"):
            bus.send(DOMAIN, "ship", group_key=key)
