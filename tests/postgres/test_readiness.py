"""A probe is answered within two seconds, whatever the server and the handlers do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from commandbus import HandlerRegistry
from commandbus.runtimes.probes import livez, readyz
from commandbus.testing import Configuration, Harness
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, tcp
from tests.support.proxy import Proxy

pytestmark = pytest.mark.postgres

BOUND = 2.0
LATE = 0.5
"""A machine that is busy may be so late."""


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(tcp(empty_url())) as found:
        yield found


@pytest.fixture
def bus(proxy: Proxy, runtime: str) -> Iterator[Harness]:
    harness = Configuration("postgres", proxy.url).open(runtime)
    try:
        yield harness
    finally:
        proxy.thaw()
        proxy.refusing = False
        harness.close()


def probed(worker: Any) -> tuple[bool, list[str]]:
    began = time.monotonic()
    ready, body = readyz(worker)
    assert time.monotonic() - began < BOUND + LATE
    return ready, body["problems"]


def plain() -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    return registry


def test_a_frozen_server_makes_a_worker_not_ready_in_time(proxy: Proxy, bus: Harness) -> None:
    with bus.run_worker(plain()) as running:
        eventually(lambda: readyz(running.worker)[0])
        with proxy.frozen():
            assert probed(running.worker) == (False, ["The store did not answer within 1.5 s."])
            for _ in range(2):
                assert not probed(running.worker)[0]
                checks = [one for one in threading.enumerate() if one.name == "commandbus-check"]
                assert len(checks) <= 1, "probes share one thread"
            assert livez(running.worker)[0]
        eventually(lambda: readyz(running.worker)[0], 15)


def test_a_server_that_is_away_makes_a_worker_not_ready_in_time(proxy: Proxy, bus: Harness) -> None:
    with bus.run_worker(plain()) as running:
        eventually(lambda: readyz(running.worker)[0])
        proxy.refusing = True
        proxy.cut()
        ready, problems = probed(running.worker)
        assert not ready
        assert len(problems) == 1
        proxy.refusing = False
        eventually(lambda: readyz(running.worker)[0], 15)


def test_a_connection_whose_server_is_gone_is_replaced_for_the_next_probes(
    proxy: Proxy, bus: Harness
) -> None:
    """A statement that gets no answer holds up one probe, not those of half a minute."""
    with bus.run_worker(plain()) as running:
        eventually(lambda: readyz(running.worker)[0])
        proxy.half_open()
        began = time.monotonic()
        eventually(lambda: readyz(running.worker)[0], 20)
        assert time.monotonic() - began < 10
        proxy.forget_abandoned()  # so that the worker's own statements need not wait for their timeout


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_slots_that_are_all_in_transactions_leave_a_worker_ready(
    proxy: Proxy, runtime: str, kind: str
) -> None:
    busy, go_on = threading.Semaphore(0), threading.Event()

    def hold(command: Any, context: Any) -> None:
        busy.release()
        go_on.wait(20)

    async def hold_async(command: Any, context: Any) -> None:
        import asyncio

        busy.release()
        await asyncio.to_thread(go_on.wait, 20)

    registry = HandlerRegistry()
    function = hold if kind == "def" else hold_async
    registry.register("orders", "ship", function, transactional=True)
    harness = Configuration("postgres", f"{proxy.url}&pool_size=3").open(runtime)
    try:
        with harness.run_worker(registry, concurrency=3) as running:
            for _ in range(3):
                harness.send()
            for _ in range(3):
                assert busy.acquire(timeout=10)
            assert probed(running.worker) == (True, [])
            go_on.set()
    finally:
        go_on.set()
        harness.close()
