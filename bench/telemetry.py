"""What telemetry costs a worker: `python -m bench.telemetry`.

The same commands are carried out without telemetry, with metrics, with metrics and traces but no SDK,
and with an SDK that drops its spans; several times each, and the medians are compared. The handlers do
nothing, so this is the most it can cost. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from typing import Any

from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.observe.commands import CommandFigures

registry = HandlerRegistry()


@registry.handler("bench", "nothing")
async def nothing(command: Any, context: Any) -> None:
    return None


def use_sdk() -> None:
    """A tracer that makes real spans and sends them nowhere."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    trace.set_tracer_provider(TracerProvider())


async def drain(url: str, count: int, *, metrics: bool, tracing: bool) -> float:
    """Commands per second of one worker."""
    async with CommandBus(url, tracing="link" if tracing else None) as bus:
        await bus.purge("bench")
        await bus.send_many(SendRequest("bench", "nothing", {"n": n}) for n in range(count))
        worker = Worker(bus, "bench", registry, concurrency=16, recycle_after=count)
        if metrics:
            worker.observer = CommandFigures()
        began = time.perf_counter()
        await worker.run()
        return count / (time.perf_counter() - began)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry")
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    kinds = {
        "without": {"metrics": False, "tracing": False},
        "metrics": {"metrics": True, "tracing": False},
        "metrics and traces": {"metrics": True, "tracing": True},
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        url = chosen.url or f"sqlite:///{folder}/bench.db"
        for _ in range(chosen.rounds):
            for name, kind in kinds.items():
                found[name].append(asyncio.run(drain(url, chosen.commands, **kind)))
        use_sdk()
        name, kind = "with an SDK", kinds["metrics and traces"]
        found[name] = [asyncio.run(drain(url, chosen.commands, **kind)) for _ in range(chosen.rounds)]
    base = statistics.median(found["without"])
    for name, rates in found.items():
        rate = statistics.median(rates)
        print(f"{rate:10,.0f} commands/s  {100 * (rate / base - 1):+5.1f} %  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
