"""Huey with SQLite at the same durability (fsync=True, which is synchronous=FULL, in WAL mode).

Its consumer runs threads in a process of its own, polling every 5 ms instead of the default 100 ms. It
has no bulk send. It deletes a task before it runs it, so a crash loses it: at most once.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

from bench.measure import PAYLOAD, Options, Subject, percentiles, resident_megabytes, start_sender

POLL_SECONDS = 0.005
BUSY_SECONDS = 0.005


def make_huey(file: str, keep_results: bool) -> tuple[Any, Callable[[Any], object]]:
    """An instance, and its task; the same in the sender and in the consumer."""
    from huey import SqliteHuey

    huey = SqliteHuey("bench", filename=file, fsync=True, store_none=keep_results)
    ran = huey.ran = Ran()

    @huey.task(name="work")  # type: ignore[untyped-decorator]
    def work(data: Any) -> None:
        ran.note(data)

    return huey, work


class Ran:
    """What the consumer's threads have done so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.began = 0.0
        self.seconds = 0.0
        self.delays: list[float] = []

    def note(self, data: Any) -> None:
        if "at" in data:
            self.delays.append(time.time() - data["at"])
        if not self.began:
            self.began = time.perf_counter()
        if self.seconds:
            time.sleep(self.seconds)
        with self._lock:
            self.count += 1


class Huey:
    def __init__(self, keep_results: bool) -> None:
        self._keep_results = keep_results

    def _open(self, options: Options) -> tuple[Any, Any, str]:
        file = f"{options.folder}/huey.db"
        return *make_huey(file, self._keep_results), file

    def _consumer(self, huey: Any, workers: int) -> Any:
        consumer = huey.create_consumer(
            workers=workers,
            periodic=False,
            initial_delay=POLL_SECONDS,
            max_delay=POLL_SECONDS,
            backoff=1.0,
            check_worker_health=False,
        )
        consumer.start()
        return consumer

    def singles(self, senders: int, options: Options, name: str = "") -> Mapping[str, float]:
        _, work, _ = self._open(options)
        each = options.singles // senders

        def send(_: int) -> None:
            for _ in range(each):
                work(PAYLOAD)

        with ThreadPoolExecutor(senders) as pool:
            began = time.perf_counter()
            list(pool.map(send, range(senders)))
            return {name or f"send_{senders}": each * senders / (time.perf_counter() - began)}

    def drain(self, workers: int, options: Options, seconds: float = 0.0) -> Mapping[str, float]:
        huey, work, _ = self._open(options)
        count = options.commands // 4
        for _ in range(count):
            work(PAYLOAD)
        huey.ran.seconds = seconds
        consumer = self._consumer(huey, workers)
        while huey.ran.count < count:
            time.sleep(0.002)
        rate = count / (time.perf_counter() - huey.ran.began)
        consumer.stop(graceful=True)
        if seconds:
            return {"busy_100": 100 * rate / (workers / seconds)}
        return {f"drain_{workers}": rate}

    def pickup(self, options: Options) -> Mapping[str, float]:
        huey, _, file = self._open(options)
        consumer = self._consumer(huey, 4)
        start_sender("huey", file=file, keep_results=self._keep_results, paced=options.pickups)
        while len(huey.ran.delays) < options.pickups:
            time.sleep(0.05)
        consumer.stop(graceful=True)
        return percentiles(huey.ran.delays)

    def memory(self, options: Options) -> Mapping[str, float]:
        huey, _, file = self._open(options)
        count = options.commands // 4
        start_sender("huey", file=file, keep_results=self._keep_results, backlog=count)
        consumer = self._consumer(huey, 10)
        while huey.ran.count < count:
            time.sleep(0.05)
        used = resident_megabytes()
        consumer.stop(graceful=True)
        return {"memory": used}


def subjects() -> list[Subject]:
    missing = "" if find_spec("huey") else "not installed: pip install huey"
    found = []
    for keep_results in (False, True):
        of = Huey(keep_results)
        measurements = {
            "bulk_send": partial(of.singles, 1, name="bulk_send"),
            "send_1": partial(of.singles, 1),
            "send_16": partial(of.singles, 16),
            "drain_1": partial(of.drain, 1),
            "drain_10": partial(of.drain, 10),
            "drain_100": partial(of.drain, 100),
            "busy_100": partial(of.drain, 100, seconds=BUSY_SECONDS),
            "pickup": of.pickup,
            "memory": of.memory,
        }
        name = "Huey, sqlite, results kept" if keep_results else "Huey, sqlite"
        kept = "keeps the result of each" if keep_results else "keeps nothing of what is done"
        note = (
            f"fsync on; at most once (a crash loses tasks); {kept}, no history; no bulk send; polls "
            "every 5 ms (its default is 100 ms); drains a quarter as many, to the last handler's end"
        )
        found.append(Subject(name, "embedded", measurements, note, missing))
    return found
