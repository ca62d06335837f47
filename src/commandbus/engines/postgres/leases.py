"""The leases that this process took, in memory, so that a settle needs no read before it writes.

Membership is a fact about a claim and never changes; what is left of a lease is only guessed, and the
version proves the guess at the server. Values are replaced, never changed: several threads may look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from commandbus.store.settling import Member

REMEMBERED_MAX = 5_000
"""Leases remembered at most; a forgotten one is read from the server when it is settled."""

_unusual = msgspec.json.Decoder(dict[str, tuple[int, int, int, bool]])


class LeasedCommand(Member, frozen=True, array_like=True, gc=False):
    """A command under lease, as far as its settle has to know it."""

    priority: int = 0


class LeaseRow(msgspec.Struct, frozen=True):
    """A lease as this process last saw it."""

    lease_id: int
    domain: str
    worker: str
    claimed_at: int
    version: int
    """Counts the settles that took commands out of it, so that a settle notices one that it missed."""
    commands: dict[int, LeasedCommand]
    """By sequence."""
    chains: dict[int, int] = {}
    """See `chains_of`."""

    def without(self, proofs: Mapping[int, int]) -> LeaseRow:
        """What is left of it when the commands have left that name it as their proof."""
        lease_id, left = self.lease_id, self.commands
        commands = {seq: one for seq, one in left.items() if proofs.get(seq) != lease_id}
        chains = {seq: chain for seq, chain in self.chains.items() if seq in commands}
        return msgspec.structs.replace(self, version=self.version + 1, commands=commands, chains=chains)


class Leases:
    """The leases of this process, by id."""

    def __init__(self) -> None:
        self._held: dict[int, LeaseRow] = {}

    def get(self, lease_id: int) -> LeaseRow | None:
        return self._held.get(lease_id)

    def keep(self, lease: LeaseRow) -> None:
        self._held[lease.lease_id] = lease
        while len(self._held) > REMEMBERED_MAX:
            self._held.pop(next(iter(self._held)), None)

    def forget(self, lease_ids: Iterable[int]) -> None:
        for lease_id in lease_ids:
            self._held.pop(lease_id, None)

    def clear(self) -> None:
        self._held = {}


def members_of(seqs: Iterable[int], unusual: str | None) -> list[Member]:
    """The members of a stored lease: those that are not described are on their first delivery, and
    as it is said of number 0."""
    described: dict[str, Any] = _unusual.decode(unusual) if unusual else {}
    ordinary = described.get("0", (1, 0, 0, False))
    return [Member(seq, *described.get(str(seq), ordinary)) for seq in seqs]
