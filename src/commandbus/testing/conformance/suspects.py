"""Commands whose workers died: how many a claim hands out, and beside which others."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.domain.outcome import CRASHES_MAX
from commandbus.store.records import Claimed, ClaimRequest
from commandbus.store.suspects import LAST_APART_SECONDS, NONE, SuspectLimit
from commandbus.testing.conformance.helpers import registry_of, require
from commandbus.testing.handlers import Gate, Recorder
from commandbus.testing.harness import DOMAIN, Harness

LEASE_SECONDS = 30.0
APART_SECONDS = 20


def crashed(bus: Harness, count: int, times: int = 1, **options: Any) -> list[UUID]:
    """So many commands that died together, so many times; they are in the queue again."""
    ids = [bus.send(**options) for _ in range(count)]
    for _ in range(times):
        crash_first(bus, count)
    return ids


def crash_first(bus: Harness, count: int) -> None:
    """The first of the queue die together, and come back."""
    taken = bus.receive(bus.worker(name="doomed"), count, visibility_timeout=LEASE_SECONDS)
    assert len(taken) == count
    bus.advance(LEASE_SECONDS + 1)
    assert claim(bus, NONE) == []


def beside(room: int, **others: bool) -> SuspectLimit:
    """A limit with times that do not pass by themselves during a test."""
    return SuspectLimit(
        room, **others, apart=APART_SECONDS * SECOND, last_apart=2 * APART_SECONDS * SECOND
    )


def claim(bus: Harness, suspects: SuspectLimit | None, limit: int = 10) -> list[Claimed]:
    request = ClaimRequest((DOMAIN,), limit, "w", LEASE_SECONDS, suspects=suspects)
    reply = bus.run(bus.store.claim(request))
    return reply.claimed  # type: ignore[no-any-return]


def ids_of(claimed: list[Claimed]) -> list[UUID]:
    return [one.command_id for one in claimed]


class SuspectsSuite:
    def test_a_claim_takes_no_more_suspects_than_its_limit(self, bus: Harness) -> None:
        suspects = crashed(bus, 4)
        fresh = [bus.send(), bus.send()]
        taken = ids_of(claim(bus, SuspectLimit(2)))
        # A store may take nothing ahead of the suspects that it leaves.
        assert taken in (suspects[:2], [*suspects[:2], *fresh])

    def test_suspects_that_stay_in_the_queue_are_claimed_next(self, bus: Harness) -> None:
        suspects = crashed(bus, 4)
        claim(bus, SuspectLimit(2))
        assert ids_of(claim(bus, SuspectLimit(2))) == suspects[2:]

    def test_a_suspect_that_stays_counts_neither_an_attempt_nor_a_crash(self, bus: Harness) -> None:
        suspects = crashed(bus, 2)
        claim(bus, SuspectLimit(1))
        assert bus.kinds(suspects[1])[-1] == "WORKER_LOST"
        (again,) = claim(bus, SuspectLimit(1))
        assert (again.attempt, again.crashes, again.releases) == (2, 1, 0)

    def test_without_a_limit_a_claim_takes_all_suspects(self, bus: Harness) -> None:
        suspects = crashed(bus, 3, CRASHES_MAX - 1)
        assert ids_of(claim(bus, None)) == suspects

    def test_suspects_that_stay_do_not_hide_the_commands_after_them(self, bus: Harness) -> None:
        crashed(bus, 5)
        fresh = [bus.send(), bus.send()]
        assert ids_of(claim(bus, NONE, limit=2)) == fresh

    def test_one_on_its_last_chance_is_the_only_suspect_of_a_claim(self, bus: Harness) -> None:
        first, _ = crashed(bus, 2, CRASHES_MAX - 1)
        fresh = bus.send()
        assert ids_of(claim(bus, beside(8))) == [first, fresh]

    def test_one_on_its_last_chance_stays_while_the_worker_holds_other_suspects(
        self, bus: Harness
    ) -> None:
        crashed(bus, 3, CRASHES_MAX - 1)
        fresh = bus.send()
        assert ids_of(claim(bus, beside(8, alone=False), limit=2)) == [fresh]

    def test_a_suspect_that_has_waited_long_enough_is_taken_beside_one_on_its_last_chance(
        self, bus: Harness
    ) -> None:
        suspects = crashed(bus, 2)
        limit = beside(8, alone=False, last_chance=True)
        assert claim(bus, limit) == []
        bus.advance(APART_SECONDS + 1)
        assert ids_of(claim(bus, limit)) == suspects

    def test_two_on_their_last_chance_are_taken_together_when_they_have_waited_longer(
        self, bus: Harness
    ) -> None:
        suspects = crashed(bus, 2, CRASHES_MAX - 1)
        limit = beside(8, alone=False)
        bus.advance(APART_SECONDS + 1)
        assert ids_of(claim(bus, limit, limit=1)) == suspects[:1]
        bus.advance(APART_SECONDS)
        assert ids_of(claim(bus, limit)) == suspects[1:]

    def test_a_suspect_comes_before_a_backlog_that_was_sent_later(self, bus: Harness) -> None:
        (suspect,) = crashed(bus, 1)
        backlog = [bus.send() for _ in range(5)]
        taken = ids_of(claim(bus, SuspectLimit(1), limit=2))
        assert taken in ([suspect], [suspect, backlog[0]])

    def test_a_suspect_does_not_come_before_a_more_urgent_command(self, bus: Harness) -> None:
        (suspect,) = crashed(bus, 1)
        urgent = bus.send(priority="high")
        assert ids_of(claim(bus, SuspectLimit(1), limit=1)) == [urgent]
        assert ids_of(claim(bus, SuspectLimit(1), limit=1)) == [suspect]

    def test_a_suspect_that_stays_keeps_its_group_waiting(self, bus: Harness) -> None:
        require(bus, "gates")
        (suspect,) = crashed(bus, 1, group_key="g")
        bus.send(group_key="g")
        assert claim(bus, NONE) == []
        assert ids_of(claim(bus, SuspectLimit(1))) == [suspect]

    def test_a_command_that_kills_its_worker_is_parked_with_the_third_crash(self, bus: Harness) -> None:
        (killer,) = crashed(bus, 1, CRASHES_MAX - 1)
        assert ids_of(claim(bus, SuspectLimit(1))) == [killer]
        bus.advance(LEASE_SECONDS + 1)
        assert claim(bus, SuspectLimit(1)) == []
        assert bus.get(killer).status is CommandStatus.IN_TROUBLESHOOTING_QUEUE

    def test_a_worker_runs_many_suspects_without_giving_one_back(self, bus: Harness) -> None:
        suspects = crashed(bus, 25)
        crash_first(bus, 5)
        with bus.run_worker(registry_of(ship=Recorder()), concurrency=2) as running:
            for suspect in suspects:
                assert bus.wait(suspect).status is CommandStatus.COMPLETED
            assert running.metrics.commands_received == len(suspects)
        assert not any("RELEASED" in bus.kinds(suspect) for suspect in suspects)

    def test_a_slow_suspect_on_its_last_chance_does_not_hold_up_others(self, bus: Harness) -> None:
        slow, *others = crashed(bus, 4, CRASHES_MAX - 1)
        with Gate() as gate:

            def ship(command: Command[Any], context: Any) -> None:
                if command.command_id == slow:
                    gate(command, context)

            with bus.run_worker(registry_of(ship=ship), concurrency=4):
                gate.wait_for(1)
                bus.advance(LAST_APART_SECONDS + 0.1)
                for other in others:
                    assert bus.wait(other).status is CommandStatus.COMPLETED
                gate.open()
                assert bus.wait(slow).status is CommandStatus.COMPLETED
