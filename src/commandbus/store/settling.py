"""The plan of a settle: decided once here, written by each engine in its own way.

The happy path costs one outcome row and nothing else; every other path also leaves an audit row, so
that the trail of a command is complete.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, assert_never

import msgspec

from commandbus.domain.audit import AuditEventType
from commandbus.domain.failure import Failure
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.outcome import (
    CRASHES_MAX,
    Canceled,
    Crashed,
    Parked,
    Rejected,
    Released,
    RetryLater,
    Succeeded,
    worker_lost,
)
from commandbus.store.records import Settlement


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A command under a lease."""

    seq: int
    attempt: int
    crashes: int
    releases: int
    keyed: bool
    """Whether it may hold a unique key or a permit, which its end frees."""
    chain: int = 0
    """See `Claimed.chain`."""


class OutcomeRow(msgspec.Struct, frozen=True, gc=False):
    seq: int
    status: CommandStatus
    attempts: int
    crashes: int
    lease_id: int | None
    worker: str | None
    ran: int
    result: str | None = None
    error: Failure | None = None
    reason: str | None = None


class QueueRow(msgspec.Struct, frozen=True):
    """Back to waiting, in `delay` microseconds."""

    seq: int
    attempts: int
    crashes: int
    releases: int
    delay: int


class AuditRow(msgspec.Struct, frozen=True):
    seq: int
    kind: AuditEventType
    details: dict[str, Any]


class Writes(msgspec.Struct):
    """Everything that a batch of settlements writes."""

    outcomes: list[OutcomeRow] = []
    requeues: list[QueueRow] = []
    audits: list[AuditRow] = []


def plan(writes: Writes, settlement: Settlement, member: Member, worker: str, claimed_at: int) -> None:
    """Add to `writes` what one settlement writes."""
    outcome, seq = settlement.outcome, settlement.seq
    attempt, crashes = member.attempt, member.crashes
    if isinstance(outcome, Succeeded):
        # First, and without the helpers below: nearly every settlement is one of these.
        writes.outcomes.append(
            OutcomeRow(
                seq,
                CommandStatus.COMPLETED,
                attempt,
                crashes,
                settlement.lease_id,
                worker,
                settlement.ran,
                outcome.result,
            )
        )
        return

    def end(status: CommandStatus, **columns: Any) -> None:
        writes.outcomes.append(
            OutcomeRow(
                seq,
                status,
                attempt,
                crashes,
                settlement.lease_id,
                worker,
                settlement.ran,
                **columns,
            )
        )

    def note(kind: AuditEventType, **details: Any) -> None:
        run = {
            "attempt": attempt,
            "worker": worker,
            "received_at": claimed_at,
            "ran": settlement.ran,
        }
        writes.audits.append(AuditRow(seq, kind, run | details))

    match outcome:
        case Rejected(failure):
            end(CommandStatus.FAILED, error=failure)
            note(AuditEventType.BUSINESS_RULE_FAILED, error=failure)
        case Parked(failure, reason):
            end(CommandStatus.IN_TROUBLESHOOTING_QUEUE, error=failure, reason=reason)
            note(AuditEventType.MOVED_TO_TSQ, error=failure, reason=reason)
        case Canceled(reason, actor):
            end(CommandStatus.CANCELED, reason=reason)
            by = {"actor": actor} if actor else {}
            note(AuditEventType.CANCELED, reason=reason, **by)
        case RetryLater(failure, delay):
            writes.requeues.append(QueueRow(seq, attempt, crashes, member.releases, _micro(delay)))
            note(AuditEventType.FAILED, error=failure, retry_in=delay)
        case Released(reason, delay, counted, breaker, audited):
            # Only these are counted: a command may be put off for other reasons as often as it likes.
            releases = member.releases + counted
            writes.requeues.append(QueueRow(seq, attempt - 1, crashes, releases, _micro(delay)))
            if audited:
                counts = {"releases": releases} if counted else {}
                behind = {"breaker": breaker} if breaker else {}
                note(AuditEventType.RELEASED, reason=reason, retry_in=delay, **counts, **behind)
        case Crashed(cause):
            lost = worker_lost(crashes + 1, cause)
            plan_lost(writes, member, settlement.lease_id, worker, claimed_at, lost)
        case _:
            assert_never(outcome)


def is_recorded(settlement: Settlement, lease_id: int | None, status: str | None) -> bool:
    """Whether a settlement that its lease no longer allows repeats the outcome that is recorded. A
    success repeats only a success: the effects of a handler that was given up, and whose command was
    parked or canceled under the same lease, must not commit with it."""
    if lease_id != settlement.lease_id:
        return False
    return status == CommandStatus.COMPLETED or not isinstance(settlement.outcome, Succeeded)


def plan_lost(
    writes: Writes,
    member: Member,
    lease_id: int,
    worker: str,
    claimed_at: int,
    failure: Failure | None = None,
) -> None:
    """What the end of a lease writes for a command that was still under it: a crash is counted, and
    the command goes back, or to an operator when it may be what kills its workers."""
    crashes = member.crashes + 1
    failure = failure or worker_lost(crashes)
    writes.audits.append(
        AuditRow(
            member.seq,
            AuditEventType.WORKER_LOST,
            {
                "attempt": member.attempt,
                "worker": worker,
                "received_at": claimed_at,
                "crashes": crashes,
                "lease_id": lease_id,
                "error": failure,
            },
        )
    )
    if crashes < CRASHES_MAX:
        writes.requeues.append(QueueRow(member.seq, member.attempt, crashes, member.releases, delay=0))
        return
    writes.outcomes.append(
        OutcomeRow(
            member.seq,
            CommandStatus.IN_TROUBLESHOOTING_QUEUE,
            member.attempt,
            crashes,
            None,
            worker,
            ran=0,
            error=failure,
            reason="WORKER_LOST",
        )
    )
    writes.audits.append(
        AuditRow(
            member.seq,
            AuditEventType.MOVED_TO_TSQ,
            {"attempt": member.attempt, "reason": "WORKER_LOST", "error": failure},
        )
    )


def chains_of(members: Iterable[Member]) -> dict[int, int]:
    """The members of a lease that are of chains, in order, with the chains that they are of."""
    return {member.seq: member.chain for member in members if member.chain}


def hand_over(chains: Mapping[int, int], leaving: Container[int]) -> dict[int, int | None]:
    """The permit of a group belongs to the first command of the chain that is still under the lease.
    Returns the commands that leave with a permit, each with the one that gets it, or None if no other
    is left. `chains` is what `chains_of` says of the lease before they leave."""
    holders: dict[int, int] = {}
    heirs: dict[int, int] = {}
    for seq, chain in chains.items():
        holders.setdefault(chain, seq)
        if seq not in leaving:
            heirs.setdefault(chain, seq)
    return {holder: heirs.get(chain) for chain, holder in holders.items() if holder in leaving}


def soonest(writes: Writes, domains: Mapping[int, str]) -> dict[str, float | None]:
    """In how many seconds each domain has something again because of these writes; None means now."""
    found: dict[str, float | None] = {}
    for row in writes.requeues:
        domain, due_in = domains[row.seq], row.delay / 1_000_000 if row.delay else None
        known = found.get(domain, due_in)
        found[domain] = None if due_in is None or known is None else min(known, due_in)
    return found


def _micro(seconds: float) -> int:
    return int(seconds * 1_000_000)
