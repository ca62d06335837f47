"""The suspects that a worker holds, and how many more it takes: see `store.suspects`.

Each suspect that is held counts another crash if the process dies now, so no more are held at a time
than there are slots. Others stay in the queue, for this worker's next claim or for another worker. One
on its last chance counts until its outcome is durable.

Processes that die again and again, such as those of a machine that is out of memory, die soon after
their start, and suspects stand first in the queue. After a death, a worker that has not finished
anything yet therefore takes suspects on their last chance only if it finds nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.store.records import Claimed, Settlement
from commandbus.store.suspects import LAST_CHANCE, NEVER, SuspectLimit


class Suspects:
    def __init__(self) -> None:
        self._aboard: dict[int, tuple[int, bool]] = {}
        """By sequence: the lease, and whether it is on its last chance."""
        self.wary = False
        """Processes have died lately, and this worker has not finished a command yet."""

    def __len__(self) -> int:
        return len(self._aboard)

    def limit(self, concurrency: int) -> SuspectLimit:
        """What a claim may take."""
        room = max(0, concurrency - len(self))
        if self.wary:
            return SuspectLimit(room, alone=False, last_chance=True, apart=0, last_apart=NEVER)
        last_chance = any(last_chance for _, last_chance in self._aboard.values())
        return SuspectLimit(room, not self._aboard, last_chance)

    def arrived(self, claimed: Iterable[Claimed]) -> None:
        for one in claimed:
            if one.crashes:
                self._aboard[one.seq] = (one.lease_id, one.crashes >= LAST_CHANCE)

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
