"""`WorkerWatchdog`: checks the health of a worker from a thread of its own, in either runtime."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Self

from commandbus.domain.moment import Duration, as_seconds
from commandbus.worker.base import WorkerBase
from commandbus.worker.health import Cause, HealthState
from commandbus.worker.watchdog import RestartPolicy, Verdict

logger = logging.getLogger("commandbus.watchdog")

EXIT_CODE = 75
"""Ends the process with this when restarts did not help: a temporary failure, for its supervisor."""


class WorkerWatchdog:
    """Restarts a worker that is CRITICAL, without help, and gives up after too many restarts. In a
    process that has a supervisor, threads that are stuck end the worker instead: only the end of the
    process stops them, and the supervisor starts another.

    A restart drains what can be drained, leaves stuck threads behind and starts again with fresh
    threads and connections, inside the same `run()`. Use it as a context manager around `run()`, or
    call `start()` and `stop()`. `give_up` replaces the end of the process, for tests and for programs
    with other plans.
    """

    def __init__(
        self,
        worker: WorkerBase,
        *,
        check_interval: Duration = 10.0,
        hold_off: Duration = 30.0,
        restarts_max: int = 3,
        window: Duration = 600.0,
        give_up: Callable[[str], None] | None = None,
    ) -> None:
        self._worker = worker
        self._interval = as_seconds(check_interval, "check_interval", minimum=0.01)
        self._policy = RestartPolicy(
            hold_off=as_seconds(hold_off, "hold_off"),
            restarts_max=restarts_max,
            window=as_seconds(window, "window"),
        )
        self._give_up = give_up or _exit
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.restarts = 0
        """How often the worker was restarted."""

    def start(self) -> None:
        """Watch from now on, in a thread."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="commandbus-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop watching, and wait for the end of the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        was_stuck = False
        while not self._stop.wait(self._interval):
            report = self._worker.health_status.report()
            reason = "; ".join(report.reasons)
            lasting = was_stuck or Cause.THREADS in report.causes
            was_stuck = report.stuck_threads > 0
            if self._worker.supervisor and was_stuck and lasting:
                self._worker.metrics.recovered(Cause.THREADS)
                self._worker.request_end(reason)
                return
            # A restart does not mend a store that refuses claims: only what has a cause is restarted.
            state = report.state if report.causes else HealthState.HEALTHY
            match self._policy.judge(state, time.monotonic()):
                case Verdict.RESTART:
                    self.restarts += 1
                    # A restart is counted once, whatever else was wrong.
                    self._worker.metrics.recovered(report.causes[0])
                    self._worker.request_restart(reason)
                case Verdict.GIVE_UP:
                    logger.critical(
                        "worker %s remained CRITICAL after restarts: %s", self._worker.name, reason
                    )
                    self._give_up(reason)
                    return
                case Verdict.LEAVE:
                    pass


def _exit(reason: str) -> None:
    """The supervisor's turn. Threads are stuck, so a tidy exit might never end."""
    logging.shutdown()
    os._exit(EXIT_CODE)
