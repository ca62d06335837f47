"""`python -m bench.pgmq`: the PGMQ transport beside the engine's own tables, in one run.

Both send and drain the same number of no-op commands in a fresh database of one private server, with
fsync and synchronous_commit on, turn by turn, so that whatever else the machine does hits both alike.
Single sends are one commit each. A bare loop of PGMQ's own functions (read and delete by array, no
worker) shows what PGMQ itself takes; its messages are those of the bus.
"""

import argparse
import asyncio
import statistics
import time

import psycopg

from bench.postgres import drain_async, drain_threads, fill, single_sends
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.testing.postgres import PostgresServer, create_database, drop_database

LOOP_SIZE = 100
SENDERS = (1, 16)


def bare_loop(url: str, count: int) -> float:
    """pgmq.read and pgmq.delete by array, nothing else."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        began, left = time.perf_counter(), count
        while left:
            rows = connection.execute(
                "select msg_id from pgmq.read('bench__commands', 30, %s)", (LOOP_SIZE,)
            ).fetchall()
            connection.execute(
                "select pgmq.delete('bench__commands', %s::bigint[])", ([row[0] for row in rows],)
            )
            left -= len(rows)
        return count / (time.perf_counter() - began)


class Bench:
    def __init__(self, server: PostgresServer, commands: int) -> None:
        self.server = server
        self.commands = commands
        self.figures: dict[str, list[float]] = {}

    def fresh(self, transport: str | None) -> str:
        url = create_database(self.server)
        (install if transport else upgrade)(url)
        return url

    def turn(self, concurrency: int, seconds: float) -> None:
        for transport in (None, "pgmq"):
            name = transport or "native"
            for runtime in ("asyncio", "threads"):
                url = self.fresh(transport)
                carried = url + (f"&transport={transport}" if transport else "")
                self.add(f"bulk send, {name}", self.commands / fill(carried, self.commands))
                if runtime == "asyncio":
                    rate, _ = asyncio.run(drain_async(carried, self.commands, concurrency))
                else:
                    rate, _ = drain_threads(carried, self.commands, concurrency)
                self.add(f"drain {runtime} c{concurrency}, {name}", rate)
                drop_database(self.server, url)
            if seconds:
                self.single(transport, seconds)
        url = self.fresh("pgmq")
        fill(url + "&transport=pgmq", self.commands)
        self.add(f"bare loop of read and delete, {LOOP_SIZE} at a time", bare_loop(url, self.commands))
        drop_database(self.server, url)

    def single(self, transport: str | None, seconds: float) -> None:
        for senders in SENDERS:
            url = self.fresh(transport)
            carried = url + (f"&transport={transport}" if transport else "")
            rate = single_sends(carried, seconds, senders)
            self.add(f"single sends, {senders} threads, {transport or 'native'}", rate)
            drop_database(self.server, url)

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)
        print(f"{name:<52} {value:>10,.0f}/s", flush=True)

    def show(self) -> None:
        print()
        median = {name: statistics.median(values) for name, values in self.figures.items()}
        for name, values in self.figures.items():
            ratio = ""
            if name.endswith("pgmq"):
                share = median[name] / median[name.replace("pgmq", "native")]
                ratio = f"{share:.0%} of the native engine"
            spread = f"{min(values):,.0f}..{max(values):,.0f}"
            print(f"{name:<52} {median[name]:>10,.0f}/s  {spread}  {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pgmq", description=__doc__)
    parser.add_argument("--commands", type=int, default=50_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--single-seconds", type=float, default=2.0, help="0 leaves single sends out")
    options = parser.parse_args()
    server = PostgresServer.start(durable=True, settings={"shared_buffers": "1GB"})
    with server:
        bench = Bench(server, options.commands)
        for _ in range(options.repeat):
            bench.turn(options.concurrency, options.single_seconds)
        bench.show()


if __name__ == "__main__":
    main()
