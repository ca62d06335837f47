"""A server that is away for a while under load: ill but live meanwhile, well again by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from commandbus import HandlerRegistry, HealthState
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import StoreUnavailable
from commandbus.runtimes.probes import livez, readyz
from commandbus.testing import Configuration
from commandbus.testing.postgres import PostgresServer, create_database
from commandbus.testing.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


RUNTIMES = ("asyncio", "threads")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    # Ten failures in a row come sooner; with the real pauses, `python -m bench.outage`.
    monkeypatch.setattr("commandbus.worker.backoff.BACKOFF_MAX", 0.4)
    with PostgresServer.start() as server:
        yield server


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_worker_outlives_an_outage_of_its_server(own: PostgresServer, runtime: str) -> None:
    url = create_database(own)
    upgrade(url)
    assert outage(own, url, runtime, seconds=1.0) < 30


def test_idle_workers_notice_at_once_that_their_server_is_away(own: PostgresServer) -> None:
    """Their next poll is an hour away; the connection that listens tells them."""
    url = create_database(own)
    upgrade(url)
    registry, done = HandlerRegistry(), []
    registry.register("orders", "ship", lambda command, context: done.append(command.data))
    with ExitStack() as stack:
        buses = [Configuration("postgres", url + "&pool_timeout=0.5").open(one) for one in RUNTIMES]
        for bus in buses:
            stack.callback(bus.close)
        workers: list[Any] = [
            stack.enter_context(bus.run_worker(registry, poll_interval=3600.0)).worker for bus in buses
        ]
        for bus, worker in zip(buses, workers, strict=True):
            eventually(lambda bus=bus: bus.engine.connections.listening == 1)
            eventually(lambda worker=worker: worker._core.idle)
        own.halt("immediate")
        for worker in workers:
            eventually(lambda worker=worker: worker.health_status.state is HealthState.DEGRADED, 30)
            assert not readyz(worker)[0]
            assert livez(worker)[0]
        own.restart()
        for worker in workers:
            eventually(lambda worker=worker: worker.health_status.state is HealthState.HEALTHY, 30)
            eventually(lambda worker=worker: readyz(worker)[0])
            assert worker.metrics.wakeups["lost"] == 1
        buses[0].send(data="after")
        eventually(lambda: done == ["after"])


def outage(own: PostgresServer, url: str, runtime: str, seconds: float) -> float:
    """Stop the server under load until the worker is ill, for `seconds` at least, and start it again;
    returns the seconds from its start until the worker was well and at work."""
    registry, done, over = HandlerRegistry(), [], threading.Event()
    accepted: list[int] = []
    registry.register("orders", "ship", lambda command, context: done.append(command.data))
    bus = Configuration("postgres", url + "&pool_timeout=0.5").open(runtime)

    def send() -> None:
        number = 0
        while not over.is_set():
            try:
                bus.send(data=number)
                accepted.append(number)
            except StoreUnavailable:
                over.wait(0.2)
            number += 1
            time.sleep(0.002)

    sending = threading.Thread(target=send, daemon=True)
    try:
        with bus.run_worker(registry) as running:
            worker: Any = running.worker
            health = worker.health_status
            sending.start()
            eventually(lambda: len(done) > 20)
            own.halt("immediate")
            down_at = time.monotonic()
            eventually(lambda: health.state is HealthState.DEGRADED, timeout=60)
            assert not readyz(worker)[0]
            assert livez(worker)[0]
            assert "in a row failed within" in health.reasons[0]
            while time.monotonic() < down_at + seconds:
                assert livez(worker)[0]
                assert health.state is not HealthState.HEALTHY
                time.sleep(0.2)
            own.restart()
            began, before = time.monotonic(), len(done)
            eventually(lambda: health.state is HealthState.HEALTHY and len(done) > before, timeout=30)
            took = time.monotonic() - began
            eventually(lambda: readyz(worker)[0])
            assert worker.is_running
        over.set()
        sending.join(30)
        # Nothing that was accepted is left behind.
        with bus.run_worker(registry):
            eventually(lambda: bus.stats().depth == 0 and bus.stats().running == 0, timeout=60)
        assert bus.stats().parked == 0
        assert not set(accepted) - set(done), "accepted, and never carried out"
        return took
    finally:
        over.set()
        if sending.is_alive():
            sending.join(30)
        bus.close()
