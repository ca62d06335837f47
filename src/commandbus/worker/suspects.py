"""The suspects that a worker holds, and how many more it takes: see `store.suspects`.

Each suspect that is held counts another crash if the process dies now, so no more are held at a time
than there are slots. Others stay in the queue, for this worker's next claim or for another worker. One
on its last chance counts until its outcome is durable.

Processes that die again and again, such as those of a machine that is out of memory, die soon after
their start. Suspects stand first in the queue, and have waited for a worker rather than for their turn.
A worker that starts after a death therefore leaves those on their last chance for a moment, if it finds
anything else, and does not count how long suspects have waited before it was there.
"""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.store.records import Claimed, Settlement
from commandbus.store.suspects import (
    APART,
    APART_SECONDS,
    LAST_APART_SECONDS,
    LAST_CHANCE,
    NEVER,
    SuspectLimit,
)

WARY_SECONDS = 0.5


class Suspects:
    def __init__(self) -> None:
        self._aboard: dict[int, tuple[int, bool]] = {}
        """By sequence: the lease, and whether it is on its last chance."""
        self.after_death = False
        """A process died on this machine shortly before this worker started."""
        self.wary = True
        """Whether such a worker leaves those on their last chance; until it finds nothing else."""
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._aboard)

    def limit(self, concurrency: int, now: float) -> SuspectLimit:
        """What a claim may take."""
        room = max(0, concurrency - len(self))
        last_chance = any(last_chance for _, last_chance in self._aboard.values())
        self._since = now if self._since is None else self._since
        age = now - self._since
        if not self.after_death or age >= LAST_APART_SECONDS:
            return SuspectLimit(room, not self._aboard, last_chance)
        if self.wary and age < WARY_SECONDS:
            return SuspectLimit(room, alone=False, last_chance=True, apart=0, last_apart=NEVER)
        apart = APART if age >= APART_SECONDS else NEVER
        return SuspectLimit(room, not self._aboard, last_chance, apart, last_apart=NEVER)

    def arrived(self, claimed: Iterable[Claimed]) -> bool:
        """Whether one of them is on its last chance."""
        found = False
        for one in claimed:
            if one.crashes:
                is_last = one.crashes >= LAST_CHANCE
                self._aboard[one.seq] = (one.lease_id, is_last)
                found = found or is_last
        return found

    def ended(self, settlements: Iterable[Settlement], *, durable: bool) -> bool:
        """Their handlers have ended, or their outcomes are recorded; whether there is more room now."""
        before = len(self)
        if before:
            for settlement in settlements:
                held = self._aboard.get(settlement.seq)
                if held is not None and (durable or not held[1]):
                    del self._aboard[settlement.seq]
        return len(self) < before

    def gone(self, lease_ids: frozenset[int]) -> None:
        """Their leases have been lost."""
        if self._aboard:
            kept = {seq: held for seq, held in self._aboard.items() if held[0] not in lease_ids}
            self._aboard = kept
