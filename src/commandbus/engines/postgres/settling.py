"""Recording the outcomes of runs: one statement for a whole batch, proved by its leases.

The proof of everything that is written about a command is the lease under which it ran: the statement
takes the command out of the lease, and writes nothing if the lease is gone, has ended, or is not as
this process remembers it. So most settles read nothing before they write. A settlement that is refused
is tried once more, with its lease read and locked; if it is refused again, another worker has its
command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
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
    settle_query,
    settle_values,
)
from commandbus.engines.postgres.statements import Autocommit, Boundary, Urgent
from commandbus.engines.postgres.templates import Query, Values
from commandbus.store.op import Op, Statement, Wake, autocommit
from commandbus.store.records import Capacity, NewCommand, Settlement, SettleReport
from commandbus.store.settling import Member, QueueRow, Writes, is_recorded

_lease_id = attrgetter("lease_id")


class Settler(Part):
    """Records the outcomes of runs, and everything else that ends commands or returns them. The
    methods `_write_prepared`, `_statement`, `_remember` and `still_held` are where PGMQ differs."""

    def __init__(self, context: Context, sender: Sender) -> None:
        super().__init__(context)
        self._sender = sender
        self._queries = {extent: settle_query(context.schema, extent) for extent in get_args(Extent)}

    @autocommit
    def settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        prepared, doubtful = self._prepare(batch)
        batches: set[UUID] = set()
        for one in prepared:
            valid = yield from self._write_prepared(one)
            doubtful += one.refused(valid)
            batches |= one.changed_batches(valid)
            yield Boundary()
        lost = (yield from self._settle_again(doubtful, batches)) if doubtful else ()
        return SettleReport(lost, tuple(batches))

    def _prepare(self, batch: Sequence[Settlement]) -> tuple[list[Prepared], list[Settlement]]:
        """What a batch writes if its leases are as they are remembered, for each worker, of which there
        is one in practice; and the settlements that fit no remembered lease."""
        by_lease: dict[int, list[Settlement]] = {}
        for lease_id, some in groupby(batch, _lease_id):
            by_lease.setdefault(lease_id, []).extend(some)
        by_worker: dict[str, Prepared] = {}
        unknown: list[Settlement] = []
        for lease_id, settlements in by_lease.items():
            lease = self._context.leases.get(lease_id)
            if lease is None:
                unknown += settlements
                continue
            prepared = by_worker.setdefault(lease.worker, Prepared(worker=lease.worker))
            unknown += prepared.add(lease, settlements)
        return [one for one in by_worker.values() if one.settlements], unknown

    def _write_prepared(self, prepared: Prepared) -> Op[set[int]]:
        """Returns the leases that proved valid, and remembers what is left of them."""
        leases, proofs = prepared.leases, prepared.proofs
        prepared.rests = {lease_id: leases[lease_id].without(proofs) for lease_id in sorted(leases)}
        query, values = yield from self._statement(prepared)
        # Commands that follow are sent in the same transaction; without any, the statement is one.
        kind = Statement if prepared.sends else Autocommit
        rows = yield kind(query.sql, query.params(values))
        valid: set[int] = set()
        for lease_id, domain, priority, seq in rows:
            valid.add(lease_id)
            if seq is not None:
                # It passed its gate with an old key, and claims may begin behind that key.
                self._context.bounds.lower(domain, priority, seq)
        for lease_id, rest in prepared.rests.items():
            if rest.commands and lease_id in valid:
                self._context.leases.keep(rest)
            else:
                self._context.leases.forget([lease_id])
        if prepared.writes.requeues:
            yield from self._wake_for(
                (leases[proofs[row.seq]].domain, row)
                for row in prepared.writes.requeues
                if proofs[row.seq] in valid
            )
        keyed = prepared.known.keyed
        roomy = {leases[proofs[seq]].domain for seq in keyed if proofs[seq] in valid}
        for domain in roomy & self._context.gated:
            yield Wake(domain)
        sends = [command for proof, command in prepared.sends if proof in valid]
        if sends:
            yield from self._sender.insert(sends, Capacity())
        return valid

    def _settle_again(self, doubtful: Sequence[Settlement], batches: set[UUID]) -> Op[tuple[int, ...]]:
        """Settle under leases that are unknown or not as remembered: read and lock them, then write.
        Returns the commands that are lost. One whose outcome this very lease has recorded is not."""
        yield from self._recall(sorted({s.lease_id for s in doubtful}))
        prepared, lost = self._prepare(doubtful)
        for one in prepared:
            one.locked = True
            valid = yield from self._write_prepared(one)
            lost += one.refused(valid)
            batches |= one.changed_batches(valid)
        if not lost:
            return ()
        rows = yield Statement(self._sql.recorded_leases, (integers(s.seq for s in lost),))
        recorded = {seq: (lease_id, status) for seq, lease_id, status in rows}
        return tuple(s.seq for s in lost if not is_recorded(s, *recorded.get(s.seq, (None, None))))

    def _recall(self, wanted: Sequence[int]) -> Op[None]:
        """Read leases from the server, and lock them; forget those that are gone."""
        rows = yield Statement(self._sql.lock_leases, (integers(wanted),))
        for lease_id, domain, worker, claimed_at, version, seqs, unusual in rows:
            columns = yield Statement(self._sql.columns_of, (integers(seqs),))
            priorities = {seq: priority for seq, priority, _, _ in columns}
            holders = {seq: holder for seq, _, _, holder in columns if holder is not None}
            commands = {
                m.seq: LeasedCommand(
                    m.seq, m.attempt, m.crashes, m.releases, m.keyed, priority=priorities.get(m.seq, 0)
                )
                for m in members_of(seqs, unusual)
            }
            chains = {seq: holders[seq] for seq in commands if seq in holders}
            lease = LeaseRow(lease_id, domain, worker, claimed_at, version, commands, chains)
            yield from self._remember(lease)
        self._context.leases.forget(set(wanted) - {lease_id for lease_id, *_ in rows})

    def _remember(self, lease: LeaseRow) -> Op[None]:
        """Keep a lease that was read from the server."""
        self._context.leases.keep(lease)
        yield from ()

    def write_under(
        self,
        lease: LeaseRow,
        batches: dict[int, UUID | None],
        writes: Writes,
        sends: Sequence[NewCommand],
    ) -> Op[None]:
        """Write what is no settlement about commands of a lease, and take them out of it; `batches`
        names the commands and the batch of each."""
        lease_id = lease.lease_id
        prepared = Prepared(
            writes=writes,
            proofs=dict.fromkeys(batches, lease_id),
            known=Known(keyed={seq for seq in batches if lease.commands[seq].keyed}, batches=batches),
            leases={lease_id: lease},
            sends=[(lease_id, command) for command in sends],
        )
        yield from self._write_prepared(prepared)
        yield Boundary()

    def write(self, domain: str, worker: str | None, writes: Writes, known: Known) -> Op[None]:
        """Write what needs no lease, inside a transaction that holds other locks."""
        proofs = dict.fromkeys((row.seq for row in writes.outcomes), UNPROVED)
        proofs |= dict.fromkeys((row.seq for row in writes.requeues), UNPROVED)
        proofs |= dict.fromkeys((row.seq for row in writes.audits), UNPROVED)
        prepared = Prepared(writes=writes, proofs=proofs, known=known, worker=worker, domain=domain)
        query, values = yield from self._statement(prepared)
        yield Statement(query.sql, query.params(values))
        yield from self._wake_for((domain, row) for row in writes.requeues)

    def _statement(self, prepared: Prepared) -> Op[tuple[Query, Values]]:
        """The statement that settles, with its parameters; an op, since PGMQ looks for messages."""
        yield from ()
        folded = prepared.folded()
        extent = prepared.extent(folded)
        return self._queries[extent], settle_values(prepared, folded, self._context.notify, extent)

    def still_held(self, members: list[Member]) -> Op[list[Member]]:
        """Those of an ended lease that no other worker has taken meanwhile: all of them, where only the
        lease decides about that."""
        yield from ()
        return members

    def _wake_for(self, requeues: Iterable[tuple[str, QueueRow]]) -> Op[None]:
        """Wake workers of this process for commands that came back, and drop the bounds behind which
        its claims would miss them."""
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
