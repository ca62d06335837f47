"""How much a worker claims ahead of its free slots, and how much of that is other groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import attrgetter

from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, followers
from commandbus.worker.pace import HandlerTime

SLOW_HANDLER = 0.01
"""Handlers slower than this hide a round trip by themselves: nothing is claimed ahead for them."""
URGENT_DIVISOR = 10
"""While commands come in that are more urgent than those that were claimed before, so much less is
claimed ahead: they overtake it, but each claim has to find them first."""
URGENT_SECONDS = 1.0
"""How long that holds after the last one."""
KEYED_DIVISOR = 10
"""Where a command that was claimed ahead holds up others of its group, or one of few permits, so much
less is claimed ahead."""
CHAINED_DIVISOR = 200
"""And where most come along with others of a group: few groups, and many of each, cost the least."""

_keyed = attrgetter("keyed")


class Prefetch:
    """How much a worker claims ahead, by what it has measured and claimed."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.handler_time = HandlerTime()
        self._divisor = 1
        """More than 1 where the last claim had commands that others may wait for."""
        self._least_urgent: int | None = None
        """The highest number among the priorities of the last claim."""
        self._urgent_until = -inf
        self.is_urgent = False
        """Whether commands come in that are more urgent than those that were claimed before."""

    def claimed(self, claimed: Sequence[Claimed], now: float) -> None:
        """What a claim has found."""
        if not claimed:
            return
        self._divisor = prefetch_divisor(claimed)
        priorities = [one.priority for one in claimed]
        if self._least_urgent is not None and min(priorities) < self._least_urgent:
            self._urgent_until = now + URGENT_SECONDS
        self._least_urgent = max(priorities)
        self.is_urgent = now < self._urgent_until

    def amount(self, concurrency: int) -> int:
        """How many commands to claim ahead: what the slots get done within the budget."""
        settings, handler_seconds = self._settings, self.handler_time.known()
        if settings.prefetch is not None:
            return settings.prefetch
        if handler_seconds is None or handler_seconds > SLOW_HANDLER:
            return 0
        fitting = concurrency * settings.prefetch_budget / max(handler_seconds, 1e-6)
        divisor = URGENT_DIVISOR if self.is_urgent else 1
        return min(settings.prefetch_max // divisor, int(fitting / divisor))

    def startable(self, concurrency: int) -> int:
        """The same without those that only come along with others of their groups."""
        return self.amount(concurrency) // self._divisor


def prefetch_divisor(claimed: Sequence[Claimed]) -> int:
    """After such a claim, by how much less is claimed ahead, so that little of it holds up others."""
    if 2 * followers(claimed) > len(claimed):
        return CHAINED_DIVISOR
    return KEYED_DIVISOR if any(map(_keyed, claimed)) else 1
