"""Which suspects a claim hands out together: commands whose workers died.

When a process dies, each command that it held counts a crash, because the store cannot tell which of
them killed it; the third crash parks the command. A suspect that a worker cannot start at once therefore
stays in the queue, where it counts no crash, instead of being claimed and given back.

Suspects on their last chance are given out one at a time per worker, without other suspects: a killer
is parked alone. After APART_SECONDS in the queue a suspect is given out beside others, so that a slow
one does not delay the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.domain.outcome import CRASHES_MAX

APART_SECONDS = 0.5
"""So long at most a suspect waits in the queue to be kept apart from others."""
APART = int(APART_SECONDS * SECOND)
LAST_CHANCE = CRASHES_MAX - 1
"""A command with so many crashes is parked with the next one."""


class SuspectLimit(msgspec.Struct, frozen=True):
    """The suspects that a worker can take, beside those that it holds."""

    room: int
    """How many at most."""
    alone: bool = True
    """It holds none, so one on its last chance may come, as the only one."""
    shut: bool = False
    """It holds one on its last chance: others may come only when they have waited for APART."""

    def beside(self, crashes: Sequence[int]) -> SuspectLimit:
        """What is left of the limit beside suspects with so many crashes each."""
        if not crashes:
            return self
        shut = self.shut or max(crashes) >= LAST_CHANCE
        return SuspectLimit(max(0, self.room - len(crashes)), alone=False, shut=shut)


NONE = SuspectLimit(0, alone=False, shut=True)
"""No suspect at all."""


class Admission:
    """Decides about the suspects that one claim finds, in the order of the queue."""

    def __init__(self, limit: SuspectLimit | None) -> None:
        self._limit = limit
        self._taken = 0
        self._last_chances = 0
        """How many that have not waited for APART were seen."""

    def admits(self, crashes: int, waited: int) -> bool:
        """Whether a command with so many crashes, ready for so many microseconds, may be taken."""
        limit = self._limit
        if not crashes or limit is None:
            return True
        admitted = self._taken < limit.room
        if waited < APART:
            last_chance = crashes >= LAST_CHANCE
            first = limit.alone and not self._taken and not self._last_chances
            admitted &= not limit.shut and (first if last_chance else not self._last_chances)
            self._last_chances += last_chance
        self._taken += admitted
        return admitted
