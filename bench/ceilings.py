"""What this machine allows at most, in the same run: the frame for every other figure."""

from __future__ import annotations

import asyncio
import contextlib
import select
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from bench.figures import percentile
from bench.lab import Lab
from bench.runtimes import COMPUTE, Act, bare_tasks, bare_threads
from bench.typed import typed_sends
from commandbus import new_event_loop
from commandbus.testing.postgres import create_database, drop_database

TEXT = "x" * 100
SECONDS = 1.5
ROWS = 100_000
PICKUPS = 100
INSERT = "insert into bare (domain, data) values (%s, %s)"
CLAIM = (
    "with picked as (select id from bare where available order by id limit %s for update skip locked)"
    " update bare set available = false from picked where bare.id = picked.id returning bare.id"
)

Figures = dict[str, float]


@contextlib.contextmanager
def database(lab: Lab) -> Iterator[str]:
    url = create_database(lab.server)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for name in ("bare", "other"):
                connection.execute(
                    f"create table {name} (id bigserial primary key, domain text not null,"
                    " data text not null, available boolean not null default true)".encode()
                )
        yield url
    finally:
        drop_database(lab.server, url)


def inserts(lab: Lab, scale: float) -> Figures:
    """One row a commit."""
    seconds = max(0.3, SECONDS * min(1.0, scale))
    figures: Figures = {}
    for clients in (1, 16):
        with database(lab) as url:
            figures[f"insert_{clients}"] = _insert_in_threads(url, seconds, clients)
    with database(lab) as url:
        if (rate := _pgbench(lab, url, seconds)) is not None:
            figures["pgbench_16"] = rate
    return figures


def _insert_in_threads(url: str, seconds: float, clients: int) -> float:
    counts = [0] * clients
    barrier = threading.Barrier(clients + 1)

    def work(number: int) -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            barrier.wait()
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                connection.execute(INSERT, ("bench", TEXT))
                counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def _pgbench(lab: Lab, url: str, seconds: float) -> float | None:
    program = (lab.server.binaries.bin_dir or Path()) / "pgbench"
    if not program.exists():
        return None
    script = lab.folder / "insert.sql"
    script.write_text(f"insert into bare (domain, data) values ('bench', '{TEXT}');\n")
    whole = str(max(1, round(seconds)))
    options = ["-n", "-M", "prepared", "-c", "16", "-j", "2", "-T", whole, "-f", str(script), url]
    done = subprocess.run([program, *options], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("tps ="))
    return float(line.split()[2])


def copies(lab: Lab, scale: float) -> Figures:
    """1,000 rows a commit, into one table and into two."""
    rows = [("bench", TEXT)] * 1_000
    rounds = max(5, int(ROWS * scale) // 1_000)
    figures: Figures = {}
    for tables in (("bare",), ("bare", "other")):
        with database(lab) as url, psycopg.connect(url) as connection:
            began = time.perf_counter()
            for _ in range(rounds):
                for table in tables:
                    statement = f"copy {table} (domain, data) from stdin".encode()
                    with connection.cursor().copy(statement) as copy:
                        for row in rows:
                            copy.write_row(row)
                connection.commit()
            took = time.perf_counter() - began
        figures[f"copy_{len(tables)}"] = 1_000 * rounds / took
    return figures


def claims(lab: Lab, scale: float) -> Figures:
    """Claim a batch, commit, delete it, commit: what every durable queue has to do at least."""
    figures: Figures = {}
    for size in (10, 100, 1_000):
        count = max(size * 5, int({10: 6_000, 100: 30_000, 1_000: 50_000}[size] * scale))
        with (
            database(lab) as url,
            psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection,
        ):
            connection.execute(
                "insert into bare (domain, data) select 'bench', %s from generate_series(1, %s)",
                (TEXT, count),
            )
            connection.execute("create index on bare (id) where available")
            began, done = time.perf_counter(), 0
            while done < count:
                ids = [row[0] for row in connection.execute(CLAIM, (size,))]
                connection.execute("delete from bare where id = any(%s)", (ids,))
                done += len(ids)
            figures[f"claim_{size}"] = count / (time.perf_counter() - began)
    return figures


def notify(lab: Lab, scale: float) -> Figures:
    """From before an INSERT with NOTIFY, in one process, to the claimed row in another."""
    rounds = max(20, int(PICKUPS * scale))
    late: list[float] = []
    with database(lab) as url:
        command = [sys.executable, "-m", "bench.ceilings", url]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener,
            psycopg.connect(url, prepare_threshold=0) as connection,
        ):
            _line(listener)
            for _ in range(rounds + 3):
                time.sleep(0.02)
                began = time.monotonic()
                connection.execute(INSERT, ("bench", TEXT))
                connection.execute("notify bare")
                connection.commit()
                late.append((float(_line(listener)) - began) * 1_000)
            listener.kill()
    late = late[3:]
    return {"notify_p50": percentile(late, 0.5), "notify_p99": percentile(late, 0.99)}


def _line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints; a silent process is an error, not a hanging run."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], 10)[0]:
        process.kill()
        raise RuntimeError("the listening process heard nothing within 10 s")
    return process.stdout.readline()


def listen(url: str) -> None:
    """The other process of `notify`; it claims on a second connection, as the first one listens."""
    with (
        psycopg.connect(url, autocommit=True) as listening,
        psycopg.connect(url, autocommit=True, prepare_threshold=0) as claiming,
    ):
        listening.execute("listen bare")
        claiming.execute("select")
        print("ready", flush=True)
        for _ in listening.notifies():
            claiming.execute(CLAIM, (1,)).fetchall()
            print(time.monotonic(), flush=True)


def python(lab: Lab, scale: float) -> Figures:
    """What the language allows, without any store."""
    rounds = max(20, int(ROWS * scale) // 100)

    async def nothing() -> None: ...

    async def tasks() -> float:
        began = time.perf_counter()
        for _ in range(rounds):
            await asyncio.gather(*(nothing() for _ in range(100)))
        return 100 * rounds / (time.perf_counter() - began)

    with ThreadPoolExecutor(10) as pool:
        began = time.perf_counter()
        for _ in range(rounds // 2):
            for future in [pool.submit(len, TEXT) for _ in range(100)]:
                future.result()
        calls = 50 * rounds / (time.perf_counter() - began)
    return {"tasks": asyncio.run(tasks()), "thread_calls": calls}


def waits(lab: Lab, scale: float) -> Figures:
    """Tasks and threads that wait, without a bus: the scenarios `busy` and `calls` of nobody."""

    def tasks(act: Act, count: int, concurrency: int, busy: float) -> float:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(bare_tasks(count, concurrency, act, busy))

    long, short = Act("5ms"), Act("1ms")
    share = tasks(long, max(1_000, int(30_000 * scale)), 100, 0.0) * long.seconds
    count = max(500, int(12_000 * scale))
    ratio = bare_threads(count, 16, short, COMPUTE) / tasks(short, count, 16, COMPUTE)
    return {"wait_share": share, "wait_threads": ratio}


def sqlite(lab: Lab, scale: float) -> Figures:
    """Bare sqlite3 in WAL mode with synchronous=FULL."""
    single = _sqlite_rows(lab.folder / "single.db", max(200, int(5_000 * scale)), 1)
    return {
        "sqlite_commits": single,
        "sqlite_rows": _sqlite_rows(lab.folder / "batch.db", max(2_000, int(2 * ROWS * scale)), 100),
    }


def _sqlite_rows(file: Path, count: int, batch: int) -> float:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("create table line (id integer primary key, text text not null)")
        began = time.perf_counter()
        for _ in range(count // batch):
            connection.execute("begin immediate")
            connection.executemany("insert into line (text) values (?)", [(TEXT,)] * batch)
            connection.execute("commit")
        took = time.perf_counter() - began
    for path in file.parent.glob(f"{file.name}*"):
        path.unlink()
    return count / took


CEILINGS: dict[str, Callable[[Lab, float], Any]] = {
    "inserts": inserts,
    "copies": copies,
    "claims": claims,
    "notify": notify,
    "python": python,
    "waits": waits,
    "sqlite": sqlite,
    "typed": typed_sends,
}

if __name__ == "__main__":
    listen(sys.argv[1])
