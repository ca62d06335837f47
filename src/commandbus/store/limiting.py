"""Limits as the store keeps them, and what it can say about who is held back."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

import msgspec

from commandbus.domain.limits import Limit
from commandbus.store.op import Op


class BlockedAt(msgspec.Struct, frozen=True):
    """The gate that a ready command waits at, how many passed it and go on, and one of them."""

    gate: str
    running: int
    holder: UUID | None


class LimitStore(Protocol):
    def put_limit(self, limit: Limit) -> Op[None]:
        """Set a limit, for waiting commands too. Running ones are not interrupted, and those that
        have passed the gate before it changed are not called back."""
        ...

    def drop_limit(self, domain: str, gate: str) -> Op[bool]:
        """Take a limit away; whether there was one. What waited for it goes on."""
        ...

    def limits(self, domain: str | None) -> Op[list[Limit]]:
        """In order of domain and gate."""
        ...

    def take_tokens(self, domain: str, sender: str, count: int) -> Op[float]:
        """Count a sender's commands against the domain's limit per sender: 0, or the seconds until so
        many may be sent, and nothing is counted."""
        ...

    def key_holder(self, domain: str, unique_key: str) -> Op[UUID | None]:
        """The command that holds a unique key."""
        ...

    def free_key(self, domain: str, unique_key: str) -> Op[None]:
        """Take a unique key from its holder, which goes on without it."""
        ...

    def held_at(self, domain: str, seq: int) -> Op[BlockedAt | None]:
        """Where a ready command is held back, or None."""
        ...
