"""What this machine allows at most, in the same run: the frame for every other figure."""

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from bench.measure import Options, Subject

TEXT = "x" * 100


def _connect(options: Options) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{options.folder}/limits.db", isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table line (id integer primary key, text text not null)")
    return connection


def _rows(options: Options, count: int, batch: int) -> float:
    connection = _connect(options)
    try:
        began = time.perf_counter()
        for _ in range(count // batch):
            connection.execute("begin immediate")
            connection.executemany("insert into line (text) values (?)", [(TEXT,)] * batch)
            connection.execute("commit")
        return count / (time.perf_counter() - began)
    finally:
        connection.close()


def batch_rows(options: Options) -> Mapping[str, float]:
    return {"batch_rows": _rows(options, options.commands * 5, 100)}


def commits(options: Options) -> Mapping[str, float]:
    return {"commits": _rows(options, options.singles, 1)}


def tasks(options: Options) -> Mapping[str, float]:
    async def nothing() -> None: ...

    async def run() -> float:
        began = time.perf_counter()
        for _ in range(options.commands // 100):
            await asyncio.gather(*(nothing() for _ in range(100)))
        return options.commands / (time.perf_counter() - began)

    return {"tasks": asyncio.run(run())}


def thread_calls(options: Options) -> Mapping[str, float]:
    with ThreadPoolExecutor(10) as pool:
        began = time.perf_counter()
        for _ in range(options.commands // 100):
            for future in [pool.submit(len, TEXT) for _ in range(100)]:
                future.result()
        return {"thread_calls": options.commands / (time.perf_counter() - began)}


def subjects() -> list[Subject]:
    measurements = {
        "batch_rows": batch_rows,
        "commits": commits,
        "tasks": tasks,
        "thread_calls": thread_calls,
    }
    note = "bare sqlite3 in WAL mode with synchronous=FULL; bare asyncio; bare ThreadPoolExecutor"
    return [Subject("this machine", "limits", measurements, note)]
