"""Gates in PostgreSQL: limits, and letting pass what they allow; the work is done by `admit`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from commandbus.domain.limits import (
    PASS_MAX,
    SENDER_PREFIX,
    Limit,
    limit_of_gate,
    may_take,
    partition_of,
    take,
)
from commandbus.engines.postgres.arrays import texts
from commandbus.engines.postgres.context import Part
from commandbus.engines.postgres.statements import ORIGIN, Autocommit
from commandbus.store.limiting import BlockedAt
from commandbus.store.op import Op, Read, Statement, Wake


class Limits(Part):
    """Limits, and the gates that hold commands up to them."""

    def put_limit(self, limit: Limit) -> Op[None]:
        domain = limit.domain
        row = (domain, limit.gate, limit.concurrency, limit.rate, limit.burst)
        yield Statement(self._sql.put_limit, row)
        if limit.per_sender:
            return
        yield Statement(self._sql.mark_gated, (texts([domain]), texts([None])))
        if not limit.per_key:
            yield Statement(self._sql.call_back, (domain, limit.command_type))
        yield from self._look_at_gates(domain)

    def drop_limit(self, domain: str, gate: str) -> Op[bool]:
        known = bool((yield Statement(self._sql.drop_limit, (domain, gate))))
        yield from self._look_at_gates(domain)
        return known

    def _look_at_gates(self, domain: str) -> Op[None]:
        yield Statement(self._sql.touch_held, (domain,))
        yield Statement(self._sql.wake, (domain, ORIGIN, self._context.notify))
        yield Wake(domain)

    def limits(self, domain: str | None) -> Op[list[Limit]]:
        rows = yield Read(self._sql.limits, (domain,))
        return [limit_of_gate(*row) for row in rows]

    def take_tokens(self, domain: str, sender: str, count: int) -> Op[float]:
        gate = SENDER_PREFIX + sender
        rows = yield Statement(self._sql.sender_bucket, (domain, gate))
        if not rows:
            return 0.0
        ((*limit, full_at, now),) = rows
        full_at, wait = take(limit_of_gate(*limit), full_at, now, count)
        if not wait:
            yield Statement(self._sql.fill_bucket, (domain, gate, full_at))
        return wait

    def key_holder(self, domain: str, unique_key: str) -> Op[UUID | None]:
        rows = yield Statement(self._sql.key_holders, (texts([domain]), texts([unique_key])))
        return next((command_id for _, _, command_id in rows), None)

    def free_key(self, domain: str, unique_key: str) -> Op[None]:
        yield Statement(self._sql.free_key, (domain, unique_key))

    def held_at(self, domain: str, seq: int) -> Op[BlockedAt | None]:
        rows = yield Read(self._sql.held_at, (seq,))
        return next((BlockedAt(*row) for row in rows), None)

    def gates_of(self, domains: Iterable[str]) -> Op[dict[str, set[str]]]:
        """The names of the limits of domains."""
        found: dict[str, set[str]] = {domain: set() for domain in domains}
        for domain, gate in (yield Statement(self._sql.gates_of, (texts(sorted(found)),))):
            found[domain].add(gate)
        return found

    def open_gates(self, domains: Iterable[str], ageing: int | None, patient: bool) -> Op[bool]:
        """Let commands pass as far as the gates allow. Returns whether another process was opening the
        same gates, which may then have missed commands; with `patient` this waits for it."""
        busy = False
        for domain in domains:
            params = (domain, patient, PASS_MAX, ORIGIN, self._context.notify, ageing)
            ((passed, tagged, elsewhere),) = yield Autocommit(self._sql.admit, params)
            if passed:
                # They return with old keys, and claims may begin behind these.
                self._context.bounds.forget(domain)
            if tagged:
                yield Wake(domain, None, everyone=True)
            busy = busy or elsewhere
        return busy

    def tagged_partitions(
        self, domains: Sequence[str], tags: tuple[str, ...]
    ) -> Op[list[tuple[str, str]]]:
        """The partitions, each with its domain, of ready commands that require tags which this worker
        has."""
        if not tags or not domains:
            return []
        rows = yield Read(self._sql.partitions, (texts(domains),))
        return [(domain, partition_of(domain, req)) for domain, req in rows if may_take(req, tags)]
