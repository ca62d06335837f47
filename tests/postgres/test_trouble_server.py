"""Servers that restart, fail over, forget who listens, or cannot take notifications."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commandbus import RetryPolicy, SendRequest
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import LeaseLost, TransientCommandError
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing.postgres import PostgresServer, create_database
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url
from tests.support.sender import StubbornSender
from tests.support.standby import replicated
from tests.support.working import DOMAIN, working

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(180)]
RUNTIMES = ("asyncio", "threads")
SOON = RetryPolicy(backoff_schedule=[0.1])
LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database()"
    " and application_name = 'commandbus listen'"
)


@pytest.fixture
def url() -> str:
    return empty_url()


@pytest.fixture
def own() -> Iterator[PostgresServer]:
    with PostgresServer.start() as own:
        yield own


def ended(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from commandbus.ended").fetchone()
    assert row is not None
    return int(row[0])


def fill_notification_queue(connection: psycopg.Connection[Any]) -> None:
    for _ in range(1_000):
        try:
            connection.execute("select pg_notify('nothing', repeat('x', 7000))")
        except psycopg.errors.ProgramLimitExceeded:
            return
    raise AssertionError("the queue of notifications does not fill")


def test_immediate_restarts_under_load_lose_nothing_and_all_workers_resume(own: PostgresServer) -> None:
    url = create_database(own)
    upgrade(url)
    options: dict[str, Any] = {"visibility_timeout": 2.0, "poll_interval": 1.0}
    with (
        working(url, "asyncio", **options) as one,
        working(url, "threads", **options) as other,
        StubbornSender(url) as sender,
    ):
        for _ in range(2):
            before = len(sender.acknowledged)
            eventually(lambda before=before: len(sender.acknowledged) > before + 200, 30)
            own.restart("immediate")
            began = time.monotonic()
            runs = sum(one.runs.values()), sum(other.runs.values())
            eventually(lambda runs=runs: sum(one.runs.values()) > runs[0], 20)
            eventually(lambda runs=runs: sum(other.runs.values()) > runs[1], 20)
            assert time.monotonic() - began < 10, "every worker resumes within 10 s"
        sender.stop()
        eventually(lambda: ended(url) >= len(sender.acknowledged), 30)
        lost = [c for c in sender.acknowledged if c not in one and c not in other]
        assert lost == []


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_listener_that_is_killed_twenty_times_hears_again_each_time(url: str, runtime: str) -> None:
    """Without a poll that would find the work anyway."""
    with (
        SyncCommandBus(url) as bus,
        psycopg.connect(url, autocommit=True) as admin,
        working(url, runtime, poll_interval=3600.0) as done,
    ):
        slowest = 0.0
        for _ in range(20):
            (pid,) = eventually(lambda: admin.execute(LISTENERS).fetchone())
            admin.execute("select pg_terminate_backend(%s, 5000)", (pid,))
            sent = bus.send(DOMAIN, "ship").command_id
            began = time.monotonic()
            eventually(lambda sent=sent: sent in done, 10)
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5, "heard again within 5 s"
        assert set(done.runs.values()) == {1}


def test_workers_follow_a_fail_over_to_a_synchronous_standby_and_nothing_is_lost() -> None:
    with replicated() as pair:
        single = create_database(pair.primary)
        upgrade(single)
        url = pair.both(single)
        options: dict[str, Any] = {"visibility_timeout": 2.0, "poll_interval": 1.0}
        with (
            working(url, "asyncio", **options) as one,
            working(url, "threads", **options) as other,
            StubbornSender(url) as sender,
        ):
            eventually(lambda: len(sender.acknowledged) > 200, 30)
            pair.fail_over()
            before = len(sender.acknowledged)
            eventually(lambda: len(sender.acknowledged) > before + 100, 60)
            sender.stop()
            eventually(lambda: all(c in one or c in other for c in sender.acknowledged), 30)
            assert len(sender.acknowledged) > before + 100, "it went on after the fail-over"


def test_a_worker_whose_server_becomes_read_only_waits_and_resumes(url: str) -> None:
    """A demoted primary accepts connections and refuses writes."""
    with (
        SyncCommandBus(url) as bus,
        psycopg.connect(url, autocommit=True) as admin,
        working(f"{url}&target_session_attrs=any", poll_interval=0.2) as done,
    ):
        first = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: first in done)
        admin.execute("set default_transaction_read_only = off")
        name = admin.info.dbname
        admin.execute(f"alter database {name} set default_transaction_read_only = on")
        try:
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            failures = done.worker.metrics.claim_failures
            eventually(lambda: done.worker.metrics.claim_failures > failures)
        finally:
            admin.execute(f"alter database {name} reset default_transaction_read_only")
        second = bus.send(DOMAIN, "ship").command_id
        assert eventually(lambda: second in done, 20)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_full_queue_of_notifications_stops_neither_senders_nor_workers(runtime: str) -> None:
    """Somebody listens inside a transaction that never ends, so nothing is ever removed."""
    with PostgresServer.start(settings={"max_notify_queue_pages": "64"}) as own:
        url = create_database(own)
        upgrade(url)
        failed: set[str] = set()

        def fail_once(command: Any, context: Any) -> None:
            if str(command.command_id) not in failed:
                failed.add(str(command.command_id))
                raise TransientCommandError("AGAIN", "at once")

        with (
            psycopg.connect(url, autocommit=True) as deaf,
            psycopg.connect(url, autocommit=True) as admin,
            SyncCommandBus(url) as bus,
            working(
                url,
                runtime,
                fail_once,
                poll_interval=0.5,
                visibility_timeout=5.0,
                retry_policy=RetryPolicy(3, [0.2]),
            ) as done,
        ):
            deaf.execute("listen nothing")
            deaf.execute("begin")
            deaf.execute("select 1")
            fill_notification_queue(admin)
            ids = [bus.send(DOMAIN, "ship").command_id for _ in range(5)]
            requests = [SendRequest(DOMAIN, "ship") for _ in range(300)]
            ids += [result.command_id for result in bus.send_many(requests)]
            # Each is given out, fails once, is put back, and given out again.
            eventually(lambda: done.has(ids), 30)
            eventually(lambda: ended(url) == len(ids), 20)
            assert failed == {str(one) for one in ids}, "some were never put back"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_burst_wakes_idle_workers_in_a_chain(url: str, runtime: str) -> None:
    """One is told of the first, and passes the news on while there is more."""
    gate = threading.Barrier(4)
    met: set[int] = set()

    def meet(command: Any, context: Any) -> None:
        if command.data == "meet" and id(gate) not in met:
            gate.wait(20)

    with (
        SyncCommandBus(url) as bus,
        working(url, "threads", meet, poll_interval=3600.0, concurrency=1, prefetch=0) as a,
        working(url, "threads", meet, poll_interval=3600.0, concurrency=1, prefetch=0) as b,
        working(url, "threads", meet, poll_interval=3600.0, concurrency=1, prefetch=0) as c,
        working(url, runtime, meet, poll_interval=3600.0, concurrency=1, prefetch=0) as d,
    ):
        sent = bus.send_many(
            [SendRequest(DOMAIN, "ship", "meet")] * 4 + [SendRequest(DOMAIN, "ship")] * 996
        )
        # The first four can only go on when four workers have come: each was woken.
        everyone = (a, b, c, d)
        eventually(lambda: sum(sum(one.runs.values()) for one in everyone) == len(sent), 60)
        assert not gate.broken
        assert all(one.runs for one in everyone)


def test_a_lease_that_a_crashed_server_forgot_is_given_to_no_other_worker(url: str) -> None:
    """Claims commit asynchronously: after a crash or a fail-over the server may count from before."""
    with SyncCommandBus(url) as one, SyncCommandBus(url) as other, psycopg.connect(url) as admin:
        one.send(DOMAIN, "ship")
        stale, fresh = SyncWorker(one, DOMAIN), SyncWorker(other, DOMAIN)
        (forgotten,) = stale.receive(1)
        admin.execute(
            "insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes,"
            " releases, keyed) select domain, priority, seq, 0, 0, 0, 0, false from commandbus.command"
        )
        admin.execute("delete from commandbus.lease")
        admin.execute("alter sequence commandbus.lease_number restart")
        admin.commit()
        (given_again,) = fresh.receive(1)
        assert given_again.claimed.seq == forgotten.claimed.seq
        assert given_again.claimed.lease_id != forgotten.claimed.lease_id
        with pytest.raises(LeaseLost):
            stale.complete(forgotten)
        fresh.complete(given_again)
        assert ended(url) == 1
