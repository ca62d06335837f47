"""When to restart an unhealthy worker, and when to give up: a rule without clocks or threads."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from commandbus.worker.health import HealthState


class Verdict(StrEnum):
    LEAVE = "leave"
    RESTART = "restart"
    GIVE_UP = "give up"


class RestartPolicy:
    """A CRITICAL worker is restarted, with a hold-off between restarts, at most `restarts_max` times
    in `window` seconds; after that the process ends, for its supervisor to start another."""

    def __init__(self, *, hold_off: float = 30.0, restarts_max: int = 3, window: float = 600.0) -> None:
        self._hold_off = hold_off
        self._restarts_max = restarts_max
        self._window = window
        self._restarts: deque[float] = deque()

    def judge(self, state: HealthState, now: float) -> Verdict:
        if state is not HealthState.CRITICAL:
            return Verdict.LEAVE
        while self._restarts and self._restarts[0] <= now - self._window:
            self._restarts.popleft()
        if self._restarts and now < self._restarts[-1] + self._hold_off:
            return Verdict.LEAVE
        if len(self._restarts) >= self._restarts_max:
            return Verdict.GIVE_UP
        self._restarts.append(now)
        return Verdict.RESTART
