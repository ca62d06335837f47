"""Seeded bugs: mistakes that processes of the laboratory make on order, to prove that it would notice.

Each breaks one rule of the real code, as a careless change might, in a process that was started with
its name; nothing here can be imported where the bus is used. `hunt` runs them one after another.
The modules `bugs_of_…` have more, and `catalogue` all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from commandbus.domain.outcome import Parked, Released, RetryLater, Succeeded
from commandbus.engines.postgres import claiming, statements
from commandbus.engines.sqlite import heads
from commandbus.engines.sqlite import store as sqlite
from commandbus.engines.sqlite.store import SqliteStore
from commandbus.errors import DuplicateCommandError
from commandbus.operations import batches
from commandbus.store.op import Statement
from commandbus.store.records import Inserted
from commandbus.worker import transactional
from commandbus.worker.core import WorkerCore
from commandbus.worker.execution import Call, Execution
from commandbus.worker.handlers import Handler
from tests.chaos.seeded import around, bug, chance, replace


def rewritten(op: Any, old: str, new: str) -> Iterator[Any]:
    """The op, with another statement wherever it executes this one."""
    answer, error = None, None
    while True:
        try:
            step = op.throw(error) if error is not None else op.send(answer)
        except StopIteration as done:
            return done.value
        if isinstance(step, Statement) and step.sql == old:
            step = replace(step, sql=new)
        answer, error = None, None
        try:
            answer = yield step
        except Exception as raised:  # the op's own concern
            error = raised


def in_plan(kind: type, spoil: Callable[[Any, Any], None]) -> None:
    """Spoil what a settlement of this kind writes."""

    def plan(original: Any, writes: Any, settlement: Any, *rest: Any) -> None:
        original(writes, settlement, *rest)
        if isinstance(settlement.outcome, kind):
            spoil(writes, settlement)

    around(sqlite, "plan", plan)


# Sends.


@bug("P1")
def a_send_is_acknowledged_and_never_stored() -> None:
    def insert(original: Any, store: Any, commands: Any, capacity: Any) -> Any:
        if chance.random() < 0.1:
            yield from ()
            return [Inserted(command.command_id, duplicate=False) for command in commands]
        return (yield from original(store, commands, capacity))

    around(SqliteStore, "insert", insert)


@bug("P2")
def a_bulk_send_is_stored_in_part() -> None:
    def insert(original: Any, store: Any, commands: Any, capacity: Any) -> Any:
        kept = commands[:-1] if len(commands) > 1 and chance.random() < 0.6 else commands
        results = yield from original(store, kept, capacity)
        return [*results, *[Inserted(c.command_id, duplicate=False) for c in commands[len(kept) :]]]

    around(SqliteStore, "insert", insert)


@bug("P3")
def a_repeated_send_is_not_told_so() -> None:
    def insert(original: Any, store: Any, commands: Any, capacity: Any) -> Any:
        try:
            return (yield from original(store, commands, capacity))
        except DuplicateCommandError:
            return [Inserted(command.command_id, duplicate=False) for command in commands]

    around(SqliteStore, "insert", insert)


@bug("P9")
def delays_are_forgotten() -> None:
    def insert(original: Any, store: Any, commands: Any, capacity: Any) -> Any:
        return original(store, [replace(command, delay=0) for command in commands], capacity)

    around(SqliteStore, "insert", insert)


# Claims.


@bug("P9")
def delayed_work_is_promoted_early() -> None:
    around(
        SqliteStore,
        "_promote",
        lambda original, store, domain, now, gated: original(store, domain, now + 300_000, gated),
    )


@bug("P14")
def a_claim_leaves_its_rows_in_the_queue() -> None:
    heads.SQL.take_head = "select ?, ?, ?"


@bug("P1")
def a_claim_deletes_other_rows_than_it_took() -> None:
    heads.SQL.head = heads.SQL.head.replace("order by q.priority, q.seq", "order by q.seq desc")


@bug("P10")
def priorities_are_read_backwards() -> None:
    heads.SQL.head = heads.SQL.head.replace(
        "order by q.priority, q.seq", "order by q.priority desc, q.seq"
    )
    heads.SQL.take_head = (
        "delete from commandbus_queue where domain = ?1 and "
        "(priority > ?2 or (priority = ?2 and seq <= ?3))"
    )


@bug("P6")
def tokens_are_given_out_again() -> None:
    sqlite.SQL.insert_lease = (
        "insert into commandbus_lease (lease_id, domain, worker, claimed_at, until, members) values"
        " ((select coalesce(max(lease_id), 0) + 1 from commandbus_lease), ?, ?, ?, ?, ?)"
        " returning lease_id"
    )


@bug("P1")
def nothing_is_taken_back_from_dead_workers() -> None:
    def reclaim(original: Any, store: Any, now: int) -> Any:
        yield from ()
        return 0

    around(SqliteStore, "_reclaim", reclaim)


@bug("P6", needs_freezes=True)
def what_is_taken_back_stays_under_its_old_lease() -> None:
    longer = "update commandbus_lease set until = until + 3600000000 where lease_id = ?"

    def reclaim(original: Any, store: Any, now: int) -> Any:
        return rewritten(original(store, now), sqlite.SQL.delete_lease, longer)

    around(SqliteStore, "_reclaim", reclaim)
    # Else the second outcome is refused by its index, which is the last line of defence.
    sqlite.SQL.insert_outcome = sqlite.SQL.insert_outcome.replace("insert", "insert or ignore", 1)


@bug("P14")
def a_crash_is_not_counted() -> None:
    def plan_rescued(original: Any, writes: Any, member: Any, *rest: Any) -> None:
        original(writes, replace(member, crashes=member.crashes - 1), *rest)

    around(sqlite, "plan_rescued", plan_rescued)


@bug("P14")
def a_crash_leaves_no_audit() -> None:
    def plan_rescued(original: Any, writes: Any, *rest: Any) -> None:
        before = len(writes.audits)
        original(writes, *rest)
        del writes.audits[before]

    around(sqlite, "plan_rescued", plan_rescued)


@bug("P7")
def the_first_crash_parks() -> None:
    def plan_rescued(original: Any, writes: Any, member: Any, *rest: Any) -> None:
        outcomes = len(writes.outcomes)
        original(writes, replace(member, crashes=2), *rest)
        parked = writes.outcomes[outcomes]
        writes.outcomes[outcomes] = replace(parked, crashes=member.crashes + 1)

    around(sqlite, "plan_rescued", plan_rescued)


# Settles.


@bug("P6", needs_freezes=True)
def a_stale_worker_goes_on_under_the_lease_of_another() -> None:
    around(WorkerCore, "_leases_gone", lambda original, core, event, now, effects: None)

    def settle(original: Any, store: Any, batch: Any) -> Any:
        holders: dict[int, tuple[int, int]] = {}
        for lease_id, _, _, _, packed in (yield Statement(sqlite.SQL.all_leases)):
            for member in sqlite.as_members(packed).values():
                holders[member.seq] = lease_id, member.attempt
        adopted = []
        for one in batch:
            lease_id, attempt = holders.get(one.seq, (one.lease_id, one.attempt))
            adopted.append(replace(one, lease_id=lease_id, attempt=attempt))
        return (yield from original(store, adopted))

    around(SqliteStore, "settle", settle)


@bug("P14")
def what_is_settled_stays_under_its_lease() -> None:
    def settle(original: Any, store: Any, batch: Any) -> Any:
        kept = rewritten(original(store, batch), sqlite.SQL.delete_lease, "select ?")
        return rewritten(kept, sqlite.SQL.shrink_lease, "select ?, ?")

    around(SqliteStore, "settle", settle)


@bug("P6")
def a_settle_is_acknowledged_and_never_stored() -> None:
    def settle(original: Any, store: Any, batch: Any) -> Any:
        if chance.random() < 0.05:
            yield from ()
            return sqlite.SettleReport(())
        return (yield from original(store, batch))

    around(SqliteStore, "settle", settle)


@bug("P14")
def attempts_are_not_counted() -> None:
    def spoil(writes: Any, settlement: Any) -> None:
        row = writes.requeues.pop()
        writes.requeues.append(replace(row, attempts=row.attempts - 1))

    in_plan(RetryLater, spoil)


@bug("P14")
def giving_back_uses_an_attempt() -> None:
    def spoil(writes: Any, settlement: Any) -> None:
        row = writes.requeues.pop()
        writes.requeues.append(replace(row, attempts=row.attempts + 1))

    in_plan(Released, spoil)


@bug("P9")
def a_retry_comes_at_once() -> None:
    in_plan(
        RetryLater,
        lambda writes, _: writes.requeues.append(replace(writes.requeues.pop(), delay=0)),
    )


@bug("P14")
def a_retry_leaves_no_audit() -> None:
    in_plan(RetryLater, lambda writes, _: writes.audits.pop())


@bug("P14")
def parking_leaves_no_audit() -> None:
    in_plan(Parked, lambda writes, _: writes.audits.pop())


@bug("P8")
def the_error_is_not_kept() -> None:
    in_plan(
        Parked, lambda writes, _: writes.outcomes.append(replace(writes.outcomes.pop(), error=None))
    )


# Keys and batches.


@bug("P11")
def a_unique_key_is_not_looked_up() -> None:
    sqlite.SQL.key_holder = "select command_id from commandbus_command where 0 and ? and ?"
    sqlite.SQL.hold_key = sqlite.SQL.hold_key.replace("insert", "insert or ignore", 1)


@bug("P11")
def a_unique_key_is_never_freed() -> None:
    sqlite.SQL.free_keys = "select ?"


@bug("P12")
def some_ends_are_not_counted_in_their_batch() -> None:
    def add(original: Any, store: Any, counts: Any, worker: str) -> Any:
        if chance.random() < 0.2:
            yield from ()
            return
        yield from original(store, counts, worker)

    around(SqliteStore, "add_batch_counts", add)


@bug("P12")
def a_batch_does_not_wait_for_what_is_parked() -> None:
    around(
        batches,
        "is_complete",
        lambda original, counts, total: counts.ended + counts.parked >= total,
    )


# Runs.


@bug("P8")
def an_error_is_taken_for_success() -> None:
    def failed(original: Any, execution: Any, call: Any, error: Any, ran: int) -> Any:
        return execution.succeeded(call, None, ran)

    around(Execution, "failed", failed)


@bug("P1")
def some_commands_are_completed_without_a_run() -> None:
    def begin(original: Any, execution: Any, claimed: Any) -> Any:
        if chance.random() < 0.02:
            return execution._settlement(claimed, Succeeded())
        return original(execution, claimed)

    around(Execution, "begin", begin)


@bug("P5")
def some_handlers_are_run_twice() -> None:
    def begin(original: Any, execution: Any, claimed: Any) -> Any:
        begun = original(execution, claimed)
        if not isinstance(begun, Call) or chance.random() >= 0.1:
            return begun
        handler = dataclasses.replace(begun.handler, function=_twice(begun.handler))
        return msgspec.structs.replace(begun, handler=handler)

    around(Execution, "begin", begin)


def _twice(handler: Handler) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        handler.function(*args)
        return handler.function(*args)

    async def run_async(*args: Any) -> Any:
        await handler.function(*args)
        return await handler.function(*args)

    return run_async if handler.is_async else run


# PostgreSQL.


def in_queries(old: str, new: str, *names: str) -> None:
    original = statements.queries.__wrapped__
    changed: dict[Any, Any] = {}

    def cached(*args: Any, **options: Any) -> Any:
        key = args, *options.items()
        if key not in changed:
            found = changed[key] = original(*args, **options)
            for name in names:
                assert old in getattr(found, name)
                setattr(found, name, getattr(found, name).replace(old, new))
        return changed[key]

    from commandbus.engines.postgres import context, listener

    for module in (statements, context, listener):
        if hasattr(module, "queries"):
            module.queries = cached  # type: ignore[attr-defined]


@bug("P6", postgres=True)
def claims_do_not_lock_what_they_take() -> None:
    original = claiming.claim_query.__wrapped__

    @cache
    def without_locks(*args: Any) -> Any:
        query = original(*args)
        assert " for update skip locked" in query.sql
        return msgspec.structs.replace(query, sql=query.sql.replace(" for update skip locked", ""))

    claiming.claim_query = without_locks


@bug("P4", postgres=True, needs_freezes=True)
def the_effects_of_a_stale_handler_are_committed() -> None:
    def record(shop: Any, settlement: Any) -> Any:
        return (yield from shop.engine.store.settle([settlement]))

    transactional._record = record


@bug("P4", postgres=True)
def an_outcome_is_recorded_beside_its_transaction() -> None:
    def record(shop: Any, settlement: Any) -> Any:
        report = shop.engine.reserved_session.run(shop.engine.store.settle([settlement]))
        if chance.random() < 0.3:
            raise ConnectionError("the transaction of the effects fails afterwards")
        yield from ()
        return report

    transactional._record = record


@bug("P9", postgres=True)
def a_sweep_takes_what_is_almost_due() -> None:
    in_queries("due_at <= m.now", "due_at <= m.now + 300000", "sweep")
