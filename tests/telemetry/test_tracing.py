"""Spans by the messaging conventions, carried from the send to the handler; and logs that correlate."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from commandbus import CommandBus, HandlerRegistry, PermanentCommandError, Worker
from commandbus.errors import ConfigurationError
from commandbus.observe import tracing
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
        records = await bus.query_commands()
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


outlet: dict[str, CommandBus] = {}
"""What the handler sends with, if a test wants it to."""


@registry.handler("orders", "pass-on")
async def pass_on(command: Any, context: Any) -> Any:
    current = trace.get_current_span().get_span_context()
    with trace.get_tracer("shop").start_as_current_span("inside"):
        if "bus" in outlet:
            await outlet["bus"].send("orders", "ship")
    return [f"{current.trace_id:032x}", current.trace_flags.sampled, baggage.get_baggage("tenant")]


def unsampled() -> SpanContext:
    return SpanContext(0xABC, 0xDEF, is_remote=True, trace_flags=TraceFlags(0))


@pytest.mark.parametrize("mode", ["link", "child"])
async def test_a_trace_that_is_not_sampled_makes_no_spans_and_stays_so(
    spans: InMemorySpanExporter, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with CommandBus("memory://", tracing=mode) as bus:
        monkeypatch.setitem(outlet, "bus", bus)
        token = attach(trace.set_span_in_context(NonRecordingSpan(unsampled())))
        try:
            sent = await bus.send("orders", "pass-on", headers={"mine": 1})
        finally:
            detach(token)
        await Worker(bus, "orders", registry, recycle_after=2).run()
        first = await bus.get_command(sent.command_id)
        headers = [r.headers for r in await bus.query_commands(command_type="ship")]
    assert spans.get_finished_spans() == ()
    assert first is not None
    assert first.headers == {"mine": 1}
    assert first.result[1:] == [False, None]
    assert headers == [{}]


async def test_a_trace_from_elsewhere_that_is_not_sampled_makes_no_spans(
    spans: InMemorySpanExporter,
) -> None:
    async with CommandBus("memory://") as bus:
        sent = await bus.send("orders", "pass-on", headers={"traceparent": f"00-{1:032x}-{1:016x}-00"})
        other = await bus.send("orders", "pass-on", headers={"traceparent": f"00-{1:032x}-{1:016x}-01"})
        wrong = await bus.send("orders", "pass-on", headers={"traceparent": "nonsense"})
        worker = Worker(bus, "orders", registry, recycle_after=3)
        worker._execution.trace(tracing.Traced("child"))
        await worker.run()
        results = [await bus.get_command(s.command_id) for s in (sent, other, wrong)]
    assert [r.result[1] for r in results if r is not None] == [False, True, False]
    (run,) = [s for s in spans.get_finished_spans() if s.name == "process orders"]
    assert run.parent is not None
    assert run.parent.trace_id == 1


@pytest.mark.parametrize("is_sampled", [True, False])
async def test_baggage_travels_along(spans: InMemorySpanExporter, is_sampled: bool) -> None:
    async with CommandBus("memory://", tracing="link") as bus:
        context = baggage.set_baggage("tenant", "t-1")
        if not is_sampled:
            context = trace.set_span_in_context(NonRecordingSpan(unsampled()), context)
        token = attach(context)
        try:
            sent = await bus.send("orders", "pass-on")
        finally:
            detach(token)
        await Worker(bus, "orders", registry, recycle_after=1).run()
        record = await bus.get_command(sent.command_id)
    assert record is not None
    assert record.result[1:] == [is_sampled, "t-1"]


async def test_a_sampler_decides_for_all_that_follows(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("off"))
    async with CommandBus("memory://", tracing="child") as bus:
        monkeypatch.setitem(outlet, "bus", bus)
        await bus.send("orders", "pass-on")
        await Worker(bus, "orders", registry, recycle_after=2).run()
        records = await bus.query_commands()
    assert [r.headers for r in records] == [{}, {}]
    assert spans.get_finished_spans() == ()


def test_threads_trace_coroutines_too(spans: InMemorySpanExporter) -> None:
    with SyncCommandBus("memory://", tracing="child") as bus:
        with trace.get_tracer("shop").start_as_current_span("checkout") as checkout:
            sent = bus.send("orders", "pass-on")
        token = attach(trace.set_span_in_context(NonRecordingSpan(unsampled())))
        try:
            dropped = bus.send("orders", "pass-on")
        finally:
            detach(token)
        SyncWorker(bus, "orders", registry, recycle_after=2).run()
        results = [bus.get_command(s.command_id) for s in (sent, dropped)]
    assert all(r is not None for r in results)
    found = [r.result for r in results if r is not None]
    assert found[0][:2] == [f"{checkout.get_span_context().trace_id:032x}", True]
    assert found[1][1] is False


async def test_without_tracing_nothing_is_added(spans: InMemorySpanExporter) -> None:
    async with CommandBus("memory://") as bus:
        sent = await bus.send("orders", "ship")
        record = await bus.get_command(sent.command_id)
        assert record is not None
        assert record.headers == {}
        await Worker(bus, "orders", registry, recycle_after=1).run()
    assert spans.get_finished_spans() == ()


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="tracing"):
        CommandBus("memory://", tracing="everything")


def test_a_failed_attempt_is_logged_with_what_becomes_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "orders")
        for error in (
            PermanentCommandError("NO_CITY"),
            ConnectionError(f"no answer{'.' * 300}\nat all"),
        ):
            bus.send("orders", "ship")
            (received,) = worker.receive()
            worker.fail(received, error)
    parked, retried = (record.getMessage() for record in caplog.records)
    assert parked.endswith("attempt 1: NO_CITY, parked")
    assert "attempt 1: ConnectionError: no answer..." in retried
    assert retried.endswith("..., tried again later")
    assert len(retried) < 350


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
