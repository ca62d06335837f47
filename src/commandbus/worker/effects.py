"""Effects: the decisions of the worker core. A runtime performs them and decides nothing."""

from __future__ import annotations

import msgspec

from commandbus.store.records import Claimed, Settlement
from commandbus.store.suspects import SuspectLimit


class Claim(msgspec.Struct, frozen=True):
    """Arm for wake-ups, then claim; answer with ClaimAnswered or ClaimFailed."""

    limit: int
    sweep: bool
    idle: bool = False
    skip_sweep: bool = False
    followers: int = 0
    chain: int = 0
    suspects: SuspectLimit | None = None


class Start(msgspec.Struct, frozen=True):
    """Hand commands to the slots, in this order. Each is answered in a Finished or a Withdrawn."""

    claimed: list[Claimed]


class Settle(msgspec.Struct, frozen=True):
    """Record settlements; answer with Settled or SettleFailed."""

    batch: list[Settlement]


class Withdraw(msgspec.Struct, frozen=True):
    """Take back what no slot has begun, of these leases or of all; answer with Withdrawn."""

    lease_ids: frozenset[int] | None = None


class Interrupt(msgspec.Struct, frozen=True):
    """Cancel running handlers, of these leases or all of them."""

    lease_ids: frozenset[int] | None = None


class Forget(msgspec.Struct, frozen=True):
    """These leases hold nothing more: stop renewing them."""

    lease_ids: list[int]


class PassOn(msgspec.Struct, frozen=True):
    """There may be work that this worker cannot take: wake one more waiter, of these domains or of
    all that it serves."""

    domains: frozenset[str] | None = None


Effect = Claim | Start | Settle | Withdraw | Interrupt | Forget | PassOn
