"""A stop ends in its time when the server does not answer: it must not wait for farewells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from commandbus import HandlerRegistry
from commandbus.engines.postgres import listener
from commandbus.interfaces.cli import serving, signals
from commandbus.runtimes import farewell, processes
from commandbus.settings import SHUTDOWN_SECONDS
from commandbus.testing import Configuration, Harness
from commandbus.testing.sagas import DOMAIN, BookTrip
from commandbus.testing.waiting import eventually
from commandbus.worker import ending
from tests.postgres.database import empty_url, tcp
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

PATIENCE = 0.5
AFTERWARDS = ending.GRACE + ending.SETTLE_PATIENCE + farewell.FAREWELL_SECONDS
"""What a stop may take beside the time for handlers."""
CLOSING = listener.FAREWELL_SECONDS
"""What closing the bus may take after it."""
LATE = 1.0
"""For a busy machine."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(tcp(empty_url())) as proxy:
        yield proxy


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Harness]:
    harness = Configuration("postgres", proxy.url).open(request.param)
    yield harness
    proxy.thaw()
    harness.close()


def test_a_process_with_default_settings_ends_in_less_than_thirty_seconds() -> None:
    stopped = SHUTDOWN_SECONDS + AFTERWARDS + CLOSING
    aborted = SHUTDOWN_SECONDS + signals.ABORT_SECONDS
    # It may have left a thread behind, for which Python would wait.
    assert stopped + serving.leave_in(aborted - stopped) < 30 - LATE / 4
    assert serving.leave_in(inf) == serving.LEAVE_SECONDS
    assert serving.leave_in(-1.0) == 0.0


@pytest.mark.parametrize("stuck", [False, True], ids=["idle", "stuck handler"])
def test_a_worker_of_a_frozen_server_stops_in_its_time(bus: Harness, proxy: Proxy, stuck: bool) -> None:
    registry, entered, let_go = HandlerRegistry(), threading.Event(), threading.Event()

    @registry.handler(DOMAIN, "wait")
    def wait(command: Any, context: Any) -> None:
        entered.set()
        if stuck:
            let_go.wait(60)

    # Services and renewals are on their way most of the time, and polls soon.
    options = {"poll_interval": 0.2, "visibility_timeout": 3.0}
    try:
        with bus.run_worker(registry, DOMAIN, **options) as running:
            bus.send(DOMAIN, "wait")
            assert entered.wait(10)
            with proxy.frozen():
                eventually(lambda: running.worker._core._claiming or running.worker._core.settling)
                began = time.monotonic()
                running.stop(PATIENCE)
                assert time.monotonic() - began < PATIENCE + AFTERWARDS + LATE
    finally:
        let_go.set()


ASKS = {
    "idle": None,
    "claim": r"insert into [^;]*\.lease \(",
    "service": r"from [^;]*\.lease l where l\.worker <>",
}
"""What a router asks when the server stops answering."""


@pytest.mark.alternating
@pytest.mark.parametrize("asks", ASKS)
def test_a_router_of_a_frozen_server_stops_in_its_time(
    bus: Harness, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    monkeypatch.setattr(processes, "SHUTDOWN_SECONDS", 2 * PATIENCE)
    # One that hears announcements is quiet, unless it is told to poll.
    options = {"poll_interval": 0.1} if asks == "claim" else {}
    with bus.run_router(BookTrip, **options) as router:
        eventually(lambda: router.metrics.empty)
        if pattern := ASKS[asks]:
            assert proxy.on_statement(pattern, "freeze").sprung.wait(10), "it gets no answer"
        with proxy.frozen():
            began = time.monotonic()
            bus.call(router.stop)
            assert time.monotonic() - began < 2 * PATIENCE + farewell.FAREWELL_SECONDS + LATE
