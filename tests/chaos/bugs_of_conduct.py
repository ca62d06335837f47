"""Seeded bugs of promptness, sessions, groups, replies, steps, schedules, pauses and reads."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from commandbus.domain.outcome import Released
from commandbus.engines.postgres import transactions
from commandbus.engines.postgres.transaction_steps import COMMIT
from commandbus.engines.sqlite import store as sqlite
from commandbus.engines.sqlite.store import SqliteStore
from commandbus.operations import schedules
from commandbus.runtimes.asyncio.worker import Worker
from commandbus.runtimes.threads.worker import SyncWorker
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.execution import Execution
from tests.chaos.bugs import in_queries
from tests.chaos.kinds import ASKING, GROUPED, STEPPED
from tests.chaos.seeded import around, bug, chance, replace

GROUPS = {"note": 300.0, GROUPED: 600.0}
STEPS = {"note": 300.0, STEPPED: 600.0}
ASKS = {"note": 300.0, ASKING: 600.0}
POISONED = {"note": 300.0, "cancels_itself": 60.0}
LATE_MICROSECONDS = 3_000_000
PUT_OFF_SECONDS = 5.0


@bug("P5")
def suspects_are_passed_from_worker_to_worker() -> None:
    def begin(original: Any, execution: Any, claimed: Any) -> Any:
        if claimed.crashes and chance.random() < 0.9:
            return execution._settlement(claimed, Released("to be run elsewhere", 0.2))
        return original(execution, claimed)

    around(Execution, "begin", begin)


@bug("P15")
def dead_workers_are_noticed_late() -> None:
    around(
        SqliteStore,
        "_reclaim",
        lambda original, store, now: original(store, now - LATE_MICROSECONDS),
    )


# Judged without patience for load: the stay ends soon, and with it what a stop can be seen to take.
@bug("P18", plan={"only": {"stop worker": 1.0}, "load": 0.0, "workers": 5}, kinds={"note": 1.0})
def a_stop_is_put_off() -> None:
    def stop(original: Any, worker: Any, timeout: Any = None) -> Any:
        time.sleep(PUT_OFF_SECONDS)
        return original(worker, timeout)

    async def stop_async(original: Any, worker: Any, timeout: Any = None) -> Any:
        await asyncio.sleep(PUT_OFF_SECONDS)
        return await original(worker, timeout)

    around(SyncWorker, "stop", stop)
    around(Worker, "stop", stop_async)


@bug("P1", kinds=POISONED)
def a_slot_is_lost_with_a_task_that_cancels_itself() -> None:
    async def execute(original: Any, worker: Any, call: Any, slot: Any) -> Any:
        if call.claimed.command_type == "cancels_itself":
            await asyncio.Event().wait()
        return await original(worker, call, slot)

    around(Worker, "_execute", execute)


@bug("P10", kinds=GROUPS)
def groups_are_forgotten() -> None:
    def insert(original: Any, store: Any, commands: Any, capacity: Any) -> Any:
        return original(store, [replace(one, group_key=None) for one in commands], capacity)

    around(SqliteStore, "insert", insert)


@bug("P13", kinds=ASKS)
def some_ends_do_not_reply() -> None:
    def settlement(original: Any, execution: Any, claimed: Any, *more: Any) -> Any:
        found = original(execution, claimed, *more)
        return replace(found, sends=()) if chance.random() < 0.2 else found

    around(Execution, "_settlement", settlement)


@bug("P14", kinds=STEPS)
def recorded_steps_are_not_looked_up() -> None:
    def look_up(original: Any, context: Any, name: str) -> Any:
        yield from original(context, name)
        return None

    for context in (HandlerContext, SyncHandlerContext):
        around(context, "_look_up", look_up)


@bug("P12")
def a_schedule_forgets_the_occurrences_that_it_missed() -> None:
    def due_occurrences(original: Any, schedule: Any, first: int, now: int) -> Any:
        occurrences, following = original(schedule, first, now)
        return (occurrences if chance.random() < 0.5 else []), following

    around(schedules, "_due_occurrences", due_occurrences)


@bug("P30")
def a_pause_is_not_noticed() -> None:
    state = sqlite.SQL.domain_state
    sqlite.SQL.domain_state = state.replace("paused_at is not null", "0")


@bug("P21", reader=True)
def reads_count_what_is_not_there() -> None:
    def stats(original: Any, store: Any, domain: str, cap: int | None = None) -> Any:
        found = yield from original(store, domain, cap)
        return replace(found, completed=found.completed + 1)

    around(SqliteStore, "stats", stats)


@bug("P16", postgres=True, kinds={"note": 300.0, "transfer": 600.0})
def a_session_is_not_reset_after_a_commit() -> None:
    ending: Any = getattr(transactions, "Ending", None)
    if ending is not None:
        kept = [COMMIT.sql, transactions._STATE]  # type: ignore[attr-defined]
        transactions._COMMIT = ending("; ".join(kept))  # type: ignore[attr-defined]


@bug("P1", pgmq=True)
def the_rescue_of_one_lease_ends_every_claim() -> None:
    in_queries("until <=", "no_such_column <=", "take_expired")
