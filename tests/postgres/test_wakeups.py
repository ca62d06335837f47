"""Wake-ups between processes, played by two buses: one has the worker, the other sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from commandbus import HandlerRegistry, SendRequest
from commandbus.engines.postgres import listener
from commandbus.engines.postgres.schema import upgrade
from commandbus.engines.postgres.session import PostgresSession
from commandbus.services import batch_closer
from commandbus.store.op import Op, Rows, autocommit
from commandbus.store.records import ClaimReply, ClaimRequest
from commandbus.store.sessions import LEASES
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, tcp
from tests.postgres.test_trouble import end_backends
from tests.support.proxy import Proxy

pytestmark = pytest.mark.postgres


@pytest.fixture
def url() -> str:
    return empty_url()


class Seen:
    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, command: Any, context: Any) -> None:
        self.times.append(time.monotonic())


@contextmanager
def worker(url: str, handler: Any, **options: Any) -> Iterator[SyncWorker]:
    registry = HandlerRegistry()
    registry.register("orders", "ship", handler)
    with SyncCommandBus(url) as bus:
        found = SyncWorker(bus, "orders", registry, **options)
        running = threading.Thread(target=found.run, daemon=True)
        running.start()
        try:
            eventually(lambda: found._core.idle)
            yield found
        finally:
            found.stop()
            running.join(30)


def sleepers(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("select count(*) from commandbus.sleeper").fetchone()
        assert found is not None
        return int(found[0])


def test_a_batch_whose_last_command_an_operator_ends_elsewhere_is_completed_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_closer, "AGAIN", 600.0)
    with worker(url, Seen()), SyncCommandBus(url) as operator:
        batch_id = operator.create_batch([SendRequest("orders", "ship", delay=3600)]).batch_id
        (member,) = operator.query_commands(batch_id=batch_id)
        operator.cancel(member.command_id, reason="not wanted")
        assert eventually(lambda: operator.get_batch(batch_id).completed_at, timeout=15)


def test_a_send_from_elsewhere_wakes_the_sleeper(url: str) -> None:
    seen = Seen()
    with worker(url, seen), SyncCommandBus(url) as sender:
        assert sleepers(url) == 1
        for number in range(5):
            sender.send("orders", "ship")
            eventually(lambda number=number: len(seen.times) == number + 1)
    assert sleepers(url) == 0


def test_an_earlier_command_is_on_time_although_a_later_one_came_first(url: str) -> None:
    seen = Seen()
    with worker(url, seen), SyncCommandBus(url) as sender:
        began = time.monotonic()
        sender.send("orders", "ship", delay=30)
        sender.send("orders", "ship", delay=0.3)
        eventually(lambda: len(seen.times) == 1)
        assert 0.29 <= seen.times[0] - began < 1.5


def test_a_retry_that_is_due_soon_is_announced(url: str) -> None:
    from commandbus import RetryPolicy, TransientCommandError

    attempts: list[int] = []

    def fail_once(command: Any, context: Any) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            raise TransientCommandError("SOON")

    policy = RetryPolicy(backoff_schedule=[0.1])
    with worker(url, fail_once, retry_policy=policy), SyncCommandBus(url) as sender:
        sender.send("orders", "ship")
        assert eventually(lambda: attempts == [1, 2])


def test_a_listener_that_was_cut_off_hears_again(url: str) -> None:
    seen = Seen()
    with worker(url, seen), SyncCommandBus(url) as sender:
        for number in range(5):
            assert end_backends(url, "commandbus listen") == 1
            sender.send("orders", "ship")
            eventually(lambda number=number: len(seen.times) == number + 1)
            eventually(lambda: listeners(url) == 1)


def test_a_closed_bus_listens_no_more(url: str) -> None:
    def listening() -> int:
        return sum(thread.name == "commandbus-listen" for thread in threading.enumerate())

    before = listening()
    with worker(url, Seen()):
        assert eventually(lambda: listeners(url) == 1)
        assert listening() == before + 1
    assert listening() == before


def listeners(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity where application_name = 'commandbus listen'"
            " and datname = current_database()"
        ).fetchone()
        assert found is not None
        return int(found[0])


def test_without_notifications_the_interval_finds_the_work(url: str) -> None:
    seen = Seen()
    with worker(url + "&notify=off", seen, poll_interval=0.2), SyncCommandBus(url) as sender:
        sender.send("orders", "ship")
        eventually(lambda: len(seen.times) == 1)
        assert listeners(url) == 0


def test_a_busy_worker_hears_nothing(url: str) -> None:
    heard: list[str] = []
    stop = threading.Event()

    def listen() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute('listen """commandbus"".wake"')
            ready.set()
            while not stop.is_set():
                told = [n.payload for n in connection.notifies(timeout=0.05)]
                heard.extend(payload for payload in told if not payload.startswith(LEASES))

    ready = threading.Event()
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert ready.wait(30)

    def slow(command: Any, context: Any) -> None:
        time.sleep(0.02)

    try:
        with worker(url, slow, concurrency=1, prefetch=0), SyncCommandBus(url) as sender:
            for _ in range(30):
                sender.send("orders", "ship")
            eventually(lambda: sleepers(url) == 0)
            before = len(heard)
            for _ in range(20):
                sender.send("orders", "ship")
            assert len(heard) == before
            assert before >= 1
    finally:
        stop.set()
        listener.join(30)


def test_sends_of_the_same_process_notify_no_listener(url: str) -> None:
    seen = Seen()
    with worker(url, seen) as found, psycopg.connect(url, autocommit=True) as connection:
        connection.execute('listen """commandbus"".wake"')
        found._bus.send("orders", "ship")
        eventually(lambda: len(seen.times) == 1)
        heard = [notify.payload for notify in connection.notifies(timeout=0.2)]
        # A worker that takes commands after a pause says so, for the others to watch its leases.
        assert [payload for payload in heard if not payload.startswith("commandbus.leases")] == []


def test_a_worker_does_not_fall_asleep_beside_an_unfinished_send(url: str) -> None:
    """The race that a flag without a lock loses: the send cannot see the sleeper, which in turn cannot
    see what was sent."""
    seen = Seen()
    with SyncCommandBus(url) as sender, psycopg.connect(url) as connection:
        sender.within(connection).send("orders", "ship")
        with worker(url, seen) as found:
            assert sleepers(url) == 0
            connection.commit()
            eventually(lambda: len(seen.times) == 1)
            eventually(lambda: sleepers(url) == 1)
            assert found.metrics.wakeups.get("fallback", 0) == 0


def test_the_idle_check_of_a_worker_misses_nothing(url: str) -> None:
    """It asks only when to look again, and claims where that is now: also after a claim of its own
    whose answer was lost."""
    with SyncCommandBus(url) as bus:
        glance = ClaimRequest(("orders",), 5, "w", 0.3, idle=True)
        store: Any = bus.engine.store
        store.sleepers.asleep("orders", 0, store.sleepers.epoch)
        assert bus.session.run(store.claim(glance)) == ClaimReply([], None, 0)
        bus.send("orders", "ship", delay=60)
        later = bus.session.run(store.claim(glance))
        assert not later.claimed
        assert 50 < later.next_due_in < 60
        bus.send("orders", "ship")
        lost = bus.session.run(store.claim(glance)).claimed
        assert len(lost) == 1
        again = eventually(lambda: bus.session.run(store.claim(glance)).claimed)
        assert again[0].seq == lost[0].seq
        assert again[0].lease_id != lost[0].lease_id


def test_a_listener_that_is_back_makes_its_workers_look_once(url: str) -> None:
    """What was sent while it was away was announced in vain, or not at all."""
    seen = Seen()
    with Proxy(tcp(url)) as proxy, worker(proxy.url, seen) as deaf:
        assert eventually(lambda: listeners(url) == 1)
        proxy.refusing = True
        assert end_backends(url, "commandbus listen") == 1
        eventually(lambda: deaf.metrics.wakeups.get("lost") == 1 and deaf._core.idle)
        with SyncCommandBus(url + "&notify=off") as silent:
            silent.send("orders", "ship")
        time.sleep(0.3)
        assert seen.times == [], "nothing but the return of the listener tells of it"
        proxy.refusing = False
        eventually(lambda: len(seen.times) == 1, 10)
        assert deaf.metrics.wakeups["reconnect"] == 1


def test_wake_ups_arrive_in_any_schema(url: str) -> None:
    other = url + "&schema=elsewhere"
    upgrade(other)
    seen = Seen()
    with worker(other, seen), SyncCommandBus(other) as sender, SyncCommandBus(url) as stranger:
        for number in range(3):
            stranger.send("orders", "ship")
            sent = time.monotonic()
            sender.send("orders", "ship")
            eventually(lambda number=number: len(seen.times) == number + 1)
            assert seen.times[-1] - sent < 2.0


def test_a_claim_that_waits_for_the_listener_keeps_no_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where connections are few, settles and renewals of the same worker need it."""
    with Proxy(tcp(url)) as proxy, SyncCommandBus(proxy.url) as bus:
        engine: Any = bus.engine
        idle: list[int] = []

        async def listen(self: Any, listening: threading.Event) -> None:
            idle.append(len(engine.sources_of_threads().reserve._idle))

        monkeypatch.setattr(PostgresSession, "_listen", listen)
        request = ClaimRequest(("orders",), 1, "w", 30.0)
        engine.reserved_session.run(engine.store.claim(request))
        proxy.refusing = True  # the listener has not connected yet, and cannot now
        engine.hub.arm(engine.hub.register(["orders"], lambda *_: None))
        engine.reserved_session.run(engine.store.claim(request))
        assert idle == [1]


class TestOneRowForAProcess:
    """Several workers of a process share the row that says that it sleeps."""

    @pytest.fixture
    def bus(self, url: str) -> Iterator[SyncCommandBus]:
        with SyncCommandBus(url) as bus:
            yield bus

    def falls_asleep(self, bus: SyncCommandBus, worker: str) -> bool:
        store: Any = bus.engine.store
        bus.session.run(
            store.transport.claimer._fall_asleep(ClaimRequest(("orders",), 1, worker, 30.0))
        )
        return bool(store.sleepers.is_asleep("orders"))

    def busy(self, bus: SyncCommandBus, worker: str) -> Op[None]:
        """What a claim does that has found commands for a while."""
        store: Any = bus.engine.store
        store.sleepers.found("orders", worker, time.monotonic() - 1)
        found: Op[None] = store.transport.claimer._stay_awake(
            worker, [SimpleNamespace(domain="orders")]
        )
        return found

    def test_a_row_that_was_written_again_is_not_taken_back(
        self, url: str, bus: SyncCommandBus
    ) -> None:
        waiter = bus.engine.hub.register(["orders"], lambda *_: None)
        bus.engine.hub.arm(waiter)
        eventually(lambda: self.falls_asleep(bus, "one"))
        taking_back = self.busy(bus, "one")
        statement = next(taking_back)
        eventually(lambda: self.falls_asleep(bus, "other"))
        bus.session.run(only(statement))
        assert sleepers(url) == 1

    def test_a_worker_that_relied_on_the_row_looks_again(self, url: str, bus: SyncCommandBus) -> None:
        woken = threading.Event()
        waiter = bus.engine.hub.register(["orders"], lambda *_: woken.set())
        bus.engine.hub.arm(waiter)
        eventually(lambda: self.falls_asleep(bus, "one"))
        woken.clear()
        bus.session.run(autocommitting(self.busy(bus, "one")))
        assert sleepers(url) == 0
        assert woken.wait(10)
        bus.engine.hub.arm(waiter)
        eventually(lambda: self.falls_asleep(bus, "other"))
        assert sleepers(url) == 1

    def test_a_row_from_before_a_loss_is_written_again(self, url: str, bus: SyncCommandBus) -> None:
        """The connection that listens is lost while the row is on its way; another process, which is
        back first, takes this one for ended and deletes it."""
        waiter = bus.engine.hub.register(["orders"], lambda *_: None)
        bus.engine.hub.arm(waiter)
        store: Any = bus.engine.store
        eventually(lambda: self.falls_asleep(bus, "w"))
        store.sleepers.forget()
        falling: Op[None] = store.transport.claimer._fall_asleep(
            ClaimRequest(("orders",), 1, "w", 30.0)
        )
        statement = next(falling)
        written = bus.session.run(only(statement))
        store.sleepers.forget()
        with suppress(StopIteration):
            falling.send(written)
        assert not store.sleepers.is_asleep("orders")
        eventually(lambda: self.falls_asleep(bus, "w"))

    def test_a_row_that_was_written_by_a_deaf_process_is_written_again(self, url: str) -> None:
        """A worker saw the connection just before it was lost: until this process is back, any other
        takes it for ended and deletes the row."""
        with Proxy(tcp(url)) as proxy, SyncCommandBus(proxy.url) as bus:
            waiter = bus.engine.hub.register(["orders"], lambda *_: None)
            bus.engine.hub.arm(waiter)
            eventually(lambda: self.falls_asleep(bus, "w"))
            known: Any = bus.engine.store.sleepers  # type: ignore[attr-defined]
            proxy.refusing = True
            assert end_backends(url, "commandbus listen") == 1
            eventually(lambda: not known.listening.is_set())
            known.asleep("orders", 1, known.epoch)
            proxy.refusing = False
            assert known.listening.wait(30)
            assert not known.is_asleep("orders")

    def test_a_renewed_row_can_still_be_taken_back(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "RENEW_SECONDS", 0.05)
        with SyncCommandBus(url) as bus:
            waiter = bus.engine.hub.register(["orders"], lambda *_: None)
            bus.engine.hub.arm(waiter)
            eventually(lambda: self.falls_asleep(bus, "one"))
            first = until(url)
            eventually(lambda: until(url) != first)
            bus.engine.hub.disarm(waiter)
            assert eventually(lambda: sleepers(url) == 0)


def until(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("select until from commandbus.sleeper").fetchone()
        assert found is not None
        return int(found[0])


@autocommit
def only(statement: Any) -> Op[Rows]:
    return (yield statement)


@autocommit
def autocommitting(op: Op[None]) -> Op[None]:
    yield from op
