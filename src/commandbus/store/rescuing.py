"""Expired leases that cannot be taken back: put aside, so that they do not hold up the others.

A lease may be damaged, or its commands may be in a state that no rescue expects. A store then takes
expired leases back one at a time, and tries the ones that fail again after a growing delay.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from commandbus.errors import StatementTimeout

logger = logging.getLogger("commandbus.store")

DELAY_SECONDS_MAX = 60.0
PASSING_SECONDS_MAX = 2.0
"""After a timeout nothing is known to be wrong with a lease."""


class StuckLease(msgspec.Struct, frozen=True):
    failures: int
    again_at: float
    error: str


class StuckLeases:
    """Those that this process failed to take back. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._stuck: dict[int, StuckLease] = {}

    def skipped(self, now: float) -> list[int]:
        """Leases that are not to be tried yet."""
        return [lease_id for lease_id, stuck in self._stuck.items() if now < stuck.again_at]

    def failed(self, lease_id: int, error: Exception, now: float) -> None:
        known = self._stuck.get(lease_id)
        failures = 1 if known is None else known.failures + 1
        # Once at once: the error may have been about something else.
        longest = PASSING_SECONDS_MAX if isinstance(error, StatementTimeout) else DELAY_SECONDS_MAX
        delay = 0.0 if failures == 1 else min(longest, 2.0 ** (failures - 2))
        text = f"{type(error).__name__}: {error}"
        self._stuck[lease_id] = StuckLease(failures, now + delay, text)
        logger.error(
            "lease %d has ended and cannot be taken back (try %d, the next in %g s): %s",
            lease_id,
            failures,
            delay,
            text,
        )

    def swept(self, skipped: Collection[int], failed: Collection[int]) -> None:
        """All expired leases but the skipped ones were tried, and these failed; others are no more."""
        kept = {*skipped, *failed}
        if self._stuck.keys() - kept:
            self._stuck = {key: stuck for key, stuck in self._stuck.items() if key in kept}

    def report(self) -> tuple[str, ...]:
        """In words, for the health of workers."""
        return tuple(
            f"lease {lease_id} cannot be taken back after {stuck.failures} tries: {stuck.error}"
            for lease_id, stuck in self._stuck.items()
            if stuck.failures > 1
        )
