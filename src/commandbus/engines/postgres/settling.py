"""Recording what runs amounted to: one statement for a whole batch, proved by its leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from commandbus.domain.lifecycle import FINAL, CommandStatus
from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, numbers, texts, unless
from commandbus.engines.postgres.batches import count_columns
from commandbus.engines.postgres.leases import Held, Seat, members_of
from commandbus.engines.postgres.sending import PostgresSending
from commandbus.engines.postgres.statements import ORIGIN, Atomic, Boundary, Urgent
from commandbus.store.batching import tally
from commandbus.store.op import Op, Statement, Wake, autocommit
from commandbus.store.records import Capacity, NewCommand, Settlement, SettleReport
from commandbus.store.settling import AuditRow, Member, OutcomeRow, QueueRow, Writes, hand_over, plan

_encode = msgspec.json.Encoder().encode

UNPROVED = 0
"""The proof of what needs no lease; see settle.sql."""


class Shrink(msgspec.Struct):
    """What a settle does to one lease."""

    held: Held
    settled: list[int]

    def rest(self) -> Held:
        return self.held.without(set(self.settled))


class Known(msgspec.Struct):
    """What a write needs to know of its commands beside the write itself, by sequence."""

    priorities: dict[int, int] = {}
    keyed: set[int] = set()
    batches: dict[int, UUID | None] = {}


class Prepared(msgspec.Struct):
    """Writes on their way to the server, each with its proof."""

    writes: Writes = msgspec.field(default_factory=Writes)
    proofs: dict[int, int] = {}
    known: Known = msgspec.field(default_factory=Known)
    shrinks: dict[int, Shrink] = {}
    worker: str | None = None
    sends: list[tuple[int, NewCommand]] = []
    """Commands that follow, with the proof of what they follow from."""
    doubted: bool = True
    """Whether a transport is to look before it writes, for what it cannot undo by itself."""


class PostgresSettling(PostgresSending):
    @autocommit
    def settle(self, batch: Sequence[Settlement]) -> Op[SettleReport]:
        doubtful: list[Settlement] = []
        batches: set[UUID] = set()
        for group in self._by_worker(batch, doubtful):
            built = self._build(group, doubtful)
            if built.shrinks:
                # What follows from a settlement is sent in its transaction; alone it is one by itself.
                valid = yield from self._send_prepared(built, Statement if built.sends else Atomic)
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
        for settlement in batch:
            held = self._leases.get(settlement.lease_id)
            if held is None:
                unknown.append(settlement)
            else:
                groups.setdefault(held.worker, []).append(settlement)
        return list(groups.values())

    def _build(self, group: Sequence[Settlement], unknown: list[Settlement]) -> Prepared:
        """What a group writes if its leases are as they are remembered."""
        built = Prepared()
        for settlement in group:
            seq, lease_id = settlement.seq, settlement.lease_id
            shrink = built.shrinks.get(lease_id)
            held = shrink.held if shrink else self._leases.get(lease_id)
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
        sql, transported = yield from self._transport(built)
        leases = _lease_columns(built.shrinks, rests)
        params = (*leases, None, built.worker, *self._params(built), *transported)
        rows = yield kind(sql, params)
        valid: set[int] = set()
        for lease_id, domain, priority, seq in rows:
            valid.add(lease_id)
            if seq is not None:
                # It passed its gate with an old key, which claims may have gone past.
                self._bounds.lower(domain, priority, seq)
        for lease_id, rest in rests.items():
            if rest.seats and lease_id in valid:
                self._leases.keep(rest)
            else:
                self._leases.forget([lease_id])
        domains = {lease_id: shrink.held.domain for lease_id, shrink in built.shrinks.items()}
        yield from self._announce(
            (domains[built.proofs[row.seq]], row)
            for row in built.writes.requeues
            if built.proofs[row.seq] in valid
        )
        roomy = {domains[built.proofs[seq]] for seq in built.known.keyed if built.proofs[seq] in valid}
        for domain in roomy & self._gated:
            yield Wake(domain)
        sends = [command for proof, command in built.sends if proof in valid]
        if sends:
            yield from self.insert(sends, Capacity())
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
                m.seq: Seat(
                    m.seq, m.attempt, m.crashes, m.releases, m.keyed, priority=priorities.get(m.seq, 0)
                )
                for m in members_of(seqs, unusual)
            }
            chains = {seq: holders[seq] for seq in seats if seq in holders}
            found = Held(lease_id, domain, worker, claimed_at, version, seats, chains)
            yield from self._keep_found(found)
        self._leases.forget(set(wanted) - {lease_id for lease_id, *_ in rows})

    def _keep_found(self, held: Held) -> Op[None]:
        """Remember a lease that was read from the server."""
        self._leases.keep(held)
        yield from ()

    def _write_under(
        self,
        held: Held,
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
        yield from self._send_prepared(prepared, Statement if sends else Atomic)
        yield Boundary()

    def _write(self, domain: str, worker: str | None, writes: Writes, known: Known) -> Op[None]:
        """Write what needs no lease, inside a transaction that holds other locks."""
        seqs = [row.seq for row in writes.outcomes]
        seqs += [row.seq for row in writes.requeues] + [row.seq for row in writes.audits]
        prepared = Prepared(writes, dict.fromkeys(seqs, UNPROVED), known, {}, worker)
        sql, transported = yield from self._transport(prepared)
        params = (*_lease_columns({}, {}), domain, worker, *self._params(prepared), *transported)
        yield Statement(sql, params)
        yield from self._announce((domain, row) for row in writes.requeues)

    def _transport(self, prepared: Prepared) -> Op[tuple[str, tuple[Any, ...]]]:
        """The statement that settles, and what it needs beside the parameters that are common."""
        yield from ()
        return self._sql.settle, ()

    def _still_held(self, members: list[Member]) -> Op[list[Member]]:
        """Those of an ended lease that nobody else has taken meanwhile."""
        yield from ()
        return members

    def _params(self, prepared: Prepared) -> tuple[Any, ...]:
        """$8 to $47 of settle.sql."""
        batches = _batch_columns(prepared)
        return *_columns(prepared), ORIGIN, self._notify, *batches, *_slot_columns(prepared)

    def _announce(self, requeues: Iterable[tuple[str, QueueRow]]) -> Op[None]:
        """Tell this process what came back, and let its claims look where it came back to."""
        soonest: dict[str, int] = {}
        for domain, row in requeues:
            soonest[domain] = min(row.delay, soonest.get(domain, row.delay))
        for domain, delay in soonest.items():
            if not delay:
                self._bounds.forget(domain)
            yield Wake(domain, delay / SECOND if delay else None)

    @autocommit
    def renew(self, lease_ids: Sequence[int], seconds: float) -> Op[list[int]]:
        wanted = integers(sorted(lease_ids))
        statement = Urgent(self._sql.renew, (wanted, int(seconds * SECOND)), seconds=seconds / 4)
        rows = yield statement
        renewed = {lease_id for (lease_id,) in rows}
        gone = [lease_id for lease_id in lease_ids if lease_id not in renewed]
        self._leases.forget(gone)
        return gone

    @autocommit
    def report_progress(self, seq: int, lease_id: int, percent: float, message: str) -> Op[bool]:
        rows = yield Atomic(self._sql.put_progress, (seq, lease_id, float(percent), message))
        return bool(rows)


def _lease_columns(shrinks: Mapping[int, Shrink], rests: Mapping[int, Held]) -> tuple[str, ...]:
    """$1 to $5 of settle.sql: leases that end here, and leases that go on with less."""
    ending = [lease_id for lease_id, rest in rests.items() if not rest.seats]
    going_on = [lease_id for lease_id, rest in rests.items() if rest.seats]
    return (
        integers(ending),
        integers(shrinks[lease_id].held.version for lease_id in ending),
        integers(going_on),
        integers(shrinks[lease_id].held.version for lease_id in going_on),
        texts(integers(rests[lease_id].seats) for lease_id in going_on),
    )


def _columns(built: Prepared) -> tuple[str, ...]:
    """$8 to $33 of settle.sql."""
    return (
        *_outcome_columns(built.writes.outcomes, built.proofs),
        *_tally_columns(built.writes.outcomes, built.proofs),
        *_key_columns(built),
        *_requeue_columns(built),
        *_audit_columns(built.writes.audits, built.proofs),
    )


def _outcome_columns(rows: list[OutcomeRow], proofs: Mapping[int, int]) -> tuple[str, ...]:
    return (
        integers(proofs[row.seq] for row in rows),
        integers(row.seq for row in rows),
        unless(CommandStatus.COMPLETED, [row.status for row in rows]),
        unless(1, [row.attempts for row in rows]),
        unless(0, [row.crashes for row in rows]),
        integers(row.ran for row in rows),
        unless(None, [row.result for row in rows], texts),
        unless(None, [None if row.error is None else as_json(row.error) for row in rows], texts),
        unless(None, [row.reason for row in rows], texts),
    )


def _tally_columns(rows: list[OutcomeRow], proofs: Mapping[int, int]) -> tuple[str, ...]:
    tally: dict[tuple[int, str], int] = {}
    for row in rows:
        key = (proofs[row.seq], row.status)
        tally[key] = tally.get(key, 0) + 1
    return (
        integers(proof for proof, _ in tally),
        numbers(status for _, status in tally),
        integers(tally.values()),
    )


def _key_columns(built: Prepared) -> tuple[str, ...]:
    """Final outcomes free their unique keys."""
    freed = [
        row.seq for row in built.writes.outcomes if row.status in FINAL and row.seq in built.known.keyed
    ]
    return integers(built.proofs[seq] for seq in freed), integers(freed)


def _requeue_columns(built: Prepared) -> tuple[str, ...]:
    rows = built.writes.requeues
    return (
        integers(built.proofs[row.seq] for row in rows),
        integers(row.seq for row in rows),
        integers(built.known.priorities[row.seq] for row in rows),
        integers(row.attempts for row in rows),
        integers(row.crashes for row in rows),
        integers(row.releases for row in rows),
        numbers(row.seq in built.known.keyed for row in rows),
        integers(row.delay for row in rows),
    )


def _audit_columns(rows: list[AuditRow], proofs: Mapping[int, int]) -> tuple[str, ...]:
    return (
        integers(proofs[row.seq] for row in rows),
        integers(row.seq for row in rows),
        numbers(row.kind for row in rows),
        texts(as_json(row.details) for row in rows),
    )


def _batch_columns(built: Prepared) -> tuple[str, ...]:
    """What the outcomes add to the counts of batches, one row per batch and lease."""
    ends: dict[int, list[tuple[UUID | None, CommandStatus]]] = {}
    if built.known.batches:
        for row in built.writes.outcomes:
            batch_id = built.known.batches.get(row.seq)
            ends.setdefault(built.proofs[row.seq], []).append((batch_id, row.status))
    counted = [(proof, tally(entered)) for proof, entered in ends.items()]
    return (
        integers(proof for proof, counts in counted for _ in counts),
        numbers(batch_id for _, counts in counted for batch_id in counts),
        *count_columns(count for _, counts in counted for count in counts.values()),
    )


def _slot_columns(built: Prepared) -> tuple[str, ...]:
    """Who gives its place up, and whether one comes back to where it was free for; then who hands it
    over to whom."""
    back = {row.seq for row in built.writes.requeues}
    left: dict[int, bool] = {}
    heirs: dict[int, int] = {}
    chained: set[int] = set()
    for shrink in built.shrinks.values():
        chains = shrink.held.chains
        if chains:
            chained |= chains.keys()
            returning = {chains[seq] for seq in shrink.settled if seq in back and seq in chains}
            for holder, heir in hand_over(chains, set(shrink.settled)).items():
                if heir is None:
                    left[holder] = chains[holder] in returning
                else:
                    heirs[holder] = heir
    left |= {seq: seq in back for seq in sorted(built.known.keyed - chained)}
    return (
        integers(built.proofs[seq] for seq in left),
        integers(left),
        numbers(left.values()),
        integers(built.proofs[seq] for seq in heirs),
        integers(heirs),
        integers(heirs.values()),
    )


def _changed(built: Prepared, valid: set[int]) -> set[UUID]:
    """The batches that a settle counted in."""
    return {
        batch_id
        for seq, batch_id in built.known.batches.items()
        if batch_id is not None and built.proofs[seq] in valid
    }


def as_json(value: object) -> str:
    return _encode(value).decode()
