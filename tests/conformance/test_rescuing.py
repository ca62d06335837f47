"""A lease that cannot be taken back holds up neither other leases nor claims, on any engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from commandbus.store.op import Op, Statement
from commandbus.store.records import ClaimReply, ClaimRequest
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import eventually
from commandbus.worker.health import HealthState

LEASE_SECONDS = 30.0
COLUMNS = {"sqlite": ("commandbus_lease", "members"), "memory": ("", "")}
"""The table and the column that are damaged, where it is not PostgreSQL."""


def spoil(bus: Harness, lease_id: int) -> Callable[[], None]:
    """Damage a lease, as a hand in the tables might; returns what mends it."""
    if bus.configuration.name == "memory":
        members = bus.store._state.leases[lease_id].members
        before = dict(members)
        for seq, member in before.items():
            members[seq] = replace(member, seq=10**9)
        return lambda: members.update(before)
    table, column = COLUMNS.get(bus.configuration.name, ("commandbus.lease", "unusual"))

    def change(value: str) -> Op[Any]:
        rows = yield Statement(f"select {column} from {table} where lease_id = {lease_id}")
        yield Statement(f"update {table} set {column} = {value} where lease_id = {lease_id}")
        return rows[0][0]

    kept = bus.run(change("'damaged'"))
    return lambda: bus.run(change("null" if kept is None else f"'{kept}'"))


def doomed(bus: Harness) -> tuple[UUID, int]:
    """A command whose worker is never heard of again, and its lease."""
    command_id = bus.send()
    taken = bus.take(bus.worker(name="doomed"), visibility_timeout=LEASE_SECONDS)
    assert taken.command.command_id == command_id
    return command_id, taken.claimed.lease_id


def claim(bus: Harness) -> ClaimReply:
    reply: ClaimReply = bus.run(bus.store.claim(ClaimRequest((DOMAIN,), 10, "w", LEASE_SECONDS)))
    return reply


def test_a_lease_that_cannot_be_taken_back_holds_up_no_other_and_no_claim(
    bus: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = doomed(bus)
    _, bad_lease = doomed(bus)
    last, _ = doomed(bus)
    spoil(bus, bad_lease)
    fresh = bus.send()
    bus.advance(LEASE_SECONDS + 1)
    reply = claim(bus)
    assert {one.command_id for one in reply.claimed} == {first, last, fresh}
    assert reply.rescued == 2
    assert f"lease {bad_lease} has ended and cannot be taken back" in caplog.text


def test_a_claim_tells_of_a_lease_that_cannot_be_taken_back_time_and_again(bus: Harness) -> None:
    _, lease_id = doomed(bus)
    spoil(bus, lease_id)
    bus.advance(LEASE_SECONDS + 1)
    assert claim(bus).stuck == ()
    (stuck,) = claim(bus).stuck or ()
    assert f"lease {lease_id} cannot be taken back after 2 tries" in stuck


def test_a_lease_that_has_been_mended_is_taken_back(bus: Harness) -> None:
    command_id, lease_id = doomed(bus)
    mend = spoil(bus, lease_id)
    bus.advance(LEASE_SECONDS + 1)
    claim(bus)
    claim(bus)
    mend()
    bus.advance(2)  # where the delay goes by the clock of the store
    found = eventually(lambda: claim(bus).claimed)
    assert [(one.command_id, one.crashes) for one in found] == [(command_id, 1)]
    assert claim(bus).stuck == ()


def test_a_worker_says_which_lease_cannot_be_taken_back_and_works_on(bus: Harness) -> None:
    _, lease_id = doomed(bus)
    spoil(bus, lease_id)
    bus.advance(LEASE_SECONDS + 1)
    recorder = Recorder()
    with bus.run_worker(registry_of(ship=recorder)) as running:
        health = running.worker.health_status
        sent = 0

        def degraded() -> bool:
            nonlocal sent
            bus.send()
            sent += 1
            recorder.wait_for(sent)
            return health.state is HealthState.DEGRADED

        eventually(degraded)
        assert f"lease {lease_id} cannot be taken back" in health.reasons[0]
