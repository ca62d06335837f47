"""How many commands of each lease a worker holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

from commandbus.store.records import Claimed, Settlement

_lease_id = attrgetter("lease_id")


class HeldLeases:
    """Members by lease; a lease without members is forgotten."""

    def __init__(self) -> None:
        self._members: dict[int, int] = {}
        self._lost = 0
        """Members of leases that another worker has, whose handlers may still run here."""

    def __contains__(self, lease_id: int) -> bool:
        return lease_id in self._members

    def ids(self) -> frozenset[int]:
        return frozenset(self._members)

    def add(self, claimed: Iterable[Claimed]) -> None:
        for lease_id, count in Counter(map(_lease_id, claimed)).items():
            self._members[lease_id] = self._members.get(lease_id, 0) + count

    def remove(self, settled: Iterable[Settlement]) -> list[int]:
        """Returns the leases that hold nothing more."""
        emptied: list[int] = []
        for lease_id, count in Counter(map(_lease_id, settled)).items():
            left = self._members.get(lease_id, 0) - count
            if left > 0:
                self._members[lease_id] = left
            elif self._members.pop(lease_id, None) is not None:
                emptied.append(lease_id)
        return emptied

    def lose(self, gone: frozenset[int]) -> int:
        """Returns how many members these leases had."""
        lost = sum(self._members.pop(lease_id) for lease_id in gone)
        self._lost += lost
        return lost

    def count(self) -> int:
        """All members, for tests."""
        assert all(count > 0 for count in self._members.values()), "a lease without members is kept"
        return sum(self._members.values()) + self._lost
