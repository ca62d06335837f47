"""Causation: what a handler sends continues the flow and the trace of its command."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from commandbus.domain.command import Command, CommandRecord, SendRequest
from commandbus.domain.lifecycle import CommandStatus
from commandbus.domain.process.chain import Chain
from commandbus.domain.process.declaration import END, Process, StartProcess, step
from commandbus.errors import LeaseLost
from commandbus.testing.conformance.helpers import registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.testing.waiting import PATIENCE_SECONDS

KINDS = pytest.mark.parametrize("kind", ["def", "async def"])
TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=1",
}


def sending(kind: str, **options: Any) -> Any:
    """A handler that sends one command to "mail" by its context."""

    def ship(command: Command[Any], context: Any) -> str:
        return str(context.send("mail", "notify", command.data, **options).command_id)

    async def ship_async(command: Command[Any], context: Any) -> str:
        await asyncio.sleep(0)
        return str((await context.send("mail", "notify", command.data, **options)).command_id)

    return ship if kind == "def" else ship_async


def by_the_bus(bus: Harness, what: Any, *args: Any) -> Any:
    """A handler that calls a method of a bus of the program's own, in the runtime of the worker."""
    method = getattr(bus.bus, what) if isinstance(what, str) else what

    def ship(command: Command[Any], context: Any) -> None:
        method(*args)

    async def ship_async(command: Command[Any], context: Any) -> None:
        await method(*args)

    return ship if bus.runtime == "threads" else ship_async


def run(bus: Harness, handler: Any, **options: Any) -> CommandRecord:
    """The record of a command that such a handler has completed."""
    with bus.run_worker(registry_of(ship=handler)):
        record = bus.wait(bus.send(**options))
    assert record.status is CommandStatus.COMPLETED, record.error
    return record


def started_by(
    bus: Harness, handler: Any, *processes: Any
) -> tuple[CommandRecord, list[CommandRecord], Any]:
    """The command whose handler starts a process, what that sends to "mail", and the last process."""
    registry = registry_of(ship=handler)
    registry.register("mail", "notify", by_nothing)
    for process in processes:
        registry.process(process)
    with bus.run_worker(registry, [DOMAIN, "mail"]):
        cause = bus.wait(bus.send(headers=TRACE))
        (found,) = bus.call(bus.bus.list_processes, process_type=processes[-1].process_type)
        ended = bus.call(bus.bus.wait_process, found, timeout=PATIENCE_SECONDS)
    return cause, list(reversed(sent_by(bus))), ended


def by_nothing(command: Command[Any], context: Any) -> None:
    pass


class Inner(Process[dict]):  # type: ignore[type-arg]
    process_type = "causation.inner"
    reply_to = "causation.replies"

    @step(then=END)
    def notify(self, state: Any) -> SendRequest:
        return SendRequest("mail", "notify")


class Outer(Process[dict]):  # type: ignore[type-arg]
    process_type = "causation.outer"
    reply_to = "causation.replies"

    @step(then=END)
    def begin(self, state: Any) -> StartProcess:
        return StartProcess(Inner, {})


def sent_by(bus: Harness, domain: str = "mail") -> list[CommandRecord]:
    return list(bus.query(domain=domain))


class CausationSuite:
    @KINDS
    def test_a_handler_sends_by_its_context(self, bus: Harness, kind: str) -> None:
        cause = run(bus, sending(kind, priority="high"), data={"order": 7})
        (sent,) = sent_by(bus)
        assert str(sent.command_id) == cause.result
        assert (sent.command_type, sent.data, sent.priority) == ("notify", {"order": 7}, 0)
        assert (sent.correlation_id, sent.causation_id) == (cause.correlation_id, cause.command_id)

    @KINDS
    def test_explicit_ids_come_first(self, bus: Harness, kind: str) -> None:
        flow, reason = uuid4(), uuid4()
        run(bus, sending(kind, correlation_id=flow, causation_id=reason))
        (sent,) = sent_by(bus)
        assert (sent.correlation_id, sent.causation_id) == (flow, reason)

    @KINDS
    def test_a_flow_keeps_its_first_correlation_id(self, bus: Harness, kind: str) -> None:
        flow, last = uuid4(), Recorder()
        registry = registry_of(ship=sending(kind))
        registry.register("mail", "notify", by_context_to_archive)
        registry.register("archive", "keep", last)
        with bus.run_worker(registry, [DOMAIN, "mail", "archive"]):
            bus.send(correlation_id=flow)
            (third,) = last.wait_for(1)
        (second,) = sent_by(bus)
        assert third.correlation_id == second.correlation_id == flow
        assert third.causation_id == second.command_id

    def test_what_a_bus_of_the_program_sends_in_a_handler_belongs_to_its_flow(
        self, bus: Harness
    ) -> None:
        cause = run(bus, by_the_bus(bus, "send", "mail", "notify"))
        (sent,) = sent_by(bus)
        assert (sent.correlation_id, sent.causation_id) == (cause.correlation_id, cause.command_id)

    def test_so_does_a_bulk_send(self, bus: Harness) -> None:
        own = uuid4()
        many = [SendRequest("mail", "notify"), SendRequest("mail", "notify", correlation_id=own)]
        cause = run(bus, by_the_bus(bus, "send_many", many))
        second, first = sent_by(bus)
        assert [first.correlation_id, second.correlation_id] == [cause.correlation_id, own]
        assert first.causation_id == second.causation_id == cause.command_id

    def test_so_does_a_batch(self, bus: Harness) -> None:
        cause = run(bus, by_the_bus(bus, "create_batch", [SendRequest("mail", "notify")]))
        (sent,) = sent_by(bus)
        assert (sent.correlation_id, sent.causation_id) == (cause.correlation_id, cause.command_id)

    def test_a_chain_continues_flow_and_trace(self, bus: Harness) -> None:
        links = [SendRequest("mail", "notify"), SendRequest("mail", "notify")]
        cause, sent, process = started_by(bus, by_the_bus(bus, "chain", *links), Chain)
        assert (process.correlation_id, process.causation_id) == (
            cause.correlation_id,
            cause.command_id,
        )
        first, second = sent
        assert (first.causation_id, second.causation_id) == (cause.command_id, first.command_id)
        for command in sent:
            assert command.headers == {"process_type": Chain.process_type, **TRACE}

    def test_so_do_processes_and_the_processes_of_their_steps(self, bus: Harness) -> None:
        start = bus.manager_class(bus.bus, Outer).start
        cause, (sent,), inner = started_by(bus, by_the_bus(bus, start, {}), Outer, Inner)
        outer = bus.call(bus.bus.get_process, inner.parent_id)
        assert (outer.correlation_id, outer.causation_id) == (cause.correlation_id, cause.command_id)
        assert inner.correlation_id == cause.correlation_id
        assert inner.causation_id == sent.causation_id == outer.process_id
        assert {name: sent.headers.get(name) for name in TRACE} == TRACE

    def test_a_process_that_a_program_starts_begins_a_flow(self, bus: Harness) -> None:
        started = bus.call(bus.manager_class(bus.bus, Inner).start, {})
        record = bus.call(bus.bus.get_process, started)
        assert (record.correlation_id, record.causation_id) == (record.process_id, None)
        assert [sent.causation_id for sent in sent_by(bus)] == [None]

    def test_what_is_sent_outside_of_handlers_begins_a_flow(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=sending("def"))) as running:
            bus.wait(bus.send())
            running.wait_until_idle()
            record = bus.get(bus.send("other", "note"), "other")
        assert (record.correlation_id, record.causation_id) == (record.command_id, None)

    def test_the_next_command_of_a_slot_is_its_own_cause(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=sending(kind_of(bus))), concurrency=1):
            causes = {bus.wait(bus.send()).command_id for _ in range(3)}
        assert {sent.causation_id for sent in sent_by(bus)} == causes

    def test_the_trace_is_passed_on_without_opentelemetry(self, bus: Harness) -> None:
        run(bus, by_the_bus(bus, "send", "mail", "notify"), headers={"tenant": "a", **TRACE})
        (sent,) = sent_by(bus)
        assert sent.headers == TRACE

    @KINDS
    def test_a_trace_of_its_own_comes_first(self, bus: Harness, kind: str) -> None:
        own = {"traceparent": "00-11111111111111111111111111111111-2222222222222222-01"}
        run(bus, sending(kind, headers=own), headers=TRACE)
        (sent,) = sent_by(bus)
        assert sent.headers == own

    def test_a_command_taken_by_hand_is_a_cause_as_well(self, bus: Harness) -> None:
        command_id = bus.send()
        taken = bus.take(bus.worker())
        result = bus.call(taken.context.send, "mail", "notify")
        sent = bus.get(result.command_id, "mail")
        assert (sent.correlation_id, sent.causation_id) == (command_id, command_id)

    def test_nothing_is_sent_by_a_handler_whose_lease_is_known_to_be_gone(self, bus: Harness) -> None:
        refused: list[str] = []

        def ship(command: Command[Any], context: Any) -> None:
            keeper = running.worker._keeper
            keeper.forget(list(keeper._ends))  # a renewal was refused
            try:
                context.send("mail", "notify")
            except LeaseLost as error:
                refused.append(str(error))

        with bus.run_worker(registry_of(ship=ship), concurrency=1) as running:
            command_id = bus.send()
            bus.wait(command_id)
        assert len(refused) == 1
        assert str(command_id) in refused[0]
        assert sent_by(bus) == []


def by_context_to_archive(command: Command[Any], context: Any) -> None:
    context.send("archive", "keep")


def kind_of(bus: Harness) -> str:
    return "def" if bus.runtime == "threads" else "async def"
