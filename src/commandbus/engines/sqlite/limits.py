"""Gates in the SQLite file: what waits for its group, its limits or a worker with the right tags.

Under the write lock everything here is exact: permits in use, tokens left in a bucket, and the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import NamedTuple
from uuid import UUID

from commandbus.domain.limits import (
    KEY_PREFIX,
    PASS_MAX,
    PER_KEY,
    SENDER_PREFIX,
    Limit,
    first_gate,
    gate_after,
    grant,
    in_passing_order,
    limit_at,
    limit_of_gate,
    may_take,
    partition_of,
    take,
)
from commandbus.domain.moment import Clock
from commandbus.domain.priority import rank
from commandbus.engines.sqlite.queries import load_queries
from commandbus.engines.sqlite.rows import Head, as_heads, as_id, as_json
from commandbus.store.limiting import BlockedAt
from commandbus.store.op import Op, Rows, Statement, Wake, scalar

SQL = load_queries("gates.sql")
_COMMANDS = load_queries("commands.sql")
INSERT_QUEUE, KEY_HOLDER = _COMMANDS.promote, _COMMANDS.key_holder


class Waiting(NamedTuple):
    """A command on its way to a queue or a gate, in the order of the columns there."""

    priority: int
    seq: int
    attempts: int
    crashes: int
    releases: int
    available_at: int


class Held(NamedTuple):
    """A command that waits at a gate, and what decides where it goes from there."""

    gate: str
    waiting: Waiting
    command_type: str
    requires: str | None


Routed = tuple[str, str | None, str | None, Waiting]
"""Type, group key and required tags of a command, which decide where it waits."""


class SqliteGates:
    _clock: Clock

    def put_limit(self, limit: Limit) -> Op[None]:
        now, domain = self._clock(), limit.domain
        row = (domain, limit.gate, limit.concurrency, limit.rate, limit.burst)
        yield Statement(SQL.put_limit, row)
        if limit.per_sender:
            return
        yield Statement(SQL.mark_gated, (domain,))
        if not limit.per_key:
            wanted = {"domain": domain, "command_type": limit.command_type}
            rows = yield Statement(SQL.call_back, wanted)
            gates = (yield from self._gates_of([domain]))[domain]
            back: list[tuple[str, Waiting]] = []
            for *waiting, command_type in rows:
                gate = first_gate(gates, command_type, None, None) or limit.gate
                back.append((gate, Waiting(*waiting)))
            yield Statement(
                "delete from commandbus_queue where domain = ? and priority = ? and seq = ?",
                [(domain, one.priority, one.seq) for _, one in back],
                many=True,
            )
            yield from self._hold(domain, back, now)
        yield Statement(SQL.touch_held, {"domain": domain, "now": now})
        yield Wake(domain)

    def drop_limit(self, domain: str, gate: str) -> Op[bool]:
        known = bool((yield Statement(SQL.drop_limit, (domain, gate))))
        yield Statement(SQL.touch_held, {"domain": domain, "now": self._clock()})
        yield Wake(domain)
        return known

    def limits(self, domain: str | None) -> Op[list[Limit]]:
        rows = yield Statement(SQL.limits, (domain, domain))
        return [limit_of_gate(*row) for row in rows]

    def take_tokens(self, domain: str, sender: str, count: int) -> Op[float]:
        gate = SENDER_PREFIX + sender
        rows = yield Statement(SQL.sender_bucket, (gate, domain))
        if not rows:
            return 0.0
        ((*limit, full_at),) = rows
        full_at, wait = take(limit_of_gate(*limit), full_at, self._clock(), count)
        yield Statement(SQL.put_bucket, (domain, gate, full_at))
        return wait

    def key_holder(self, domain: str, unique_key: str) -> Op[UUID | None]:
        rows = yield Statement(KEY_HOLDER, (domain, unique_key))
        return as_id(scalar(rows)) if rows else None

    def free_key(self, domain: str, unique_key: str) -> Op[None]:
        yield Statement(SQL.free_key, (domain, unique_key))

    def held_at(self, domain: str, seq: int) -> Op[BlockedAt | None]:
        rows = yield Statement(SQL.held_at, (seq,))
        if not rows:
            return None
        ((gate, running, holder),) = rows
        return BlockedAt(gate, running, None if holder is None else as_id(holder))

    def _gates_of(self, domains: Iterable[str]) -> Op[dict[str, set[str]]]:
        """The names of the limits of domains."""
        wanted = sorted(set(domains))
        found: dict[str, set[str]] = {domain: set() for domain in wanted}
        for domain, gate in (yield Statement(SQL.gates_of, (as_json(wanted),))):
            found[domain].add(gate)
        return found

    def _hold(self, domain: str, rows: Sequence[tuple[str, Waiting]], now: int) -> Op[None]:
        """Let commands wait at gates, and have those looked at."""
        if rows:
            yield Statement(SQL.hold, [(domain, gate, *row) for gate, row in rows], many=True)
            touched = {gate for gate, _ in rows}
            yield Statement(SQL.touch, [(domain, gate, now) for gate in sorted(touched)], many=True)

    def _route(
        self,
        domain: str,
        gates: Collection[str],
        rows: Iterable[Routed],
        now: int,
    ) -> Op[None]:
        """Put due commands where they wait: in the queue, or at their first gate. Each row begins
        with what decides that: type, group key and required tags."""
        ready: list[Waiting] = []
        held: list[tuple[str, Waiting]] = []
        for command_type, group_key, requires, waiting in rows:
            gate = first_gate(gates, command_type, group_key, requires)
            if gate is None:
                ready.append(waiting)
            else:
                held.append((gate, waiting))
        if ready:
            yield Statement(INSERT_QUEUE, [(domain, *row) for row in ready], many=True)
        yield from self._hold(domain, held, now)

    def _route_back(self, rows: Sequence[tuple[int, int, int, int]], now: int) -> Op[None]:
        """Commands that come back at once: seq, attempts, crashes and releases of each. One that was
        deleted by hand does not."""
        routes = yield Statement(SQL.routes, (as_json([seq for seq, _, _, _ in rows]),))
        by_seq = {seq: route for seq, *route in routes}
        items: dict[str, list[Routed]] = {}
        for seq, attempts, crashes, releases in rows:
            if seq in by_seq:
                domain, priority, command_type, group_key, requires = by_seq[seq]
                waiting = Waiting(priority, seq, attempts, crashes, releases, now)
                items.setdefault(domain, []).append((command_type, group_key, requires, waiting))
        gates = yield from self._gates_of(items)
        for domain, limits in gates.items():
            yield from self._route(domain, limits, items[domain], now)

    def _admit(self, domain: str, ageing: int | None, now: int) -> Op[None]:
        """Let pass what the gates of a domain allow."""
        limits = {limit.gate: limit for limit in (yield from self.limits(domain))}
        placed = False
        while touched := (yield Statement(SQL.take_touches, (domain, now, PASS_MAX))):
            gates = [gate for (gate,) in touched]
            groups = [g for g in gates if g.startswith(KEY_PREFIX)] if PER_KEY not in limits else []
            if groups:
                chosen = {"domain": domain, "gates": as_json(groups)}
                rows = as_held((yield Statement(SQL.next_of_groups, chosen)))
                placed |= yield from self._let_pass(domain, limits, rows, now)
            for gate in in_passing_order(set(gates).difference(groups)):
                rows = yield from self._granted(domain, limits, gate, ageing, now)
                placed |= yield from self._let_pass(domain, limits, rows, now)
        if placed:
            yield Wake(domain, None, everyone=True)

    def _granted(
        self, domain: str, limits: dict[str, Limit], gate: str, ageing: int | None, now: int
    ) -> Op[list[Held]]:
        """The commands that may pass a gate now."""
        limit, running, full_at = limit_at(limits, domain, gate), 0, 0
        if limit.concurrency is not None:
            running = scalar((yield Statement(SQL.running, (domain, gate))))
        if limit.rate is not None:
            rows = yield Statement(SQL.bucket, (domain, gate))
            full_at = scalar(rows) if rows else 0
        room = PASS_MAX if limit.concurrency is None else limit.concurrency - running
        wanted = max(0, min(PASS_MAX, room)) + 1
        if ageing is None or gate.startswith(KEY_PREFIX):
            first = as_held((yield Statement(SQL.first_held, (domain, gate, wanted))))
        else:
            first = yield from self._longest_held(domain, gate, wanted, ageing)
        given = grant(limit, running, full_at, now, len(first))
        if limit.rate is not None:
            yield Statement(SQL.put_bucket, (domain, gate, given.full_at))
        if given.again_at is not None:
            yield Statement(SQL.touch, (domain, gate, given.again_at))
        return first[: given.count]

    def _longest_held(self, domain: str, gate: str, wanted: int, ageing: int) -> Op[list[Held]]:
        """The first ones at a gate, when waiting makes them more urgent."""
        rows: list[Held] = []
        for (priority,) in (yield Statement(SQL.held_priorities, {"domain": domain, "gate": gate})):
            rows += as_held((yield Statement(SQL.held_of_priority, (domain, gate, priority, wanted))))

        def turn(held: Held) -> tuple[int, int]:
            one = held.waiting
            return rank(one.priority, one.available_at, ageing), one.seq

        return nsmallest(wanted, rows, key=turn)

    def _let_pass(
        self, domain: str, limits: Collection[str], passing: Sequence[Held], now: int
    ) -> Op[bool]:
        """On to the next gate, or to the queue; whether workers with tags have to be woken."""
        if not passing:
            return False
        yield Statement(SQL.let_pass, [(held.waiting.seq,) for held in passing], many=True)
        permits = [(domain, held.gate, held.waiting.seq) for held in passing]
        yield Statement(SQL.take_permit, permits, many=True)
        further: list[tuple[str, Waiting]] = []
        ready: list[tuple[str, Waiting]] = []
        for gate, waiting, command_type, requires in passing:
            following = gate_after(limits, command_type, gate)
            if following is not None:
                further.append((following, waiting))
            else:
                ready.append((partition_of(domain, requires), waiting))
        yield from self._hold(domain, further, now)
        if ready:
            yield Statement(
                INSERT_QUEUE, [(partition, *waiting) for partition, waiting in ready], many=True
            )
        return any(partition != domain for partition, _ in ready)

    def _leave_gates(self, seqs: Collection[int], now: int) -> Op[None]:
        """Commands that do not run any more make room for others. The next one of a group passes at
        once, which is cheaper than to have its gate looked at; other gates are for the next claim."""
        left: dict[str, set[str]] = {}
        for domain, gate in (yield Statement(SQL.leave_permits, (as_json(sorted(seqs)),))):
            left.setdefault(domain, set()).add(gate)
        for domain, gates in sorted(left.items()):
            limits = {limit.gate: limit for limit in (yield from self.limits(domain))}
            groups = {g for g in gates if g.startswith(KEY_PREFIX)} if PER_KEY not in limits else set()
            placed = False
            if groups:
                chosen = {"domain": domain, "gates": as_json(sorted(groups))}
                rows = as_held((yield Statement(SQL.next_of_groups, chosen)))
                placed = yield from self._let_pass(domain, limits, rows, now)
            touched = [(domain, gate, now) for gate in sorted(gates - groups)]
            if touched:
                yield Statement(SQL.touch, touched, many=True)
            yield Wake(domain, None, everyone=placed)

    def _passed(self, heads: Sequence[Head]) -> Op[set[int]]:
        """Those of them that passed a gate."""
        seqs = as_json([head.seq for head in heads])
        return {seq for (seq,) in (yield Statement(SQL.permits_of, (seqs,)))}

    def _followers(
        self, domain: str, leaders: Sequence[Head], followers: int, chain: int
    ) -> Op[list[tuple[Head, int]]]:
        """Those that come along, which wait no more, each with its leader: of the first whose worker
        died and of those after it none come along."""
        fresh = [head.seq for head in leaders if not head.crashes]
        wanted = {"domain": domain, "leaders": as_json(fresh), "followers": followers, "chain": chain}
        taken: list[tuple[Head, int]] = []
        stopped = set[int]()
        for leader, *columns in (yield Statement(SQL.followers, wanted)):
            (head,) = as_heads([tuple(columns)])
            if head.crashes:
                stopped.add(leader)
            if leader not in stopped:
                taken.append((head, leader))
        if taken:
            yield Statement(SQL.unhold, (as_json([head.seq for head, _ in taken]),))
        return taken

    def _hand_over(self, heirs: Mapping[int, int | None]) -> Op[None]:
        """The permit of a group stays with others of a chain."""
        passed_on = [(heir, holder) for holder, heir in heirs.items() if heir is not None]
        if passed_on:
            yield Statement(SQL.hand_over, passed_on, many=True)

    def _partitions(self, domain: str, tags: tuple[str, ...]) -> Op[list[str]]:
        """Where a worker with these tags finds ready work of a domain: first what few can take."""
        if not tags:
            return [domain]
        rows = yield Statement(SQL.partitions, (domain,))
        fitting = [requires for (requires,) in rows if may_take(requires, tags)]
        return [*(partition_of(domain, requires) for requires in fitting), domain]


def as_held(rows: Rows) -> list[Held]:
    return [
        Held(gate, Waiting(*waiting), command_type, requires)
        for gate, *waiting, command_type, requires in rows
    ]
