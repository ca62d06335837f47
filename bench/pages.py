"""How long every page and every list of the command line takes with a large store behind it.

    python -m bench.pages                          300,000 commands in an SQLite file
    python -m bench.pages --postgres               1,000,000 in a PostgreSQL of its own
    python -m bench.pages --commands 100000 --parked-every 7 --only-pages
    python -m bench.pages --url postgresql://…/empty --commands 1000000

The store is filled with commands of all states by plain SQL, then each page is asked for several times
through the app, without a network, and each list is printed by the command line in this process. Prints
the median and the slowest of each; exit code 1 when a single one is slower than the bound. At the end a
few are run as programs, the start of the interpreter included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pty
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import httpx

from bench.servers import own_postgres
from commandbus import CommandBus, Schedule, SendRequest
from commandbus.interfaces.web import create_dashboard

BOUND_SECONDS, HELP_SECONDS = 0.300, 0.250
ROUNDS = 5


class Mix:
    """The commands of the store; the options change it."""

    parked_every = 200


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
TABLES = {"command": COMMAND, "outcome": OUTCOME, "queue": QUEUE, "process": PROCESS}
CODES = ("NO_SUCH_CITY", "TIMEOUT", "CARD_DECLINED")


def error(seq: int) -> str:
    """As a handler raises it: the message names its case, so no two are equal."""
    return json.dumps(
        {"kind": "PERMANENT", "code": CODES[seq % 3], "message": f"order {seq}: {seq % 999} refused",
         "exception": "commandbus.errors.PermanentCommandError", "frame": "app.py:12 in ship"}
    )  # fmt: skip


def rows(count: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Half completed, some failed and parked, the rest waiting: a day of work. There is a process for
    every ten commands, and parked commands belong to one."""
    now = int(time.time() * 1_000_000)
    step = 86_400_000_000 // count
    for seq in range(1, count + 1):
        created = now - (count - seq) * step
        domain, kind = DOMAINS[seq % 4], f"type{seq % 23}"
        one = uuid.UUID(int=(1 << 100) + seq)
        data = json.dumps({"account": seq % 1_000, "amount": seq, "city": "Oslo"})
        tags = json.dumps(["vip"]) if seq % 500 == 0 else None
        process = uuid.UUID(int=(1 << 101) + seq)
        whole = one if seq % Mix.parked_every else process
        yield "command", (seq, one, domain, kind, data, whole, 5, created, created, tags)
        if seq % 10 == 0:
            status, ended = ("COMPLETED", created) if seq < count * 0.7 else ("RUNNING", None)
            saga = f"saga{seq % 3}"
            yield "process", (process, saga, domain, status, 5, "{}", "{}", created, created, ended)
        if seq % Mix.parked_every == 0:
            parked = "IN_TROUBLESHOOTING_QUEUE"
            yield (
                "outcome",
                (seq, parked, 3, 0, 1, "w-1", created, created + 9_000, error(seq), "PERMANENT"),
            )
        elif seq % 97 == 0:
            yield "outcome", (seq, "FAILED", 1, 0, 1, "w-1", created, created + 9_000, error(seq), None)
        elif seq < count * 0.7:
            yield (
                "outcome",
                (seq, "COMPLETED", 1, 0, 1, "w-1", created + 500, created + 9_000, None, None),
            )
        else:
            yield "queue", (domain, 5, seq, 0, 0, 0, created)


def tallies(count: int) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for table, row in rows(count):
        if table == "outcome":
            key = (DOMAINS[row[0] % 4], row[1])
            found[key] = found.get(key, 0) + 1
    return found


def fill_sqlite(path: str, count: int) -> None:
    connection = sqlite3.connect(path)
    for table, names in TABLES.items():
        marks = ", ".join("?" * len(names.split(",")))
        chosen = (
            tuple(v.bytes if isinstance(v, uuid.UUID) else v for v in row)
            for kind, row in rows(count)
            if kind == table
        )
        connection.executemany(f"insert into commandbus_{table} ({names}) values ({marks})", chosen)
    connection.executemany(
        "insert into commandbus_audit (seq, kind, at, details) values (?, ?, ?, ?)",
        ((seq, "MOVED_TO_TSQ", 0, "{}") for seq in range(0, count, Mix.parked_every) if seq),
    )
    connection.executemany(
        "insert into commandbus_tally values (?, ?, ?)", [(*k, n) for k, n in tallies(count).items()]
    )
    connection.executemany(
        "insert or ignore into commandbus_domain (domain) values (?)", [(d,) for d in DOMAINS]
    )
    connection.commit()
    connection.close()


def fill_postgres(url: str, count: int) -> None:
    import psycopg

    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        for table, names in TABLES.items():
            with cursor.copy(f"copy commandbus.{table} ({names}) from stdin".encode()) as copy:
                for kind, row in rows(count):
                    if kind == table:
                        copy.write_row(row)
        cursor.execute(
            "insert into commandbus.audit (seq, kind, at, details)"
            " select s, 'MOVED_TO_TSQ', 0, '{}'"
            " from generate_series(%s::bigint, %s::bigint, %s::bigint) s",
            (Mix.parked_every, count, Mix.parked_every),
        )
        for (domain, status), n in tallies(count).items():
            cursor.execute("insert into commandbus.tally values (%s, %s, %s)", (domain, status, n))
        for domain in DOMAINS:
            cursor.execute("insert into commandbus.domain (domain) values (%s)", (domain,))
        cursor.execute("select setval('commandbus.command_seq_seq', %s)", (count,))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")


def pages(count: int, batch: str) -> list[str]:
    parked = count // Mix.parked_every * Mix.parked_every
    process = uuid.UUID(int=(1 << 101) + count // 10 * 10)
    place = f"/commands/{DOMAINS[parked % 4]}/{uuid.UUID(int=(1 << 100) + parked)}"
    found = ["/", "/domains", "/domains/orders", "/commands", "/troubleshooting",
             "/troubleshooting?domain=orders", "/commands/retry?everything=on",
             "/troubleshooting?page=2",
             "/commands/retry?group=0", "/commands/retry?error_code=TIMEOUT", "/?span=7d",
             "/batches", batch, "/processes", "/processes?status=COMPLETED",
             "/processes?status=WAITING_FOR_TROUBLESHOOTING", "/processes?process_type=saga1",
             f"/processes/{process}", "/schedules", "/send", "/workers",
             "/breakers", "/audit", "/audit?event=OPERATOR_RETRY", "/audit?actor=ana",
             "/audit?view=actions", "/system", "/metrics", place, f"/api/v1{place}"]  # fmt: skip
    searches = ["status:pending", "status:running", "status:completed", "status:failed",
                "status:parked", "status:canceled", "domain:mail", "type:type7", "type:nothing",
                "tag:vip", "tag:nothing", f"correlation:{uuid.UUID(int=(1 << 100) + 7)}",
                "error:NO_SUCH_CITY", "error:NOTHING", "data.account:42",
                "data.account:none", "age:>12h", "age:<1h", "status:completed domain:mail type:type3",
                "status:pending type:nothing"]  # fmt: skip
    return found + [f"/commands?q={q.replace('>', '%3E').replace('<', '%3C')}" for q in searches]


def lists(count: int) -> list[str]:
    """Commands of the command line that read."""
    parked = count // Mix.parked_every * Mix.parked_every
    one = uuid.UUID(int=(1 << 100) + parked)
    searches = ["", "--status completed", "--status pending", "--status failed", "--domain mail",
                "--type type7", "--type nothing", "--tag vip", "--tag nothing", "error:NOTHING",
                "error:NO_SUCH_CITY", "data.account:42", "data.account:none", "age:>12h"]  # fmt: skip
    return [
        *(f"list {search}".strip() for search in searches),
        f"show {one}", f"show {one.hex[-9:]}", f"why {one}", f"audit {one}", "audit",
        "audit --event OPERATOR_RETRY", "audit --who ana", "audit --people", "audit --restarts",
        "queue list", "queue stats orders", "tsq list", "tsq list --domain mail", "tsq count",
        "batch list", "process list", "process list --status waiting", "schedule list",
        "breaker list", "limit list", "workers", "health", "db doctor",
    ]  # fmt: skip


def report(took: list[float], what: str, bound: float = BOUND_SECONDS) -> bool:
    """Prints a line; whether one was too slow."""
    late = max(took) > bound
    mark = "  SLOW" if late else ""
    print(f"{statistics.median(took) * 1e3:8.1f} ms  {max(took) * 1e3:8.1f} ms  {what}{mark}")
    return late


def measure_lists(url: str, count: int) -> int:
    from typer.testing import CliRunner

    from commandbus.interfaces.cli.app import app

    slow = 0
    for line in lists(count):
        took = []
        for turn in range(ROUNDS + 1):
            began = time.perf_counter()
            done = CliRunner().invoke(app, ["--url", url, *line.split()])
            if turn:  # the first one imports
                took.append(time.perf_counter() - began)
            assert done.exit_code in (0, 1, 6, 7), (line, done.output[:500], done.exception)
        # A doctor looks at the whole of it, and may take the time.
        slow += report(took, f"commandbus {line}", inf if line == "db doctor" else BOUND_SECONDS)
    return slow


def measure_programs(url: str) -> int:
    """As somebody waits for them who has used them before: in a pipe, and on a terminal. What Python
    and the libraries take to start is shown beside them, and not counted against a list."""
    python, libraries = [sys.executable], "typer, rich.console, rich.table, msgspec"
    libraries += ", psycopg_pool" if url.startswith("postgresql") else ", sqlite3"
    start = _timed(_in_pipe, [*python, "-c", f"import {libraries}"])
    report(start, "Python with the libraries of the programs below, nothing else", inf)
    lists_bound = BOUND_SECONDS + statistics.median(start)
    chosen = ["list", "list --status failed --domain mail", "tsq list", "queue list", "process list"]
    slow = 0
    for line, bound in {"--help": HELP_SECONDS, **dict.fromkeys(chosen, lists_bound)}.items():
        program = [*python, "-m", "commandbus", "--url", url, *line.split()]
        for name, run in (("in a pipe", _in_pipe), ("on a terminal", _on_terminal)):
            slow += report(_timed(run, program), f"the program commandbus {line}, {name}", bound)
    return slow


def _timed(run: Callable[[list[str]], None], program: list[str]) -> list[float]:
    run(program)
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run(program)
        took.append(time.perf_counter() - began)
    return took


def _in_pipe(program: list[str]) -> None:
    subprocess.run(program, check=True, capture_output=True)


def _on_terminal(program: list[str]) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        with contextlib.suppress(OSError):  # a terminal that nobody holds any more
            while os.read(ours, 65_536):
                pass
    os.close(ours)
    assert running.returncode == 0, program


async def measure(url: str, count: int) -> int:
    slow = 0
    async with CommandBus(url) as bus:
        batch = await bus.create_batch([SendRequest("orders", "ship")] * 1_000, name="large")
        await bus.put_schedule(
            Schedule(name="nightly", domain="orders", command_type="x", cron="0 3 * * *")
        )
        transport = httpx.ASGITransport(app=create_dashboard(bus, open_to_this_machine=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.get("/")
            for path in pages(count, f"/batches/{batch.batch_id}"):
                took = []
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    answer = await client.get(path)
                    took.append(time.perf_counter() - began)
                    assert answer.status_code == 200, (path, answer.text[:500])
                slow += report(took, path)
    return slow


async def prepare(url: str) -> None:
    async with CommandBus(url, migrate=True):
        pass


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages")
    parser.add_argument("--url", help="an empty PostgreSQL database; default: an SQLite file")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    parser.add_argument("--commands", type=int)
    parser.add_argument("--parked-every", type=int, default=200, help="one of so many is parked")
    parser.add_argument("--only-pages", action="store_true", help="not the command line")
    chosen = parser.parse_args(arguments)
    Mix.parked_every = chosen.parked_every
    server = own_postgres() if chosen.postgres else chosen.url
    count: int = chosen.commands or (1_000_000 if server else 300_000)
    with tempfile.TemporaryDirectory() as folder:
        url = server or f"sqlite:///{folder}/pages.db?synchronous=off"
        asyncio.run(prepare(url))
        began = time.perf_counter()
        if server:
            fill_postgres(server, count)
        else:
            fill_sqlite(f"{folder}/pages.db", count)
        print(f"{count:,} commands in {time.perf_counter() - began:.0f} s")
        print("  median       slowest")
        slow = asyncio.run(measure(url, count))
        if chosen.only_pages:
            return 1 if slow else 0
        slow += measure_lists(url, count)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is compiled once
        slow += measure_programs(url)
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
