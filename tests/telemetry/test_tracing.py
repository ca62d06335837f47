"""Spans by the messaging conventions, carried from the send to the handler; and logs that correlate."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from commandbus import CommandBus, ConfigurationError, HandlerRegistry, PermanentCommandError, Worker
from commandbus.observe.logs import JsonFormatter, correlated
from commandbus.sync import SyncCommandBus, SyncWorker

exporter = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    exporter.clear()
    yield exporter
    exporter.clear()


registry = HandlerRegistry()
logger = logging.getLogger("shop")


@registry.handler("orders", "ship")
async def ship(command: Any, context: Any) -> None:
    logger.info("shipping", extra={"city": "Oslo"})
    if command.data == "bad":
        raise PermanentCommandError("NO_SUCH_CITY", "not on the map")


@registry.handler("orders", "bill")
def bill(command: Any, context: Any) -> None:
    logger.info("billing")


@pytest.mark.parametrize("mode", ["link", "child"])
async def test_a_run_belongs_to_its_send(spans: InMemorySpanExporter, mode: str) -> None:
    async with CommandBus("memory://", tracing=mode) as bus:
        with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
            await bus.send("orders", "ship", headers={"mine": 1})
            await bus.send("orders", "bill")
        await Worker(bus, "orders", registry, recycle_after=2).run()
        records = (await bus.query_commands()).commands
    assert all(r.headers["traceparent"].startswith("00-") for r in records)
    assert any(r.headers.get("mine") == 1 for r in records)
    found = spans.get_finished_spans()
    sends = [s for s in found if s.name == "send orders"]
    runs = [s for s in found if s.name == "process orders"]
    assert [s.kind for s in sends + runs] == [SpanKind.PRODUCER] * 2 + [SpanKind.CONSUMER] * 2
    assert all(s.parent and s.parent.span_id == checkout.get_span_context().span_id for s in sends)
    contexts = {s.context.span_id for s in sends if s.context}
    if mode == "child":
        assert {s.parent.span_id for s in runs if s.parent} == contexts
    else:
        assert {s.links[0].context.span_id for s in runs} == contexts
        assert all(s.parent is None for s in runs)
    attributes = dict(runs[0].attributes or {})
    assert attributes["messaging.system"] == "commandbus"
    assert attributes["messaging.destination.name"] == "orders"
    assert attributes["commandbus.attempt"] == 1


async def test_a_failure_is_on_its_span(spans: InMemorySpanExporter) -> None:
    async with CommandBus("memory://", tracing="link") as bus:
        await bus.send("orders", "ship", "bad")
        await Worker(bus, "orders", registry, recycle_after=1).run()
    (run,) = [s for s in spans.get_finished_spans() if s.name == "process orders"]
    assert run.status.status_code is StatusCode.ERROR
    assert dict(run.attributes or {})["error.type"] == "NO_SUCH_CITY"
    assert run.events[0].name == "exception"


def test_threads_trace_as_well(spans: InMemorySpanExporter) -> None:
    with SyncCommandBus("memory://", tracing="child") as bus:
        bus.send("orders", "bill")
        SyncWorker(bus, "orders", registry, recycle_after=1).run()
    (run,) = [s for s in spans.get_finished_spans() if s.name == "process orders"]
    assert run.parent is not None


async def test_without_tracing_nothing_is_added(spans: InMemorySpanExporter) -> None:
    async with CommandBus("memory://") as bus:
        sent = await bus.send("orders", "ship")
        record = await bus.get_command("orders", sent.command_id)
        assert record is not None
        assert record.headers == {}
        await Worker(bus, "orders", registry, recycle_after=1).run()
    assert spans.get_finished_spans() == ()


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="tracing"):
        CommandBus("memory://", tracing="everything")


@pytest.mark.parametrize("command_type", ["ship", "bill"])
async def test_a_log_line_names_its_command(
    command_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    handler = Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        async with CommandBus("memory://") as bus:
            sent = await bus.send("orders", command_type)
            worker = Worker(bus, "orders", registry, recycle_after=1)
            worker.wrap_handlers(correlated)
            await worker.run()
        logger.info("afterwards")
    finally:
        logger.removeHandler(handler)
    first, last = lines[0], lines[-1]
    assert first["command_id"] == str(sent.command_id)
    assert (first["domain"], first["command_type"], first["attempt"]) == ("orders", command_type, 1)
    assert first["logger"] == "shop"
    assert "command_id" not in last
    assert last["message"] == "afterwards"
