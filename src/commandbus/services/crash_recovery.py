"""Gives back what dead workers of this machine held, as their flight recorders say."""

from __future__ import annotations

import logging
from collections.abc import Callable

from commandbus.operations.deaths import recover
from commandbus.operations.scope import Scope
from commandbus.store.deaths import DeathReport
from commandbus.store.op import Op
from commandbus.worker.recordings import DeadWorker, Recordings

logger = logging.getLogger("commandbus.services")

LOOK_SECONDS = 0.5


class CrashRecovery:
    """Looks at files only, as long as no worker has died."""

    name = "crash recovery"
    topic = "commandbus.crashes"
    look_seconds = LOOK_SECONDS

    def __init__(self, recordings: Recordings, recovered: Callable[[int], object]) -> None:
        self._recordings = recordings
        self._recovered = recovered
        self._found: list[DeadWorker] = []
        self._report = DeathReport()

    def look(self) -> bool:
        """Whether a worker has died. One that could not be recovered the last time comes last."""
        self._found = self._found[1:] + self._found[:1] if self._found else self._recordings.dead()
        return bool(self._found)

    def work(self, scope: Scope) -> Op[float]:
        death = self._found[0].recording.death()
        self._report = yield from recover(scope, death)
        return 0.0 if len(self._found) > 1 else LOOK_SECONDS

    def confirm(self) -> None:
        dead = self._found.pop(0)
        dead.remove()
        log_recovery(dead, self._report)
        self._recovered(self._report.crashed + self._report.released)


def log_recovery(dead: DeadWorker, report: DeathReport) -> None:
    header = dead.recording.header
    logger.warning(
        "worker %s (process %d) is dead: %d commands count a crash, %d are released",
        header.worker,
        header.process.pid,
        report.crashed,
        report.released,
    )
