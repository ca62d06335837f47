"""Events: the input of the worker core. Every effect answers with exactly one, failure included."""

from __future__ import annotations

import msgspec

from commandbus.store.records import Claimed, ClaimReply, Settlement, SettleReport


class Woken(msgspec.Struct, frozen=True):
    """There may be work: now, or in `due_in` seconds."""

    source: str
    due_in: float | None = None


class ClaimAnswered(msgspec.Struct, frozen=True):
    """The answer to Claim."""

    reply: ClaimReply
    limit: int
    took: float = 0.0


class ClaimFailed(msgspec.Struct, frozen=True):
    error: Exception


class Finished(msgspec.Struct, frozen=True):
    """Runs that ended. `dropped` counts those that end without a settlement: their lease is gone, or
    their thread was abandoned."""

    settlements: list[Settlement]
    dropped: int = 0


class Settled(msgspec.Struct, frozen=True):
    """The answer to Settle."""

    report: SettleReport


class SettleFailed(msgspec.Struct, frozen=True):
    """`passing` says that the store may take the same settlement later."""

    error: Exception
    passing: bool


class Withdrawn(msgspec.Struct, frozen=True):
    """The answer to Withdraw: commands that no slot had begun."""

    claimed: list[Claimed]


class LeasesGone(msgspec.Struct, frozen=True):
    """Leases that could not be renewed, because they ran out or were taken over."""

    lease_ids: list[int]


class Resized(msgspec.Struct, frozen=True):
    concurrency: int
    asked: bool = False
    """An operator asked for it; others see it at once."""


class Quieted(msgspec.Struct, frozen=True):
    """Claim nothing more, or claim again."""

    quiet: bool


class PollChanged(msgspec.Struct, frozen=True):
    poll_interval: float


class StopRequested(msgspec.Struct, frozen=True):
    """`patience`: seconds that running handlers may take; a later, shorter one counts."""

    patience: float


class Tick(msgspec.Struct, frozen=True):
    """The moment has come that the core named in `deadline`."""


Event = (
    Woken
    | ClaimAnswered
    | ClaimFailed
    | Finished
    | Settled
    | SettleFailed
    | Withdrawn
    | LeasesGone
    | Resized
    | Quieted
    | PollChanged
    | StopRequested
    | Tick
)
STATES = (Resized, Quieted, StopRequested)
"""Events after which others see the worker differently."""
