"""When a worker that drains and ends has nothing left to do."""

from __future__ import annotations

from commandbus.domain.moment import Duration, as_seconds

FOLLOWING_SECONDS = 0.25
"""After its last command a worker waits at least this long for work that follows from it: the next step
of a process, the command that completes a batch."""


def idle_seconds(until_idle: bool | Duration | None) -> float | None:
    """The argument of `run()` as seconds; None means that the worker does not end by itself."""
    if until_idle is None or until_idle is False:
        return None
    return 0.0 if until_idle is True else as_seconds(until_idle, "until_idle")


class UntilIdle:
    """Counts from the first empty claim that was made while nothing ran."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._is_whole = False
        """The claim in flight looks at everything, and nothing runs that could add work."""
        self._has_looked = False
        """Such a claim was empty, and nothing was claimed since."""
        self._has_worked = False
        self.is_over = False

    @property
    def wants_look(self) -> bool:
        """Whether to claim when nothing runs, although nothing announced work: what ran may have made
        some."""
        return self._seconds is not None and not self._has_looked

    def asked(self, whole: bool) -> None:
        self._is_whole = whole

    def found(self) -> None:
        self._since, self._has_looked, self._has_worked = None, False, True

    def end_at(self, now: float) -> float | None:
        """After an empty claim: when to end, if nothing is found before; None where that is open."""
        if self._seconds is None or not self._is_whole:
            return None
        self._has_looked = True
        self._since = now if self._since is None else self._since
        return self._since + max(self._seconds, FOLLOWING_SECONDS if self._has_worked else 0.0)
