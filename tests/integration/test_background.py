"""`with worker:` and `async with worker:` run it in the background, and raise what ended it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from commandbus import CommandBus, HandlerRegistry, InvalidOperationError, ProcessReplyRouter, Worker
from commandbus.errors import ConfigurationError, NotOpen
from commandbus.sync import SyncCommandBus, SyncProcessReplyRouter, SyncWorker
from commandbus.testing.sagas import BookTrip

registry = HandlerRegistry()


@registry.handler("shop", "order")
def order(command: Any, context: Any) -> str:
    return "done"


class BodyError(Exception):
    """Raised by the block."""


async def outlive(bus: CommandBus, runs: Worker | ProcessReplyRouter, error: Exception | None) -> None:
    async with runs:
        await bus.close()
        while runs.is_running:
            await asyncio.sleep(0.01)
        if error:
            raise error


def outlive_sync(bus: SyncCommandBus, worker: SyncWorker, error: Exception | None) -> None:
    with worker:
        bus.close()
        while worker.is_running:
            threading.Event().wait(0.01)
        if error:
            raise error


async def test_a_worker_runs_while_its_block_runs(tmp_path: Any) -> None:
    async with CommandBus(f"sqlite:///{tmp_path}/bus.db") as bus:
        worker = Worker(bus, "shop", registry)
        for _ in range(2):  # also again
            async with worker as entered:
                assert entered is worker
                reply = await bus.request("shop", "order", timeout=10)
                assert reply.result == "done"
                assert worker.is_running
            assert not worker.is_running


def test_a_worker_of_threads_runs_while_its_block_runs(tmp_path: Any) -> None:
    with SyncCommandBus(f"sqlite:///{tmp_path}/bus.db") as bus:
        worker = SyncWorker(bus, "shop", registry)
        for _ in range(2):
            with worker as entered:
                assert entered is worker
                assert bus.request("shop", "order", timeout=10).result == "done"
                assert worker.is_running
            assert not worker.is_running


async def test_an_error_of_the_start_is_raised_at_the_beginning() -> None:
    async with CommandBus("memory://") as bus:
        with pytest.raises(ConfigurationError, match="no handlers"):
            async with Worker(bus, "shop"):
                raise AssertionError("not reached")


def test_an_error_of_the_start_of_threads_is_raised_at_the_beginning() -> None:
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "shop")
        with pytest.raises(ConfigurationError, match="no handlers"), worker:
            raise AssertionError("not reached")


URLS = ("memory://", "sqlite:///{}/bus.db", "postgresql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize("url", URLS)
async def test_a_bus_that_is_not_open_is_refused_at_the_beginning(url: str, tmp_path: Any) -> None:
    bus = CommandBus(url.format(tmp_path))
    for runs in (Worker(bus, "shop", registry), ProcessReplyRouter(bus, BookTrip)):
        with pytest.raises(NotOpen, match="not open; use it inside"):
            async with runs:
                raise AssertionError("not reached")
        assert not runs.is_running


@pytest.mark.parametrize("url", URLS)
def test_a_bus_of_threads_that_is_not_open_is_refused_at_the_beginning(url: str, tmp_path: Any) -> None:
    bus = SyncCommandBus(url.format(tmp_path))
    for runs in (SyncWorker(bus, "shop", registry), SyncProcessReplyRouter(bus, BookTrip)):
        with pytest.raises(NotOpen, match="not open; use it inside"), runs:
            raise AssertionError("not reached")
        assert not runs.is_running


async def test_a_worker_that_ended_raises_at_the_end_of_its_block() -> None:
    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "shop", registry)
        with pytest.raises(InvalidOperationError, match="closed"):
            await outlive(bus, worker, None)


def test_a_worker_of_threads_that_ended_raises_at_the_end_of_its_block() -> None:
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "shop", registry)
        with pytest.raises(InvalidOperationError, match="closed"):
            outlive_sync(bus, worker, None)


async def test_the_error_of_the_block_is_the_one_that_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "shop", registry)
        with pytest.raises(BodyError), caplog.at_level(logging.ERROR, "commandbus.worker"):
            await outlive(bus, worker, BodyError())
        assert "ended before its block raised" in caplog.text
        assert "closed" in caplog.text


def test_the_error_of_the_block_of_threads_is_the_one_that_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SyncCommandBus("memory://") as bus:
        worker = SyncWorker(bus, "shop", registry)
        with pytest.raises(BodyError), caplog.at_level(logging.ERROR, "commandbus.worker"):
            outlive_sync(bus, worker, BodyError())
        assert "ended before its block raised" in caplog.text


async def test_a_canceled_block_stops_its_worker() -> None:
    async with CommandBus("memory://") as bus:
        worker, inside = Worker(bus, "shop", registry), asyncio.Event()

        async def block() -> None:
            async with worker:
                inside.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not worker.is_running


async def test_a_router_runs_while_its_block_runs() -> None:
    async with CommandBus("memory://") as bus:
        async with ProcessReplyRouter(bus, BookTrip) as router:
            assert router.is_running
            with pytest.raises(InvalidOperationError, match="runs already"):
                await router.run()
        assert not router.is_running


def test_a_router_of_threads_runs_while_its_block_runs() -> None:
    with SyncCommandBus("memory://") as bus:
        with SyncProcessReplyRouter(bus, BookTrip) as router:
            assert router.is_running
            with pytest.raises(InvalidOperationError, match="runs already"):
                router.run()
        assert not router.is_running


async def test_a_router_whose_bus_is_closed_raises_at_the_end_of_its_block() -> None:
    async with CommandBus("memory://") as bus:
        router = ProcessReplyRouter(bus, BookTrip, poll_interval=0.1)
        with pytest.raises(InvalidOperationError, match="closed"):
            await outlive(bus, router, None)
