"""Members of a group that were claimed together: one begins when the one before it has ended, however
that was; only behind one that comes back at once none does, because it is the next one again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from commandbus.domain.outcome import Released, RetryLater
from commandbus.store.records import Claimed, Settlement

_chain = attrgetter("chain")


class Chains:
    def __init__(self) -> None:
        self.waiting = 0
        """How many wait for one before them."""
        self._behind: dict[tuple[int, int], deque[Claimed]] = {}
        """Commands that wait, by lease and sequence of the one that runs."""
        self._held_up: list[Claimed] = []
        """Commands that waited for one that is retried at once."""

    def lead(self, claimed: list[Claimed]) -> list[Claimed]:
        """Those that were just claimed and may begin; the others wait."""
        if not any(map(_chain, claimed)):
            return claimed
        first: list[Claimed] = []
        chains: dict[int, deque[Claimed]] = {}
        for one in claimed:
            if one.chain in chains:
                chains[one.chain].append(one)
                self.waiting += 1
                continue
            first.append(one)
            if one.chain:
                chains[one.chain] = self._behind[one.lease_id, one.seq] = deque()
        return first

    def ended(self, settlements: Iterable[Settlement]) -> list[Claimed]:
        """The commands that may begin after these have ended."""
        following: list[Claimed] = []
        if self._behind:
            for settlement in settlements:
                behind = self._behind.pop((settlement.lease_id, settlement.seq), None)
                if not behind:
                    continue
                if _comes_back(settlement):
                    self._held_up += behind
                    self.waiting -= len(behind)
                else:
                    following.append(behind.popleft())
                    self.waiting -= 1
                    self._behind[settlement.lease_id, following[-1].seq] = behind
        return following

    def held_up(self) -> list[Claimed]:
        """Those that are not going to begin here, because one before them comes back at once."""
        held_up, self._held_up = self._held_up, []
        return held_up

    def give_up(self, lease_ids: frozenset[int] | None = None) -> list[Claimed]:
        """Those that wait, under these leases or any: they are not going to begin here."""
        given_up: list[Claimed] = []
        for key in [key for key in self._behind if lease_ids is None or key[0] in lease_ids]:
            given_up += self._behind.pop(key)
        self.waiting -= len(given_up)
        return given_up


def _comes_back(settlement: Settlement) -> bool:
    outcome = settlement.outcome
    return isinstance(outcome, RetryLater | Released) and outcome.delay <= 0
