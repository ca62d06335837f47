"""Seeded bugs: each breaks one rule of the core, the store or the hub, as a careless change might.

They exist to prove that the simulation would notice. Each is a function that patches what it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
import pytest

from commandbus.domain.lifecycle import FINAL
from commandbus.domain.outcome import Released, RetryLater
from commandbus.engines.memory import commands as memory
from commandbus.engines.memory.state import Entry
from commandbus.engines.memory.store import MemoryStore
from commandbus.store.suspects import Admission
from commandbus.store.wakeup import WakeHub
from commandbus.worker import pace
from commandbus.worker.chains import Chains
from commandbus.worker.core import WorkerCore
from commandbus.worker.suspects import Suspects
from tests.simulation.oracle import PARKED

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}


def bug(function: Bug) -> Bug:
    BUGS[function.__name__] = function
    return function


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method by `wrapper(original, self, …)`."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args: wrapper(original, self, *args))


# The store.


@bug
def settle_ignores_that_a_lease_has_expired(patch: pytest.MonkeyPatch) -> None:
    def settle(original: Any, store: Any, batch: Any) -> Any:
        for settlement in batch:
            lease = store._state.leases.get(settlement.lease_id)
            if lease is not None:
                lease.until = max(lease.until, store._clock() + 1)
        return original(store, batch)

    around(patch, MemoryStore, "settle", settle)


@bug
def settle_takes_any_lease_for_the_right_one(patch: pytest.MonkeyPatch) -> None:
    def settle(original: Any, store: Any, batch: Any) -> Any:
        adopted = []
        for settlement in batch:
            lease_id = store._state.commands[settlement.seq].lease_id
            if lease_id is not None:
                member = store._state.leases[lease_id].members[settlement.seq]
                settlement = msgspec.structs.replace(
                    settlement, lease_id=lease_id, attempt=member.attempt
                )
            adopted.append(settlement)
        return original(store, adopted)

    around(patch, MemoryStore, "settle", settle)


@bug
def repeated_settle_is_called_lost(patch: pytest.MonkeyPatch) -> None:
    def settle(original: Any, store: Any, batch: Any) -> Any:
        before = {s.seq for s in batch if s.lease_id not in store._state.leases}
        report = yield from original(store, batch)
        return msgspec.structs.replace(report, lost=tuple(before | set(report.lost)))

    around(patch, MemoryStore, "settle", settle)


@bug
def claim_leaves_the_queue_row(patch: pytest.MonkeyPatch) -> None:
    def claim(original: Any, store: Any, request: Any) -> Any:
        reply = yield from original(store, request)
        now = store._clock()
        for taken in reply.claimed:
            store._enqueue(taken.seq, Entry(taken.seq, taken.attempt, 0, 0, now), now)
        return reply

    around(patch, MemoryStore, "claim", claim)


@bug
def claim_gives_out_paused_domains(patch: pytest.MonkeyPatch) -> None:
    def claim(original: Any, store: Any, request: Any) -> Any:
        domains = [store._state.domain(name) for name in request.domains]
        pauses = [domain.pause for domain in domains]
        for domain in domains:
            domain.pause = None
        reply = yield from original(store, request)
        for domain, pause in zip(domains, pauses, strict=True):
            domain.pause = pause
        return reply

    around(patch, MemoryStore, "claim", claim)


@bug
def attempts_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    _requeue_with(patch, RetryLater, -1)


@bug
def a_release_uses_an_attempt(patch: pytest.MonkeyPatch) -> None:
    _requeue_with(patch, Released, +1)


def _requeue_with(patch: pytest.MonkeyPatch, kind: type, more: int) -> None:
    original = memory.plan

    def plan(writes: Any, settlement: Any, *rest: Any) -> None:
        original(writes, settlement, *rest)
        if isinstance(settlement.outcome, kind):
            row = writes.requeues.pop()
            writes.requeues.append(msgspec.structs.replace(row, attempts=row.attempts + more))

    patch.setattr(memory, "plan", plan)


@bug
def a_crash_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    original = memory.plan_rescued

    def plan_rescued(writes: Any, member: Any, *rest: Any) -> None:
        original(writes, msgspec.structs.replace(member, crashes=member.crashes - 1), *rest)

    patch.setattr(memory, "plan_rescued", plan_rescued)


@bug
def reclaim_does_not_delete_the_lease(patch: pytest.MonkeyPatch) -> None:
    def reclaim(original: Any, store: Any, now: int) -> Any:
        before = dict(store._state.leases)
        count = yield from original(store, now)
        for lease_id in before.keys() - store._state.leases.keys():
            before[lease_id].until = now + 10_000_000
            store._state.leases[lease_id] = before[lease_id]
        return count

    around(patch, MemoryStore, "_reclaim", reclaim)


@bug
def nothing_is_reclaimed(patch: pytest.MonkeyPatch) -> None:
    def reclaim(original: Any, store: Any, now: int) -> Any:
        yield from ()
        return 0

    around(patch, MemoryStore, "_reclaim", reclaim)


@bug
def renewal_revives_an_expired_lease(patch: pytest.MonkeyPatch) -> None:
    def renew(original: Any, store: Any, lease_ids: Any, seconds: float) -> Any:
        for lease_id in lease_ids:
            lease = store._state.leases.get(lease_id)
            if lease is not None:
                lease.until = max(lease.until, store._clock() + 1)
        return original(store, lease_ids, seconds)

    around(patch, MemoryStore, "renew", renew)


@bug
def delayed_work_is_promoted_early(patch: pytest.MonkeyPatch) -> None:
    def promote(original: Any, store: Any, domain: Any, now: int) -> None:
        original(store, domain, now + 500_000)

    around(patch, MemoryStore, "_promote", promote)


@bug
def priority_is_forgotten_at_a_retry(patch: pytest.MonkeyPatch) -> None:
    def route(original: Any, store: Any, domain: Any, stored: Any, entry: Any, now: int) -> None:
        if entry.attempts:
            domain.heaps.push(5, stored.seq, entry, now, now)
        else:
            original(store, domain, stored, entry, now)

    around(patch, MemoryStore, "_route", route)


@bug
def parking_frees_the_unique_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory, "FINAL", FINAL | {PARKED})


@bug
def a_retry_leaves_no_audit(patch: pytest.MonkeyPatch) -> None:
    original = memory.plan

    def plan(writes: Any, settlement: Any, *rest: Any) -> None:
        original(writes, settlement, *rest)
        if isinstance(settlement.outcome, RetryLater):
            writes.audits.pop()

    patch.setattr(memory, "plan", plan)


@bug
def an_operators_retry_is_not_announced(patch: pytest.MonkeyPatch) -> None:
    def resolve(original: Any, store: Any, *args: Any) -> Any:
        list(original(store, *args))
        yield from ()

    around(patch, MemoryStore, "resolve", resolve)


@bug
def all_suspects_are_given_out_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "admits", lambda admission, crashes, waited: True)


def _waits(patch: pytest.MonkeyPatch, microseconds: int) -> None:
    original = Suspects.limit

    def limit(held: Suspects, concurrency: int) -> Any:
        waits = {"apart": microseconds, "last_apart": microseconds}
        return msgspec.structs.replace(original(held, concurrency), **waits)

    patch.setattr(Suspects, "limit", limit)


@bug
def a_suspect_on_its_last_chance_is_given_out_beside_another(patch: pytest.MonkeyPatch) -> None:
    _waits(patch, 0)


@bug
def a_suspect_on_its_last_chance_waits_until_it_is_the_only_one(patch: pytest.MonkeyPatch) -> None:
    _waits(patch, 10**12)


# The core and the hub.


@bug
def no_claim_follows_when_a_suspect_has_left(patch: pytest.MonkeyPatch) -> None:
    def make_room(core: Any, settlements: Any, *, durable: bool) -> None:
        core.suspects.ended(settlements, durable=durable)

    patch.setattr(WorkerCore, "_make_room", make_room)


@bug
def a_claim_that_failed_is_taken_for_one_that_was_not_carried_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkerCore, "_left_under_lease", lambda core, now: None)


@bug
def commands_that_were_claimed_ahead_are_given_back_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pace, "HOARD_SECONDS", 0.0)
    patch.setattr(pace, "SUSPECTS_HOARD_SECONDS", 0.0)
    patch.setattr(pace, "HELD_UP_SECONDS", 0.0)


@bug
def an_empty_claim_plans_no_fallback(patch: pytest.MonkeyPatch) -> None:
    def claimed(original: Any, core: Any, event: Any, *rest: Any) -> None:
        original(core, event, *rest)
        if not event.reply.claimed:
            core._look_at = inf

    around(patch, WorkerCore, "_claimed", claimed)


@bug
def a_wakeup_during_a_claim_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def claimed(original: Any, core: Any, *rest: Any) -> None:
        core._woken_meanwhile = False
        original(core, *rest)

    around(patch, WorkerCore, "_claimed", claimed)


@bug
def a_due_time_heard_during_a_claim_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def claimed(original: Any, core: Any, *rest: Any) -> None:
        core._due_meanwhile = inf
        original(core, *rest)

    around(patch, WorkerCore, "_claimed", claimed)


@bug
def a_full_worker_keeps_the_wakeup_to_itself(patch: pytest.MonkeyPatch) -> None:
    def decide(original: Any, core: Any, now: float, effects: Any) -> None:
        if core._room() == 0 and not core._claiming:
            core._woken_meanwhile = False
        original(core, now, effects)

    around(patch, WorkerCore, "_decide", decide)


@bug
def a_failed_settle_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def settle_failed(original: Any, core: Any, event: Any, now: float, effects: Any) -> None:
        batch, core.settling = core.settling, []
        core._forget(batch, effects)

    around(patch, WorkerCore, "_settle_failed", settle_failed)


@bug
def what_was_withdrawn_is_never_released(patch: pytest.MonkeyPatch) -> None:
    def withdrawn(original: Any, core: Any, event: Any) -> None:
        core.held -= len(event.claimed)

    around(patch, WorkerCore, "_withdrawn", withdrawn)


@bug
def a_stopping_worker_still_claims(patch: pytest.MonkeyPatch) -> None:
    def may_claim(original: Any, core: Any, now: float) -> bool:
        return core._claim_wanted and not core._claiming and now >= core._claim_at

    around(patch, WorkerCore, "_may_claim", may_claim)


@bug
def two_claims_are_in_flight(patch: pytest.MonkeyPatch) -> None:
    def may_claim(original: Any, core: Any, now: float) -> bool:
        return core._claim_wanted and not core.stopping and now >= core._claim_at

    around(patch, WorkerCore, "_may_claim", may_claim)


@bug
def a_chain_runs_all_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chains, "lead", lambda chains, claimed: claimed)


@bug
def a_chain_gives_the_place_of_its_group_up_with_its_first_member(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryStore, "_hand_over", lambda store, domain, heirs: None)


@bug
def who_waits_in_a_chain_is_forgotten_at_a_stop(patch: pytest.MonkeyPatch) -> None:
    def give_up(original: Any, chains: Any, lease_ids: Any = None) -> Any:
        return original(chains, lease_ids) if lease_ids is not None else []

    around(patch, Chains, "give_up", give_up)


@bug
def a_stopping_core_asks_for_a_moment_that_has_passed(patch: pytest.MonkeyPatch) -> None:
    def deadline(original: Any, core: Any) -> float | None:
        return original(core) if core.ending.at is None else core.ending.at

    around(patch, WorkerCore, "deadline", deadline)


@bug
def a_leaving_waiter_takes_the_wakeup_with_it(patch: pytest.MonkeyPatch) -> None:
    def unregister(original: Any, hub: Any, waiter: Any) -> None:
        hub._waiters = [other for other in hub._waiters if other is not waiter]

    around(patch, WakeHub, "unregister", unregister)


@bug
def news_of_a_due_time_goes_to_one_waiter_only(patch: pytest.MonkeyPatch) -> None:
    def wake(original: Any, hub: Any, domain: str, due_in: float | None, source: str) -> bool:
        if not due_in:
            return bool(original(hub, domain, due_in, source))
        for waiter in hub._waiters:
            if waiter.armed and domain in waiter.domains:
                waiter.armed = False
                waiter.callback(source, due_in)
                return True
        return False

    around(patch, WakeHub, "wake", wake)
