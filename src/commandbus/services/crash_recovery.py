"""Gives back what dead workers of this machine held, as their flight recorders say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf

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

    def __init__(
        self,
        recordings: Recordings,
        recovered: Callable[[int], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recordings = recordings
        self._recovered = recovered
        self._monotonic = monotonic
        self._due: dict[DeadWorker, float] = {}
        """Dead workers, and when to act on them next."""
        self._acting: DeadWorker | None = None
        self._report = DeathReport()

    def look(self) -> bool:
        """Whether there is a dead worker to act on now."""
        now = self._monotonic()
        self._due |= dict.fromkeys(self._recordings.dead(), now)
        return min(self._due.values(), default=inf) <= now

    def work(self, scope: Scope) -> Op[float]:
        self._acting = dead = min(self._due, key=self._due.__getitem__)
        self._due[dead] = self._monotonic()  # if it fails, the others come first
        self._report = yield from recover(scope, dead.recording.death())
        return 0.0 if len(self._due) > 1 else LOOK_SECONDS

    def confirm(self) -> None:
        dead = self._acting
        assert dead is not None
        log_recovery(dead, self._report)
        dead.looks += 1
        if dead.look_in is None:
            del self._due[dead]
            dead.remove()
        else:
            self._due[dead] = self._monotonic() + dead.look_in
        self._recovered(self._report.crashed + self._report.released)

    def close(self) -> None:
        """Leave what was not recovered to other workers."""
        for dead in self._due:
            if dead.looks:
                dead.remove()
            else:
                dead.leave()
        self._due = {}


def log_recovery(dead: DeadWorker, report: DeathReport) -> None:
    if dead.looks and report == DeathReport():  # nothing has been committed since the last look
        return
    header = dead.recording.header
    logger.warning(
        "worker %s (process %d) is dead: %d commands count a crash, %d are released",
        header.worker,
        header.process.pid,
        report.crashed,
        report.released,
    )
