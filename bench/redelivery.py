"""`python -m bench.redelivery`: how late returned work begins under a backlog.

A worker holds 200 commands of one millisecond and dies, others become due one by one, and a backlog
stands behind; two worker processes have free slots. Prints the time from the end of the lease, and from
the due time, to the start of the handler, and how often commands were given back without a run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from commandbus import Command, HandlerRegistry, SendRequest
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database

DOMAIN = "redelivery"
LEASE_SECONDS = 2.0
HANDLER_SECONDS = 0.001
WORKERS = 2
PATIENCE_SECONDS = 40.0
DUE_COUNT = 100
ENGINES = ("sqlite", "postgres", "pgmq")


def work(url: str, journal: str, ready: Any, go: Any, stop: Any) -> None:
    """A worker process, which notes the start of each command that is measured."""
    registry = HandlerRegistry()
    with Path(journal).open("a", buffering=1) as notes, SyncCommandBus(url) as bus:

        @registry.handler(DOMAIN, "Work")
        def handle(command: Command[Any], context: Any) -> None:
            if command.data["kind"]:
                notes.write(f"{command.data['kind']} {command.data['at']} {time.time()}\n")
            time.sleep(HANDLER_SECONDS)

        worker = SyncWorker(bus, DOMAIN, registry, visibility_timeout=LEASE_SECONDS)
        ready.release()
        go.wait()
        threading.Thread(target=worker.run, daemon=True).start()
        stop.wait()
        worker.stop(1.0)


def send(bus: SyncCommandBus, count: int, kind: str = "", at: float = 0.0) -> None:
    data = {"kind": kind, "at": at}
    for begin in range(0, count, 5_000):
        size = min(5_000, count - begin)
        bus.send_many([SendRequest(DOMAIN, "Work", data) for _ in range(size)])


def measure(url: str, held: int, backlog: int) -> dict[str, list[float]]:
    """Seconds from the end of the lease, or the due time, to each start; sorted, by kind."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, SyncCommandBus(url) as bus:
        ready, go, stop = context.Semaphore(0), context.Event(), context.Event()
        journals = [Path(folder, str(number)) for number in range(WORKERS)]
        send(bus, held, "held")
        first = time.time() + 2 * LEASE_SECONDS + backlog / 15_000
        for number in range(DUE_COUNT):
            due_at = first + 0.03 * number
            data = {"kind": "due", "at": due_at}
            bus.send(DOMAIN, "Work", data, delay=due_at - time.time())
        # Not begun, never settled and not renewed: as if its process had died at once.
        dying = SyncWorker(bus, DOMAIN, HandlerRegistry(), visibility_timeout=LEASE_SECONDS)
        send(bus, backlog)
        workers = [
            context.Process(target=work, args=(url, str(journal), ready, go, stop), daemon=True)
            for journal in journals
        ]
        for worker in workers:
            worker.start()
        for _ in workers:
            ready.acquire()
        assert len(dying.receive(held)) == held
        ends_at = time.time() + LEASE_SECONDS
        go.set()
        late: dict[str, list[float]] = {}
        try:
            while time.time() < ends_at + PATIENCE_SECONDS:
                time.sleep(0.2)
                late = {"held": [], "due": []}
                for journal in journals:
                    for line in journal.read_text().splitlines() if journal.exists() else ():
                        kind, at, began = line.split()
                        late[kind].append(float(began) - (ends_at if kind == "held" else float(at)))
                if len(late["held"]) >= held and len(late["due"]) >= DUE_COUNT:
                    break
            print(f"  left of the backlog: {bus.stats(DOMAIN).ready:,}")
            page = bus.search_audit(domain=DOMAIN, event_type="RELEASED", limit=1000)
            print(f"  given back without a run: {len(page)}")
        finally:
            stop.set()
            for worker in workers:
                worker.join(10.0)
                worker.kill()
        return {kind: sorted(times) for kind, times in late.items()}


def _show(kind: str, times: list[float], count: int) -> None:
    if not times:
        print(f"  {kind}: none of {count} began")
        return
    p50, p90, p99 = (times[min(len(times) - 1, int(len(times) * share))] for share in (0.5, 0.9, 0.99))
    over = sum(seconds > (1.0 if kind == "held" else 0.1) for seconds in times)
    print(
        f"  {kind}: {len(times)} of {count} began; p50 {p50:.3f}, p90 {p90:.3f}, p99 {p99:.3f}, "
        f"max {times[-1]:.3f} s, {over} over the bound",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.redelivery", description=__doc__)
    parser.add_argument("engines", nargs="*", default=ENGINES, help=" ".join(ENGINES))
    parser.add_argument("--held", type=int, default=200)
    parser.add_argument("--backlog", type=int, default=60_000)
    options = parser.parse_args()
    for engine in options.engines:
        with tempfile.TemporaryDirectory() as folder:
            if engine == "sqlite":
                url, server = f"sqlite:///{folder}/bus.db", None
            else:
                server = PostgresServer.start()
                url = create_database(server)
                (install if engine == "pgmq" else upgrade)(url)
                url += "&transport=pgmq" if engine == "pgmq" else ""
            try:
                print(f"{engine}, {options.held} held, backlog {options.backlog:,}", flush=True)
                late = measure(url, options.held, options.backlog)
                _show("held", late["held"], options.held)
                _show("due", late["due"], DUE_COUNT)
            finally:
                if server is not None:
                    server.stop()


if __name__ == "__main__":
    main()
