"""The suspects that a worker holds, and how many more it takes: see `store.suspects`.

Each suspect that is held counts another crash if the process dies now, so few are held at a time: as many
as there are slots, and with fast handlers once more as many ahead of them. Others stay in the queue, for
this worker's next claim or for another worker. One that has ended counts until its outcome is durable.
"""

from __future__ import annotations

from collections.abc import Iterable

from commandbus.store.records import Claimed, Settlement
from commandbus.store.suspects import LAST_CHANCE, SuspectLimit

AHEAD_SHARE = 1
"""So many times the slots are claimed ahead at most while suspects are held."""
HOARD_SECONDS = 0.2
"""A suspect that was claimed ahead is given back when nothing has finished for this long."""


class Suspects:
    def __init__(self) -> None:
        self._aboard: dict[int, tuple[int, bool]] = {}
        """By sequence: the lease, and whether it is on its last chance."""

    def __len__(self) -> int:
        return len(self._aboard)

    def limit(self, most: int) -> SuspectLimit:
        """What a claim may take, for a worker that holds `most` suspects at most."""
        last_chance = any(last_chance for _, last_chance in self._aboard.values())
        return SuspectLimit(max(0, most - len(self)), alone=not self._aboard, shut=last_chance)

    def arrived(self, claimed: Iterable[Claimed]) -> None:
        for one in claimed:
            if one.crashes:
                self._aboard[one.seq] = (one.lease_id, one.crashes >= LAST_CHANCE)

    def recorded(self, settled: Iterable[Settlement]) -> bool:
        """Their outcomes are durable, or are never going to be; whether there is more room now."""
        if not self._aboard:
            return False
        before = len(self)
        for settlement in settled:
            self._aboard.pop(settlement.seq, None)
        return len(self) < before

    def gone(self, lease_ids: frozenset[int]) -> None:
        """Their leases have been lost."""
        if self._aboard:
            kept = {seq: held for seq, held in self._aboard.items() if held[0] not in lease_ids}
            self._aboard = kept
