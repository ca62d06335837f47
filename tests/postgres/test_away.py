"""A server that is away for longer than a reconnect attempt may take: callers, workers and process
routers go on soon after it is back, and stop promptly while it is away."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from commandbus import HandlerRegistry
from commandbus.domain.process.values import ProcessStatus
from commandbus.errors import StoreUnavailable
from commandbus.testing import Configuration, Harness
from commandbus.testing.sagas import DOMAIN, BookTrip, Trip
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, shared_url, tcp
from tests.support.proxy import Proxy
from tests.web.visitor import visitor

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(120)]

AWAY_SECONDS = 6.0
RESUMED_SECONDS_MAX = 10.0
STOPPED_SECONDS_MAX = 5.0
ANSWERED_SECONDS_MAX = 5.0
"""Two seconds and more, for a busy machine; programs wait for thirty."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(tcp(empty_url())) as proxy:
        yield proxy


@pytest.fixture
def options() -> str:
    return ""


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest, proxy: Proxy, options: str) -> Iterator[Harness]:
    harness = Configuration("postgres", proxy.url + options).open(request.param)
    yield harness
    proxy.refusing = False
    harness.close()


@pytest.fixture
def other() -> Iterator[Harness]:
    """A bus on the same database, without the proxy."""
    harness = Configuration("postgres", shared_url()).open("threads")
    yield harness
    harness.close()


def travel() -> HandlerRegistry:
    registry = HandlerRegistry()
    for command_type in ("book_hotel", "book_car", "pay"):
        registry.register(DOMAIN, command_type, lambda command, context: None)
    return registry


def book(bus: Harness) -> None:
    """Start a process and wait for its end."""
    manager = bus.manager_class(bus.bus, BookTrip)
    process_id = bus.call(manager.start, Trip()).process_id

    def completed() -> bool:
        return bus.call(manager.get_process, process_id).status is ProcessStatus.COMPLETED

    eventually(completed, 50)


@pytest.mark.parametrize("options", ["&pool_timeout=1"])
def test_an_outage_outlives_the_patience_of_calls_but_nothing_else(
    bus: Harness, other: Harness, proxy: Proxy
) -> None:
    with bus.run_worker(travel(), DOMAIN), bus.run_router(BookTrip):
        book(other)
        with proxy.unreachable():
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                bus.stats()
            with pytest.raises(StoreUnavailable):
                bus.send("orders", "ship")
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                bus.stats()
            assert time.monotonic() - began < AWAY_SECONDS
            time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
        began = time.monotonic()
        assert bus.stats().depth == 0
        book(other)
        assert time.monotonic() - began < RESUMED_SECONDS_MAX


def test_processes_go_on_soon_after_an_outage(bus: Harness, other: Harness, proxy: Proxy) -> None:
    """No other call uses the bus of the router, so none makes its pool connect."""
    with bus.run_worker(travel(), DOMAIN), bus.run_router(BookTrip):
        book(other)
        with proxy.unreachable():
            time.sleep(AWAY_SECONDS)
        began = time.monotonic()
        book(other)
        assert time.monotonic() - began < RESUMED_SECONDS_MAX


def test_a_call_that_waits_for_a_connection_gets_one_soon_after_an_outage(
    bus: Harness, proxy: Proxy
) -> None:
    bus.stats()
    with proxy.unreachable():
        waiting = bus.spawn(lambda: bus.bus.stats("orders"))
        time.sleep(AWAY_SECONDS)
        assert not waiting.done()
    began = time.monotonic()
    assert waiting.result(40).depth == 0
    assert time.monotonic() - began < RESUMED_SECONDS_MAX


def test_workers_and_routers_stop_while_their_server_is_away(
    bus: Harness, other: Harness, proxy: Proxy
) -> None:
    with bus.run_worker(travel(), DOMAIN) as worker, bus.run_router(BookTrip) as router:
        book(other)
        with proxy.unreachable():
            eventually(lambda: worker.metrics.claim_failures > 0)
            began = time.monotonic()
            bus.call(router.stop)
            worker.stop()
            assert time.monotonic() - began < STOPPED_SECONDS_MAX


async def test_a_dashboard_answers_soon_while_its_server_is_away(proxy: Proxy) -> None:
    async with visitor(proxy.url) as client:
        assert (await client.get("/")).status_code == 200
        with proxy.unreachable():
            began = time.monotonic()
            assert (await client.get("/")).status_code == 503
            assert time.monotonic() - began < ANSWERED_SECONDS_MAX
            began = time.monotonic()
            asked = {"domain": "orders", "command_type": "ship"}
            assert (await client.post("/api/v1/commands", json=asked)).status_code == 503
            assert time.monotonic() - began < ANSWERED_SECONDS_MAX
        while (answer := await client.get("/")).status_code == 503:
            assert time.monotonic() - began < RESUMED_SECONDS_MAX
        assert answer.status_code == 200


async def test_a_dashboard_that_finds_no_server_answers_soon(proxy: Proxy) -> None:
    with proxy.unreachable():
        async with visitor(proxy.url) as client:
            began = time.monotonic()
            assert (await client.get("/")).status_code == 503
            assert time.monotonic() - began < ANSWERED_SECONDS_MAX
