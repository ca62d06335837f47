"""Handlers: every shape of them, in both runtimes, with what they are given."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from commandbus.domain.command import Command
from commandbus.domain.lifecycle import PARKED, CommandStatus
from commandbus.domain.retry import RetryPolicy
from commandbus.errors import (
    ConfigurationError,
    HandlerAlreadyRegisteredError,
    HandlerNotFoundError,
    InvalidArgumentError,
)
from commandbus.testing.conformance.forms import BothForms
from commandbus.testing.conformance.helpers import AT_ONCE, registry_of
from commandbus.testing.handlers import Recorder
from commandbus.testing.harness import DOMAIN, Harness
from commandbus.worker.context import HandlerContext, SyncHandlerContext
from commandbus.worker.handlers import HandlerRegistry
from commandbus.worker.marking import handler


class Warehouse:
    def __init__(self, name: str) -> None:
        self.name = name

    @handler(DOMAIN, "ship")
    def ship(self, command: Command[Any], context: SyncHandlerContext) -> str:
        return f"{self.name} ships {command.data}"

    @handler(DOMAIN, "count", retry=RetryPolicy(1), timeout=5)
    async def count(self, command: Command[Any], context: HandlerContext) -> str:
        await asyncio.sleep(0)
        return f"{self.name} counts {command.data}"

    def helper(self) -> None: ...


class AsyncCallable:
    async def __call__(self, command: Command[Any], context: HandlerContext) -> str:
        await asyncio.sleep(0)
        return "called"


class HandlersSuite(BothForms):
    def test_a_def_handler_runs_and_its_result_is_kept(self, bus: Harness) -> None:
        def ship(command: Command[Any], context: SyncHandlerContext) -> dict[str, Any]:
            return {"shipped": command.data}

        with bus.run_worker(registry_of(ship=ship)):
            assert bus.wait(bus.send(DOMAIN, "ship", 7)).result == {"shipped": 7}

    def test_an_async_handler_runs_and_its_result_is_kept(self, bus: Harness) -> None:
        async def ship(command: Command[Any], context: HandlerContext) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"shipped": command.data}

        with bus.run_worker(registry_of(ship=ship)):
            assert bus.wait(bus.send(DOMAIN, "ship", 7)).result == {"shipped": 7}

    def test_async_handlers_run_at_the_same_time(self, bus: Harness) -> None:
        inside = threading.Semaphore(0)
        both = threading.Event()

        async def ship(command: Command[Any], context: HandlerContext) -> None:
            inside.release()
            await asyncio.to_thread(both.wait, 20)

        ids = [bus.send() for _ in range(2)]
        with bus.run_worker(registry_of(ship=ship), concurrency=2):
            try:
                assert inside.acquire(timeout=10)
                assert inside.acquire(timeout=10)
            finally:
                both.set()
            statuses = [bus.wait(command_id).status for command_id in ids]
        assert statuses == [CommandStatus.COMPLETED] * 2

    def test_a_handler_that_returns_nothing_has_no_result(self, bus: Harness) -> None:
        with bus.run_worker(registry_of(ship=Recorder())):
            assert bus.wait(bus.send()).result is None

    def test_marked_methods_of_an_object_are_handlers(self, bus: Harness) -> None:
        registry = HandlerRegistry()
        assert sorted(registry.register_instance(Warehouse("north"))) == [
            (DOMAIN, "count"),
            (DOMAIN, "ship"),
        ]
        with bus.run_worker(registry):
            assert bus.wait(bus.send(DOMAIN, "ship", 1)).result == "north ships 1"
            assert bus.wait(bus.send(DOMAIN, "count", 2)).result == "north counts 2"

    def test_an_object_without_marked_methods_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="no method marked with @handler"):
            HandlerRegistry().register_instance(object())

    @pytest.mark.parametrize("function", [Recorder(result="called"), AsyncCallable()])
    def test_an_object_that_can_be_called_is_a_handler(self, bus: Harness, function: Any) -> None:
        with bus.run_worker(registry_of(ship=function)):
            assert bus.wait(bus.send()).result == "called"

    def test_a_second_handler_for_one_type_is_refused(self) -> None:
        registry = registry_of(ship=Recorder())
        with pytest.raises(HandlerAlreadyRegisteredError, match="'ship' in domain 'orders'") as caught:
            registry.register(DOMAIN, "ship", Recorder())
        assert (caught.value.domain, caught.value.command_type) == (DOMAIN, "ship")
        registry.register("billing", "ship", Recorder())
        assert len(registry.registered_handlers()) == 2

    def test_a_function_of_another_shape_is_refused(self) -> None:
        registry = HandlerRegistry()
        for wrong in (lambda: None, lambda a: None, lambda a, b, c: None, "ship"):
            with pytest.raises(ConfigurationError):
                registry.register(DOMAIN, "ship", wrong)  # type: ignore[arg-type]
        assert registry.registered_handlers() == []

    def test_a_registry_says_what_it_has(self) -> None:
        registry = registry_of(ship=Recorder())
        assert registry.has_handler(DOMAIN, "ship")
        assert registry.get(DOMAIN, "bill") is None
        with pytest.raises(HandlerNotFoundError, match="'bill' in domain 'orders'"):
            registry.get_or_raise(DOMAIN, "bill")
        registry.clear()
        assert not registry.has_handler(DOMAIN, "ship")

    def test_a_handler_sees_its_command_as_it_was_sent(self, bus: Harness) -> None:
        seen = Recorder()
        cause = bus.send("billing")
        command_id = bus.send(
            DOMAIN,
            "ship",
            {"article": 7},
            causation_id=cause,
            reply_to="billing",
            priority="low",
            tags=["vip"],
            headers={"trace": "ab"},
        )
        with bus.run_worker(registry_of(ship=seen)):
            record = bus.wait(command_id)
        (command,), (context,) = seen.commands, seen.contexts
        assert (context.command_id, context.correlation_id) == (command_id, command_id)
        assert (command.domain, command.command_type, command.data) == (
            DOMAIN,
            "ship",
            {"article": 7},
        )
        assert (command.command_id, command.correlation_id) == (command_id, command_id)
        assert (command.causation_id, command.reply_to, command.priority) == (cause, "billing", 10)
        assert (command.tags, command.headers) == (("vip",), {"trace": "ab"})
        assert command.created_at == record.created_at

    def test_the_context_counts_attempts(self, bus: Harness) -> None:
        facts: list[tuple[int, int, int, bool]] = []

        def ship(command: Command[Any], context: SyncHandlerContext) -> None:
            facts.append(
                (context.attempt, context.max_attempts, context.crashes, context.is_last_attempt)
            )
            raise ValueError("again")

        command_id = bus.send(max_attempts=2)
        with bus.run_worker(registry_of(ship=ship), retry_policy=AT_ONCE):
            assert bus.wait(command_id).status is PARKED
        assert facts == [(1, 2, 0, False), (2, 2, 0, True)]

    def test_the_context_names_the_worker_and_a_growing_fence(self, bus: Harness) -> None:
        seen = Recorder(ValueError("once"))
        command_id = bus.send()
        with bus.run_worker(registry_of(ship=seen), retry_policy=AT_ONCE) as running:
            bus.wait(command_id)
            assert {context.worker for context in seen.contexts} == {running.worker.name}
        first, second = (context.fence for context in seen.contexts)
        assert second > first

    def test_the_context_blocks_or_awaits_as_the_handler_does(self, bus: Harness) -> None:
        kinds: list[type] = []

        async def count(command: Command[Any], context: Any) -> None:
            kinds.append(type(context))

        def ship(command: Command[Any], context: Any) -> None:
            kinds.append(type(context))

        with bus.run_worker(registry_of(ship=ship, count=count)):
            bus.wait(bus.send(DOMAIN, "ship"))
            bus.wait(bus.send(DOMAIN, "count"))
        assert kinds == [SyncHandlerContext, HandlerContext]

    def test_an_async_handler_over_its_timeout_is_canceled_and_retried(self, bus: Harness) -> None:
        registry, canceled = HandlerRegistry(), threading.Event()

        @registry.handler(DOMAIN, "ship", timeout=0.05, retry=AT_ONCE)
        async def ship(command: Command[Any], context: HandlerContext) -> str:
            if context.attempt > 1:
                return "in time"
            try:
                await asyncio.sleep(60)
            finally:
                canceled.set()
            return "late"

        command_id = bus.send()
        with bus.run_worker(registry):
            record = bus.wait(command_id)
            assert canceled.wait(10)
        assert (record.result, record.attempts) == ("in time", 2)

    def test_a_def_handler_over_its_timeout_fails_and_its_result_is_ignored(self, bus: Harness) -> None:
        registry, go_on = HandlerRegistry(), threading.Event()

        @registry.handler(DOMAIN, "ship", timeout=0.05)
        def ship(command: Command[Any], context: SyncHandlerContext) -> str:
            go_on.wait(20)
            return "late"

        command_id = bus.send(max_attempts=1)
        with bus.run_worker(registry, concurrency=1) as running:
            record = bus.wait(command_id)
            assert (record.status, record.error_code) == (PARKED, "HANDLER_TIMEOUT")
            go_on.set()
            # Its slot is free again, and what it returned late was not recorded.
            assert bus.wait(bus.send(DOMAIN, "ship")).result == "late"
            running.wait_until_idle()
        assert bus.get(command_id).result is None

    def test_a_timeout_error_of_a_handler_is_its_own(self, bus: Harness) -> None:
        registry = HandlerRegistry()

        @registry.handler(DOMAIN, "ship", timeout=30)
        async def ship(command: Command[Any], context: HandlerContext) -> None:
            raise TimeoutError("the other side")

        command_id = bus.send(max_attempts=1)
        with bus.run_worker(registry):
            record = bus.wait(command_id)
        assert (record.error_code, record.error_message) == ("TimeoutError", "the other side")

    def test_a_handler_that_cancels_itself_fails_and_the_worker_goes_on(self, bus: Harness) -> None:
        async def ship(command: Command[Any], context: HandlerContext) -> None:
            if command.data == "cancel":
                raise asyncio.CancelledError

        command_id = bus.send(DOMAIN, "ship", "cancel", max_attempts=1)
        with bus.run_worker(registry_of(ship=ship)):
            assert bus.wait(command_id).error_code == "CancelledError"
            assert bus.wait(bus.send()).status is CommandStatus.COMPLETED

    @pytest.mark.parametrize("timeout", [0, -1, "1"])
    def test_a_timeout_without_length_is_refused(self, timeout: Any) -> None:
        with pytest.raises(InvalidArgumentError, match="timeout"):
            HandlerRegistry().register(DOMAIN, "ship", Recorder(), timeout=timeout)

    def test_a_retry_that_is_not_a_policy_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="RetryPolicy"):
            HandlerRegistry().register(DOMAIN, "ship", Recorder(), retry=3)  # type: ignore[arg-type]

    def test_a_handler_may_ask_for_more_time(self, bus: Harness) -> None:
        async def count(command: Command[Any], context: HandlerContext) -> None:
            await context.extend_visibility(600)
            reached.release()
            await asyncio.to_thread(go_on.wait, 20)

        def ship(command: Command[Any], context: SyncHandlerContext) -> None:
            context.extend_visibility(600)
            reached.release()
            go_on.wait(20)

        reached, go_on = threading.Semaphore(0), threading.Event()
        ids = [bus.send(DOMAIN, "ship"), bus.send(DOMAIN, "count")]
        with bus.run_worker(registry_of(ship=ship, count=count), concurrency=2):
            try:
                assert reached.acquire(timeout=10)
                assert reached.acquire(timeout=10)
                bus.advance(500)
                assert bus.receive(bus.worker()) == [], "the lease was not prolonged"
            finally:
                go_on.set()
            assert [bus.wait(command_id).attempts for command_id in ids] == [1, 1]
