"""What the thread runtime does with handlers that take long: those on its event loop can be canceled,
those in threads are given up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from commandbus import CommandStatus, HandlerRegistry, RetryPolicy, SendRequest
from commandbus.runtimes.threads import worker as runtime
from commandbus.runtimes.threads.loop import LoopThread
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.waiting import eventually

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def bus() -> Iterator[SyncCommandBus]:
    with SyncCommandBus("memory://") as bus:
        yield bus


def fates(caplog: pytest.LogCaptureFixture, command_id: Any) -> list[str]:
    """The codes that the log has for a command."""
    found = [one for one in caplog.records if getattr(one, "command_id", None) == str(command_id)]
    return [one.code for one in found]  # type: ignore[attr-defined]


def test_an_async_handler_without_a_timeout_may_take_longer_than_a_thread(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry, over, asked = HandlerRegistry(), threading.Event(), threading.Semaphore(0)
    responds = LoopThread.responds

    def counted(loop: LoopThread, seconds: float) -> bool:
        asked.release()
        return responds(loop, seconds)

    monkeypatch.setattr(LoopThread, "responds", counted)

    @registry.handler("d", "long", retry=ONCE)
    async def long(command: object, context: object) -> str:
        await asyncio.to_thread(over.wait, 60)
        return "done"

    with SyncWorker(bus, "d", registry, thread_timeout=0.1) as worker:
        sent = bus.send("d", "long")
        for _ in range(3):  # each time the limit of a thread has passed
            assert asked.acquire(timeout=30)
        over.set()
        record = bus.wait(sent.command_id, timeout=30)
        assert worker.health_status.report().stuck_threads == 0
    assert (record.status, record.result) == (CommandStatus.COMPLETED, "done")
    assert fates(caplog, sent.command_id) == []


def test_an_async_handler_that_blocks_the_loop_is_given_up(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runtime, "LOOP_SECONDS", 0.05)
    registry, over = HandlerRegistry(), threading.Event()

    @registry.handler("d", "block", retry=ONCE)
    async def block(command: object, context: object) -> None:
        over.wait(60)

    with SyncWorker(bus, "d", registry, thread_timeout=0.1) as worker:
        sent = bus.send("d", "block")
        try:
            record = bus.wait(sent.command_id, timeout=30)
            assert record.error_code == "THREAD_TIMEOUT"
        finally:
            over.set()
        eventually(lambda: worker.health_status.report().stuck_threads == 0)
    assert fates(caplog, sent.command_id) == ["THREAD_TIMEOUT"]


def test_an_async_handler_over_its_timeout_is_logged_once_and_leaves_no_stuck_thread(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry, stuck = HandlerRegistry(), []

    @registry.handler("d", "long", timeout=0.05, retry=ONCE)
    async def long(command: object, context: object) -> None:
        await asyncio.sleep(60)

    with SyncWorker(bus, "d", registry) as worker:
        monkeypatch.setattr(worker.health_status, "record_stuck_thread", lambda: stuck.append(1))
        sent = bus.send_many([SendRequest("d", "long") for _ in range(8)])
        ids = [one.command_id for one in sent]
        codes = [bus.wait(command_id, timeout=30).error_code for command_id in ids]
    assert codes == ["HANDLER_TIMEOUT"] * 8
    assert [fates(caplog, command_id) for command_id in ids] == [["HANDLER_TIMEOUT"]] * 8
    assert stuck == []


def test_the_late_error_of_a_handler_that_was_given_up_is_not_logged_as_a_second_end(
    bus: SyncCommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    registry, over = HandlerRegistry(), threading.Event()

    @registry.handler("d", "late", timeout=0.1, retry=ONCE)
    def late(command: object, context: object) -> None:
        over.wait(60)
        raise ValueError("too late")

    caplog.set_level(logging.DEBUG, "commandbus")
    with SyncWorker(bus, "d", registry) as worker:
        sent = bus.send("d", "late")
        assert bus.wait(sent.command_id, timeout=30).error_code == "HANDLER_TIMEOUT"
        over.set()
        eventually(lambda: worker.health_status.report().stuck_threads == 0)
    assert fates(caplog, sent.command_id) == ["HANDLER_TIMEOUT"]
    assert [one.command_type for one in worker.last_exceptions] == ["late"]
