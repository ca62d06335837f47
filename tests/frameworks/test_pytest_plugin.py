"""The fixtures and helpers for applications' tests, on the memory and the SQLite engine."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from commandbus import (
    CommandBus,
    HandlerRegistry,
    RetryPolicy,
    Schedule,
    SendRequest,
    Snooze,
    TransientCommandError,
)
from commandbus.errors import InvalidArgumentError
from commandbus.sync import SyncCommandBus
from commandbus.testing import (
    FakeClock,
    assert_sent,
    crash_every_await,
    drain,
    sent_commands,
)

pytest_plugins = ["pytester"]


class Shop:
    """Handlers of both kinds, and what they did."""

    def __init__(self) -> None:
        self.registry = HandlerRegistry()
        self.done: list[Any] = []
        self.registry.register("shop", "pack", self.pack)
        self.registry.register("shop", "ship", self.ship)

    def pack(self, command: Any, context: Any) -> str:
        self.done.append(("pack", command.data))
        return "packed"

    async def ship(self, command: Any, context: Any) -> str:
        await asyncio.sleep(0)
        self.done.append(("ship", command.data))
        return "shipped"


def test_drain_runs_all_that_is_ready_in_the_order_of_the_queue(
    sync_command_bus: SyncCommandBus,
) -> None:
    shop, bus = Shop(), sync_command_bus
    bus.send("shop", "pack", 1)
    bus.send("shop", "ship", 2)
    bus.send("shop", "pack", 3, priority="high")

    records = drain(bus, shop.registry)

    assert shop.done == [("pack", 3), ("pack", 1), ("ship", 2)]
    assert [(r.status, r.result) for r in records] == [
        ("COMPLETED", "packed"),
        ("COMPLETED", "packed"),
        ("COMPLETED", "shipped"),
    ]
    assert drain(bus, shop.registry) == []


async def test_drain_is_awaited_with_an_asyncio_bus(
    command_bus: CommandBus, sqlite_command_bus: CommandBus
) -> None:
    for bus in (command_bus, sqlite_command_bus):
        shop = Shop()
        await bus.send("shop", "ship", 2)
        await bus.send("shop", "pack", 1)
        records = await drain(bus, shop.registry)
        assert [r.result for r in records] == ["shipped", "packed"]
        assert shop.done == [("ship", 2), ("pack", 1)]


def test_drain_follows_what_handlers_send(sync_sqlite_command_bus: SyncCommandBus) -> None:
    bus, registry = sync_sqlite_command_bus, HandlerRegistry()

    @registry.handler("shop", "count")
    def count(command: Any, context: Any) -> None:
        if command.data > 0:
            bus.send("shop", "count", command.data - 1)

    bus.send("shop", "count", 3)
    assert [r.data for r in drain(bus, registry)] == [3, 2, 1, 0]


def test_drain_of_what_never_ends_is_an_error(sync_command_bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()

    @registry.handler("shop", "loop")
    def loop(command: Any, context: Any) -> None:
        raise Snooze(0)

    sync_command_bus.send("shop", "loop")
    with pytest.raises(AssertionError, match="for ever"):
        drain(sync_command_bus, registry, limit=5)


def test_a_moved_clock_makes_delays_and_retries_due(
    sync_command_bus: SyncCommandBus, command_clock: FakeClock
) -> None:
    bus, registry, seen = sync_command_bus, HandlerRegistry(), []

    @registry.handler("shop", "charge", retry=RetryPolicy(backoff_schedule=[10, 60]))
    def charge(command: Any, context: Any) -> None:
        seen.append((context.attempt, command_clock.now))
        if context.attempt < 3:
            raise TransientCommandError("BUSY")

    start = command_clock.now
    sent = bus.send("shop", "charge", delay=5)
    assert drain(bus, registry) == []
    for seconds in (5, 9, 1, 60):
        command_clock.advance(seconds)
        drain(bus, registry)
    assert [(n, (at - start).total_seconds()) for n, at in seen] == [(1, 5), (2, 15), (3, 75)]
    record = bus.get_command(sent.command_id)
    assert record is not None
    assert record.status == "COMPLETED"


def test_schedules_send_and_batches_complete_in_a_drain(
    sync_command_bus: SyncCommandBus, command_clock: FakeClock
) -> None:
    shop, bus = Shop(), sync_command_bus
    bus.put_schedule(
        Schedule(name="hourly", domain="shop", command_type="pack", data="hourly", every=3_600)
    )
    bus.create_batch(
        [SendRequest("shop", "ship", n) for n in range(2)],
        on_complete=SendRequest("shop", "pack", "batch"),
    )
    drain(bus, shop.registry)
    assert [kind for kind, _ in shop.done] == ["ship", "ship", "pack"]
    command_clock.advance(timedelta(hours=1))
    drain(bus, shop.registry)
    assert shop.done[-1] == ("pack", "hourly")


def test_a_handler_that_raises_anything_ends_its_command_only(sync_command_bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()

    @registry.handler("shop", "leave")
    async def leave(command: Any, context: Any) -> None:
        raise SystemExit(3)

    sync_command_bus.send("shop", "leave", max_attempts=1)
    (record,) = drain(sync_command_bus, registry)
    assert (record.status, record.error_code) == ("IN_TROUBLESHOOTING_QUEUE", "SystemExit")


async def test_what_was_sent_is_found_by_parts_of_its_data(command_bus: CommandBus) -> None:
    bus = command_bus
    await bus.send("shop", "pack", {"order": {"id": 7, "to": "Ann"}, "n": 1})
    await bus.send("shop", "pack", {"order": {"id": 8}, "n": 2})
    await bus.send("mail", "greet", "Ann")

    (found,) = assert_sent(bus, "shop", "pack", {"order": {"id": 7}})
    assert found.data["n"] == 1
    assert [r.data["n"] for r in assert_sent(bus, "shop")] == [1, 2]
    assert_sent(bus, "shop", "pack", lambda data: data["n"] > 1, count=1)
    assert_sent(bus, "mail", "greet", "Ann")
    assert_sent(bus, "shop", "ship", count=0)
    assert [r.domain for r in sent_commands(bus)] == ["shop", "shop", "mail"]


def test_what_was_sent_is_found_by_a_request(sync_command_bus: SyncCommandBus) -> None:
    bus, mail = sync_command_bus, HandlerRegistry("mail")

    @mail.command
    def receipt(order: int, to: str = "Ann") -> None: ...

    bus.send(receipt(order=7))
    bus.send("shop", "pack", {"order": 7, "n": 1})
    assert_sent(bus, receipt(order=7), count=1)
    assert_sent(bus, SendRequest("shop", "pack", {"order": 7, "n": 1}), count=1)
    assert_sent(bus, SendRequest("shop", "pack", {"order": 7}), count=0)  # not the whole payload
    with pytest.raises(AssertionError, match="was sent 1 times, not 0"):
        assert_sent(bus, receipt(order=7), count=0)
    with pytest.raises(AssertionError, match="mail receipt with"):
        assert_sent(bus, receipt(order=8))
    with pytest.raises(TypeError, match="give neither beside it"):
        assert_sent(bus, receipt(order=7), "receipt")
    with pytest.raises(InvalidArgumentError, match="domain"):
        assert_sent(bus, 7, count=0)  # type: ignore[arg-type]


def test_a_missing_send_is_reported_beside_those_that_were_made(
    sync_command_bus: SyncCommandBus,
) -> None:
    bus = sync_command_bus
    with pytest.raises(AssertionError, match="nothing was sent at all"):
        assert_sent(bus, "shop", "pack")
    bus.send("shop", "pack", {"order": 7})
    with pytest.raises(AssertionError) as caught:
        assert_sent(bus, "shop", "pack", {"order": 8})
    assert "shop pack with {'order': 8} was not sent" in str(caught.value)
    assert "shop pack {'order': 7} (PENDING)" in str(caught.value)
    with pytest.raises(AssertionError, match="was sent 1 times, not 2"):
        assert_sent(bus, "shop", "pack", count=2)


class Bank:
    """An outside world, whose effects a crash does not undo."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.mailed: list[str] = []

    async def charge(self, amount: int) -> int:
        self.charged.append(amount)
        return len(self.charged)

    async def mail(self, text: str) -> None:
        self.mailed.append(text)
        await asyncio.sleep(0)


async def test_every_await_of_a_careless_handler_is_tried() -> None:
    """Charging twice happens after the first await, in the middle and after the second one, and at
    the end; a crash at the start harms nobody."""
    outcomes: dict[str, int] = {}
    for trial in crash_every_await():
        bank, registry = Bank(), HandlerRegistry()

        @registry.handler("bank", "pay")
        async def pay(command: Any, context: Any, bank: Bank = bank) -> None:
            await bank.charge(command.data)
            await bank.mail("paid")

        with trial as bus:
            await bus.send("bank", "pay", 5)
            (record,) = await trial.drain(registry)
            assert record.status == "COMPLETED"
        outcomes[trial.crashed_at or "none"] = len(bank.charged)
    assert outcomes.pop("none") == 1
    assert set(outcomes.values()) == {2}
    assert sum("after the await in" in where for where in outcomes) == 3
    assert sum("suspended in" in where for where in outcomes) == 1
    assert sum("the end of pay" in where for where in outcomes) == 1


async def test_steps_make_a_handler_safe_but_for_the_one_that_was_not_recorded() -> None:
    doubled = []
    for trial in crash_every_await():
        bank, registry = Bank(), HandlerRegistry()

        @registry.handler("bank", "pay")
        async def pay(command: Any, context: Any, bank: Bank = bank) -> None:
            await context.step("charge", bank.charge, command.data)
            await context.step("mail", bank.mail, "paid")

        with trial as bus:
            await bus.send("bank", "pay", 5)
            await trial.drain(registry)
        if (len(bank.charged), len(bank.mailed)) != (1, 1):
            doubled.append(trial.crashed_at)
    unrecorded, waiting, mailed, also_unrecorded = doubled
    assert unrecorded == also_unrecorded == "before context.record"
    assert waiting is not None
    assert waiting.startswith("suspended in")
    assert mailed is not None
    assert "Bank.mail" in mailed


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_every_line_of_a_def_handler_is_tried(engine: str, tmp_path: Path) -> None:
    files = iter(range(1_000))

    def make(clock: FakeClock) -> SyncCommandBus:
        url = "memory://" if engine == "memory" else f"sqlite:///{tmp_path}/{next(files)}.db"
        return SyncCommandBus(url, clock=clock)

    places, numbers = [], []
    for trial in crash_every_await(make):
        sums: dict[Any, int] = {}
        registry = HandlerRegistry()

        @registry.handler("bank", "add")
        def add(command: Any, context: Any, sums: dict[Any, int] = sums) -> int:
            context.progress(50)
            total = context.step("add", lambda: command.data + 1)
            sums[command.command_id] = total  # idempotent: written by the id of its command
            return total

        with trial as bus:
            bus.send("bank", "add", 1)
            (record,) = trial.drain(registry)
            assert record.result == 2
            assert list(sums.values()) == [2]
        places.append(trial.crashed_at)
        numbers.append(record.crashes)
    assert numbers == [1] * (len(places) - 1) + [0]
    assert sum("context." in (place or "") for place in places) == 3
    assert sum("add (test_pytest_plugin.py" in (place or "") for place in places) >= 4


async def test_a_swallowed_crash_is_a_crash() -> None:
    for trial in crash_every_await():
        calls: list[int] = []
        registry = HandlerRegistry()

        @registry.handler("bank", "pay")
        async def pay(command: Any, context: Any, calls: list[int] = calls) -> None:
            calls.append(context.attempt)
            try:
                await asyncio.sleep(0)
            except BaseException:
                return

        with trial as bus:
            await bus.send("bank", "pay")
            await trial.drain(registry)
        assert calls == ([1, 2] if trial.crashed_at else [1])


def test_a_failing_trial_says_where_it_crashed() -> None:
    def make(clock: FakeClock) -> SyncCommandBus:
        return SyncCommandBus("memory://", clock=clock)

    shop = Shop()
    (trial, *_) = crash_every_await(make)
    bus = trial.__enter__()
    bus.send("shop", "pack")
    trial.drain(shop.registry)
    wrong = AssertionError("wrong")
    trial.__exit__(AssertionError, wrong, None)
    assert "pack (test_pytest_plugin.py" in wrong.__notes__[0]
    with pytest.raises(AssertionError, match=r"call trial\.drain"), next(crash_every_await(make)):
        pass


def test_the_plugin_is_found_and_costs_nothing_until_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_imported():
            assert "commandbus.integrations.pytest_plugin" in sys.modules
            assert "commandbus.testing" not in sys.modules
            assert "commandbus.runtimes.asyncio.bus" not in sys.modules

        def test_a_fixture_is_a_bus(sync_command_bus, command_clock):
            assert sync_command_bus.send("shop", "pack").command_id
        """
    )
    run = pytester.runpytest_subprocess("-q")
    run.assert_outcomes(passed=2)
