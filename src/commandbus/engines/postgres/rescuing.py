"""Taking back what expired leases held, and what a dead worker held.

A rescue works by lease, never by command: only the transaction that deletes the lease gives its
commands back, or parks those whose workers died too often.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, texts
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.leases import members_of
from commandbus.engines.postgres.settle_query import Known
from commandbus.engines.postgres.settling import Settler
from commandbus.engines.postgres.statements import Autocommit, Boundary, Undo
from commandbus.errors import StoreUnavailable
from commandbus.store.deaths import KEPT_SECONDS, HeldCommand, plan_rescued
from commandbus.store.op import Op, Row, Statement
from commandbus.store.settling import Writes

logger = logging.getLogger("commandbus.postgres")

_ROUNDS, _LEASES = 50, 50
"""Expired leases are taken back in so many transactions at most, of so many leases each."""


class Rescuer(Part):
    """Gives back what workers hold that do not renew their leases."""

    def __init__(self, context: Context, settler: Settler) -> None:
        super().__init__(context)
        self._settler = settler

    def rescue(self) -> Op[int]:
        """Take back what expired leases still held: many at a time, and after an error each by itself,
        so that one that cannot be taken back holds up neither the others nor claims."""
        rescued, most = 0, _LEASES
        domains: set[str] = set()
        skipped = self._context.stuck.skipped(self._context.monotonic())
        failed: list[int] = []
        for _ in range(_ROUNDS):
            taken: list[int] = []
            count = 0
            try:
                rows = yield Statement(self._sql.take_expired, (integers(skipped + failed), most))
                groups: dict[tuple[str, str], list[Row]] = {}
                for lease_id, domain, worker, *rest in rows:
                    taken.append(lease_id)
                    groups.setdefault((domain, worker), []).append((lease_id, *rest))
                for (domain, worker), leases in groups.items():
                    count += yield from self._take_back(domain, worker, leases)
                yield Boundary()
                rescued += count
                domains.update(domain for domain, _ in groups)
            except Exception as error:  # whatever is wrong with one of these leases
                yield Undo()
                if not taken:
                    raise
                if most == 1:
                    failed += taken
                    self._context.stuck.failed(taken[0], error, self._context.monotonic())
                most = 1
            if not taken:
                self._context.stuck.swept(skipped, failed)
                break
        if rescued:
            self._context.bounds.rescued(domains, self._context.monotonic())
            try:
                yield Autocommit(self._sql.note_rescue, (texts(sorted(domains)),))
            except StoreUnavailable as error:
                logger.debug("could not tell others of a rescue: %s", error)
        return rescued

    def _take_back(self, domain: str, worker: str, leases: Sequence[Row]) -> Op[int]:
        """What expired leases of one worker still held goes back; with what that leads to, in one
        transaction. A worker with transactional handlers has a lease for each command."""
        held = {
            member.seq: (member, lease_id, claimed_at)
            for lease_id, claimed_at, seqs, unusual in leases
            for member in members_of(seqs, unusual)
        }
        rows = yield Statement(self._sql.columns_of, (integers(held),))
        priorities = {seq: priority for seq, priority, _, _ in rows}
        members = [member for seq, (member, _, _) in held.items() if seq in priorities]
        members = yield from self._settler.still_held(members)
        writes, death = Writes(), self._context.witness(worker)
        for member in members:
            _, lease_id, claimed_at = held[member.seq]
            plan_rescued(writes, member, lease_id, worker, claimed_at, death)
        if members:
            keyed = {member.seq for member in members if member.keyed}
            batches = {seq: batch_id for seq, _, batch_id, _ in rows}
            known = Known(priorities, keyed, batches, {m.seq: m.attempt for m in members})
            yield from self._settler.write(domain, worker, writes, known)
        self._context.leases.forget([lease_id for lease_id, *_ in leases])
        return len(members)

    def held_by(self, worker: str) -> Op[list[HeldCommand]]:
        rows = yield Statement(self._sql.keep_leases_of, (worker, int(KEPT_SECONDS * SECOND)))
        if not rows:
            return []
        # What this process remembers of them may be old; a settle reads them again.
        self._context.leases.forget([lease_id for lease_id, *_ in rows])
        held = [
            (lease_id, member)
            for lease_id, _, seqs, unusual in rows
            for member in members_of(seqs, unusual)
        ]
        columns = yield Statement(self._sql.columns_of, (integers(m.seq for _, m in held),))
        batches = {seq: batch_id for seq, _, batch_id, _ in columns}
        domains = sorted({domain for _, domain, _, _ in rows})
        self._context.bounds.rescued(domains, self._context.monotonic())
        yield Statement(self._sql.note_rescue, (texts(domains),))
        return [(lease, m, batches[m.seq]) for lease, m in held if m.seq in batches]
