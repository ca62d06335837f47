"""Ill workers: stuck threads, blocked loops, restarts, probes; in both runtimes where it applies."""

import asyncio
import contextvars
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from commandbus import (
    CommandBus,
    CommandStatus,
    HandlerRegistry,
    HealthState,
    RetryPolicy,
    SendRequest,
    StoreUnavailable,
    Worker,
    WorkerWatchdog,
)
from commandbus.errors import ConfigurationError
from commandbus.observe.exposition import render
from commandbus.runtimes.probes import ProbeServer, SignsOfLife
from commandbus.sync import SyncCommandBus, SyncProcessReplyRouter, SyncWorker
from commandbus.testing import Configuration, Gate
from commandbus.testing.sagas import BookTrip
from commandbus.testing.waiting import eventually
from commandbus.worker import sizing
from commandbus.worker.readiness import StoreCheck

AGAIN_AT_ONCE = RetryPolicy(max_attempts=10, backoff_schedule=[0])


class Hanging:
    """A handler that hangs a number of times, until it is let go."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0
        self.lock = threading.Lock()
        self.let_go = threading.Event()

    def __call__(self, command: object, context: object) -> int:
        with self.lock:
            self.calls += 1
            hang = self.calls <= self.times
        if hang:
            self.let_go.wait(60)
        return self.calls


@pytest.fixture
def bus() -> Iterator[SyncCommandBus]:
    with SyncCommandBus("memory://") as bus:
        yield bus


class Running:
    """A SyncWorker in a thread."""

    def __init__(self, worker: SyncWorker) -> None:
        self.worker = worker
        self.thread = threading.Thread(target=worker.run, daemon=True)

    def __enter__(self) -> SyncWorker:
        self.thread.start()
        return self.worker

    def __exit__(self, *_: object) -> None:
        self.worker.stop(timeout=0)
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_a_stuck_thread_is_replaced_and_its_command_redelivered_once(bus: SyncCommandBus) -> None:
    registry, hanging = HandlerRegistry(), Hanging(1)
    registry.register("d", "hang", hanging)
    worker = SyncWorker(
        bus, "d", registry, concurrency=1, thread_timeout=1.0, retry_policy=AGAIN_AT_ONCE
    )
    with Running(worker):
        sent = bus.send("d", "hang")
        record = bus.wait(sent.command_id, timeout=30)
        assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 2)
        assert worker.health_status.report().stuck_threads == 1
        trail = bus.get_audit_trail(sent.command_id)
        failures = [event.details["error"]["code"] for event in trail if event.event_type == "FAILED"]
        assert failures == ["THREAD_TIMEOUT"]
        hanging.let_go.set()
        eventually(lambda: worker.health_status.report().stuck_threads == 0)
        assert bus.get_command(sent.command_id).result == 2


def test_a_declared_timeout_counts_instead_of_the_thread_timeout(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    over = threading.Event()

    @registry.handler("d", "long", timeout=30)
    def long(command: object, context: object) -> str:
        over.wait(30)
        return "done"

    with Running(SyncWorker(bus, "d", registry, thread_timeout=0.1, visibility_timeout=0.3)):
        sent = bus.send("d", "long")
        eventually(lambda: bus.get_command(sent.command_id).status == "IN_PROGRESS")
        # The lease is renewed several times over meanwhile, so nobody takes the command away.
        with pytest.raises(TimeoutError):
            bus.wait(sent.command_id, timeout=1)
        over.set()
        record = bus.wait(sent.command_id, timeout=30)
        assert (record.result, record.attempts, record.crashes) == ("done", 1, 0)


def test_the_watchdog_restarts_a_critical_worker(bus: SyncCommandBus) -> None:
    registry, hanging = HandlerRegistry(), Hanging(3)
    registry.register("d", "hang", hanging)
    worker = SyncWorker(
        bus, "d", registry, concurrency=3, thread_timeout=1.0, retry_policy=AGAIN_AT_ONCE
    )
    with Running(worker), WorkerWatchdog(worker, check_interval=0.02) as watchdog:
        sent = [bus.send("d", "hang") for _ in range(3)]
        eventually(lambda: watchdog.restarts == 1)
        assert 'watchdog_recoveries_total{kind="threads"} 1' in render(worker)
        for one in sent:
            assert bus.wait(one.command_id, timeout=30).status is CommandStatus.COMPLETED
        eventually(lambda: worker.health_status.state is HealthState.DEGRADED)  # they still run
        after = bus.send("d", "hang")
        assert bus.wait(after.command_id, timeout=30).status is CommandStatus.COMPLETED
        hanging.let_go.set()
        eventually(lambda: worker.health_status.state is HealthState.HEALTHY)


def test_the_watchdog_gives_up_when_restarts_do_not_help(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    worker = SyncWorker(bus, "d", registry)
    told: list[str] = []
    with Running(worker):
        for _ in range(3):
            worker.health_status.record_stuck_thread()
        with WorkerWatchdog(
            worker, check_interval=0.01, hold_off=0, restarts_max=0, give_up=told.append
        ):
            eventually(lambda: bool(told))
    assert "3 threads are stuck" in told[0]


def test_stop_ends_in_time_although_a_handler_never_returns(bus: SyncCommandBus) -> None:
    registry, hanging = HandlerRegistry(), Hanging(1)
    registry.register("d", "hang", hanging)
    worker = SyncWorker(bus, "d", registry)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    bus.send("d", "hang")
    eventually(lambda: hanging.calls == 1)
    began = time.monotonic()
    worker.stop(timeout=0.1)
    thread.join(30)
    assert not thread.is_alive()
    assert time.monotonic() - began < 10
    hanging.let_go.set()


def test_a_stop_before_the_run_is_not_lost(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    worker = SyncWorker(bus, "d", registry)
    worker.stop()
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_handler_in_a_thread_may_stop_its_own_worker(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: worker.stop())
    worker = SyncWorker(bus, "d", registry, shutdown_timeout=3_600)
    sent = bus.send("d", "x")
    worker.run()
    assert bus.wait(sent, 5).status is CommandStatus.COMPLETED


def test_a_worker_recycles_after_so_many_commands(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    bus.send_many([SendRequest("d", "x") for _ in range(10)])
    worker = SyncWorker(bus, "d", registry, recycle_after=5)
    worker.run()
    assert bus.stats("d").completed == 5
    worker.run()
    assert bus.stats("d").completed == 10


def test_threads_carry_the_name_of_their_domain(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    registry.register("mail", "who", lambda command, context: threading.current_thread().name)
    with Running(SyncWorker(bus, "mail", registry, concurrency=2)):
        sent = bus.send("mail", "who")
        assert bus.wait(sent.command_id, timeout=30).result in ("worker-mail-1", "worker-mail-2")


def test_no_event_loop_is_behind_the_thread_runtime(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending, working, waiting, batches, routers and stopping; only `async def` handlers need one."""

    def refuse(self: object, *_: object) -> None:
        raise AssertionError("an event loop is made")

    monkeypatch.setattr(asyncio.BaseEventLoop, "__init__", refuse)
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: "done")
    router = SyncProcessReplyRouter(bus, BookTrip)
    routing = threading.Thread(target=router.run, daemon=True)
    with Running(SyncWorker(bus, "d", registry)):
        routing.start()
        assert bus.wait(bus.send("d", "x").command_id, timeout=30).result == "done"
        batch = bus.create_batch([SendRequest("d", "x")])
        eventually(lambda: bus.get_batch(batch.batch_id).completed == 1)
        eventually(lambda: len(bus.list_workers()) == 2)
        router.stop()
    routing.join(30)
    assert not routing.is_alive()


async def test_a_blocked_loop_keeps_its_lease_and_is_named() -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "block")
    async def block(command: object, context: object) -> None:
        time.sleep(4.5)

    async with CommandBus("memory://") as bus:
        # Renewed at a third of it: shorter, and a busy machine lets it end before the renewal.
        worker = Worker(bus, "d", registry, visibility_timeout=4.0)
        running = asyncio.create_task(worker.run())
        sent = await bus.send("d", "block")
        record = await bus.wait(sent.command_id, timeout=20)
        assert (record.status, record.attempts) == (CommandStatus.COMPLETED, 1)
        report = worker.health_status.report()
        assert report.loop_stalls == 1
        assert report.last_stall is not None
        assert report.last_stall.endswith("in block")
        assert Path(__file__).name in report.last_stall
        await worker.stop()
        await running


async def test_a_def_handler_that_hangs_frees_its_slot_under_asyncio() -> None:
    registry, hanging = HandlerRegistry(), Hanging(1)
    registry.register("d", "hang", hanging)
    async with CommandBus("memory://") as bus:
        worker = Worker(
            bus, "d", registry, concurrency=1, thread_timeout=1.0, retry_policy=AGAIN_AT_ONCE
        )
        running = asyncio.create_task(worker.run())
        sent = await bus.send("d", "hang")
        assert (await bus.wait(sent.command_id, timeout=30)).attempts == 2
        assert worker.health_status.report().stuck_threads == 1
        hanging.let_go.set()
        while worker.health_status.report().stuck_threads:
            await asyncio.sleep(0.01)
        await worker.stop()
        await running


async def test_the_watchdog_restarts_an_asyncio_worker() -> None:
    registry = HandlerRegistry()

    @registry.handler("d", "x")
    async def x(command: object, context: object) -> None: ...

    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "d", registry)
        running = asyncio.create_task(worker.run())
        with WorkerWatchdog(worker, check_interval=0.01) as watchdog:
            for _ in range(3):
                worker.health_status.record_stuck_thread()
            while watchdog.restarts == 0:
                await asyncio.sleep(0.01)
            sent = await bus.send("d", "x")
            assert (await bus.wait(sent.command_id, timeout=30)).status == "COMPLETED"
            # The round that is ending may have carried it out.
            while worker.health_status.state is HealthState.CRITICAL:
                await asyncio.sleep(0.01)
        await worker.stop()
        await running


async def test_a_supervised_worker_with_a_stuck_thread_ends_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry, hanging = HandlerRegistry(), Hanging(1)
    registry.register("d", "hang", hanging)
    async with CommandBus("memory://") as bus:
        worker = Worker(bus, "d", registry, concurrency=1, thread_timeout=1.0)
        worker.supervisor = 1
        with WorkerWatchdog(worker, check_interval=0.01) as watchdog:
            running = asyncio.create_task(worker.run())
            await bus.send("d", "hang")
            await asyncio.wait_for(running, 10)
        assert watchdog.restarts == 0
        assert worker.health_status.state is HealthState.DEGRADED
        hanging.let_go.set()
    assert "its supervisor starts another process: 1 thread given up" in caplog.text


leak: contextvars.ContextVar[str | None] = contextvars.ContextVar("leak", default=None)


@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_context_variables_do_not_leak_to_the_next_command(kind: str, runtime: str) -> None:
    registry, seen = HandlerRegistry(), []

    async def look_async(command: object, context: object) -> None:
        seen.append(leak.get())
        leak.set("left behind")
        await asyncio.sleep(0)
        assert leak.get() == "left behind"

    def look(command: object, context: object) -> None:
        seen.append(leak.get())
        leak.set("left behind")

    registry.register("orders", "ship", look_async if kind == "async def" else look)
    bus = Configuration("memory", "memory://").open(runtime, real_time=True)
    try:
        with bus.run_worker(registry, concurrency=1):
            for _ in range(3):
                assert bus.wait(bus.send()).status is CommandStatus.COMPLETED
    finally:
        bus.close()
    assert seen == [None, None, None]


@pytest.mark.parametrize("runtime", ["asyncio", "threads"])
def test_a_worker_with_bounds_follows_its_load(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "INTERVAL", 0.05)
    registry = HandlerRegistry()
    bus = Configuration("memory", "memory://").open(runtime, real_time=True)
    options = {"concurrency": 1, "prefetch": 0, "min_concurrency": 1, "max_concurrency": 4}
    try:
        with Gate() as gate:
            registry.register("orders", "ship", gate)
            bus.send_many([SendRequest("orders", "ship")] * 20)
            with bus.run_worker(registry, **options) as running:
                eventually(lambda: running.worker.concurrency == 4, timeout=30)
                gate.wait_for(4)
                gate.open()
                eventually(lambda: running.worker.concurrency == 1, timeout=30)
    finally:
        bus.close()
    assert gate.most_inside == 4


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_follow_the_life_of_a_worker(bus: SyncCommandBus) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    worker = SyncWorker(bus, "d", registry)
    with ProbeServer(worker) as probes:
        assert _get(probes.port, "/startupz")[0] == 503
        assert _get(probes.port, "/livez")[0] == 503
        with Running(worker):
            eventually(lambda: _get(probes.port, "/readyz")[0] == 200)
            assert _get(probes.port, "/livez")[0] == 200
            assert _get(probes.port, "/startupz")[0] == 200
            status, text = _get(probes.port, "/metrics?x=1")
            assert status == 200
            assert 'commandbus_worker_health{state="HEALTHY"} 1' in text
        status, body = _get(probes.port, "/readyz")
        assert status == 503
        assert json.loads(body)["problems"] == ["the worker is not running"]
        assert _get(probes.port, "/healthz/livez")[0] == 404


def test_a_store_that_is_down_makes_a_worker_not_ready_but_live(
    bus: SyncCommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    worker = SyncWorker(bus, "d", registry)

    def down(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is gone; mount it again")

    with Running(worker), ProbeServer(worker) as probes:
        eventually(lambda: worker.ping())
        monkeypatch.setattr(worker, "_store_check", StoreCheck(down))
        status, body = _get(probes.port, "/readyz")
        assert status == 503
        assert json.loads(body)["problems"] == ["the disk is gone; mount it again"]
        assert _get(probes.port, "/livez")[0] == 200


def test_signs_of_life_reach_a_file_and_systemd(
    bus: SyncCommandBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = HandlerRegistry()
    registry.register("d", "x", lambda command, context: None)
    worker = SyncWorker(bus, "d", registry)
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with Running(worker), SignsOfLife(worker, file=tmp_path / "alive", interval=0.05):
            assert systemd.recv(100) == b"READY=1"
            assert systemd.recv(100) == b"WATCHDOG=1"
            eventually(lambda: (tmp_path / "alive").exists())
            first = (tmp_path / "alive").stat().st_mtime_ns
            eventually(lambda: (tmp_path / "alive").stat().st_mtime_ns > first)
        rest = []
        while not rest or rest[-1] != b"STOPPING=1":
            rest.append(systemd.recv(100))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"thread_timeout": 0}, "thread_timeout"),
        ({"recycle_after": 0}, "recycle_after"),
        ({"concurrency": 0, "poll_interval": 0.01}, "concurrency"),
    ],
)
def test_bad_settings_are_refused_at_construction(
    bus: SyncCommandBus, settings: dict[str, float], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        SyncWorker(bus, "d", HandlerRegistry(), **settings)
