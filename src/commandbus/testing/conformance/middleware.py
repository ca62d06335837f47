"""Middleware: generators with one yield around every handler; `async def` ones may wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from commandbus.domain.lifecycle import CommandStatus
from commandbus.errors import BusinessRuleException, ConfigurationError
from commandbus.testing.harness import Harness
from commandbus.worker.handlers import HandlerRegistry

KINDS = pytest.mark.parametrize("kind", ["def", "async def"])


def registry_of(kind: str, raises: Exception | None = None) -> HandlerRegistry:
    """A handler that returns its payload, or raises."""
    registry = HandlerRegistry()

    def ship(command: Any, context: Any) -> Any:
        if raises is not None:
            raise raises
        return command.data

    async def ship_async(command: Any, context: Any) -> Any:
        return ship(command, context)

    registry.register("orders", "ship", ship if kind == "def" else ship_async)
    return registry


class MiddlewareSuite:
    @KINDS
    def test_it_sees_command_context_and_result_in_order(self, bus: Harness, kind: str) -> None:
        registry = registry_of(kind)
        seen: list[Any] = []

        @registry.middleware
        def outer(command: Any, context: Any) -> Iterator[None]:
            seen.append(("outer", command.data, context.attempt))
            result = yield
            seen.append(("outer", result))

        def inner(command: Any, context: Any) -> Iterator[None]:
            seen.append("inner")
            seen.append(("inner", (yield)))

        with bus.run_worker(registry, middleware=[inner]):
            assert bus.wait(bus.send(data="x")).result == "x"
        assert seen == [("outer", "x", 1), "inner", ("inner", "x"), ("outer", "x")]

    @KINDS
    def test_it_may_replace_the_result(self, bus: Harness, kind: str) -> None:
        registry = registry_of(kind)

        @registry.middleware
        def wrapping(command: Any, context: Any) -> Any:
            result = yield
            return {"wrapped": result}

        with bus.run_worker(registry):
            assert bus.wait(bus.send(data=1)).result == {"wrapped": 1}

    @KINDS
    def test_it_sees_the_exception_and_may_replace_it(self, bus: Harness, kind: str) -> None:
        registry, seen = registry_of(kind, ValueError("no")), []

        @registry.middleware
        def outer(command: Any, context: Any) -> Iterator[None]:
            try:
                yield
            except BusinessRuleException as error:
                seen.append(error.code)
                raise

        @registry.middleware
        def meaning(command: Any, context: Any) -> Iterator[None]:
            try:
                yield
            except ValueError as error:
                raise BusinessRuleException("NO_STOCK") from error

        with bus.run_worker(registry):
            record = bus.wait(bus.send())
        assert (record.status, record.error_code) == (CommandStatus.FAILED, "NO_STOCK")
        assert seen == ["NO_STOCK"]

    @KINDS
    def test_an_exception_that_it_swallows_is_gone(self, bus: Harness, kind: str) -> None:
        registry = registry_of(kind, ValueError("no"))

        @registry.middleware
        def forgiving(command: Any, context: Any) -> Any:
            try:
                yield
            except ValueError:
                return "forgiven"

        with bus.run_worker(registry):
            record = bus.wait(bus.send())
        assert (record.status, record.result) == (CommandStatus.COMPLETED, "forgiven")

    @KINDS
    def test_what_it_raises_before_the_handler_keeps_the_handler_from_running(
        self, bus: Harness, kind: str
    ) -> None:
        registry = registry_of(kind, AssertionError("never called"))

        @registry.middleware
        def closed(command: Any, context: Any) -> Iterator[None]:
            if command.data == "late":
                raise BusinessRuleException("CLOSED")
            yield

        with bus.run_worker(registry):
            assert bus.wait(bus.send(data="late")).error_code == "CLOSED"

    @KINDS
    @pytest.mark.parametrize("yields", [0, 2])
    def test_one_that_does_not_yield_once_is_named(self, bus: Harness, kind: str, yields: int) -> None:
        registry = registry_of(kind)

        @registry.middleware
        def clumsy(command: Any, context: Any) -> Iterator[None]:
            for _ in range(yields):
                yield

        with bus.run_worker(registry, retry_policy=None):
            command_id = bus.send(max_attempts=1)
            record = bus.wait(command_id)
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert "clumsy" in (record.error_message or "")

    def test_an_async_one_may_wait_and_mixes_with_plain_ones(self, bus: Harness) -> None:
        registry, seen = registry_of("async def"), list[Any]()

        @registry.middleware
        async def outer(command: Any, context: Any) -> AsyncIterator[None]:
            await asyncio.sleep(0)
            seen.append("outer")
            result = yield
            await asyncio.sleep(0)
            seen.append(("outer", result))

        @registry.middleware
        def plain(command: Any, context: Any) -> Any:
            seen.append("plain")
            result = yield
            return {"wrapped": result}

        async def inner(command: Any, context: Any) -> AsyncIterator[None]:
            seen.append(("inner", context.attempt))
            yield

        with bus.run_worker(registry, middleware=[inner]):
            assert bus.wait(bus.send(data="x")).result == {"wrapped": "x"}
        assert seen == ["outer", "plain", ("inner", 1), ("outer", {"wrapped": "x"})]

    def test_an_async_one_sees_the_exception_and_may_replace_it(self, bus: Harness) -> None:
        registry = registry_of("async def", ValueError("no"))

        @registry.middleware
        async def meaning(command: Any, context: Any) -> AsyncIterator[None]:
            try:
                yield
            except ValueError as error:
                await asyncio.sleep(0)
                if command.data == "swallow":
                    return
                raise BusinessRuleException("NO_STOCK") from error

        with bus.run_worker(registry):
            assert bus.wait(bus.send()).error_code == "NO_STOCK"
            swallowed = bus.wait(bus.send(data="swallow"))
        assert (swallowed.status, swallowed.result) == (CommandStatus.COMPLETED, None)

    @pytest.mark.parametrize("yields", [0, 2])
    def test_an_async_one_that_does_not_yield_once_is_named(self, bus: Harness, yields: int) -> None:
        registry = registry_of("async def")

        @registry.middleware
        async def clumsy(command: Any, context: Any) -> AsyncIterator[None]:
            for _ in range(yields):
                yield

        with bus.run_worker(registry):
            record = bus.wait(bus.send(max_attempts=1))
        assert record.status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
        assert "clumsy" in (record.error_message or "")

    def test_an_async_one_around_a_def_handler_is_refused(self, bus: Harness) -> None:
        async def opening(command: Any, context: Any) -> AsyncIterator[None]:
            yield

        with pytest.raises(ConfigurationError, match=r"opening is `async def`.*'ship'.*'orders'"):
            bus.worker(registry=registry_of("def"), middleware=[opening])

    def test_what_is_not_a_generator_is_refused(self, bus: Harness) -> None:
        registry = registry_of("def")
        for wrong in (lambda command, context: None, 7):
            with pytest.raises(ConfigurationError, match="one yield"):
                registry.middleware(wrong)  # type: ignore[type-var]
            with pytest.raises(ConfigurationError, match="one yield"):
                bus.worker(registry=registry, middleware=[wrong])
