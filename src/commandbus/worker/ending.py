"""How a worker comes to its end: when it interrupts what still runs, and when it stops waiting."""

from __future__ import annotations

from math import inf

from commandbus.errors import NotOpen

CANCEL_SECONDS = 0.6
"""How long an interrupted `async def` handler may tidy up before the runtime gives it up and its
command goes back."""
GRACE = CANCEL_SECONDS + 0.2
"""After interrupting handlers, how long the runtime's answers are awaited. Longer than CANCEL_SECONDS:
otherwise the worker may end in the moment in which the runtime gives a handler up, and the command
stays leased."""
SETTLE_PATIENCE = 1.3
"""After that, how long a settle in flight is awaited. When the store does not answer, the farewell and
the end of the listening connection take a second each: with the default shutdown_timeout of 25 s, a
process ends in less than 30 s, with room for a busy machine."""


class Ending:
    def __init__(self) -> None:
        self.at: float | None = None
        """When handlers that still run are interrupted; None while nothing is to end."""
        self.requested = False
        """A stop was asked for; otherwise the worker ends by itself, with all that it took."""
        self.failure: NotOpen | None = None
        """The bus was closed, so nothing can be claimed or recorded any more."""
        self._interrupted_at: float | None = None

    def request(self, at: float) -> bool:
        """Returns whether it is the first request."""
        first, self.requested = not self.requested, True
        self.at = min(at, self.at or inf)
        return first

    def closed(self, error: NotOpen) -> None:
        """The bus was closed; for a worker that is stopping already that is no failure."""
        if not self.requested:
            self.failure = error

    def interrupts(self, now: float, held: int) -> bool:
        """Whether what still runs is to be interrupted now; once."""
        due = self.at is not None and now >= self.at and held > 0 and self._interrupted_at is None
        if due:
            self._interrupted_at = now
        return due

    def done(self, now: float, held: int, in_flight: bool) -> bool:
        """Whether the worker may end: everything is recorded, or patience is at its end."""
        if self.at is None:
            return False
        if not in_flight:
            given_up = self._interrupted_at is not None and now >= self._interrupted_at + GRACE
            if given_up or not held:
                return True
        return now >= self.at + GRACE + SETTLE_PATIENCE

    def deadline(self, held: int, in_flight: bool) -> float | None:
        """When to look again, if nothing happens before."""
        if self.at is None:
            return None
        if held and self._interrupted_at is None:
            return self.at
        if held and not in_flight and self._interrupted_at is not None:
            return self._interrupted_at + GRACE
        return self.at + GRACE + SETTLE_PATIENCE
