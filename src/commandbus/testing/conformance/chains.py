"""Chains: members of a group that one claim takes together, to be run one after another."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from commandbus.domain.command import Command, SendRequest
from commandbus.domain.failure import Failure, FailureKind
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import Outcome, Released, RetryLater, Succeeded
from commandbus.errors import PermanentCommandError, Snooze
from commandbus.store.records import Claimed, ClaimRequest, Settlement
from commandbus.testing.conformance.helpers import registry_of, require, together
from commandbus.testing.handlers import Gate
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually

LEASE = 30.0


def send_group(bus: Harness, count: int, key: str = "k", **options: Any) -> list[UUID]:
    requests = [SendRequest(DOMAIN, "ship", n, group_key=key, **options) for n in range(count)]
    return [sent.command_id for sent in bus.send_many(requests)]


def claim(bus: Harness, chain: int = 0, followers: int = 100, limit: int = 10) -> list[Claimed]:
    """What a worker gets that would take so many behind each."""
    request = ClaimRequest((DOMAIN,), limit, "w", LEASE, followers=followers, chain=chain)
    claimed: list[Claimed] = bus.run(bus.store.claim(request)).claimed
    return claimed


def settle(bus: Harness, claimed: Sequence[Claimed], outcome: Outcome | None = None) -> None:
    outcome = outcome or Succeeded()
    batch = [Settlement(one.seq, one.lease_id, one.attempt, outcome) for one in claimed]
    assert bus.run(bus.store.settle(batch)).lost == ()


def numbers(claimed: Sequence[Claimed]) -> list[int]:
    return [int(one.data) for one in claimed]


class ChainsSuite:
    @pytest.fixture(autouse=True)
    def _with_gates(self, bus: Harness) -> None:
        require(bus, "gates")

    def test_members_come_along_in_order_behind_the_first(self, bus: Harness) -> None:
        send_group(bus, 6)
        claimed = claim(bus, chain=3)
        assert numbers(claimed) == [0, 1, 2, 3]
        assert {one.chain for one in claimed} == {claimed[0].seq}
        assert len({one.lease_id for one in claimed}) == 1
        assert claim(bus, chain=3) == [], "the group has its place taken"
        stats = bus.stats()
        assert (stats.running, stats.held) == (4, 2)

    def test_priority_comes_first_among_those_behind(self, bus: Harness) -> None:
        for number, priority in enumerate(["normal", "low", "normal", "high"]):
            bus.send(DOMAIN, "ship", number, group_key="k", priority=priority)
        assert numbers(claim(bus, chain=9)) == [3, 0, 2, 1]

    def test_what_comes_along_is_divided_among_the_groups(self, bus: Harness) -> None:
        for key in ("a", "b"):
            send_group(bus, 5, key)
        bus.send(DOMAIN, "ship", 7)
        claimed = claim(bus, chain=4, followers=5)
        chains = [sum(one.chain == leader.seq for one in claimed) for leader in claimed[:2]]
        assert chains == [3, 3]
        assert len(claimed) == 7

    def test_what_comes_along_is_bounded_over_all_domains(self, bus: Harness) -> None:
        domains = (DOMAIN, "billing")
        for domain in domains:
            bus.send_many(SendRequest(domain, "ship", n, group_key="k") for n in range(5))
        request = ClaimRequest(domains, 10, "w", LEASE, followers=5, chain=4)
        claimed = bus.run(bus.store.claim(request)).claimed
        assert [one.follows for one in claimed].count(False) == 2
        assert [one.follows for one in claimed].count(True) == 5

    def test_nothing_comes_along_unless_it_is_asked_for(self, bus: Harness) -> None:
        send_group(bus, 3)
        assert [(int(one.data), one.chain) for one in claim(bus)] == [(0, 0)]

    def test_the_permit_stays_with_the_remaining_commands(self, bus: Harness) -> None:
        ids = send_group(bus, 5)
        chain = claim(bus, chain=2)
        settle(bus, chain[:1])
        assert claim(bus, chain=2) == []
        assert str(ids[1]) in bus.call(bus.bus.why, ids[3]).summary, "it is the one that runs now"
        settle(bus, chain[2:])
        assert claim(bus, chain=2) == []
        settle(bus, chain[1:2])
        assert numbers(claim(bus, chain=2)) == [3, 4]

    def test_a_command_that_is_given_back_keeps_its_place(self, bus: Harness) -> None:
        send_group(bus, 5)
        chain = claim(bus, chain=3)
        settle(bus, chain[2:], Released("stopping", 0.0))
        assert claim(bus, chain=3) == []
        settle(bus, chain[:1])
        settle(bus, chain[1:2], Released("stopping", 0.0))
        back = claim(bus, chain=9)
        assert numbers(back) == [1, 2, 3, 4]
        assert {one.attempt for one in back} == {1}

    def test_the_end_of_one_and_the_return_of_others_keep_the_order(self, bus: Harness) -> None:
        send_group(bus, 5)
        chain = claim(bus, chain=2)
        outcomes: list[Outcome] = [Succeeded(), Released("r", 0.0), Released("r", 0.0)]
        batch = [
            Settlement(one.seq, one.lease_id, one.attempt, outcome)
            for one, outcome in zip(chain, outcomes, strict=True)
        ]
        bus.run(bus.store.settle(batch))
        assert numbers(claim(bus, chain=9)) == [1, 2, 3, 4]

    def test_a_member_that_waits_for_its_retry_lets_the_rest_go_on(self, bus: Harness) -> None:
        send_group(bus, 4)
        chain = claim(bus, chain=2)
        failure = Failure(FailureKind.TRANSIENT, "BUSY", "later")
        settle(bus, chain[:1], RetryLater(failure, 600.0))
        assert claim(bus) == [], "its chain goes on"
        settle(bus, chain[1:])
        last = claim(bus)
        assert numbers(last) == [3]
        bus.advance(LEASE - 5)
        settle(bus, last)
        bus.advance(600)
        assert numbers(claim(bus)) == [0]

    def test_a_canceled_member_that_came_back_leaves_the_place_alone(self, bus: Harness) -> None:
        ids = send_group(bus, 4)
        chain = claim(bus, chain=1)
        settle(bus, chain[:1], Released("stopping", 0.0))
        bus.cancel(ids[0])
        assert claim(bus) == [], "the second one of the chain runs"
        settle(bus, chain[1:])
        assert numbers(claim(bus)) == [2]

    def test_a_member_that_comes_back_at_once_is_not_overtaken(self, bus: Harness) -> None:
        began: list[int] = []

        def ship(command: Command[int], context: Any) -> None:
            began.append(command.data)
            if command.data == 5 and began.count(5) == 1:
                raise Snooze(0)

        send_group(bus, 12)
        with bus.run_worker(registry_of(ship=ship), concurrency=2, prefetch=50):
            eventually(lambda: bus.stats().completed == 12)
        assert began == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11]

    def test_a_parked_member_is_settled_by_its_operator_while_its_chain_runs(
        self, bus: Harness
    ) -> None:
        ids = send_group(bus, 3)
        chain = claim(bus, chain=1)
        worker = bus.worker()
        taken = worker._received(chain[0], worker._execution.received(chain[0]))
        bus.call(worker.fail, taken, PermanentCommandError("BROKEN", "no"))
        bus.operator_retry(ids[0])
        bus.cancel(ids[0])
        assert claim(bus) == []
        settle(bus, chain[1:])
        assert numbers(claim(bus)) == [2]

    def test_a_dead_worker_gives_its_chain_back_and_it_is_not_taken_together_again(
        self, bus: Harness
    ) -> None:
        send_group(bus, 4)
        assert len(claim(bus, chain=2)) == 3
        bus.advance(LEASE + 1)
        for number in range(3):
            alone = claim(bus, chain=9)
            assert [(int(one.data), one.crashes) for one in alone] == [(number, 1)]
            settle(bus, alone)
        assert [(int(one.data), one.crashes) for one in claim(bus, chain=9)] == [(3, 0)]

    def test_a_member_whose_worker_died_ends_the_chain_before_it(self, bus: Harness) -> None:
        send_group(bus, 1)
        claim(bus)
        bus.advance(LEASE + 1)
        ids = send_group(bus, 2, priority="high")
        assert [one.command_id for one in claim(bus, chain=9)] == ids

    def test_an_expired_member_is_left_out(self, bus: Harness) -> None:
        send_group(bus, 1)
        soon = send_group(bus, 1, expires_at=bus.now + timedelta(seconds=5))
        late = send_group(bus, 1)
        bus.advance(10)
        claimed = claim(bus, chain=9)
        assert [one.command_id for one in claimed[1:]] == late
        assert bus.get(soon[0]).status is CommandStatus.CANCELED
        settle(bus, claimed)
        send_group(bus, 1)
        assert numbers(claim(bus)) == [0]

    def test_none_come_along_where_more_than_the_key_decides(self, bus: Harness) -> None:
        for limit in ({"per_key": True, "concurrency": 2}, {"per_key": True, "rate": 50}, {}):
            bus.call(bus.bus.set_limit, DOMAIN, **limit or {"concurrency": 9})
        bus.call(bus.bus.clear_limit, DOMAIN, per_key=True)
        send_group(bus, 3)
        assert numbers(claim(bus, chain=9)) == [0]

    def test_two_that_passed_under_a_wider_limit_take_no_follower_along(self, bus: Harness) -> None:
        bus.call(bus.bus.set_limit, DOMAIN, per_key=True, concurrency=2)
        send_group(bus, 6)
        first = claim(bus, limit=1)
        bus.call(bus.bus.clear_limit, DOMAIN, per_key=True)
        second = claim(bus, chain=9)
        assert numbers([*first, *second]) == [0, 1]
        settle(bus, [*first, *second])
        assert numbers(claim(bus, chain=9)) == [2, 3, 4, 5]

    def test_of_claims_at_once_one_gets_the_chain(self, bus: Harness) -> None:
        send_group(bus, 40)
        taken = together(8, lambda n: numbers(claim(bus, chain=4)))
        assert sorted(taken, key=str) == [[0, 1, 2, 3, 4], *([[]] * 7)]

    def test_many_workers_keep_order_and_exclusiveness(self, bus: Harness) -> None:
        lock, running = threading.Lock(), set[str]()
        seen: dict[str, list[int]] = {}

        def ship(command: Any, context: Any) -> None:
            key, number = command.data
            with lock:
                assert key not in running, "two of a group at once"
                running.add(key)
                seen.setdefault(key, []).append(number)
            try:
                if number % 7 == 3:
                    raise PermanentCommandError("BROKEN", "no")
            finally:
                with lock:
                    running.discard(key)

        keys = [f"k{n % 3}" for n in range(120)]
        bus.send_many(
            [SendRequest(DOMAIN, "ship", [key, n], group_key=key) for n, key in enumerate(keys)]
        )
        registry = registry_of(ship=ship)
        options: dict[str, Any] = {"concurrency": 2, "prefetch": 12}
        with (
            bus.run_worker(registry, **options),
            bus.run_worker(registry, **options),
            bus.run_worker(registry, **options),
        ):
            eventually(lambda: bus.stats().depth + bus.stats().running == 0)
        assert all(seen[key] == sorted(seen[key]) for key in seen), seen
        assert sum(map(len, seen.values())) == 120

    def test_a_worker_that_stops_gives_the_rest_back_in_order(self, bus: Harness) -> None:
        ids = send_group(bus, 6)
        with (
            Gate() as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=5) as running,
        ):
            gate.wait_for(1)
            gate.let_one_go()
            gate.wait_for(2)
            eventually(lambda: running.worker.in_flight_count == 5)
            stopping = bus.spawn(running.worker.stop)
            eventually(lambda: bus.stats().held == 4)
            assert claim(bus) == [], "one of the group still runs"
            gate.open()
            stopping.result(20)
        assert [bus.get(one).attempts for one in ids] == [1, 1, 0, 0, 0, 0]
        assert numbers(claim(bus, chain=9)) == [2, 3, 4, 5]

    def test_a_follower_that_is_called_off_is_passed_over(self, bus: Harness) -> None:
        ids = send_group(bus, 5)
        with (
            Gate() as gate,
            bus.run_worker(registry_of(ship=gate), concurrency=1, prefetch=5) as running,
        ):
            gate.wait_for(1)
            gate.let_one_go()
            gate.wait_for(2)
            eventually(lambda: running.worker.in_flight_count == 4)
            bus.cancel(ids[3], "not needed")
            eventually(lambda: running.worker._execution.requests)
            gate.open()
            bus.wait(ids[4])
        assert [command.data for command in gate.entered] == [0, 1, 2, 4]
        assert bus.get(ids[3]).status is CommandStatus.CANCELED
