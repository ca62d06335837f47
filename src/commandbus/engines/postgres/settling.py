"""Recording what runs amounted to: one statement for a whole batch, proved by its leases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args
from uuid import UUID

from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.leases import LeasedCommand, LeaseRow, members_of
from commandbus.engines.postgres.sending import Sender
from commandbus.engines.postgres.settle_query import (
    UNPROVED,
    Extent,
    Known,
    Prepared,
    Shrink,
    lease_columns,
    settle_query,
    settle_values,
)
from commandbus.engines.postgres.statements import Autocommit, Boundary, Urgent
from commandbus.engines.postgres.templates import Query, Values
from commandbus.store.op import Op, Statement, Wake, autocommit
from commandbus.store.records import Capacity, NewCommand, Settlement, SettleReport
from commandbus.store.settling import Member, QueueRow, Writes, plan


class Settler(Part):
    """Records what runs amounted to, and everything else that ends commands or returns them."""

    def __init__(self, context: Context, sender: Sender) -> None:
        super().__init__(context)
        self._sender = sender
        self._queries = {extent: settle_query(context.schema, extent) for extent in get_args(Extent)}

    @autocommit
    def settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        doubtful: list[Settlement] = []
        batches: set[UUID] = set()
        for group in self._by_worker(batch, doubtful):
            built = self._build(group, doubtful)
            if built.shrinks:
                # What follows from a settlement is sent in its transaction; alone it is one by itself.
                valid = yield from self._send_prepared(built, Statement if built.sends else Autocommit)
                doubtful += [s for s in group if s.seq in built.proofs and s.lease_id not in valid]
                batches |= _changed(built, valid)
                yield Boundary()
        lost = (yield from self._settle_again(doubtful, batches)) if doubtful else ()
        return SettleReport(lost, tuple(batches))

    def _by_worker(
        self, batch: Sequence[Settlement], unknown: list[Settlement]
    ) -> list[list[Settlement]]:
        """One group per worker, in practice one; leases that this process does not know are left."""
        groups: dict[str, list[Settlement]] = {}
        by_lease: dict[int, list[Settlement]] = {}
        for settlement in batch:
            group = by_lease.get(settlement.lease_id)
            if group is None:
                held = self._context.leases.get(settlement.lease_id)
                group = unknown if held is None else groups.setdefault(held.worker, [])
                by_lease[settlement.lease_id] = group
            group.append(settlement)
        return list(groups.values())

    def _build(self, group: Sequence[Settlement], unknown: list[Settlement]) -> Prepared:
        """What a group writes if its leases are as they are remembered."""
        built = Prepared()
        for settlement in group:
            seq, lease_id = settlement.seq, settlement.lease_id
            shrink = built.shrinks.get(lease_id)
            held = shrink.held if shrink else self._context.leases.get(lease_id)
            seat = held.seats.get(seq) if held else None
            if (
                held is None
                or seat is None
                or seat.attempt != settlement.attempt
                or seq in built.proofs
            ):
                unknown.append(settlement)
                continue
            if shrink is None:
                shrink = built.shrinks[lease_id] = Shrink(held, [])
            shrink.settled.append(seq)
            plan(built.writes, settlement, seat, held.worker, held.claimed_at)
            built.proofs[seq] = lease_id
            built.known.priorities[seq] = seat.priority
            built.worker = held.worker
            if settlement.batch_id is not None:
                built.known.batches[seq] = settlement.batch_id
            if settlement.sends:
                built.sends += [(lease_id, command) for command in settlement.sends]
            if seat.keyed:
                built.known.keyed.add(seq)
        return built

    def _send_prepared(self, built: Prepared, kind: type[Statement]) -> Op[set[int]]:
        """Write a batch; returns the leases that proved valid, and remembers what is left of them."""
        rests = {lease_id: shrink.rest() for lease_id, shrink in sorted(built.shrinks.items())}
        query, extent, transported = yield from self._statement(built)
        values = (
            settle_values(built, None, self._context.notify, extent)
            | lease_columns(built.shrinks, rests)
            | transported
        )
        rows = yield kind(query.sql, query.params(values))
        valid: set[int] = set()
        for lease_id, domain, priority, seq in rows:
            valid.add(lease_id)
            if seq is not None:
                # It passed its gate with an old key, which claims may have gone past.
                self._context.bounds.lower(domain, priority, seq)
        for lease_id, rest in rests.items():
            if rest.seats and lease_id in valid:
                self._context.leases.keep(rest)
            else:
                self._context.leases.forget([lease_id])
        domains = {lease_id: shrink.held.domain for lease_id, shrink in built.shrinks.items()}
        yield from self._announce(
            (domains[built.proofs[row.seq]], row)
            for row in built.writes.requeues
            if built.proofs[row.seq] in valid
        )
        roomy = {domains[built.proofs[seq]] for seq in built.known.keyed if built.proofs[seq] in valid}
        for domain in roomy & self._context.gated:
            yield Wake(domain)
        sends = [command for proof, command in built.sends if proof in valid]
        if sends:
            yield from self._sender.insert(sends, Capacity())
        return valid

    def _settle_again(self, doubtful: Sequence[Settlement], batches: set[UUID]) -> Op[tuple[int, ...]]:
        """The careful way, for leases that are unknown or not as remembered: look, lock, write.
        Returns what is lost; an outcome that this very lease has recorded before is not."""
        yield from self._recall(sorted({s.lease_id for s in doubtful}))
        lost: list[Settlement] = []
        for group in self._by_worker(doubtful, lost):
            built = self._build(group, lost)
            if built.shrinks:
                valid = yield from self._send_prepared(built, Statement)
                lost += [s for s in group if s.seq in built.proofs and s.lease_id not in valid]
                batches |= _changed(built, valid)
        if not lost:
            return ()
        rows = yield Statement(self._sql.recorded_leases, (integers(s.seq for s in lost),))
        recorded = dict(rows)
        return tuple(s.seq for s in lost if recorded.get(s.seq) != s.lease_id)

    def _recall(self, wanted: Sequence[int]) -> Op[None]:
        """Read leases from the server, and lock them; forget those that are gone."""
        rows = yield Statement(self._sql.lock_leases, (integers(wanted),))
        for lease_id, domain, worker, claimed_at, version, seqs, unusual in rows:
            columns = yield Statement(self._sql.columns_of, (integers(seqs),))
            priorities = {seq: priority for seq, priority, _, _ in columns}
            holders = {seq: holder for seq, _, _, holder in columns if holder is not None}
            seats = {
                m.seq: LeasedCommand(
                    m.seq, m.attempt, m.crashes, m.releases, m.keyed, priority=priorities.get(m.seq, 0)
                )
                for m in members_of(seqs, unusual)
            }
            chains = {seq: holders[seq] for seq in seats if seq in holders}
            found = LeaseRow(lease_id, domain, worker, claimed_at, version, seats, chains)
            yield from self._keep_found(found)
        self._context.leases.forget(set(wanted) - {lease_id for lease_id, *_ in rows})

    def _keep_found(self, held: LeaseRow) -> Op[None]:
        """Remember a lease that was read from the server."""
        self._context.leases.keep(held)
        yield from ()

    def write_under(
        self,
        held: LeaseRow,
        batches: dict[int, UUID | None],
        writes: Writes,
        sends: Sequence[NewCommand],
    ) -> Op[None]:
        """Write something else than settlements about commands of a lease, and take them out of it.
        The commands are given with their batches."""
        keyed = {seq for seq in batches if held.seats[seq].keyed}
        prepared = Prepared(
            writes,
            dict.fromkeys(batches, held.lease_id),
            Known({}, keyed, batches),
            {held.lease_id: Shrink(held, list(batches))},
            None,
            [(held.lease_id, command) for command in sends],
        )
        yield from self._send_prepared(prepared, Statement if sends else Autocommit)
        yield Boundary()

    def write(self, domain: str, worker: str | None, writes: Writes, known: Known) -> Op[None]:
        """Write what needs no lease, inside a transaction that holds other locks."""
        seqs = [row.seq for row in writes.outcomes]
        seqs += [row.seq for row in writes.requeues] + [row.seq for row in writes.audits]
        prepared = Prepared(writes, dict.fromkeys(seqs, UNPROVED), known, {}, worker)
        query, extent, transported = yield from self._statement(prepared)
        values = settle_values(prepared, domain, self._context.notify, extent)
        values |= lease_columns({}, {}) | transported
        yield Statement(query.sql, query.params(values))
        yield from self._announce((domain, row) for row in writes.requeues)

    def _statement(self, prepared: Prepared) -> Op[tuple[Query, Extent, Values]]:
        """The statement that settles, and what it needs beside the values that are common."""
        yield from ()
        extent = prepared.extent()
        return self._queries[extent], extent, {}

    def still_held(self, members: list[Member]) -> Op[list[Member]]:
        """Those of an ended lease that no other worker has taken meanwhile."""
        yield from ()
        return members

    def _announce(self, requeues: Iterable[tuple[str, QueueRow]]) -> Op[None]:
        """Tell this process what came back, and let its claims look where it came back to."""
        soonest: dict[str, int] = {}
        for domain, row in requeues:
            soonest[domain] = min(row.delay, soonest.get(domain, row.delay))
        for domain, delay in soonest.items():
            if not delay:
                self._context.bounds.forget(domain)
            yield Wake(domain, delay / SECOND if delay else None)

    @autocommit
    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        wanted = integers(sorted(lease_ids))
        statement = Urgent(self._sql.renew, (wanted, int(seconds * SECOND)), seconds=seconds / 4)
        rows = yield statement
        renewed = {lease_id for (lease_id,) in rows}
        gone = [lease_id for lease_id in lease_ids if lease_id not in renewed]
        self._context.leases.forget(gone)
        return gone

    @autocommit
    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        rows = yield Autocommit(self._sql.put_progress, (seq, lease_id, float(percent), message))
        return bool(rows)


def _changed(built: Prepared, valid: set[int]) -> set[UUID]:
    """The batches that a settle counted in."""
    return {
        batch_id
        for seq, batch_id in built.known.batches.items()
        if batch_id is not None and built.proofs[seq] in valid
    }
