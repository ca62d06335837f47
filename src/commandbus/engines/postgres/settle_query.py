"""The statement that settles (settle.sql): its lists of rows, and how writes become its parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Literal
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import FINAL, CommandStatus
from commandbus.engines.postgres import receipts
from commandbus.engines.postgres.arrays import integers
from commandbus.engines.postgres.leases import LeaseRow
from commandbus.engines.postgres.receipts import Folded, Receipt, fold, is_plain
from commandbus.engines.postgres.statements import ORIGIN, parts
from commandbus.engines.postgres.templates import (
    BIGINT,
    BOOLEAN,
    INTEGER,
    SMALLINT,
    TEXT,
    UUID_,
    WORD,
    Columns,
    Query,
    Values,
    compile_query,
)
from commandbus.store.batching import tally
from commandbus.store.records import NewCommand, Settlement
from commandbus.store.settling import AuditRow, OutcomeRow, Writes, hand_over, plan

_encode = msgspec.json.Encoder().encode

UNPROVED = 0
"""The proof of what needs no lease; see settle.sql."""

ENDING = Columns("ending", lease_id=BIGINT, version=INTEGER)
"""Leases that end here."""
SHRINKING = Columns("shrinking", lease_id=BIGINT, version=INTEGER, rest=TEXT)
"""Leases that go on with less."""
OUTCOMES = Columns(
    "outcomes",
    proof=BIGINT,
    seq=BIGINT,
    status=WORD.unless(CommandStatus.COMPLETED),
    attempts=SMALLINT.unless(1),
    crashes=SMALLINT.unless(0),
    ran=BIGINT,
    result=TEXT.unless(None),
    error=TEXT.unless(None),
    reason=TEXT.unless(None),
)
PLAIN_OUTCOMES = Columns("plain_outcomes", seq=BIGINT, ran=BIGINT)
"""Outcomes that have nothing else: completed at the first attempt, without a result."""
RECEIPTS = Columns(
    "receipts", proof=BIGINT, first_seq=BIGINT, last_seq=BIGINT, members=SMALLINT, ran=TEXT
)
TALLIES = Columns("tallies", proof=BIGINT, status=WORD, n=BIGINT)
FREED = Columns("freed", proof=BIGINT, seq=BIGINT)
"""Commands whose unique keys are free: their outcomes are final."""
HEIRS = Columns("heirs", proof=BIGINT, holder=BIGINT, heir=BIGINT)
"""Which commands hand the permit of their group over, and which ones get it."""
LEFT_PERMITS = Columns("left_permits", proof=BIGINT, seq=BIGINT, back=BOOLEAN)
"""Which commands give their permits up, and whether one comes back to the gate that gave the permit."""
REQUEUES = Columns(
    "requeues",
    proof=BIGINT,
    seq=BIGINT,
    priority=INTEGER,
    attempts=SMALLINT,
    crashes=SMALLINT,
    releases=SMALLINT,
    keyed=BOOLEAN,
    delay=BIGINT,
)
AUDITS = Columns("audits", proof=BIGINT, seq=BIGINT, kind=WORD, details=TEXT)
BATCH_COUNTS = Columns(
    "batch_counts",
    proof=BIGINT,
    batch_id=UUID_,
    completed=BIGINT,
    failed=BIGINT,
    canceled=BIGINT,
    parked=BIGINT,
)
"""What the outcomes add to the counts of batches, one row per batch and lease."""
LISTS = (
    ENDING, SHRINKING, OUTCOMES, PLAIN_OUTCOMES, RECEIPTS, TALLIES, FREED, HEIRS, LEFT_PERMITS,
    REQUEUES, AUDITS, BATCH_COUNTS,
)  # fmt: skip


Extent = Literal["receipts", "plain", "ends", "all"]
"""What a settle writes: receipts; plain outcomes under one lease; outcomes that free nothing; or
everything."""


@cache
def settle_query(schema: str, extent: Extent = "all") -> Query:
    """The settle over the tables of the bus."""
    places = parts(schema, "settle.sql").settle_places if extent == "all" else ""
    return compile_settle(schema, extent, LISTS, before="", fenced="", places=places, after="")


def compile_settle(schema: str, extent: Extent, lists: Iterable[Columns], **transport: str) -> Query:
    """The settle with the parts of a transport; `places` is not about commands that come back unless
    all is written."""
    found = parts(schema, "settle.sql")
    ended = {
        "receipts": found.receipts_written,
        "plain": found.ended_plainly,
        "ends": found.ended,
        "all": f"{found.receipts_written}\n{found.ended}",
    }
    return compile_query(
        found.settle,
        lists,
        ended=ended[extent],
        others=found.settle_others if extent == "all" else "{places}",
        answer=found.settle_answer if extent == "all" else found.ends_answer,
        **transport,
    )


class Known(msgspec.Struct):
    """What a write needs to know of its commands beside the write itself, by sequence."""

    priorities: dict[int, int] = {}
    keyed: set[int] = set()
    batches: dict[int, UUID | None] = {}
    deliveries: dict[int, int] = {}
    """The attempt that each was on, where the write gives that attempt back."""


class Prepared(msgspec.Struct):
    """Writes on their way to the server, each with its proof."""

    writes: Writes = msgspec.field(default_factory=Writes)
    proofs: dict[int, int] = {}
    """The lease that each command leaves with its write, by sequence; or UNPROVED."""
    known: Known = msgspec.field(default_factory=Known)
    leases: dict[int, LeaseRow] = {}
    rests: dict[int, LeaseRow] = {}
    """What is left of these leases, in the order in which they are locked."""
    worker: str | None = None
    domain: str | None = None
    """Of what needs no lease."""
    sends: list[tuple[int, NewCommand]] = []
    """Commands that follow, with the proof of what they follow from."""
    settlements: list[Settlement] = []
    locked: bool = False
    """The leases were locked in this transaction, so that nothing can be tried and undone in it."""
    trusts_counts: bool = False
    """PGMQ only: written without a look at the messages first, and undone if one was read again."""

    def add(self, lease: LeaseRow, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Add what these write under their lease. Returns those that do not fit it."""
        lease_id, worker, known = lease.lease_id, lease.worker, self.known
        unfit: list[Settlement] = []
        for settlement in settlements:
            seq = settlement.seq
            command = lease.commands.get(seq)
            if command is None or command.attempt != settlement.attempt or seq in self.proofs:
                unfit.append(settlement)
                continue
            plan(self.writes, settlement, command, worker, lease.claimed_at)
            self.settlements.append(settlement)
            self.proofs[seq] = lease_id
            known.priorities[seq] = command.priority
            if settlement.batch_id is not None:
                known.batches[seq] = settlement.batch_id
            if settlement.sends:
                self.sends += [(lease_id, follower) for follower in settlement.sends]
            if command.keyed:
                known.keyed.add(seq)
        if len(unfit) < len(settlements):
            self.leases[lease_id] = lease
        return unfit

    def refused(self, valid: AbstractSet[int]) -> list[Settlement]:
        """Those whose lease was not among the valid ones."""
        if self.leases.keys() <= valid:
            return []
        return [one for one in self.settlements if one.lease_id not in valid]

    def changed_batches(self, valid: Container[int]) -> set[UUID]:
        """The batches in which the valid ones were counted."""
        batches = self.known.batches.items()
        return {one for seq, one in batches if one is not None and self.proofs[seq] in valid}

    def folded(self) -> Folded:
        """The shapes of its outcomes; few, and those that no worker ended under a lease, are rows."""
        outcomes = self.writes.outcomes
        if len(outcomes) < receipts.MEMBERS_MIN or self.worker is None or not self.leases:
            return Folded((), outcomes)
        return fold(outcomes, self.proofs)

    def extent(self, folded: Folded) -> Extent:
        """How much of the statement it needs."""
        writes, known = self.writes, self.known
        if writes.requeues or writes.audits or known.keyed or known.batches or not self.leases:
            return "all"
        if folded.receipts:
            return "all" if folded.rows else "receipts"
        plain = len(self.leases) == 1 and all(map(is_plain, folded.rows))
        return "plain" if plain else "ends"


def settle_values(prepared: Prepared, folded: Folded, notify: bool, extent: Extent) -> Values:
    """The parameters of a settle of that extent, whose outcomes have these shapes."""
    rows, proofs = folded.rows, prepared.proofs
    values: Values = {"unproved_domain": prepared.domain, "worker": prepared.worker}
    values |= _lease_columns(prepared)
    values |= _tally_columns(folded, proofs)
    if extent == "receipts":
        return values | _receipt_columns(folded.receipts)
    if extent == "plain":
        seqs, rans = [row.seq for row in rows], [row.ran for row in rows]
        return values | PLAIN_OUTCOMES(seq=seqs, ran=rans)
    values |= _outcome_columns(rows, proofs)
    if extent == "ends":
        return values
    return {
        **values,
        **_receipt_columns(folded.receipts),
        "origin": ORIGIN,
        "notify": notify,
        **_key_columns(prepared),
        **_requeue_columns(prepared),
        **_audit_columns(prepared.writes.audits, proofs),
        **_batch_columns(prepared),
        **_permit_columns(prepared),
    }


def _lease_columns(prepared: Prepared) -> Values:
    leases, rests = prepared.leases, prepared.rests
    ending = [lease_id for lease_id, rest in rests.items() if not rest.commands]
    going_on = [lease_id for lease_id, rest in rests.items() if rest.commands]
    values = ENDING.empty | SHRINKING.empty
    if ending:
        versions = [leases[lease_id].version for lease_id in ending]
        values |= ENDING(lease_id=ending, version=versions)
    if going_on:
        values |= SHRINKING(
            lease_id=going_on,
            version=[leases[lease_id].version for lease_id in going_on],
            rest=[integers(rests[lease_id].commands) for lease_id in going_on],
        )
    return values


def _receipt_columns(receipts: Sequence[Receipt]) -> Values:
    if not receipts:
        return RECEIPTS.empty
    return RECEIPTS(
        proof=[one.proof for one in receipts],
        first_seq=[one.first_seq for one in receipts],
        last_seq=[one.last_seq for one in receipts],
        members=[one.members for one in receipts],
        ran=[one.ran for one in receipts],
    )


def _outcome_columns(rows: Sequence[OutcomeRow], proofs: Mapping[int, int]) -> Values:
    if not rows:
        return OUTCOMES.empty
    return OUTCOMES(
        proof=[proofs[row.seq] for row in rows],
        seq=[row.seq for row in rows],
        status=[row.status for row in rows],
        attempts=[row.attempts for row in rows],
        crashes=[row.crashes for row in rows],
        ran=[row.ran for row in rows],
        result=[row.result for row in rows],
        error=[None if row.error is None else as_json(row.error) for row in rows],
        reason=[row.reason for row in rows],
    )


def _tally_columns(folded: Folded, proofs: Mapping[int, int]) -> Values:
    tally: Counter[tuple[int, str]] = Counter()
    for receipt in folded.receipts:
        tally[receipt.proof, CommandStatus.COMPLETED] += receipt.members
    for row in folded.rows:
        tally[proofs[row.seq], row.status] += 1
    return TALLIES(
        proof=[proof for proof, _ in tally], status=[status for _, status in tally], n=tally.values()
    )


def _key_columns(prepared: Prepared) -> Values:
    keyed = prepared.known.keyed
    if not keyed:
        return FREED.empty
    freed = [row.seq for row in prepared.writes.outcomes if row.status in FINAL and row.seq in keyed]
    return FREED(proof=[prepared.proofs[seq] for seq in freed], seq=freed)


def _requeue_columns(prepared: Prepared) -> Values:
    rows = prepared.writes.requeues
    if not rows:
        return REQUEUES.empty
    return REQUEUES(
        proof=[prepared.proofs[row.seq] for row in rows],
        seq=[row.seq for row in rows],
        priority=[prepared.known.priorities[row.seq] for row in rows],
        attempts=[row.attempts for row in rows],
        crashes=[row.crashes for row in rows],
        releases=[row.releases for row in rows],
        keyed=[row.seq in prepared.known.keyed for row in rows],
        delay=[row.delay for row in rows],
    )


def _audit_columns(rows: list[AuditRow], proofs: Mapping[int, int]) -> Values:
    if not rows:
        return AUDITS.empty
    return AUDITS(
        proof=[proofs[row.seq] for row in rows],
        seq=[row.seq for row in rows],
        kind=[row.kind for row in rows],
        details=[as_json(row.details) for row in rows],
    )


def _batch_columns(prepared: Prepared) -> Values:
    ends: dict[int, list[tuple[UUID | None, CommandStatus]]] = {}
    if not prepared.known.batches:
        return BATCH_COUNTS.empty
    for row in prepared.writes.outcomes:
        batch_id = prepared.known.batches.get(row.seq)
        ends.setdefault(prepared.proofs[row.seq], []).append((batch_id, row.status))
    rows = [
        (proof, batch_id, counts)
        for proof, entered in ends.items()
        for batch_id, counts in tally(entered).items()
    ]
    return BATCH_COUNTS(
        proof=[proof for proof, _, _ in rows],
        batch_id=[batch_id for _, batch_id, _ in rows],
        completed=[counts.completed for _, _, counts in rows],
        failed=[counts.failed for _, _, counts in rows],
        canceled=[counts.canceled for _, _, counts in rows],
        parked=[counts.parked for _, _, counts in rows],
    )


def _permit_columns(prepared: Prepared) -> Values:
    back = {row.seq for row in prepared.writes.requeues}
    left: dict[int, bool] = {}
    heirs: dict[int, int] = {}
    chained: set[int] = set()
    for lease_id, lease in prepared.leases.items():
        chains = lease.chains
        if chains:
            chained |= chains.keys()
            leaving = {seq for seq in chains if prepared.proofs.get(seq) == lease_id}
            returning = {chains[seq] for seq in leaving & back}
            for holder, heir in hand_over(chains, leaving).items():
                if heir is None:
                    left[holder] = chains[holder] in returning
                else:
                    heirs[holder] = heir
    left |= {seq: seq in back for seq in sorted(prepared.known.keyed - chained)}
    values = LEFT_PERMITS.empty | HEIRS.empty
    if left:
        proofs = [prepared.proofs[seq] for seq in left]
        values |= LEFT_PERMITS(proof=proofs, seq=left, back=left.values())
    if heirs:
        proofs = [prepared.proofs[seq] for seq in heirs]
        values |= HEIRS(proof=proofs, holder=heirs, heir=heirs.values())
    return values


def as_json(value: object) -> str:
    return _encode(value).decode()
