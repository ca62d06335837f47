"""A handler whose own task is canceled ends its command, and leaves nothing to the next one."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from commandbus import (
    CommandBus,
    CommandStatus,
    HandlerRegistry,
    RetryPolicy,
    Worker,
    new_event_loop,
)
from commandbus.testing import Configuration, Harness
from commandbus.testing.waiting import eventually

ONCE = RetryPolicy(max_attempts=1)
PARKED = CommandStatus.IN_TROUBLESHOOTING_QUEUE


def task() -> asyncio.Task[Any]:
    found = asyncio.current_task()
    assert found is not None
    return found


class OldTimeout:
    """A time limit as in libraries from before Python 3.11 (async_timeout, aiohttp): it cancels the
    task, turns the cancellation into a TimeoutError, and leaves the task's count of requests as it
    is."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._expired = seconds, False

    async def __aenter__(self) -> None:
        self._task = task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if kind is asyncio.CancelledError and self._expired:
            raise TimeoutError("the library's own limit")


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = Configuration("memory", "memory://").open(request.param, real_time=True)
    yield harness
    harness.close()


@pytest.fixture(params=[None, 30.0], ids=["no timeout", "timeout"])
def registry(request: pytest.FixtureRequest) -> HandlerRegistry:
    """Handlers that cancel their own task in different ways, and harmless ones."""
    registry = HandlerRegistry()
    for function in (*plain_handlers(), *library_handlers()):
        registry.register("orders", function.__name__, function, timeout=request.param)
    return registry


def plain_handlers() -> tuple[Any, ...]:
    async def give_up(command: Any, context: Any) -> None:
        task().cancel()
        await asyncio.sleep(60)

    async def raise_it(command: Any, context: Any) -> None:
        raise asyncio.CancelledError

    async def swallow(command: Any, context: Any) -> str:
        task().cancel()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "swallowed"
        return "not canceled"

    async def leave_pending(command: Any, context: Any) -> str:
        """Returns before the cancellation is delivered."""
        task().cancel()
        return "pending"

    async def await_canceled_child(command: Any, context: Any) -> str:
        child = asyncio.create_task(asyncio.sleep(60))
        child.cancel()
        try:
            await child
        except asyncio.CancelledError:
            return f"child, canceling {task().cancelling()}"
        return "not canceled"

    async def group(command: Any, context: Any) -> str:
        async def fail() -> None:
            raise ValueError("child")

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())
                await asyncio.sleep(60)
        except* ValueError:
            pass
        await asyncio.sleep(0)
        return f"group, canceling {task().cancelling()}"

    return give_up, raise_it, swallow, leave_pending, await_canceled_child, group


def library_handlers() -> tuple[Any, ...]:
    """With timers, as time limits of libraries have them."""

    async def give_up_later(command: Any, context: Any) -> None:
        """The cancellation arrives at a later await, from a callback of the loop."""
        asyncio.get_running_loop().call_later(0.02, task().cancel)
        while True:
            await asyncio.sleep(0.005)

    async def old_timeout(command: Any, context: Any) -> None:
        async with OldTimeout(0.01):
            await asyncio.sleep(60)

    async def old_timeout_caught(command: Any, context: Any) -> str:
        try:
            async with OldTimeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            pass
        await asyncio.sleep(0)
        return f"timed out, canceling {task().cancelling()}"

    async def cancel_scope(command: Any, context: Any) -> str:
        with anyio.move_on_after(0.01) as first:
            await asyncio.sleep(60)
        with anyio.CancelScope() as second:
            second.cancel()
            await asyncio.sleep(60)
        await asyncio.sleep(0)
        both = first.cancelled_caught and second.cancelled_caught
        return f"moved on {both}, canceling {task().cancelling()}"

    async def cancel_scope_fails(command: Any, context: Any) -> None:
        with anyio.fail_after(0.01):
            await asyncio.sleep(60)

    return give_up_later, old_timeout, old_timeout_caught, cancel_scope, cancel_scope_fails


@pytest.mark.parametrize("kind", ["give_up", "give_up_later", "raise_it"])
def test_a_handler_that_is_canceled_from_inside_fails_with_a_clear_error(
    bus: Harness, registry: HandlerRegistry, kind: str
) -> None:
    with bus.run_worker(registry, concurrency=1, retry_policy=ONCE) as running:
        record = bus.wait(bus.send("orders", kind))
        eventually(lambda: running.worker.in_flight_count == 0)
    assert record.status is PARKED
    assert record.error is not None
    assert record.error.code == "CancelledError"
    assert "not by the worker" in record.error.message


@pytest.mark.parametrize("kind", ["old_timeout", "cancel_scope_fails"])
def test_a_time_limit_of_a_library_is_an_error_of_the_handler(
    bus: Harness, registry: HandlerRegistry, kind: str
) -> None:
    """Not one of the worker: its own limit, where the handler has one, is far away."""
    with bus.run_worker(registry, concurrency=1, retry_policy=ONCE):
        record = bus.wait(bus.send("orders", kind))
    assert record.error is not None
    assert (record.status, record.error.code) == (PARKED, "TimeoutError")


def test_a_handler_that_handles_its_cancellation_goes_on(
    bus: Harness, registry: HandlerRegistry
) -> None:
    with bus.run_worker(registry, concurrency=1, retry_policy=ONCE):
        caught = bus.wait(bus.send("orders", "old_timeout_caught"))
        moved = bus.wait(bus.send("orders", "cancel_scope"))
    assert (caught.status, caught.result) == (CommandStatus.COMPLETED, "timed out, canceling 1")
    assert (moved.status, moved.result) == (CommandStatus.COMPLETED, "moved on True, canceling 0")


def test_it_is_retried_as_any_transient_failure(bus: Harness, registry: HandlerRegistry) -> None:
    policy = RetryPolicy(max_attempts=3, backoff_schedule=[0])
    with bus.run_worker(registry, concurrency=1, retry_policy=policy):
        record = bus.wait(bus.send("orders", "give_up"))
    assert (record.status, record.attempts) == (PARKED, 3)


def test_every_slot_works_on_after_such_a_command(bus: Harness, registry: HandlerRegistry) -> None:
    with bus.run_worker(registry, concurrency=2, retry_policy=ONCE) as running:
        for _ in range(2):
            lost = [bus.send("orders", "give_up") for _ in range(4)]
            assert {bus.wait(one).status for one in lost} == {PARKED}
        meeting, registered = threading.Barrier(3), HandlerRegistry()
        registered.register("orders", "meet", lambda command, context: meeting.wait(10) and None)
        running.worker.registry._handlers.update(registered._handlers)
        both = [bus.send("orders", "meet") for _ in range(2)]
        meeting.wait(10)
        assert {bus.wait(one).status for one in both} == {CommandStatus.COMPLETED}


@pytest.mark.parametrize(
    "first",
    [
        "swallow", "leave_pending", "give_up", "give_up_later", "old_timeout", "old_timeout_caught",
        "cancel_scope", "cancel_scope_fails",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("second", "result"),
    [
        ("await_canceled_child", "child, canceling 0"),
        ("group", "group, canceling 0"),
        ("cancel_scope", "moved on True, canceling 0"),
    ],
)
def test_the_next_command_of_the_slot_sees_nothing_of_it(
    bus: Harness, registry: HandlerRegistry, first: str, second: str, result: str
) -> None:
    with bus.run_worker(registry, concurrency=1, retry_policy=ONCE):
        bus.wait(bus.send("orders", first))
        record = bus.wait(bus.send("orders", second))
    assert (record.status, record.result) == (CommandStatus.COMPLETED, result)


def test_commands_claimed_together_see_nothing_of_each_other(
    bus: Harness, registry: HandlerRegistry
) -> None:
    kinds = ["swallow", "group", "leave_pending", "await_canceled_child", "give_up", "group"]
    with bus.run_worker(registry, concurrency=1, prefetch=10, retry_policy=ONCE):
        bus.pause("orders")
        sent = [bus.send("orders", kind) for kind in kinds]
        bus.resume("orders")
        ended = [bus.wait(one) for one in sent]
    assert [record.result for record in ended] == [
        "swallowed", "group, canceling 0", "pending", "child, canceling 0", None,
        "group, canceling 0",
    ]  # fmt: skip


def test_a_slot_that_is_canceled_while_it_is_idle_is_replaced() -> None:
    """A handler may leave a timer behind that cancels the task it ran in."""
    registry, runs = HandlerRegistry(), []

    async def main() -> None:
        canceled = asyncio.Event()

        @registry.handler("orders", "ship")
        async def ship(command: Any, context: Any) -> None:
            runs.append(command.data)
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None

            def cancel() -> None:
                task.cancel()
                loop.call_soon(loop.call_soon, canceled.set)

            if command.data == 1:
                loop.call_later(0.05, cancel)

        async with CommandBus("memory://") as bus:
            worker = Worker(bus, "orders", registry, concurrency=1)
            running = asyncio.create_task(worker.run())
            try:
                await bus.wait((await bus.send("orders", "ship", 1)).command_id, timeout=30)
                async with asyncio.timeout(30):
                    await canceled.wait()
                second = await bus.send("orders", "ship", 2)
                record = await bus.wait(second.command_id, timeout=30)
                assert record.status is CommandStatus.COMPLETED
            finally:
                await worker.stop(0)
                await asyncio.wait_for(running, 10)

    asyncio.run(main())
    assert runs == [1, 2]


def test_a_command_that_its_handler_completed_is_not_kept_by_a_pending_cancellation(
    tmp_path: Path,
) -> None:
    """The worker looks at the store after such a handler, which is an await."""
    registry = HandlerRegistry()

    @registry.handler("orders", "ship")
    async def ship(command: Any, context: Any) -> None:
        with closing(sqlite3.connect(tmp_path / "bus.db", check_same_thread=False)) as connection:
            await context.complete("mine", within=connection)
            connection.commit()
        task().cancel()

    async def main() -> None:
        async with CommandBus(f"sqlite:///{tmp_path}/bus.db") as bus:
            worker = Worker(bus, "orders", registry, concurrency=1)
            running = asyncio.create_task(worker.run())
            try:
                for _ in range(2):
                    sent = await bus.send("orders", "ship")
                    record = await bus.wait(sent.command_id, timeout=30)
                    assert (record.status, record.result) == (CommandStatus.COMPLETED, "mine")
                async with asyncio.timeout(10):
                    while worker.in_flight_count:
                        await asyncio.sleep(0.01)
            finally:
                await worker.stop(0)
                await asyncio.wait_for(running, 10)
            assert worker.metrics.leases_lost == 0

    asyncio.run(main())


def test_what_a_handler_leaves_behind_does_not_cancel_the_next_command(bus: Harness) -> None:
    """A task that cancels the handler's own, once another command runs."""
    registry, running, canceled = HandlerRegistry(), threading.Event(), threading.Event()
    left: list[asyncio.Task[None]] = []

    @registry.handler("orders", "first")
    async def first(command: Any, context: Any) -> None:
        async def cancel_later(mine: asyncio.Task[Any]) -> None:
            while not running.is_set():
                await asyncio.sleep(0.005)
            mine.cancel()
            canceled.set()

        left.append(asyncio.create_task(cancel_later(task())))

    @registry.handler("orders", "second")
    async def second(command: Any, context: Any) -> None:
        running.set()
        while not canceled.is_set():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)

    with bus.run_worker(registry, concurrency=1, retry_policy=ONCE):
        bus.send("orders", "first")
        record = bus.wait(bus.send("orders", "second"))
    assert (record.status, record.error) == (CommandStatus.COMPLETED, None)


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is not for Windows")
def test_all_of_it_holds_on_the_event_loop_of_the_command_line(registry: HandlerRegistry) -> None:
    async def main() -> list[Any]:
        async with CommandBus("memory://") as bus:
            worker = Worker(bus, "orders", registry, concurrency=2, retry_policy=ONCE)
            running = asyncio.create_task(worker.run())
            try:
                kinds = ["give_up", "swallow", "leave_pending", "group", "await_canceled_child"] * 3
                sent = [await bus.send("orders", kind) for kind in kinds]
                return [(await bus.wait(one.command_id, timeout=30)).status for one in sent]
            finally:
                await worker.stop(0)
                await asyncio.wait_for(running, 10)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        ended = runner.run(main())
    assert ended == [PARKED, *[CommandStatus.COMPLETED] * 4] * 3


def test_commands_of_a_loop_that_is_shut_down_go_back_without_an_attempt() -> None:
    """`asyncio.run` cancels every task at its end, the slots of a worker included."""
    registry = HandlerRegistry()

    async def main() -> tuple[CommandBus, Any]:
        begun = asyncio.Event()

        @registry.handler("orders", "ship")
        async def ship(command: Any, context: Any) -> None:
            begun.set()
            await asyncio.sleep(60)

        bus = CommandBus("memory://")
        await bus.open()
        sent = await bus.send("orders", "ship")
        kept.append(asyncio.create_task(Worker(bus, "orders", registry).run()))
        async with asyncio.timeout(30):
            await begun.wait()
        return bus, sent.command_id

    kept: list[asyncio.Task[None]] = []
    bus, command_id = asyncio.run(main())
    record = asyncio.run(bus.get_command(command_id))
    assert record is not None
    assert (record.status, record.attempts) == (CommandStatus.PENDING, 0)
