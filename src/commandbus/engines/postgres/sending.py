"""Commands on their way in: by one statement, shared with other senders, or by COPY when many."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from uuid import UUID

from commandbus.domain.moment import SECOND
from commandbus.engines.postgres.arrays import integers, numbers, texts
from commandbus.engines.postgres.context import Context, Part
from commandbus.engines.postgres.copying import (
    command_line,
    held_line,
    is_plain,
    plain_place,
    plain_row,
    queue_line,
    scheduled_line,
    touch_line,
    touches,
)
from commandbus.engines.postgres.failures import NotifyRefused, UniqueViolation
from commandbus.engines.postgres.insert_query import (
    Insert,
    insert_query,
    limited_insert,
    one_announced,
    one_silent,
    plain_announced,
    plain_silent,
    single_insert,
)
from commandbus.engines.postgres.limits import Limits
from commandbus.engines.postgres.statements import ORIGIN, BinaryCopy, Coalescing, Copy
from commandbus.errors import DuplicateCommandError, QueueFull
from commandbus.store.inserting import (
    Key,
    Row,
    added_by_domain,
    admit,
    check_room,
    plan_insert,
)
from commandbus.store.op import Op, Read, Statement, Wake, autocommit, scalar
from commandbus.store.records import Capacity, Inserted, NewCommand, with_pending

COPY_MIN = 120
"""From this many commands on, COPY is faster than arrays; measured, see bench/postgres.py."""

CHUNK = 10_000
"""So many are copied at a time: what is made for it stays small, and no statement takes long."""


class Sender(Part):
    """Adds commands."""

    def __init__(self, context: Context, limits: Limits) -> None:
        super().__init__(context)
        self._limits = limits
        self._inserts = insert_query(context.schema), single_insert(context.schema)
        self._limited_inserts = limited_insert(context.schema), None

    def insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        if len(commands) == 1 and commands[0].unique_key is None and capacity.pending_max is None:
            return self._insert_plain(commands)
        return self._insert(commands, capacity)

    @autocommit
    def _insert_plain(self, commands: Sequence[NewCommand]) -> Op[list[Inserted]]:
        """Insert one command that only its id can make a duplicate, in fewer steps: most sends."""
        try:
            try:
                rows = yield self._insert_statement(commands, self._context.notify, Coalescing)
            except NotifyRefused:
                rows = yield self._insert_statement(commands, False, Coalescing)
        except UniqueViolation as error:
            raise _duplicate(error, commands) from error
        (command,), ((_, due_in),) = commands, rows
        yield Wake(
            command.domain, due_in / SECOND if due_in > 0 else None, command.requires is not None
        )
        return [Inserted(command.command_id, duplicate=False)]

    @autocommit
    def _insert(self, commands: Sequence[NewCommand], capacity: Capacity) -> Op[list[Inserted]]:
        pending: dict[str, int] = {}
        results: list[Inserted] = []
        try:
            if capacity.pending_max is not None:
                pending = yield from self._check_capacity(commands, capacity.pending_max)
            # A part may be refused, and then all of it is undone: in a transaction. One command, or
            # several without keys, are a statement that commits by itself.
            keyed = any(command.unique_key is not None for command in commands)
            whole = pending or (keyed and len(commands) > 1) or len(commands) > CHUNK
            kind = Statement if whole else Coalescing
            # Keys are taken in order, so that two senders of the same ones cannot deadlock.
            size = len(commands) if keyed else CHUNK
            for first in range(0, len(commands), size):
                results += yield from self._insert_chunk(commands[first : first + size], kind)
        except UniqueViolation as error:
            raise _duplicate(error, commands) from error
        return with_pending(results, commands, pending)

    def _insert_chunk(
        self, commands: Sequence[NewCommand], kind: type[Statement]
    ) -> Op[list[Inserted]]:
        added = yield from self._insert_some(list(commands), kind)
        if all(added):
            return [Inserted(command.command_id, duplicate=False) for command in commands]
        results: list[Inserted | None] = [None] * len(commands)
        left = list(range(len(commands)))
        while True:
            for position, is_new in zip(left, added, strict=True):
                if is_new:
                    results[position] = Inserted(commands[position].command_id, duplicate=False)
            taken = [position for position in left if results[position] is None]
            # If a holder ended between the two statements, its key is free now: insert once more.
            left = yield from self._name_holders(commands, taken, results)
            if not left:
                break
            added = yield from self._insert_some([commands[i] for i in left], kind)
        return [result for result in results if result is not None]

    def _insert_some(self, commands: list[NewCommand], kind: type[Statement]) -> Op[list[bool]]:
        """Add the commands whose keys are free. Returns for each whether it was added."""
        if len(commands) >= COPY_MIN and not self._context.limited:
            return (yield from self._copy(commands))
        try:
            rows = yield self._insert_statement(commands, self._context.notify, kind)
        except NotifyRefused:
            if kind is not Coalescing:
                raise
            rows = yield self._insert_statement(commands, False, kind)
        yield from _wakes(commands, _soonest(commands, rows))
        return [seq is not None for seq, _ in rows]

    def _insert_statement(
        self, commands: Sequence[NewCommand], announce: bool, kind: type[Statement]
    ) -> Statement:
        """The statement that adds these commands. A `Coalescing` one may travel with those of other
        senders, so it carries both forms: for many commands, and the cheapest for this one."""
        many, single, plain = self._insert_query(commands)
        pack = many.announced if announce else many.silent
        if plain is not None and len(commands) == 1 and is_plain(commands[0]):
            single, pack_single = plain, plain_announced if announce else plain_silent
        elif single is None:
            single, pack_single = many.sql, many.alone_announced if announce else many.alone_silent
        else:
            pack_single = one_announced if announce else one_silent
        statement = Coalescing(many.sql, commands, pack=pack, single=single, pack_single=pack_single)
        return statement if kind is Coalescing else Statement(*statement.plain())

    def _insert_query(self, commands: Sequence[NewCommand]) -> tuple[Insert, str | None, str | None]:
        """The statement for any number of commands, and quicker ones for a single one and for a single
        plain one, if any."""
        many, single = self._limited_inserts if self._context.limited else self._inserts
        return many, single, self._sql.insert_plain

    def _check_capacity(self, commands: Sequence[NewCommand], pending_max: int) -> Op[dict[str, int]]:
        """Returns how many commands will wait in each domain. Raises QueueFull. A command whose key is
        taken is not added, so it does not count."""
        for domain in sorted({command.domain for command in commands}):
            yield Statement(self._sql.lock_capacity, (domain,))
        held = yield from self._holders([c for c in commands if c.unique_key is not None])
        pending: dict[str, int] = {}
        for domain, count in added_by_domain(admit(commands, held).new).items():
            waiting = yield from self._count_pending(domain, pending_max + 1)
            try:
                pending[domain] = check_room(domain, waiting, count, pending_max)
            except QueueFull:
                # A repeated send adds nothing: it is reported as a duplicate, however full the queue
                # is.
                yield from self._refuse_known(commands)
                raise
        return pending

    def _count_pending(self, domain: str, limit: int) -> Op[int]:
        return int(scalar((yield Statement(self._sql.count_pending, (domain, limit)))))

    def _refuse_known(self, commands: Sequence[NewCommand]) -> Op[None]:
        """Raise DuplicateCommandError when one of these was sent before."""
        ids = numbers(c.command_id for c in commands), texts([c.domain for c in commands])
        known = {(key, domain) for key, domain in (yield Read(self._sql.known_ids, ids))}
        for command in commands:
            if (command.command_id, command.domain) in known:
                raise DuplicateCommandError(command.domain, command.command_id)

    def _holders(self, commands: Sequence[NewCommand]) -> Op[dict[Key, UUID]]:
        """The commands that hold the unique keys of these, where there are any."""
        if not commands:
            return {}
        keys = texts([c.domain for c in commands]), texts([c.unique_key for c in commands])
        rows = yield Read(self._sql.key_holders, keys)
        return {(domain, unique_key): holder for domain, unique_key, holder in rows}

    def _name_holders(
        self, commands: Sequence[NewCommand], taken: list[int], results: list[Inserted | None]
    ) -> Op[list[int]]:
        """Report who holds the keys of commands that were left out; returns those whose key is free.
        A repeated send is recognised by its id first, whichever command holds the key."""
        if not taken:
            return []
        left_out = [commands[position] for position in taken]
        yield from self._refuse_known(left_out)
        holders = yield from self._holders(left_out)
        free: list[int] = []
        for position in taken:
            holder = holders.get((commands[position].domain, commands[position].unique_key))
            if holder is None:
                free.append(position)
            else:
                results[position] = Inserted(holder, duplicate=True)
        return free

    def _copy(self, commands: list[NewCommand]) -> Op[list[bool]]:
        ((now, seqs, limited),) = yield Statement(self._sql.draw_sequences, (len(commands),))
        if not limited and all(map(is_plain, commands)):
            return (yield from self._copy_plain(commands, seqs, now))
        gates = (yield from self._limits.gates_of({c.domain for c in commands})) if limited else {}
        keyed = [(seq, c) for seq, c in zip(seqs, commands, strict=True) if c.unique_key is not None]
        left_out: set[int] = set()
        if keyed:
            rows = yield Statement(
                self._sql.hold_keys,
                (
                    texts([c.domain for _, c in keyed]),
                    texts([c.unique_key for _, c in keyed]),
                    integers([seq for seq, _ in keyed]),
                ),
            )
            left_out = {seq for seq, _ in keyed} - {seq for (seq,) in rows}
        new = [(seq, c) for seq, c in zip(seqs, commands, strict=True) if seq not in left_out]
        plan = plan_insert(new, now, gates)
        yield Copy(self._sql.copy_commands, plan.rows, render=command_line)
        yield from self._copy_places(plan.ready, plan.later)
        if plan.gated:
            yield from self._copy_held(plan.held, plan.gated, now)
        yield from self._announce_copied(plan.soonest, bool(plan.everyone))
        yield from plan.wakes()
        return [seq not in left_out for seq in seqs]

    def _copy_plain(self, commands: list[NewCommand], seqs: list[int], now: int) -> Op[list[bool]]:
        """The same for commands that nothing can hold back, in fewer steps."""
        rows = list(zip(seqs, commands, repeat(now), repeat(now), strict=False))
        yield BinaryCopy(self._sql.copy_plain, rows, render=plain_row(now))
        yield from self._copy_plain_places(rows, now)
        soonest = dict.fromkeys([command.domain for command in commands], 0)
        yield from self._announce_copied(soonest, tagged=False)
        yield from _wakes(commands, soonest)
        return [True] * len(commands)

    def _copy_plain_places(self, rows: list[Row], now: int) -> Op[None]:
        yield BinaryCopy(self._sql.copy_plain_places, rows, render=plain_place(now))

    def _announce_copied(self, soonest: dict[str, int], tagged: bool) -> Op[None]:
        waits = integers(soonest.values())
        yield Statement(
            self._sql.announce, (texts(soonest), waits, ORIGIN, self._context.notify, tagged)
        )

    def _copy_held(
        self, held: list[tuple[str, Row]], gated: set[tuple[str, str | None]], now: int
    ) -> Op[None]:
        """What waits at gates, and that these are to be looked at."""
        marks = texts([domain for domain, _ in gated]), texts([requires for _, requires in gated])
        yield Statement(self._sql.mark_gated, marks)
        if held:
            yield Copy(self._sql.copy_held, held, render=held_line)
            yield Copy(self._sql.copy_touch, touches(held, now), render=touch_line)

    def _copy_places(self, ready: list[Row], later: list[Row]) -> Op[None]:
        """Where commands that were copied wait: now, or for their time."""
        if ready:
            yield Copy(self._sql.copy_queue, ready, render=queue_line)
        if later:
            yield Copy(self._sql.copy_scheduled, later, render=scheduled_line)


def _wakes(commands: Sequence[NewCommand], soonest: dict[str, int]) -> Op[None]:
    """Wake this process, and all workers in it where not all of them can take what came."""
    everyone = {command.domain for command in commands if command.requires is not None}
    for domain, due_in in soonest.items():
        yield Wake(domain, due_in / SECOND if due_in > 0 else None, domain in everyone)


def _soonest(commands: Sequence[NewCommand], added: Sequence[tuple[int | None, int]]) -> dict[str, int]:
    """In how many microseconds each domain has something new; those left out do not count."""
    soonest: dict[str, int] = {}
    for command, (seq, due_in) in zip(commands, added, strict=True):
        if seq is not None:
            soonest[command.domain] = min(due_in, soonest.get(command.domain, due_in))
    return soonest


def _duplicate(error: UniqueViolation, commands: Sequence[NewCommand]) -> Exception:
    """The command that was refused, by the server's description of the key."""
    for command in commands:
        if f"({command.command_id}, {command.domain})" in error.detail:
            return DuplicateCommandError(command.domain, command.command_id)
    return DuplicateCommandError(commands[0].domain, commands[0].command_id)
