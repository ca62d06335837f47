"""What telemetry costs a worker: `python -m bench.telemetry` (`--postgres` for a server of its own).

The same commands are carried out without telemetry, with metrics, and with metrics and traces: with one
trace in a hundred sampled (`parentbased_traceidratio` at 0.01), and with every one. Spans go through a
BatchSpanProcessor to an exporter that drops them. The handlers do nothing, so this is the most it can
cost. The kinds take turns, in another order each round, and each is compared with the run without
telemetry of its own round, for a machine is not equally fast all the time: the median of the quotients
counts, of the throughput and of the processor time that the worker's process takes for a command.
Run it on a quiet machine; exit code 1 when metrics and sampled traces cost more than the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import (
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from bench.servers import own_postgres
from commandbus import CommandBus, HandlerRegistry, SendRequest, Worker
from commandbus.observe.commands import CommandFigures

BOUND = 0.05
USUAL_RATIO = 0.01

registry = HandlerRegistry()


@registry.handler("bench", "nothing")
async def nothing(command: Any, context: Any) -> None:
    return None


@dataclass(frozen=True)
class Kind:
    name: str
    metrics: bool = False
    ratio: float | None = None
    """The part of the traces that is sampled; None: no tracing."""


WITHOUT = Kind("without telemetry")
USUAL = Kind(f"metrics, and traces with {USUAL_RATIO:.0%} sampled", metrics=True, ratio=USUAL_RATIO)
KINDS = (
    WITHOUT,
    Kind("metrics", metrics=True),
    USUAL,
    Kind("metrics, and traces with all sampled", metrics=True, ratio=1.0),
)


class Switched(Sampler):
    """A process has one SDK, so the kinds share it and turn its ratio."""

    def __init__(self) -> None:
        self.sampler: Sampler = ParentBasedTraceIdRatio(1.0)

    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        return self.sampler.should_sample(*arguments, **named)

    def get_description(self) -> str:
        return self.sampler.get_description()


class Nowhere(SpanExporter):
    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


sampler, exporter = Switched(), Nowhere()
provider = TracerProvider(sampler=sampler)


async def drain(url: str, count: int, kind: Kind) -> tuple[float, float]:
    """Commands per second of one worker, and its microseconds of processor time for each."""
    if kind.ratio is not None:
        sampler.sampler = ParentBased(TraceIdRatioBased(kind.ratio))
    async with CommandBus(url, tracing=None if kind.ratio is None else "child") as bus:
        await bus.purge("bench")
        await bus.send_many(SendRequest("bench", "nothing", {"n": n}) for n in range(count))
        provider.force_flush()
        exporter.count = 0
        worker = Worker(bus, "bench", registry, concurrency=16, recycle_after=count)
        if kind.metrics:
            worker.observer = CommandFigures()
        began, busy = time.perf_counter(), time.process_time()
        await worker.run()
        took, busy = time.perf_counter() - began, time.process_time() - busy
        provider.force_flush()
        return count / took, busy / count * 1_000_000


def compare(url: str, count: int, rounds: int) -> bool:
    """Prints a line for each kind; whether the usual one keeps the bound."""
    asyncio.run(drain(url, count, WITHOUT))  # everything is imported, the store is warm
    found: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        turn = number % len(KINDS)
        for kind in KINDS[turn:] + KINDS[:turn]:
            found[kind].append(asyncio.run(drain(url, count, kind)))
    lost = dict.fromkeys(KINDS, 0.0)
    for kind, runs in found.items():
        rate, busy = (statistics.median(column) for column in zip(*runs, strict=True))
        pairs = list(zip(runs, found[WITHOUT], strict=True))
        lost[kind] = 1 - statistics.median(its[0] / bare[0] for its, bare in pairs)
        more = statistics.median(its[1] / bare[1] for its, bare in pairs) - 1
        print(
            f"{rate:10,.0f} commands/s {-lost[kind]:+7.1%}"
            f"  {busy:6.1f} µs of processor {more:+7.1%}  {kind.name}"
        )
    return lost[USUAL] < BOUND


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.telemetry")
    parser.add_argument("--url", help="default: an SQLite file in a temporary folder")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL of its own")
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args(arguments)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with tempfile.TemporaryDirectory() as folder:
        url = chosen.url or (own_postgres() if chosen.postgres else f"sqlite:///{folder}/bench.db")
        kept = compare(url, chosen.commands, chosen.rounds)
    provider.shutdown()
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
