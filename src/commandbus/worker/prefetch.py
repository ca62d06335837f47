"""How much a worker claims ahead of its free slots, and how much of that is other groups."""

from __future__ import annotations

from collections.abc import Sequence

from commandbus.domain.priority import LABELS
from commandbus.settings import WorkerSettings
from commandbus.store.records import Claimed, followers

SLOW_HANDLER = 0.01
"""Handlers slower than this hide a round trip by themselves: nothing is claimed ahead for them."""
URGENT = LABELS["high"]
URGENT_DIVISOR = 5
"""Among urgent commands, so much less is claimed ahead."""
KEYED_DIVISOR = 5
"""Where a command that was claimed ahead holds up others of its group, or one of few permits, so much
less is claimed ahead."""
CHAINED_DIVISOR = 100
"""And where most come along with others of a group: few groups, and many of each, cost the least."""


def prefetch(
    settings: WorkerSettings, concurrency: int, handler_seconds: float | None, urgent: bool
) -> int:
    """How many commands to claim ahead: what the slots get done within the budget."""
    if settings.prefetch is not None:
        return settings.prefetch
    if handler_seconds is None or handler_seconds > SLOW_HANDLER:
        return 0
    # What is claimed ahead stands before what comes later, however urgent that is.
    budget = settings.prefetch_budget / (URGENT_DIVISOR if urgent else 1)
    fitting = concurrency * budget / max(handler_seconds, 1e-6)
    return min(settings.prefetch_max, int(fitting))


def prefetch_divisor(claimed: Sequence[Claimed]) -> int:
    """After such a claim, by how much less is claimed ahead, so that little of it holds up others."""
    if 2 * followers(claimed) > len(claimed):
        return CHAINED_DIVISOR
    return KEYED_DIVISOR if any(one.keyed for one in claimed) else 1
