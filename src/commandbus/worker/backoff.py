"""How long a worker waits before it asks a store again that failed."""

from __future__ import annotations

from collections.abc import Callable

from commandbus.domain.outcome import POOL_BACKOFF
from commandbus.errors import PoolExhausted

BACKOFF_MAX = 5.0


def backoff(failures: int, error: Exception, uniform: Callable[[], float]) -> float:
    """Growing, and drawn at random, so that a fleet does not come back all at once. A pool that is
    used up is our own, and its connections come back by themselves."""
    if isinstance(error, PoolExhausted):
        return POOL_BACKOFF[min(failures, len(POOL_BACKOFF)) - 1]
    longest: float = min(BACKOFF_MAX, 0.1 * 2 ** min(failures, 10))
    return longest * (0.5 + 0.5 * uniform())
