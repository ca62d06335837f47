"""Defects that were found once, each by the fact that now holds."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from commandbus import (
    CommandBus,
    CommandStatus,
    DuplicateCommandError,
    HandlerRegistry,
    PermanentCommandError,
    RetryAfter,
    Schedule,
    SendRequest,
    StoreUnavailable,
    Worker,
)
from commandbus.domain.outcome import Succeeded
from commandbus.errors import InvalidArgumentError, PayloadError
from commandbus.operations.schedules import tick
from commandbus.runtimes import worker as runtime
from commandbus.services.batch_closer import AGAIN, SWEEP, BatchCloser
from commandbus.store.records import Claimed, Settlement
from commandbus.store.wakeup import WakeHub
from commandbus.sync import SyncCommandBus, SyncTroubleshootingQueue, SyncWorker
from commandbus.testing.clock import FakeClock
from commandbus.testing.waiting import eventually
from commandbus.worker.releases import UNCHECKED


class Unfinished(RetryAfter):
    """Its author forgot super().__init__()."""

    def __init__(self) -> None:
        pass


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_a_broken_exception_or_result_ends_its_command_not_its_slot(runtime: str) -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "raise")
    def broken(command: object, context: object) -> None:
        raise Unfinished

    registry.register("d", "return", lambda command, context: Hostile())
    registry.register("d", "fine", lambda command, context: "fine")

    if runtime == "threads":
        with SyncCommandBus("memory://", max_attempts=1) as bus:
            worker = SyncWorker(bus, "d", registry, concurrency=1)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            sent = [bus.send("d", kind).command_id for kind in ("raise", "return", "fine")]
            statuses = [bus.wait(one, timeout=30).status for one in sent]
            worker.stop()
            thread.join(30)
    else:

        async def main() -> list[CommandStatus]:
            async with CommandBus("memory://", max_attempts=1) as bus:
                worker = Worker(bus, "d", registry, concurrency=1)
                running = asyncio.create_task(worker.run())
                sent = [(await bus.send("d", k)).command_id for k in ("raise", "return", "fine")]
                found = [(await bus.wait(one, timeout=30)).status for one in sent]
                await worker.stop()
                await running
                return found

        statuses = asyncio.run(main())
    parked = CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert statuses == [parked, parked, CommandStatus.COMPLETED]


def test_a_refused_bulk_in_the_callers_transaction_leaves_nothing(tmp_path: Path) -> None:
    with SyncCommandBus(f"sqlite:///{tmp_path}/bus.db") as bus:
        known = bus.send("d", "x").command_id
        connection = sqlite3.connect(tmp_path / "bus.db")
        with connection:
            both = [SendRequest("d", "x"), SendRequest("d", "x", command_id=known)]
            with pytest.raises(DuplicateCommandError):
                bus.within(connection).send_many(both)
        connection.close()
        assert len(bus.query_commands()) == 1


def test_a_duplicate_does_not_count_for_its_batch() -> None:
    with SyncCommandBus("memory://") as bus:
        batch_id = bus.create_batch([SendRequest("d", "x")]).batch_id
        for _ in range(2):
            bus.send("d", "x", batch_id=batch_id, unique_key="k")
        assert bus.get_batch(batch_id).total == 2


def test_a_schedule_that_cannot_send_does_not_hold_up_the_others() -> None:
    clock = FakeClock()
    with SyncCommandBus("memory://", clock=clock, priorities={"normal": 5, "odd": 1}) as bus:
        bus.put_schedule(Schedule(name="a", domain="d", command_type="x", every=60, priority="odd"))
        bus.put_schedule(Schedule(name="b", domain="d", command_type="x", every=60))
        del bus.settings.priorities["odd"]
        clock.advance(61)
        assert bus.session.run(tick(bus.scope)).sent == 1
        assert bus.get_schedule("a").next_run > clock.now


def test_an_argument_that_sqlite_cannot_take_is_its_callers_problem(tmp_path: Path) -> None:
    with (
        SyncCommandBus(f"sqlite:///{tmp_path}/bus.db") as bus,
        pytest.raises(InvalidArgumentError),
    ):
        bus.delete_schedule(object())  # type: ignore[arg-type]


def test_an_interrupted_watcher_is_not_held_up_by_a_wake_up() -> None:
    hub = WakeHub()
    waiter = hub.register(["d"], lambda source, due_in: None)
    hub.arm(waiter)
    hub.interrupt()
    hub.wake("d", None, "notify")
    assert hub.wait_until_listened() is False


async def test_a_timeout_around_run_is_raised_after_a_graceful_stop() -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "d", registry)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.run(), 0.2)
        assert not worker.is_running


def test_several_stops_at_once_do_not_end_the_next_run() -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "d", registry)
        for _ in range(2):
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            eventually(lambda: worker.is_running and worker.ping())
            assert bus.wait(bus.send("d", "x").command_id, timeout=30).status == "COMPLETED"
            stops = [threading.Thread(target=worker.stop, daemon=True) for _ in range(4)]
            for stop in stops:
                stop.start()
            for stop in stops:
                stop.join(30)
            thread.join(30)


def test_a_batch_whose_last_worker_died_before_closing_it_is_closed_by_others_soon() -> None:
    with SyncCommandBus("memory://") as bus:
        batch = bus.create_batch([SendRequest("d", "go")])
        worker, closer = SyncWorker(bus, "d"), BatchCloser(["d"])
        assert bus.session.run(closer.work(bus.scope)) == AGAIN, "as long as a batch is open"
        for received in worker.receive():
            bus.session.run(bus.engine.store.settle([_done(received.claimed)]))
        assert bus.session.run(closer.work(bus.scope)) == SWEEP
        record = bus.get_batch(batch.batch_id)
        assert record is not None
        assert record.status == "COMPLETED"


def _done(claimed: Claimed) -> Settlement:
    return Settlement(
        claimed.seq, claimed.lease_id, claimed.attempt, Succeeded(), batch_id=claimed.batch_id
    )


def _parked(bus: SyncCommandBus, count: int = 3) -> SyncTroubleshootingQueue:
    worker = SyncWorker(bus, "d")
    bus.send_many([SendRequest("d", "x")] * count)
    for taken in worker.receive(count):
        worker.fail(taken, PermanentCommandError("BROKEN"))
    return SyncTroubleshootingQueue(bus)


def test_a_bulk_action_that_cannot_be_done_is_not_called_refused() -> None:
    with SyncCommandBus("memory://") as bus:
        queue = _parked(bus)
        with pytest.raises(PayloadError):
            queue.bulk("complete", domain="d", result=object())
        assert queue.count("d") == 3


def test_a_bulk_action_whose_store_is_away_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("no answer")

    with SyncCommandBus("memory://") as bus:
        queue = _parked(bus)
        batch_id = bus.create_batch([SendRequest("d", "x")]).batch_id
        for name in ("resolve", "cancel"):
            monkeypatch.setattr(bus.scope.store, name, away)
        with pytest.raises(StoreUnavailable):
            queue.bulk("retry", domain="d")
        with pytest.raises(StoreUnavailable):
            bus.cancel_batch(batch_id)


def test_what_was_claimed_and_could_not_be_checked_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [StoreUnavailable("the line was cut")]
    original = runtime.with_requests

    def check(store: Any, reply: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(store, reply)

    monkeypatch.setattr(runtime, "with_requests", check)
    monkeypatch.setattr(runtime, "in_doubt", bool)
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with SyncCommandBus("memory://") as bus:
        sent = bus.send("orders", "ship")
        worker = SyncWorker(bus, "orders", registry, visibility_timeout=600)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            assert bus.wait(sent, timeout=20).status is CommandStatus.COMPLETED
        finally:
            worker.stop()
            thread.join(20)
        reasons = [event.details.get("reason") for event in bus.get_audit_trail(sent)]
    assert UNCHECKED in reasons
