"""Which suspects a claim hands out together: commands whose workers died.

When a process dies, each command that it held counts a crash, because the store cannot tell which of
them killed it; the third crash parks the command. A suspect that a worker cannot start at once stays in
the queue, where it counts no crash, instead of being claimed and given back.

A suspect on its last chance is given out without other suspects: a killer is parked alone. That must
not delay it for long: after APART_SECONDS in the queue it is given out beside suspects that have
another chance, and after LAST_APART_SECONDS beside others on their last chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from commandbus.domain.moment import SECOND
from commandbus.domain.outcome import CRASHES_MAX

APART_SECONDS = 0.3
LAST_APART_SECONDS = 0.8
APART, LAST_APART = int(APART_SECONDS * SECOND), int(LAST_APART_SECONDS * SECOND)
NEVER = 2**62
"""Microseconds that no command waits."""
LAST_CHANCE = CRASHES_MAX - 1
"""A command with so many crashes is parked with the next one."""


class SuspectLimit(msgspec.Struct, frozen=True):
    """The suspects that a worker can take, beside those that it holds."""

    room: int
    """How many at most. A store that knows of more may claim no more than this in all."""
    alone: bool = True
    """It holds none."""
    last_chance: bool = False
    """It holds one on its last chance."""
    apart: int = APART
    last_apart: int = LAST_APART
    """Microseconds in the queue, see above."""

    def beside(self, crashes: Sequence[int]) -> SuspectLimit:
        """What is left of the limit beside suspects with so many crashes each."""
        if not crashes:
            return self
        last_chance = self.last_chance or max(crashes) >= LAST_CHANCE
        room = max(0, self.room - len(crashes))
        return msgspec.structs.replace(self, room=room, alone=False, last_chance=last_chance)


NONE = SuspectLimit(0, alone=False, last_chance=True)
"""No suspect at all."""


class Admission:
    """Decides about the suspects that one claim finds, in the order of the queue."""

    def __init__(self, limit: SuspectLimit | None) -> None:
        self._limit = limit
        self._taken = 0
        self._last_chance = limit is not None and limit.last_chance
        """One on its last chance is held, or stands before in the queue."""

    def admits(self, crashes: int, waited: int) -> bool:
        """Whether a command with so many crashes, ready for so many microseconds, may be taken."""
        limit = self._limit
        if not crashes or limit is None:
            return True
        last_chance = crashes >= LAST_CHANCE
        wait = 0
        if last_chance and self._last_chance:
            wait = limit.last_apart
        elif self._last_chance or (last_chance and (self._taken or not limit.alone)):
            wait = limit.apart
        self._last_chance |= last_chance
        admitted = self._taken < limit.room and waited >= wait
        self._taken += admitted
        return admitted
