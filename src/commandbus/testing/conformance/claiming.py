"""Claiming: each command goes to one taker, in order, and is counted when it goes."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from uuid import UUID

import pytest

from commandbus.domain.command import SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import ConfigurationError, InvalidArgumentError
from commandbus.testing.conformance.fixtures import OpenBus
from commandbus.testing.conformance.helpers import about, together
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually


class ClaimingSuite:
    def test_nothing_is_received_from_an_empty_domain(self, bus: Harness) -> None:
        assert bus.receive(bus.worker()) == []

    def test_a_received_command_is_what_was_sent(self, bus: Harness) -> None:
        cause = bus.send("billing")
        command_id = bus.send(
            DOMAIN,
            "ship",
            {"article": 7},
            causation_id=cause,
            reply_to="billing",
            priority="high",
            tags=["vip"],
            headers={"trace": "ab"},
        )
        command = bus.take(bus.worker()).command
        assert (command.domain, command.command_type) == (DOMAIN, "ship")
        assert (command.command_id, command.correlation_id) == (command_id, command_id)
        assert (command.causation_id, command.reply_to) == (cause, "billing")
        assert (command.data, command.priority) == ({"article": 7}, 0)
        assert (command.tags, command.headers) == (("vip",), {"trace": "ab"})
        assert command.created_at == bus.get(command_id).created_at

    def test_a_received_command_is_in_progress_with_its_worker(self, bus: Harness) -> None:
        command_id, worker = bus.send(), bus.worker(name="hand")
        bus.take(worker)
        record = bus.get(command_id)
        assert record.status is CommandStatus.IN_PROGRESS
        assert record.worker == worker.name
        assert bus.seconds_until(record.started_at) == about(0)

    def test_the_attempt_is_counted_at_claim(self, bus: Harness) -> None:
        command_id = bus.send()
        assert bus.take(bus.worker()).attempt == 1
        assert bus.get(command_id).attempts == 1

    def test_one_priority_is_received_alone(self, bus: Harness) -> None:
        priorities = ["high", "normal", "low", "normal"]
        ids = [bus.send(priority=priority) for priority in priorities]
        worker = bus.worker()
        assert bus.receive(worker, 9, priority=7) == []
        taken = bus.receive(worker, 9, priority="normal")
        assert [one.command.command_id for one in taken] == [ids[1], ids[3]]
        rest = bus.receive(worker, 9)
        assert [one.command.command_id for one in rest] == [ids[0], ids[2]]

    def test_an_unknown_priority_is_refused(self, bus: Harness) -> None:
        with pytest.raises(InvalidArgumentError, match="urgent"):
            bus.receive(bus.worker(), priority="urgent")

    def test_a_receive_that_waits_returns_what_is_sent_meanwhile(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        worker, found = bus.worker(), list[UUID]()

        def receive() -> None:
            found.extend(one.command.command_id for one in bus.receive(worker, wait=20))

        receiving = threading.Thread(target=receive, daemon=True)
        receiving.start()
        eventually(lambda: DOMAIN in bus.bus.hub.armed_domains())
        command_id = bus.send()
        receiving.join(10)
        assert found == [command_id]

    def test_a_receive_that_waits_returns_what_falls_due_meanwhile(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        command_id = bus.send(delay=0.3)
        (received,) = bus.receive(bus.worker(), wait=20)
        assert received.command.command_id == command_id

    def test_a_receive_waits_no_longer_than_asked(self, open_bus: OpenBus) -> None:
        bus = open_bus(real_time=True)
        began = time.monotonic()
        assert bus.receive(bus.worker(), wait=0.2) == []
        assert 0.2 <= time.monotonic() - began < 10
        assert bus.bus.hub.armed_domains() == set(), "nothing waits any more"

    def test_at_most_the_asked_number_is_received(self, bus: Harness) -> None:
        bus.send_many(SendRequest(DOMAIN, "ship") for _ in range(5))
        worker = bus.worker()
        assert len(bus.receive(worker, 3)) == 3
        assert len(bus.receive(worker, 3)) == 2
        assert bus.receive(worker, 3) == []

    def test_commands_come_in_order_of_sending(self, bus: Harness) -> None:
        bus.send_many(SendRequest(DOMAIN, "ship", n) for n in range(30))
        worker = bus.worker()
        batches = [bus.receive(worker, size) for size in (1, 7, 22)]
        assert [taken.command.data for batch in batches for taken in batch] == list(range(30))

    def test_a_claimed_command_is_not_given_out_again(self, bus: Harness) -> None:
        bus.send()
        assert bus.receive(bus.worker())
        assert bus.receive(bus.worker()) == []

    def test_many_claimers_at_once_get_each_command_once(self, bus: Harness) -> None:
        sent = bus.send_many(SendRequest(DOMAIN, "ship") for _ in range(300))
        claimed: list[UUID] = []
        lock = threading.Lock()

        def drain(number: int) -> int:
            worker, count = bus.worker(name=f"claimer{number}"), 0
            while batch := bus.receive(worker, 1 + number):
                with lock:
                    claimed.extend(taken.command.command_id for taken in batch)
                count += len(batch)
            return count

        counts = together(8, drain)
        assert sum(count for count in counts if isinstance(count, int)) == 300, counts
        assert sorted(claimed) == sorted(result.command_id for result in sent)

    def test_sends_and_claims_at_once_lose_nothing(self, bus: Harness) -> None:
        claimed: list[int] = []
        lock = threading.Lock()

        def work(number: int) -> None:
            worker = bus.worker(name=f"w{number}")
            for n in range(20):
                bus.send(DOMAIN, "ship", number * 20 + n)
                batch = bus.receive(worker, 2)
                with lock:
                    claimed.extend(taken.command.data for taken in batch)

        assert together(6, work) == [None] * 6
        claimed += [taken.command.data for taken in bus.receive(bus.worker(), 200)]
        assert sorted(claimed) == list(range(120))

    def test_a_worker_takes_only_from_its_domains(self, bus: Harness) -> None:
        bus.send("billing")
        assert bus.receive(bus.worker("orders")) == []
        assert bus.stats("billing").ready == 1

    def test_one_claim_reaches_several_domains(self, bus: Harness) -> None:
        for domain in ("orders", "billing", "mail"):
            bus.send(domain)
        taken = bus.receive(bus.worker(["orders", "billing"]), 10)
        assert sorted(one.command.domain for one in taken) == ["billing", "orders"]

    def test_several_domains_take_turns(self, bus: Harness) -> None:
        bus.send_many(SendRequest(domain, "ship") for domain in ("orders",) * 20 + ("billing",) * 2)
        worker = bus.worker(["orders", "billing"])
        domains = [bus.take(worker).command.domain for _ in range(6)]
        assert domains.count("billing") == 2, "a deep domain starved a shallow one"

    def test_the_fence_grows_with_every_delivery(self, bus: Harness) -> None:
        bus.send()
        worker, fences = bus.worker(), []
        for _ in range(3):
            taken = bus.take(worker)
            fences.append(taken.context.fence)
            bus.call(worker.release, taken)
        assert fences == sorted(set(fences))

    def test_with_the_fence_a_late_run_overwrites_no_newer_one(self, bus: Harness) -> None:
        """As in the guide: a table of the handler's own keeps the fence, and updates ask for it."""
        bus.send()
        late = bus.take(bus.worker(name="late"), visibility_timeout=1.0)
        bus.advance(60)
        newer = bus.take(bus.worker(name="newer"))
        with closing(sqlite3.connect(":memory:")) as own:
            own.execute("create table stock as select '' as written_by, 0 as fence")
            for name, run in (("newer", newer), ("late", late)):
                fence = run.context.fence
                values = {"name": name, "fence": fence}
                own.execute(
                    "update stock set written_by = :name, fence = :fence where fence < :fence", values
                )
            assert own.execute("select written_by from stock").fetchall() == [("newer",)]

    @pytest.mark.parametrize("size", [0, -1, 1_001, True])
    def test_a_batch_size_out_of_range_is_refused(self, bus: Harness, size: int) -> None:
        bus.send()
        with pytest.raises(InvalidArgumentError, match="batch_size must be between 1 and 1000"):
            bus.receive(bus.worker(), size)
        assert bus.stats().ready == 1

    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), "30"])
    def test_a_lease_without_length_is_refused(self, bus: Harness, seconds: float) -> None:
        bus.send()
        with pytest.raises(InvalidArgumentError, match="visibility_timeout"):
            bus.receive(bus.worker(), visibility_timeout=seconds)
        assert bus.stats().ready == 1

    def test_two_workers_of_one_name_are_two_workers(self, bus: Harness) -> None:
        one, other = bus.worker(name="twin"), bus.worker(name="twin")
        assert one.name != other.name
        assert one.name.startswith("twin-")

    def test_a_worker_without_domains_is_refused(self, bus: Harness) -> None:
        with pytest.raises(ConfigurationError, match="at least one domain"):
            bus.worker([])
