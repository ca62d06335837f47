"""The plan of a send: decided once here, written by each engine in its own way. An engine looks up the
holders of unique keys, the depth, the gates and the numbers of the new commands.

PostgreSQL makes the same decisions in one statement for small sends (sql/insert.sql)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from commandbus.domain.limits import first_gate
from commandbus.domain.moment import SECOND
from commandbus.errors import DuplicateCommandError, QueueFull
from commandbus.store.op import Op, Wake
from commandbus.store.records import Inserted, NewCommand

Key = tuple[str, str | None]
"""A domain and a unique key in it."""
Row = tuple[int, NewCommand, int, int]
"""A sequence, its command, and in microseconds when it was sent and is due."""


class Admitted(msgspec.Struct, frozen=True):
    """The results of a send, and the commands that it really adds."""

    results: list[Inserted]
    new: list[NewCommand]


def admit(
    commands: Sequence[NewCommand],
    holders: Mapping[Key, UUID],
    known: Container[tuple[UUID, str]] = (),
) -> Admitted:
    """Leave out commands whose unique keys are held, by those that are there or by earlier ones of the
    same send. `known` are ids that were sent before, with their domains: a repeated send is recognised
    by its id first, whichever command holds the key. Raises DuplicateCommandError."""
    results: list[Inserted] = []
    new: list[NewCommand] = []
    taken = dict(holders)
    ids: set[tuple[UUID, str]] = set()
    for command in commands:
        own_id = (command.command_id, command.domain)
        if own_id in ids or own_id in known:
            raise DuplicateCommandError(command.domain, command.command_id)
        if command.unique_key is not None:
            key = (command.domain, command.unique_key)
            holder = taken.get(key)
            if holder is not None:
                results.append(Inserted(holder, duplicate=True))
                continue
            taken[key] = command.command_id
        ids.add(own_id)
        new.append(command)
        results.append(Inserted(command.command_id, duplicate=False))
    return Admitted(results, new)


def added_by_domain(new: Iterable[NewCommand]) -> Mapping[str, int]:
    """How many commands a send adds to each domain, where that is to be counted."""
    return Counter(command.domain for command in new)


def check_room(domain: str, waiting: int, count: int, pending_max: int) -> int:
    """How many will wait in a domain after a send. Raises QueueFull."""
    if waiting + count > pending_max:
        raise QueueFull(
            f"Domain {domain!r} holds {waiting} waiting commands; {count} more would exceed its "
            f"capacity of {pending_max}. Try again later, or add workers."
        )
    return waiting + count


def due_at_of(command: NewCommand, now: int) -> int:
    """When a new command is due."""
    return now + command.delay if command.due_at is None else command.due_at


class Insertion(msgspec.Struct):
    """Where the commands of a send wait, and what else there is to write for them."""

    rows: list[Row] = []
    ready: list[Row] = []
    later: list[Row] = []
    held: list[tuple[str, Row]] = []
    """Those that wait at their first gate, with it."""
    keys: list[tuple[str, str, int]] = []
    """Domain, unique key and sequence of those that hold one."""
    gated: set[tuple[str, str | None]] = set()
    """The domain and the required tags of those that have a gate, now or when they are due."""
    soonest: dict[str, int] = {}
    """In how many microseconds each domain has something new; 0 means now."""

    @property
    def everyone(self) -> set[str]:
        """Domains in which not every worker can take what came, so that all are woken."""
        return {domain for domain, requires in self.gated if requires is not None}

    def wakes(self) -> Op[None]:
        """Wake those who wait for the domains."""
        everyone = self.everyone
        for domain, due_in in self.soonest.items():
            yield Wake(domain, due_in / SECOND if due_in > 0 else None, domain in everyone)


def plan_insert(
    numbered: Iterable[tuple[int, NewCommand]], now: int, gates: Mapping[str, Collection[str]]
) -> Insertion:
    """What commands with these sequences write; `gates` are those of limits, by domain."""
    plan = Insertion()
    for seq, command in numbered:
        domain, due_at = command.domain, due_at_of(command, now)
        row = (seq, command, now, due_at)
        plan.rows.append(row)
        if command.unique_key is not None:
            plan.keys.append((domain, command.unique_key, seq))
        gate = None
        if gates or command.group_key is not None or command.requires is not None:
            gate = first_gate(
                gates.get(domain, ()), command.command_type, command.group_key, command.requires
            )
        if gate is not None:
            plan.gated.add((domain, command.requires))
        if due_at > now:
            plan.later.append(row)
        elif gate is None:
            plan.ready.append(row)
        else:
            plan.held.append((gate, row))
        due_in = max(0, due_at - now)
        plan.soonest[domain] = min(due_in, plan.soonest.get(domain, due_in))
    return plan
