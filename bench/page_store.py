"""A day of work in a store, by plain SQL: commands of all states, failures of several groups,
processes; and samples of a week for charts."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from commandbus import CommandBus
from commandbus.operations.history import Grain, Sample
from commandbus.store.documents import Document

DOMAINS = ("orders", "payments", "mail", "reports")
COMMAND = (
    "seq, command_id, domain, command_type, data, correlation_id, priority, created_at, due_at, tags"
)
OUTCOME = "seq, status, attempts, crashes, lease_id, worker, started_at, finished_at, error, reason"
QUEUE = "domain, priority, seq, attempts, crashes, releases, available_at"
PROCESS = (
    "process_id, process_type, reply_to, status, version, state, progress, created_at, updated_at,"
    " finished_at"
)
AUDIT = "seq, kind, at, details"
TABLES = {"command": COMMAND, "outcome": OUTCOME, "queue": QUEUE, "process": PROCESS, "audit": AUDIT}
CODES = ("NO_SUCH_CITY", "TIMEOUT", "CARD_DECLINED")
SECOND = 1_000_000


@dataclass(frozen=True)
class Filling:
    """How many commands a store gets, and how many of them are parked, evenly among the others."""

    count: int
    parked: int

    def is_parked(self, seq: int) -> bool:
        return seq * self.parked // self.count > (seq - 1) * self.parked // self.count

    @property
    def newest_parked(self) -> int:
        return next(seq for seq in range(self.count, 0, -1) if self.is_parked(seq))


def command_id(seq: int) -> uuid.UUID:
    return uuid.UUID(int=(1 << 100) + seq)


def process_id(seq: int) -> uuid.UUID:
    return uuid.UUID(int=(1 << 101) + seq)


def error(seq: int) -> str:
    """As a handler raises it: the message names its case, so no two are equal."""
    return json.dumps(
        {"kind": "PERMANENT", "code": CODES[seq % 3], "message": f"order {seq}: {seq % 999} refused",
         "exception": "commandbus.errors.PermanentCommandError", "frame": "app.py:12 in ship"}
    )  # fmt: skip


def rows(filling: Filling) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Half completed, some failed and parked, the rest waiting. There is a process for every ten
    commands, and parked commands belong to one."""
    now = int(time.time() * SECOND)
    step = 86_400 * SECOND // filling.count
    for seq in range(1, filling.count + 1):
        created = now - (filling.count - seq) * step
        is_parked, is_old = filling.is_parked(seq), seq < filling.count * 0.7
        domain, kind, one = DOMAINS[seq % 4], f"type{seq % 23}", command_id(seq)
        data = json.dumps({"account": seq % 1_000, "amount": seq, "city": "Oslo"})
        tags = json.dumps(["vip"]) if seq % 500 == 0 else None
        whole = process_id(seq) if is_parked else one
        yield "command", (seq, one, domain, kind, data, whole, 5, created, created, tags)
        if seq % 10 == 0:
            status, ended = ("COMPLETED", created) if is_old else ("RUNNING", None)
            saga = f"saga{seq % 3}"
            yield (
                "process",
                (process_id(seq), saga, domain, status, 5, "{}", "{}", created, created, ended),
            )
        done = created + 9_000
        if is_parked:
            parked = "IN_TROUBLESHOOTING_QUEUE"
            yield "outcome", (seq, parked, 3, 0, 1, "w-1", created, done, error(seq), "PERMANENT")
            yield "audit", (seq, "MOVED_TO_TSQ", done, "{}")
        elif seq % 97 == 0:
            yield "outcome", (seq, "FAILED", 1, 0, 1, "w-1", created, done, error(seq), None)
        elif is_old:
            yield "outcome", (seq, "COMPLETED", 1, 0, 1, "w-1", created + 500, done, None, None)
        else:
            yield "queue", (domain, 5, seq, 0, 0, 0, created)


def tallies(filling: Filling) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for table, row in rows(filling):
        if table == "outcome":
            key = (DOMAINS[row[0] % 4], row[1])
            found[key] = found.get(key, 0) + 1
    return found


def fill_sqlite(path: str, filling: Filling) -> None:
    connection = sqlite3.connect(path)
    for table, names in TABLES.items():
        marks = ", ".join("?" * len(names.split(",")))
        chosen = (
            tuple(v.bytes if isinstance(v, uuid.UUID) else v for v in row)
            for kind, row in rows(filling)
            if kind == table
        )
        connection.executemany(f"insert into commandbus_{table} ({names}) values ({marks})", chosen)
    connection.executemany(
        "insert into commandbus_tally values (?, ?, ?)", [(*k, n) for k, n in tallies(filling).items()]
    )
    connection.executemany(
        "insert or ignore into commandbus_domain (domain) values (?)", [(d,) for d in DOMAINS]
    )
    connection.commit()
    connection.close()


def fill_postgres(url: str, filling: Filling) -> None:
    import psycopg

    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        for table, names in TABLES.items():
            with cursor.copy(f"copy commandbus.{table} ({names}) from stdin".encode()) as copy:
                for kind, row in rows(filling):
                    if kind == table:
                        copy.write_row(row)
        for (domain, status), n in tallies(filling).items():
            cursor.execute("insert into commandbus.tally values (%s, %s, %s)", (domain, status, n))
        for domain in DOMAINS:
            cursor.execute("insert into commandbus.domain (domain) values (%s)", (domain,))
        cursor.execute("select setval('commandbus.command_seq_seq', %s)", (filling.count,))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")


async def fill_history(bus: CommandBus, filling: Filling) -> None:
    """Samples as workers keep them: two days of minutes, a week of hours."""
    now = datetime.now(UTC)
    for grain, length in ((Grain.MINUTE, timedelta(days=2)), (Grain.HOUR, timedelta(days=7))):
        for domain in DOMAINS:
            pages: dict[str, list[Sample]] = {}
            moment, step = now - length, 0
            while moment < now:
                at, ended = int(moment.timestamp() * SECOND), step * (3 + step % 7)
                sample = Sample(at, step % 900, 3, 8, step % 50, ended, step, 0, 1.5, 0.2, 0.1, 0.4)
                pages.setdefault(grain.page(moment), []).append(sample)
                moment, step = moment + grain.step, step + 1
            for key, samples in pages.items():
                body = msgspec.json.encode(samples).decode()
                until = int((now + grain.kept).timestamp() * SECOND)
                kind = f"history.{grain}:{domain}"
                document = Document(kind, key, 0, "kept", until, body)
                await bus.session.run(bus.scope.store.put_document(document))
