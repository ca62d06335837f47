"""Seeded bugs of routing: each breaks one rule of the router's loop, its transactions or its decisions.

A router that only forgets the replies it holds breaks no promise: their lease runs out, and a router
takes them again. To settle them before they are routed loses them.
"""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from commandbus.domain.batch import BatchCounts
from commandbus.domain.outcome import Succeeded
from commandbus.domain.process import decisions
from commandbus.domain.process.decisions import Decision
from commandbus.domain.process.values import StepStatus
from commandbus.engines.memory.store import MemoryStore
from commandbus.operations import canceling, evidence, process_writes, processes, routing
from commandbus.operations.scope import Send
from commandbus.services import process_router
from commandbus.services.batch_closer import SWEEP, BatchCloser
from commandbus.services.process_router import RouterLoop
from commandbus.store.records import Settlement
from tests.simulation.bugs import Bug, around

ROUTER_BUGS: dict[str, Bug] = {}


def bug(function: Bug) -> Bug:
    ROUTER_BUGS[function.__name__] = function
    return function


# The loop.


@bug
def replies_are_routed_again_after_an_unknown_commit(patch: pytest.MonkeyPatch) -> None:
    def unsettled(scope: Any, claimed: Any) -> Any:
        yield from ()
        return claimed

    patch.setattr(process_router, "unsettled", unsettled)


@bug
def replies_are_settled_before_they_are_routed(patch: pytest.MonkeyPatch) -> None:
    def route(original: Any, loop: Any, claimed: Any) -> Any:
        done = [Settlement(c.seq, c.lease_id, c.attempt, Succeeded()) for c in claimed]
        yield Send(loop._scope.store.settle(done))
        yield from original(loop, claimed)

    around(patch, RouterLoop, "_route", route)


@bug
def held_replies_are_settled_when_the_store_is_away(patch: pytest.MonkeyPatch) -> None:
    def settle(original: Any, loop: Any, batch: Any) -> Any:
        if loop._in_doubt:
            yield Send(loop._scope.store.settle(batch))
        return (yield from original(loop, batch))

    around(patch, RouterLoop, "_settle", settle)


@bug
def replies_count_under_a_lease_that_ended_and_under_the_next(patch: pytest.MonkeyPatch) -> None:
    def route(original: Any, loop: Any, claimed: Any) -> Any:
        both = [one.claimed for one in loop.core.settling if one.claimed is not None]
        return original(
            loop, both if {one.seq for one in both} == {one.seq for one in claimed} else claimed
        )

    around(patch, RouterLoop, "_route", route)


@bug
def timers_are_forgotten_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    def keep_time(original: Any, loop: Any, now: float) -> Any:
        yield from original(loop, now)
        if loop._timer_failures:
            loop._timer_at, loop._keeps_time = inf, False

    around(patch, RouterLoop, "_keep_time", keep_time)


@bug
def earlier_deadlines_are_not_announced(patch: pytest.MonkeyPatch) -> None:
    for module in (process_writes, processes):
        patch.setattr(module, "TIMERS", "nowhere")


@bug
def the_sweep_is_skipped(patch: pytest.MonkeyPatch) -> None:
    def claim(original: Any, loop: Any, claim: Any) -> Any:
        return original(loop, msgspec.structs.replace(claim, sweep=False))

    around(patch, RouterLoop, "_claim", claim)


@bug
def open_batches_are_never_looked_for(patch: pytest.MonkeyPatch) -> None:
    def work(original: Any, closer: Any, scope: Any) -> Any:
        if closer.touched:
            return (yield from original(closer, scope))
        return SWEEP

    around(patch, BatchCloser, "work", work)


# The transaction.


@bug
def replies_of_another_router_are_decided_about(patch: pytest.MonkeyPatch) -> None:
    def settle(original: Any, store: Any, batch: Any) -> Any:
        report = yield from original(store, batch)
        # Settlements of routers carry no command.
        routed = all(settlement.claimed is None for settlement in batch)
        return msgspec.structs.replace(report, lost=()) if routed else report

    around(patch, MemoryStore, "settle", settle)


@bug
def replies_to_unknown_processes_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(routing, "decide_unknown_handler", lambda *args: Succeeded())


@bug
def a_process_is_counted_again_by_each_late_reply(patch: pytest.MonkeyPatch) -> None:
    original = process_writes.follow

    def follow(scope: Any, decision: Any, row: Any) -> Any:
        work = original(scope, decision, row)
        if row.ended and row.batch_id is not None:
            work.batches[row.batch_id] = BatchCounts(failed=1)
        return work

    patch.setattr(routing, "follow", follow)


@bug
def a_running_step_that_was_not_in_time_is_not_asked_to_stop(patch: pytest.MonkeyPatch) -> None:
    _call_off_only(patch, awaited=True)


@bug
def a_step_that_runs_when_its_process_is_canceled_may_begin_again(patch: pytest.MonkeyPatch) -> None:
    _call_off_only(patch, awaited=False)


def _call_off_only(patch: pytest.MonkeyPatch, *, awaited: bool) -> None:
    original = process_writes.call_off

    def call_off(*args: Any, **options: Any) -> Any:
        if options["awaited"] is awaited:
            yield from original(*args, **options)

    patch.setattr(process_writes, "call_off", call_off)


@bug
def one_request_stands_for_an_operator_and_a_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(canceling, "_key", lambda domain, key, given_up=False: f"{domain} {key}")


@bug
def a_run_that_an_operator_ends_for_a_canceled_process_has_no_actor(patch: pytest.MonkeyPatch) -> None:
    original = canceling._both

    def both(one: Any, other: Any) -> Any:
        asked = original(one, other)
        return msgspec.structs.replace(asked, actor=None) if asked.given_up else asked

    patch.setattr(canceling, "_both", both)


@bug
def a_canceled_step_that_may_have_taken_effect_is_not_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evidence, "may_have_taken_effect", lambda trail: False)


# The decisions.


@bug
def steps_are_undone_in_the_order_in_which_they_were_done(patch: pytest.MonkeyPatch) -> None:
    def next_to_undo(original: Any, decision: Any) -> Any:
        ranks = [(run, run.rank) for run in decision.progress.runs if run.rank]
        for run, rank in ranks:
            run.rank = 1_000 - rank
        found = original(decision)
        for run, rank in ranks:
            run.rank = rank
        return found

    around(patch, Decision, "_next_to_undo", next_to_undo)


@bug
def a_step_that_was_not_in_time_is_not_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "DONE", frozenset({StepStatus.COMPLETED}))


@bug
def a_join_begins_with_its_first_branch(patch: pytest.MonkeyPatch) -> None:
    around(patch, Decision, "_arrive", lambda original, decision, source, name: decision._begin(name))
