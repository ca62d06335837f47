"""The statement that claims (claim.sql): its parameters, and what its rows become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import repeat
from typing import Any, Literal, NamedTuple
from uuid import UUID

from commandbus.engines.postgres.bounds import RANGES
from commandbus.engines.postgres.statements import parts
from commandbus.engines.postgres.templates import Query, Values, compile_query
from commandbus.store.op import Row
from commandbus.store.records import CLAIMED, Claimed
from commandbus.store.suspects import LAST_CHANCE, SuspectLimit


class Unclaimable(NamedTuple):
    """A row of the query `claim` that is not to be run."""

    seq: int
    lease_id: int
    attempts: int
    crashes: int
    command_type: str | None
    command_id: UUID | None
    correlation_id: UUID | None
    reply_to: str | None
    batch_id: UUID | None

    @property
    def reason(self) -> str:
        if self.command_type is None:
            return "ORPHAN" if self.command_id is None else "ENDED"
        return "EXPIRED"


_CLAIMED_NAMES = tuple(column.name for column in CLAIMED)


def as_claimed(domain: str, columns: Sequence[Sequence[Any]]) -> Iterable[Claimed]:
    """Commands under lease, of the columns of the query `claim`; behind them come their attempts, this
    one included, and their chains."""
    (
        seqs, lease_ids, _, priorities, _, crashes, releases, keyed, _, ages, _, types, ids, data,
        correlations, created_at, *optional, attempts, chains,
    ) = columns  # fmt: skip
    flows = [one if other is None else other for one, other in zip(ids, correlations, strict=True)]
    # By position, in the order of its fields.
    return map(
        Claimed, seqs, lease_ids, repeat(domain), types, ids, data, flows, priorities, created_at,
        attempts, crashes, releases, ages, keyed, chains, *optional,
    )  # fmt: skip


def as_unclaimable(row: Row) -> Unclaimable | None:
    """A row of the query `claim`, if it is not to be run."""
    (
        seq, lease_id, _, _, attempts, crashes, _, _, expired, _, _, command_type, command_id, _,
        correlation_id, _, *optional,
    ) = row  # fmt: skip
    if not expired and command_type is not None:
        return None
    known = dict(zip(_CLAIMED_NAMES, optional, strict=True))
    return Unclaimable(
        seq, lease_id, attempts, crashes, command_type, command_id, correlation_id,
        known["reply_to"], known["batch_id"],
    )  # fmt: skip


class Received(NamedTuple):
    """What a claim put under lease, beside the commands that can run."""

    keys: list[tuple[int, int]]
    """Priority and sequence of what was taken from its place, in order; not of what came along."""
    suspects: bool
    """Whether it contains commands whose workers died."""
    unclaimable: list[Unclaimable]


def may_hide_fresh_work(limit: SuspectLimit | None) -> bool:
    """Whether a claim that found nothing may have met only suspects that it has to leave."""
    return limit is not None and not limit.alone and limit.room > 0


LeaseShape = Literal["plain", "chains", "each"]
"""One lease for all; one that takes members of groups along; or one for each command."""


@cache
def claim_query(schema: str, fresh: bool, shape: LeaseShape) -> Query:
    """The claim; of fresh commands only, or with those whose workers died."""
    found = parts(schema, "claim.sql")
    lease_each = shape == "each"
    return compile_query(
        found.claim,
        [RANGES],
        found="taken" if fresh else "found",
        suspects_found="" if fresh else found.suspects_found,
        suspects_left="" if fresh else found.suspects_left,
        under_lease=found.no_chains if shape == "plain" else found.chains,
        some_ended=found.some_ended,
        lease=found.lease_each if lease_each else found.one_lease,
        leased=found.under_each if lease_each else found.under_one,
    )


def suspect_values(limit: SuspectLimit | None) -> Values:
    """Which commands whose workers died a claim may take."""
    if limit is None:
        return _ALL_SUSPECTS
    return {
        "suspects": limit.room,
        "alone": limit.alone,
        "beside_last": limit.last_chance,
        "apart": limit.apart,
        "last_apart": limit.last_apart,
        "last_chance": LAST_CHANCE,
    }


_ALL_SUSPECTS: Values = {
    "suspects": 2**31,
    "alone": True,
    "beside_last": False,
    "apart": 0,
    "last_apart": 0,
    "last_chance": LAST_CHANCE,
}
