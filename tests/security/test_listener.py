"""A role without rights notifies the channel of the bus; wake-ups go on, and a deaf worker says so."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commandbus import HandlerRegistry, HealthState
from commandbus.engines.postgres import listener as listeners
from commandbus.engines.postgres.listener import announced
from commandbus.observe.exposition import render
from commandbus.runtimes.probes import livez, readyz
from commandbus.testing import Configuration, Harness
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, tcp
from tests.postgres.test_trouble import end_backends
from tests.security.stranger import stranger
from tests.support.proxy import Proxy

pytestmark = pytest.mark.postgres

CHANNEL = '"commandbus".wake'
PAYLOADS = {
    "400 digits": "orders x " + "9" * 400,
    "4,400 digits": "orders x " + "9" * 4_400,
    "just too many digits": "orders x " + "9" * 16,
    "digits of another script": "orders x ٣٣٣",
    "superscript digits": "orders x ²",
    "negative": "orders x -1",
    "nan": "orders x nan",
    "float": "orders x 1e309",
    "empty": "",
    "spaces": " " * 7_000,
    "no domain": " x 1",
    "only a domain": "orders",
    "stars": "orders " + "*" * 7_000,
    "longest": "x" * 7_999,
    "quotes": "orders'; drop table commandbus.command; --",
    "lines": "orders\nx\r\n1",
    "control characters": "orders \x01\x02 \x1b[31m",
    "astral characters": "\U0001f4a3" * 1_900,
    "far away": "orders x " + "9" * 15,
}


@pytest.fixture(params=["asyncio", "threads"])
def runtime(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url() -> str:
    return empty_url()


@pytest.fixture
def bus(url: str, runtime: str) -> Iterator[Harness]:
    harness = Configuration("postgres", url).open(runtime)
    try:
        yield harness
    finally:
        harness.close()


class Arrivals:
    def __init__(self) -> None:
        self.registry, self._times, self._arrived = HandlerRegistry(), {}, threading.Condition()
        self.registry.register("orders", "ship", self._ship)

    def _ship(self, command: Any, context: Any) -> None:
        with self._arrived:
            self._times[command.command_id] = time.monotonic()
            self._arrived.notify_all()

    def seconds_after_send(self, sender: Harness) -> float:
        began = time.monotonic()
        command_id = sender.send()
        with self._arrived:
            assert self._arrived.wait_for(lambda: command_id in self._times, 15)
            return self._times[command_id] - began


@pytest.fixture
def elsewhere(url: str) -> Iterator[Harness]:
    """Another process, as far as wake-ups are concerned."""
    harness = Configuration("postgres", url).open("threads")
    try:
        yield harness
    finally:
        harness.close()


def test_no_payload_of_a_stranger_ends_the_wake_ups(bus: Harness, url: str, elsewhere: Harness) -> None:
    arrivals = Arrivals()
    with bus.run_worker(arrivals.registry, poll_interval=3600) as running, stranger(url) as other:
        eventually(lambda: bus.engine.connections.listening == 1)
        for name, payload in PAYLOADS.items():
            other.execute("select pg_notify(%s, %s)", [CHANNEL, payload])
            running.wait_until_idle()
            assert arrivals.seconds_after_send(elsewhere) < 2.0, name
        seconds = [arrivals.seconds_after_send(elsewhere) for _ in range(20)]
        assert statistics.median(seconds) < 0.1
        assert bus.engine.connections.listener_failures == 0
        assert running.worker.health_status.state is HealthState.HEALTHY


FLOODS = {
    "the domain": "'orders ' || md5(n::text)",
    "all workers of it": "'orders ' || md5(n::text) || '*'",
    "due times": "'orders x ' || n",
    "domains that are none": "md5(n::text) || ' x'",
    "services": "'commandbus.schedules ' || n",
}


@pytest.mark.alternating
@pytest.mark.parametrize("payload", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_notifications_holds_up_no_command(
    bus: Harness, url: str, elsewhere: Harness, payload: str
) -> None:
    """A notification can make a worker claim; it has one claim on its way at a time, as ever."""
    arrivals = Arrivals()
    with bus.run_worker(arrivals.registry, poll_interval=3600) as running, stranger(url) as other:
        eventually(lambda: bus.engine.connections.listening == 1)
        for _ in range(3):
            other.execute(
                f"select count(pg_notify(%s, {payload})) from generate_series(1, 10000) n".encode(),
                [CHANNEL],
            )
            assert arrivals.seconds_after_send(elsewhere) < 5.0
        assert bus.engine.connections.listener_failures == 0
        assert running.worker.health_status.state is HealthState.HEALTHY
        running.wait_until_idle()
        assert arrivals.seconds_after_send(elsewhere) < 2.0


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_an_odd_payload_means_to_look_now(payload: str) -> None:
    domain, origin, due_in = announced(payload)
    assert len(domain) + len(origin) <= listeners.PAYLOAD_MAX
    assert due_in is None or payload in (PAYLOADS["far away"], PAYLOADS["no domain"])


def test_a_payload_of_the_bus_is_understood() -> None:
    assert announced("orders 0123456789ab 1500000") == ("orders", "0123456789ab", 1.5)
    assert announced("orders 0123456789ab*") == ("orders", "0123456789ab*", None)
    assert announced("orders ") == ("orders", "", None)


def test_a_listener_restarts_after_an_unexpected_error(
    bus: Harness, elsewhere: Harness, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals, failed = Arrivals(), threading.Event()
    look_again = listeners.Listener._look_again

    def fail_once(self: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("not foreseen")
        look_again(self)

    with bus.run_worker(arrivals.registry, poll_interval=3600):
        eventually(lambda: bus.engine.connections.listening == 1)
        monkeypatch.setattr(listeners.Listener, "_look_again", fail_once)
        with stranger(url) as other:
            other.execute("select pg_notify(%s, '')", [CHANNEL])
        assert failed.wait(10)
        eventually(lambda: bus.engine.connections.listener_failures == 1)
        eventually(lambda: bus.engine.connections.listening == 1)
        assert arrivals.seconds_after_send(elsewhere) < 2.0


def test_a_worker_that_cannot_listen_is_degraded_and_says_why(
    url: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its listening connection is lost, and no new one can be made."""
    monkeypatch.setattr(listeners, "DEAF_SECONDS", 0.5)
    with Proxy(tcp(url)) as proxy:
        bus = Configuration("postgres", proxy.url).open(runtime)
        try:
            with bus.run_worker(Arrivals().registry) as running:
                eventually(lambda: bus.engine.connections.listening == 1)
                eventually(lambda: readyz(running.worker)[0])
                running.wait_until_idle()
                assert readyz(running.worker)[1]["warnings"] == []
                proxy.refusing = True
                assert end_backends(url, "commandbus listen") == 1
                health = running.worker.health_status
                eventually(lambda: health.state is HealthState.DEGRADED)
                assert "not listening to PostgreSQL" in health.reasons[0]
                ready, body = readyz(running.worker)
                assert ready, "it still finds work, at its poll interval"
                assert "not listening to PostgreSQL" in body["warnings"][0]
                assert livez(running.worker)[1]["health"]["state"] == "DEGRADED"
                assert "commandbus_listener_deaf 1" in render(running.worker)
                assert "commandbus_listener_failures_total 0" not in render(running.worker)
                proxy.refusing = False
                eventually(lambda: health.state is HealthState.HEALTHY, 15)
                assert "commandbus_listener_deaf 0" in render(running.worker)
        finally:
            proxy.refusing = False
            bus.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_reported(bus: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Any) -> None:
        raise SystemExit

    with bus.run_worker(Arrivals().registry) as running:
        eventually(lambda: bus.engine.connections.listening == 1)
        running.wait_until_idle()
        monkeypatch.setattr(listeners.Listener, "_look_again", end)
        with psycopg.connect(bus.configuration.url, autocommit=True) as connection:
            connection.execute("select pg_notify(%s, '')", [CHANNEL])
        eventually(lambda: running.worker.health_status.state is HealthState.DEGRADED)
        assert "has ended" in running.worker.health_status.reasons[0]
