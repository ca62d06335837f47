"""Notices that other workers died, or that their leases ended: an idle worker would learn of it only at
its poll interval.

Without sessions it looks once per lease length, so that it sees every lease before it ends, and then
exactly when the first one ends; taking back is done by the claim that it wakes.

With a session (see store/sessions.py) it looks twice a second while other workers hold leases, and
takes back what a worker held whose session has ended. A worker that lives after all has a moment to
connect again; if it takes longer, its commands are delivered again, and its own outcomes refused. One
that is seen to live on this machine keeps them for as long as it renews its leases: where the server
has too few connections, those that listen are given up first.

While no other worker holds leases it does not look at all: a worker that takes commands announces it
every few seconds, so that others begin to look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from commandbus.operations.deaths import recover
from commandbus.operations.scope import Scope
from commandbus.store.deaths import DeathReport, WorkerDeath
from commandbus.store.op import Op, Wake
from commandbus.store.sessions import LEASES, QUIET_SECONDS
from commandbus.worker.recordings import Recordings

logger = logging.getLogger("commandbus.services")

LOOK_SECONDS = 0.5
ANNOUNCE_SECONDS = 5.0
"""How often a worker that takes commands announces it."""
CALM_LOOKS = 5
"""Checks end after so many that found no leases of other workers, each after twice the interval of the
last. Together they take longer than ANNOUNCE_SECONDS: one check may fall between two leases."""
GRACE_SECONDS = 1.5
"""How long a process has to connect again."""
RECORDER_SECONDS = 5.0
"""The same where the flight recorder of the worker lies on this machine: it says what had begun."""


class Reclaimer:
    name = "reclaimer"
    topic = LEASES
    look_seconds = LOOK_SECONDS

    def __init__(
        self,
        worker: str,
        domains: Sequence[str],
        lease_seconds: float,
        *,
        load: Callable[[], tuple[int, int]] = lambda: (0, 0),
        recordings: Recordings | None = None,
        rescued: Callable[[int], object] = lambda count: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._domains = domains
        self._seconds = lease_seconds
        self._load = load
        """How many commands the worker has taken, and how many it holds."""
        self._recordings = recordings
        """The flight recorders of this machine."""
        self._rescued = rescued
        self._monotonic = monotonic
        self._hints, self._calm = 0, 0
        self._look_at = self._announce_at = float("-inf")
        self._taken, self._has_taken = 0, False
        self._lost: dict[str, float] = {}
        """Since when the session of a worker is known to have ended."""
        self._report: tuple[str, DeathReport] | None = None

    def nudged(self) -> None:
        """Other workers may hold leases; may be called by any thread."""
        self._hints += 1
        self._calm = 0
        self._look_at = float("-inf")

    def took(self, now: float) -> bool:
        """The worker has taken commands; whether that has to be announced now. Its process may die at
        once, and others look for a dead process only if they know of leases."""
        if now < self._announce_at:
            return False
        self._has_taken = True
        return True

    def look(self) -> bool:
        now = self._monotonic()
        return now >= self._look_at or self._is_to_announce(now)

    def _is_to_announce(self, now: float) -> bool:
        taken, held = self._load()
        return now >= self._announce_at and (held > 0 or taken != self._taken or self._has_taken)

    def work(self, scope: Scope) -> Op[float]:
        self._report = None
        now, hints = self._monotonic(), self._hints
        if scope.store.session and self._is_to_announce(now):
            self._taken, self._has_taken = self._load()[0], False
            self._announce_at = now + ANNOUNCE_SECONDS
            yield from scope.store.announce(LEASES)
        if now < self._look_at:
            return LOOK_SECONDS
        found = yield from scope.store.foreign_leases(self._worker)
        dead = self._dead(found.lost, now)
        if dead is not None:
            cause = f"The connection of its worker {dead} to the server was closed"
            recorded = None if self._recordings is None else self._recordings.death_of(dead)
            death = recorded or WorkerDeath(dead, cause, complete=False)
            report = yield from recover(scope, death)
            self._report = dead, report
            return 0.0
        if found.ends_in is not None and found.ends_in <= 0:
            for domain in self._domains:
                yield Wake(domain)
        if not scope.store.session:
            seconds = self._seconds if found.ends_in is None else max(0.25, found.ends_in)
            return min(self._seconds, seconds)
        self._calm = 0 if found.ends_in is not None else self._calm + 1
        if hints == self._hints:
            calm = self._calm >= CALM_LOOKS
            self._look_at = now + (QUIET_SECONDS if calm else LOOK_SECONDS * 2**self._calm)
        return LOOK_SECONDS

    def _dead(self, lost: Sequence[str], now: float) -> str | None:
        """A worker whose process had the time to connect again, and did not. One that was tried comes
        last the next time."""
        self._lost = {worker: self._lost.get(worker, now) for worker in lost}
        for worker, since in sorted(self._lost.items(), key=lambda item: item[1]):
            beside = self._recordings
            if beside is not None and not beside.is_beside(worker):
                beside = None
            grace = GRACE_SECONDS if beside is None else RECORDER_SECONDS
            if now - since >= grace and not (beside is not None and beside.is_living(worker)):
                self._lost[worker] = now - grace
                return worker
        return None

    def confirm(self) -> None:
        if self._report is None:
            return
        worker, report = self._report
        self._report = None
        self._rescued(report.crashed + report.released)
        logger.warning(
            "the connection of worker %s was closed: %d commands count a crash, %d are released",
            worker,
            report.crashed,
            report.released,
        )
