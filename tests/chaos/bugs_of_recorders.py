"""Seeded bugs of flight recorders, and of what is given back when a worker is dead."""

from __future__ import annotations

from typing import Any

from commandbus.domain.outcome import Crashed
from commandbus.engines.sqlite import store as sqlite
from commandbus.services import crash_recovery
from commandbus.store import deaths
from commandbus.worker.recorder import FlightRecorder
from commandbus.worker.recordings import Recordings
from tests.chaos.bugs import rewritten
from tests.chaos.seeded import around, bug

KILLERS = {"note": 500.0, "slow": 150.0, "exit": 25.0}
CLAIMED_AHEAD = {"faults": {"kill worker": 1.0}, "backlog": 5_000, "longest": 0.005}
"""Short commands behind a backlog, so that workers hold more than they run."""


@bug("P5", recorder=True, kinds=KILLERS)
def a_recorder_lies_about_what_runs() -> None:
    around(FlightRecorder, "began", lambda original, recorder, claimed: None)


@bug("P23", recorder=True, plan={"faults": {"kill worker": 1.0}})
def recorders_are_missing() -> None:
    around(Recordings, "_paths", lambda original, recordings: iter(()))


@bug("P6", recorder=True, kinds={"note": 200.0, "slow": 600.0})
def commands_of_a_dead_worker_are_released_twice() -> None:
    ended = "update commandbus_lease set until = 0 where lease_id = ?"

    def recover(original: Any, scope: Any, death: Any) -> Any:
        return rewritten(original(scope, death), sqlite.SQL.delete_lease, ended)

    around(crash_recovery, "recover", recover)


@bug("P23", recorder=True, kinds={"note": 1.0}, plan=CLAIMED_AHEAD)
def a_crash_is_counted_for_what_had_not_begun() -> None:
    around(deaths, "_outcome", lambda original, death, run, member: Crashed(death.cause))
