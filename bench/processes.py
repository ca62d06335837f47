"""`python -m bench.processes`: how many steps of processes are carried out per second.

Processes of three steps are started first; then workers and routers, each a process of its own, carry
them out. The figure counts from the first reply until the last process has ended.
"""

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Event
from typing import Any

import msgspec

from bench.servers import own_postgres
from commandbus import HandlerRegistry, SendRequest
from commandbus.processes import Process, step
from commandbus.sync import (
    SyncCommandBus,
    SyncProcessManager,
    SyncProcessReplyRouter,
    SyncWorker,
)

DOMAIN = "bench"
STEPS = ("first", "second", "third")
CHUNK = 1_000


class State(msgspec.Struct):
    number: int
    done: int = 0


class Three(Process[State]):
    """Three steps that do nothing; each reply changes the state."""

    @step
    def one(self, state: State) -> SendRequest:
        return SendRequest(DOMAIN, "first", {"n": state.number})

    @step
    def two(self, state: State) -> SendRequest:
        return SendRequest(DOMAIN, "second", {"n": state.number})

    @step
    def three(self, state: State) -> SendRequest:
        return SendRequest(DOMAIN, "third", {"n": state.number})

    @one.reply
    @two.reply
    @three.reply
    def count(self, state: State, reply: Any) -> None:
        state.done += 1


def work(url: str, go: Event) -> None:
    registry = HandlerRegistry()
    for name in STEPS:
        registry.register(DOMAIN, name, lambda command, context: None)
    with SyncCommandBus(url) as bus:
        go.wait()
        SyncWorker(bus, DOMAIN, registry, concurrency=4, prefetch=200).run()


def route(url: str, go: Event) -> None:
    with SyncCommandBus(url) as bus:
        go.wait()
        SyncProcessReplyRouter(bus, Three).run()


def measure(url: str, processes: int, workers: int, routers: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    go = spawn.Event()
    fleet = [spawn.Process(target=work, args=(url, go), daemon=True) for _ in range(workers)]
    fleet += [spawn.Process(target=route, args=(url, go), daemon=True) for _ in range(routers)]
    for child in fleet:
        child.start()
    with SyncCommandBus(url) as bus:
        manager, began = SyncProcessManager(bus, Three), time.perf_counter()
        for first in range(0, processes, CHUNK):
            manager.start_many([State(n) for n in range(first, min(first + CHUNK, processes))])
        print(f"started   {processes / (time.perf_counter() - began):>10,.0f} processes/s")
        began = time.perf_counter()
        go.set()
        while bus.list_processes(status="RUNNING", limit=1):
            time.sleep(0.02)
        took = time.perf_counter() - began
        assert bus.stats(Three.reply_to).completed == processes * 3
    for child in fleet:
        child.kill()
    print(f"carried   {processes * 3 / took:>10,.0f} steps/s, {processes} processes in {took:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description=__doc__)
    parser.add_argument("--processes", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--routers", type=int, default=1)
    parser.add_argument("--url", help="an empty store (default: a new SQLite file)")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = chosen.url or (own_postgres() if chosen.postgres else f"sqlite:///{folder}/bench.db")
        measure(url, chosen.processes, chosen.workers, chosen.routers)


if __name__ == "__main__":
    main()
