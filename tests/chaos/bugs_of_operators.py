"""Seeded bugs of limits, of cancellations, and of due work that comes late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commandbus.engines.sqlite import limits, operators
from commandbus.engines.sqlite.store import SqliteStore
from commandbus.operations import canceling
from commandbus.runtimes.worker import RuntimeWorker
from commandbus.worker.core import WorkerCore
from tests.chaos.kinds import LASTING, LIMITED, PACED
from tests.chaos.seeded import around, bug

CROWDED = {"note": 300.0, LIMITED: 600.0}
HURRIED = {"note": 300.0, PACED: 600.0}
RUNNING = {"note": 100.0, LASTING: 600.0}
BUSY_OPERATOR: dict[str, Any] = {"hurry": 0.2}
LATE_MICROSECONDS = 2_000_000


@bug("P10", kinds=CROWDED, plan={"longest": 0.3})
def permits_in_use_are_not_counted() -> None:
    limits.SQL.running = "select 0 where ? is not null and ? is not null"


@bug("P10", kinds=HURRIED)
def tokens_of_a_rate_are_not_used_up() -> None:
    limits.SQL.put_bucket = "select ?, ?, ?"


@bug("P30", plan=BUSY_OPERATOR)
def a_cancellation_is_confirmed_and_does_nothing() -> None:
    def cancel_waiting(original: Any, scope: Any, record: Any, reason: str) -> Iterator[Any]:
        yield from ()

    around(canceling, "cancel_waiting", cancel_waiting)


@bug("P30", plan=BUSY_OPERATOR)
def a_canceled_command_stays_where_it_waits() -> None:
    operators.SQL.delete_queue = "select ?, ?, ?"
    operators.SQL.delete_scheduled = "select ?"


# Judged without patience for load: a handler that could not hear ends by itself soon.
@bug("P30", kinds=RUNNING, plan=BUSY_OPERATOR | {"only": {"kill sender": 1.0}, "load": 0.0})
def a_running_command_does_not_hear_that_it_is_canceled() -> None:
    around(RuntimeWorker, "_on_cancel_requests", lambda original, worker, requests: None)


@bug("P9", experiment="punctual")
def due_work_is_promoted_late() -> None:
    around(
        SqliteStore,
        "_promote",
        lambda original, store, domain, now, gated: original(
            store, domain, now - LATE_MICROSECONDS, gated
        ),
    )


@bug("P9", experiment="punctual")
def a_worker_sets_no_timer_for_due_work() -> None:
    def look(original: Any, core: Any, moment: float, source: str) -> None:
        if source != "timer":
            original(core, moment, source)

    around(WorkerCore, "_look", look)
