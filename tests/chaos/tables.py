"""The end of a stay, read from the tables by plain SQL over a connection of the checker's own.

Nothing of the product's reads is used here: a lie of `query_commands`, `stats` or the audit would
otherwise hide what it should show. `differences` then compares the product's reads with the tables.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import psycopg

from commandbus import CommandRecord
from commandbus.errors import CommandBusError
from commandbus.sync import SyncCommandBus
from tests.chaos.case import Batch, Final, Store, Trace
from tests.chaos.kinds import ANSWERS, BATCH_DONE, DOMAINS, TICK, attempts_max_of
from tests.chaos.replay import REQUEST

Rows = list[tuple[Any, ...]]
WAITING = ("queue", "scheduled", "held")
RUNS = {"FAILED", "RELEASED", "WORKER_LOST", "BUSINESS_RULE_FAILED", "MOVED_TO_TSQ", "CANCELED"}
"""Kinds of audit rows that end a delivery, which their details tell with them."""
SAMPLE = 50
"""One in so many commands is also asked for through the product's own reads."""
MICRO = 1_000_000
OPEN_STATUS = "PENDING or IN_PROGRESS"
"""Which of the two it is, the tables of PGMQ do not tell."""
OUTCOMES = """(select seq, status, attempts, crashes, worker, started_at, finished_at, error, reason
    from @outcome
    union all
    select r.first_seq + g.n - 1, 'COMPLETED', 1, 0, r.worker, r.finished_at - r.ran[g.n],
        r.finished_at, null, null
    from @receipt r cross join lateral generate_subscripts(r.ran, 1) as g (n)
    where r.ran[g.n] is not null)"""
"""Both shapes on a server, unfolded here: a mistake in the product's view of them must show."""


class Tables:
    """Plain SQL on one store; tables are named without their schema or prefix, and outcomes, which have
    two shapes on a server, `ended`."""

    def __init__(self, url: str) -> None:
        self._is_sqlite = url.startswith("sqlite")
        self._connection: Any = (
            sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
            if self._is_sqlite
            else psycopg.connect(url, autocommit=True, connect_timeout=5)
        )

    def close(self) -> None:
        self._connection.close()

    def rows(self, text: str) -> Rows:
        ended = "@outcome" if self._is_sqlite else OUTCOMES
        named = text.replace("@ended", ended)
        named = named.replace("@", "commandbus_" if self._is_sqlite else "commandbus.")
        found = self._connection.execute(named if self._is_sqlite else named.encode())
        return list(found.fetchall())

    def one(self, text: str) -> Any:
        return self.rows(text)[0][0]

    def open_commands(self) -> int:
        """How many have not ended: counted where they wait or run, and when that is nothing, by what
        has no outcome."""
        waiting = sum(
            int(self.one(f"select count(*) from @{table} where domain <> '{ANSWERS}'"))
            for table in WAITING
        )
        waiting += int(self.one("select count(*) from @lease"))
        return waiting or int(self.one(f"select count(*) {OPEN}"))

    def occurrences(self) -> int:
        """How many commands schedules have sent."""
        return int(self.one(f"select count(*) from @command where command_type = '{TICK}'"))

    def closable_batches(self) -> int:
        """Batches that are open, though none of their commands is parked."""
        parked = f"""select 1 from @command c join @ended o on o.seq = c.seq
            where o.status = 'IN_TROUBLESHOOTING_QUEUE' and {self._is("c.batch_id", "d.key")}"""
        batches = "from @document d where d.kind = 'batch' and d.status = 'open'"
        return int(self.one(f"select count(*) {batches} and not exists ({parked})"))

    def receipted(self) -> int:
        """How many outcomes share a row with others, as the rows count them."""
        return 0 if self._is_sqlite else int(self.one("select coalesce(sum(members), 0) from @receipt"))

    def batches(self) -> Rows:
        return self.rows(BATCHES.format(same=self._is("n.batch_id", "d.key")))

    def _is(self, column: str, key: str) -> str:
        """That a column with an id has the id in a text."""
        if self._is_sqlite:
            return f"lower(hex({column})) = replace({key}, '-', '')"
        return f"{column} = {key}::uuid"


OPEN = f"""from @command c where c.domain <> '{ANSWERS}'
    and not exists (select 1 from @ended o where o.seq = c.seq)"""
COMMANDS = """select c.seq, c.command_id, c.domain, c.command_type, c.priority, c.unique_key,
    c.batch_id,
    case when c.command_type = 'batch_done' then c.data end, c.created_at,
    o.status, o.attempts, o.crashes, o.reason, o.error, o.started_at, o.finished_at, o.worker
from @command c left join @ended o on o.seq = c.seq where c.domain <> 'answers' order by c.seq"""
REPLIES = f"select causation_id from @command where domain = '{ANSWERS}'"
OCCURRENCES = f"select headers from @command where command_type = '{TICK}'"
LATE_KEYS = """select k.domain, k.unique_key from @unique_key k left join @ended o on o.seq = k.seq
where o.status in ('COMPLETED', 'FAILED', 'CANCELED')
    or not exists (select 1 from @command c where c.seq = k.seq)"""
BATCHES = """select d.key, d.status, d.body, coalesce(sum(n.completed), 0), coalesce(sum(n.failed), 0),
    coalesce(sum(n.canceled), 0), coalesce(sum(n.parked), 0)
from @document d left join @batch_count n on {same} where d.kind = 'batch'
group by d.kind, d.key, d.status, d.body"""


def read(
    url: str, effects: tuple[tuple[str, int], ...] = (), bus: SyncCommandBus | None = None
) -> Store:
    """All that is stored; with `bus`, also where its reads tell something else."""
    with closing(Tables(url)) as tables:
        waiting = _waiting(tables)
        trails = defaultdict(list)
        for seq, kind, at, details in tables.rows(
            "select seq, kind, at, details from @audit order by id"
        ):
            trails[seq].append((kind, at, json.loads(details)))
        finals = [_final(row, waiting, trails) for row in tables.rows(COMMANDS)]
        held = [f"{domain} {key}" for domain, key in tables.rows(LATE_KEYS)]
        batches = [_batch(row) for row in tables.batches()]
        replies = tuple(_id(row[0]) for row in tables.rows(REPLIES))
        sent = [json.loads(row[0]) for row in tables.rows(OCCURRENCES)]
        receipted = tables.receipted()
    told = tuple(differences(bus, finals)) if bus is not None else ()
    occurrences = tuple((headers["schedule"], headers["occurrence"]) for headers in sent)
    return Store(
        tuple(finals), tuple(batches), effects, tuple(held), replies, occurrences, told, receipted
    )


def _id(raw: Any) -> str:
    return str(UUID(bytes=raw) if isinstance(raw, bytes) else raw)


def _waiting(tables: Tables) -> dict[int, tuple[str, int, int]]:
    """Status, attempts and crashes of what has not ended, as far as its row tells."""
    found: dict[int, tuple[str, int, int]] = {}
    for table in WAITING:
        for seq, attempts, crashes in tables.rows(f"select seq, attempts, crashes from @{table}"):
            found[seq] = "PENDING", attempts, crashes
    return found


def _final(
    row: tuple[Any, ...],
    waiting: dict[int, tuple[str, int, int]],
    trails: dict[int, list[tuple[str, int, dict[str, Any]]]],
) -> Final:
    seq, command_id, domain, kind, priority, key, batch, data, created_at = row[:9]
    status, attempts, crashes, reason, error, started_at, finished_at, worker = row[9:]
    if status is None:
        status, attempts, crashes = waiting.get(seq, ("IN_PROGRESS", 0, 0))
    if kind == BATCH_DONE:
        batch = json.loads(data)["batch"]
    trail = [Trace("SENT", created_at / MICRO)]
    for what, at, details in trails.get(seq, ()):
        received_at = details.pop("received_at", None)
        if what in RUNS and received_at is not None:
            trail.append(Trace("RECEIVED", received_at / MICRO, details))
        trail.append(Trace(what, at / MICRO, details))
        if what == "FAILED":
            trail.append(Trace("RETRY_SCHEDULED", at / MICRO))
    if status == "COMPLETED" and started_at is not None:
        run = {"attempt": attempts, "worker": worker}
        trail.append(Trace("RECEIVED", started_at / MICRO, run))
        trail.append(Trace("COMPLETED", finished_at / MICRO, run))
    return Final(
        _id(command_id),
        status,
        attempts,
        crashes,
        attempts_max_of(kind),
        priority,
        seq,
        reason,
        json.loads(error)["code"] if error else None,
        tuple(trail),
        kind,
        key,
        None if batch is None else _id(batch),
        domain,
    )


def _batch(row: tuple[Any, ...]) -> Batch:
    key, status, body, completed, failed, canceled, parked = row
    counts = int(completed), int(failed), int(canceled), int(parked)
    return Batch(key, json.loads(body)["total"], *counts, complete=status != "open")


def differences(bus: SyncCommandBus, finals: list[Final]) -> Iterator[str]:
    """Where the product's reads tell something else than the tables."""
    statuses = {
        domain: Counter(final.status for final in finals if final.domain == domain)
        for domain in DOMAINS
    }
    for domain, counted in statuses.items():
        stats = bus.stats(domain)
        told = {
            "COMPLETED": stats.completed,
            "FAILED": stats.failed,
            "CANCELED": stats.canceled,
            "IN_TROUBLESHOOTING_QUEUE": stats.parked,
        }
        counted[OPEN_STATUS] = counted["PENDING"] + counted["IN_PROGRESS"]
        told[OPEN_STATUS] = stats.ready + stats.scheduled + stats.running
        for status, count in told.items():
            if count != counted[status]:
                yield f"stats of {domain} tell {count} {status}, the tables have {counted[status]}"
        listed, stored = sum(1 for _ in _listed(bus, domain)), sum(f.domain == domain for f in finals)
        if listed != stored:
            yield f"query_commands lists {listed} of {stored} commands of {domain}"
    for final in finals:
        if final.sequence % SAMPLE == 0 or final.status not in ("COMPLETED", "FAILED"):
            yield from _asked(bus, final)


def _listed(bus: SyncCommandBus, domain: str) -> Iterator[CommandRecord]:
    after: str | None = None
    while True:
        page = bus.query_commands(domain=domain, limit=1_000, after=after)
        yield from page
        if (after := page.next) is None:
            return


def _asked(bus: SyncCommandBus, final: Final) -> Iterator[str]:
    answers: dict[str, Callable[[], Any]] = {
        "get_command": lambda: _seen(bus.get_command(final.id, domain=final.domain)),
        "get_audit_trail": lambda: _in_order(
            event.event_type.value for event in bus.get_audit_trail(final.id, domain=final.domain)
        ),
    }
    stored = {
        "get_command": (final.status, final.attempts, final.crashes, final.reason),
        "get_audit_trail": _in_order(trace.kind for trace in final.trail),
    }
    for name, ask in answers.items():
        try:
            told = ask()
        except CommandBusError as error:
            told = repr(error)
        if told != stored[name] and final.status not in ("PENDING", "IN_PROGRESS"):
            yield f"{name} of {final.id} tells {told}, the tables have {stored[name]}"


def _in_order(kinds: Iterable[str]) -> tuple[str, ...]:
    """Requests to cancel last: in the tables they stand before the run that they were made in."""
    return tuple(sorted(kinds, key=lambda kind: kind == REQUEST))


def _seen(record: CommandRecord | None) -> tuple[Any, ...] | None:
    if record is None:
        return None
    return record.status.value, record.attempts, record.crashes, record.reason
