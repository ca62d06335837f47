"""Gates in memory: what waits for its group, its limits or a worker with the right tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from uuid import UUID

from commandbus.domain.limits import (
    KEY_PREFIX,
    PER_SENDER,
    SENDER_PREFIX,
    Limit,
    first_gate,
    gate_after,
    grant,
    in_passing_order,
    limit_at,
    may_take,
    take,
)
from commandbus.domain.moment import Clock
from commandbus.engines.memory.state import Domain, Entry, State, Stored
from commandbus.store.limiting import BlockedAt
from commandbus.store.op import Op, Wake
from commandbus.store.settling import Member

Ready = list[tuple[int, int, Entry]]


class MemoryGates:
    _state: State
    _clock: Clock

    def put_limit(self, limit: Limit) -> Op[None]:
        now, domain = self._clock(), self._state.domain(limit.domain)
        domain.note_all(self._state.journal)
        domain.limits[limit.gate] = limit
        # Work that is ready already goes back to the gates, unless it has passed its own.
        ready, domain.heaps.ready = domain.heaps.ready, []
        for priority, seq, entry in sorted(ready):
            if seq in domain.passed:
                heappush(domain.heaps.ready, (priority, seq, entry))
            elif domain.waiting.get(seq) is entry:
                self._route(domain, self._state.commands[seq], entry, now)
        self._touch_all(domain, now)
        yield Wake(limit.domain)

    def drop_limit(self, domain: str, gate: str) -> Op[bool]:
        found = self._state.look_at(domain)
        found.note_all(self._state.journal)
        known = found.limits.pop(gate, None) is not None
        self._touch_all(found, self._clock())
        yield Wake(domain)
        return known

    def limits(self, domain: str | None) -> Op[list[Limit]]:
        yield from ()
        return [
            limit
            for name, found in sorted(self._state.domains.items())
            if domain in (None, name)
            for _, limit in sorted(found.limits.items())
        ]

    def take_tokens(self, domain: str, sender: str, count: int) -> Op[float]:
        yield from ()
        found = self._state.look_at(domain)
        limit, gate = found.limits.get(PER_SENDER), SENDER_PREFIX + sender
        if limit is None:
            return 0.0
        self._state.journal.entry(found.full_at, gate)
        found.full_at[gate], wait = take(limit, found.full_at.get(gate, 0), self._clock(), count)
        return wait

    def key_holder(self, domain: str, unique_key: str) -> Op[UUID | None]:
        yield from ()
        seq = self._state.unique.get((domain, unique_key))
        return None if seq is None else self._id(seq)

    def free_key(self, domain: str, unique_key: str) -> Op[None]:
        yield from ()
        self._state.journal.entry(self._state.unique, (domain, unique_key))
        self._state.unique.pop((domain, unique_key), None)

    def held_at(self, domain: str, seq: int) -> Op[BlockedAt | None]:
        yield from ()
        found = self._state.look_at(domain)
        for gate, heap in found.held.items():
            if any(item[1] == seq for item in heap) and seq in found.waiting:
                permits = found.permits.get(gate, set())
                return BlockedAt(gate, len(permits), self._id(min(permits)) if permits else None)
        return None

    def _id(self, seq: int) -> UUID:
        return self._state.commands[seq].command.command_id

    def _touch_all(self, domain: Domain, now: int) -> None:
        domain.touched.update(dict.fromkeys(domain.held, now))

    def _route(self, domain: Domain, stored: Stored, entry: Entry, now: int) -> None:
        """Put a command that is due where it waits: among the ready ones, or at its first gate."""
        command = stored.command
        gate = first_gate(domain.limits, command.command_type, command.group_key, command.requires)
        if gate is None:
            heappush(domain.heaps.ready, domain.item(stored, entry))
        else:
            self._hold(domain, gate, stored, entry, now)

    def _hold(self, domain: Domain, gate: str, stored: Stored, entry: Entry, now: int) -> None:
        item = domain.item(stored, entry, grouped=gate.startswith(KEY_PREFIX))
        heappush(domain.held.setdefault(gate, []), item)
        domain.touched[gate] = now

    def _grow_old(self, domain: Domain, ageing: int | None) -> None:
        """From now on this counts: put what waits in the new order."""
        domain.ageing = ageing
        at_gates = [heap for gate, heap in domain.held.items() if not gate.startswith(KEY_PREFIX)]
        for heap in (domain.heaps.ready, *domain.partitions.values(), *at_gates):
            heap[:] = [domain.item(self._state.commands[seq], entry) for _, seq, entry in heap]
            heapify(heap)

    def _promote(self, domain: Domain, now: int) -> None:
        """Move everything that has become due to where it waits."""
        scheduled = domain.heaps.scheduled
        while scheduled and scheduled[0][0] <= now:
            entry = heappop(scheduled)[3]
            if domain.waiting.get(entry.seq) is entry:
                self._route(domain, self._state.commands[entry.seq], entry, now)

    def _admit(self, name: str, domain: Domain, now: int) -> None:
        """Let pass what the gates allow."""
        while due := [gate for gate, at in domain.touched.items() if at <= now]:
            for gate in in_passing_order(due):
                del domain.touched[gate]
                self._open(name, domain, gate, now)

    def _open(self, name: str, domain: Domain, gate: str, now: int) -> None:
        limit, heap = limit_at(domain.limits, name, gate), domain.held.get(gate, [])
        running, full_at = len(domain.permits.get(gate, ())), domain.full_at.get(gate, 0)
        given = grant(limit, running, full_at, now, len(heap))
        passing: Ready = []
        while heap and len(passing) < given.count:
            item = heappop(heap)
            if domain.waiting.get(item[1]) is item[2]:
                passing.append(item)
        if len(passing) < given.count:
            given = grant(limit, running, full_at, now, len(passing))
        if not heap:
            domain.held.pop(gate, None)
        if given.again_at is not None and heap:
            domain.touched[gate] = given.again_at
        if limit.rate is not None:
            domain.full_at[gate] = given.full_at
        for _, seq, entry in passing:
            stored = self._state.commands[seq]
            command = stored.command
            domain.permits.setdefault(gate, set()).add(seq)
            domain.passed.setdefault(seq, []).append(gate)
            following = gate_after(domain.limits, command.command_type, gate)
            if following is not None:
                self._hold(domain, following, stored, entry, now)
            elif command.requires is not None:
                heappush(domain.partitions.setdefault(command.requires, []), domain.item(stored, entry))
            else:
                heappush(domain.heaps.ready, domain.item(stored, entry))

    def _leave_gates(self, stored: Stored, now: int) -> bool:
        """A command does not run any more: others may pass. Whether it had passed any gate."""
        domain, journal = self._state.domain(stored.command.domain), self._state.journal
        if stored.seq not in domain.passed:
            return False
        journal.entry(domain.passed, stored.seq)
        passed = domain.passed.pop(stored.seq)
        for gate in passed:
            journal.contents(domain.permits[gate])
            journal.entry(domain.permits, gate)
            journal.entry(domain.touched, gate)
            domain.permits[gate].discard(stored.seq)
            if not domain.permits[gate]:
                del domain.permits[gate]
            domain.touched[gate] = now
        return True

    def _leaders(
        self, domain: Domain, members: Mapping[int, Member], followers: int, chain: int
    ) -> list[tuple[Member, str, int]]:
        """Of those just claimed, behind which others may come along, where they wait and how many. They
        hold the only permit of a group with no further gate, and no worker died over them."""
        if followers <= 0 or domain.limits.keys() - {PER_SENDER} or domain.partitions:
            return []
        leaders = [
            (one, gate)
            for one in members.values()
            for gate in domain.passed.get(one.seq, ())
            if gate.startswith(KEY_PREFIX) and len(domain.permits[gate]) == 1 and not one.crashes
        ]
        return [(*leader, min(chain, followers // len(leaders))) for leader in leaders]

    def _next_at(self, domain: Domain, gate: str, most: int) -> Iterator[Entry]:
        """Take the first ones that wait at a gate, up to one whose worker died."""
        heap, taken = domain.held.get(gate, []), 0
        while heap and taken < most:
            entry = heap[0][2]
            if domain.waiting.get(entry.seq) is entry:
                if entry.crashes:
                    break
                taken += 1
                yield entry
            heappop(heap)
        if not heap:
            domain.held.pop(gate, None)

    def _hand_over(self, domain: Domain, heirs: Mapping[int, int | None]) -> None:
        """The permit of a group stays with others of a chain."""
        for holder, heir in heirs.items():
            if heir is not None:
                domain.note_all(self._state.journal)
                domain.passed[heir] = domain.passed.pop(holder)
                for gate in domain.passed[heir]:
                    domain.permits[gate].remove(holder)
                    domain.permits[gate].add(heir)

    def _heaps_for(self, domain: Domain, tags: tuple[str, ...]) -> list[Ready]:
        """The ready work that a worker with these tags may take; first what few can take."""
        if not domain.partitions or not tags:
            return [domain.heaps.ready]
        fitting = [heap for requires, heap in domain.partitions.items() if may_take(requires, tags)]
        return [*fitting, domain.heaps.ready]
