"""Connections that are cut, frozen, half open or refused: workers go on, callers are told the truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest

from commandbus import CommandBus, SendRequest
from commandbus.domain.audit import AuditEvent, AuditEventType
from commandbus.engines.postgres import listener, watch
from commandbus.engines.postgres.connections import Checkout
from commandbus.engines.postgres.pools import CONNECT_SECONDS_MIN
from commandbus.errors import DuplicateCommandError, PoolExhausted, StoreUnavailable
from commandbus.store.deaths import NOT_BEGUN
from commandbus.store.waiting import finish
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import Configuration
from commandbus.testing.waiting import eventually
from tests.postgres.database import empty_url, tcp
from tests.support.proxy import Proxy
from tests.support.working import DOMAIN, working

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]
RUNTIMES = ("asyncio", "threads")
CLAIM = r"insert into [^;]*\.lease \("
"""Found in no other statement."""


@pytest.fixture
def url() -> str:
    return empty_url()


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(tcp(url)) as proxy:
        yield proxy


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for an answer for half a minute is given up after a second."""
    monkeypatch.setattr(watch, "ANSWER_SECONDS", 1.0)


def places(url: str) -> dict[str, int]:
    """How often each command is stored, and where: waiting, under lease, or ended."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select (select count(*) from commandbus.command), (select count(*) from commandbus.queue),"
            " (select count(*) from commandbus.ended),"
            " (select coalesce(sum(cardinality(seqs)), 0) from commandbus.lease)"
        ).fetchone()
    assert row is not None
    return dict(zip(("command", "queue", "outcome", "lease"), map(int, row), strict=True))


# An outcome that nobody knows: the connection ends with the commit, before it or after it.


@pytest.mark.parametrize(("harm", "stored"), [("before", 0), ("after", 1)])
def test_a_send_of_unknown_outcome_can_be_repeated(
    url: str, proxy: Proxy, harm: str, stored: int
) -> None:
    with SyncCommandBus(proxy.url) as bus:
        bus.send(DOMAIN, "ship")
        command_id = uuid4()
        trap = proxy.on_commit(harm)  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            bus.send(DOMAIN, "ship", command_id=command_id)
        assert trap.sprung.wait(30)
        assert places(url)["command"] == 1 + stored
        if stored:
            with pytest.raises(DuplicateCommandError):
                bus.send(DOMAIN, "ship", command_id=command_id)
        else:
            bus.send(DOMAIN, "ship", command_id=command_id)
        assert places(url) == {"command": 2, "queue": 2, "outcome": 0, "lease": 0}


@pytest.mark.parametrize("count", [3, 400])
@pytest.mark.parametrize(("harm", "stored"), [("before", 0), ("after", 1)])
def test_a_bulk_send_of_unknown_outcome_is_all_or_nothing(
    url: str, proxy: Proxy, harm: str, stored: int, count: int
) -> None:
    requests = [SendRequest(DOMAIN, "ship", command_id=uuid4()) for _ in range(count)]
    with SyncCommandBus(proxy.url) as bus:
        bus.send(DOMAIN, "ship")
        trap = proxy.on_commit(harm)  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            bus.send_many(requests)
        assert trap.sprung.wait(30)
        assert places(url)["command"] == 1 + stored * count
        if stored:
            with pytest.raises(DuplicateCommandError):
                bus.send_many(requests)
        else:
            bus.send_many(requests)
        assert places(url)["command"] == places(url)["queue"] == 1 + count


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("harm", ["before", "after"])
def test_a_settle_of_unknown_outcome_is_resolved_by_the_worker(
    url: str, proxy: Proxy, runtime: str, harm: str
) -> None:
    """It settles again; what was recorded is no loss, what was not is recorded now."""
    with SyncCommandBus(url) as bus, working(proxy.url, runtime, poll_interval=0.2) as done:
        trap = proxy.on_commit(harm, pattern=r"insert into \S*(outcome|receipt)", times=3)  # type: ignore[arg-type]
        for _ in range(30):
            bus.send(DOMAIN, "ship")
            eventually(lambda: not places(url)["queue"])
        assert trap.sprung.wait(20), trap.statements
        eventually(lambda: places(url) == {"command": 30, "queue": 0, "outcome": 30, "lease": 0})
        assert set(done.runs.values()) == {1}, "nothing ran twice: the outcomes were kept"
        assert done.worker.metrics.leases_lost == 0


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("harm", ["before", "after"])
def test_a_claim_of_unknown_outcome_comes_back_with_the_end_of_its_lease(
    url: str, proxy: Proxy, runtime: str, harm: str
) -> None:
    with SyncCommandBus(url) as bus:
        ids = [bus.send(DOMAIN, "ship").command_id for _ in range(20)]
        trap = proxy.on_commit(harm, pattern=CLAIM)  # type: ignore[arg-type]
        options = {"visibility_timeout": 1.0, "poll_interval": 0.2, "concurrency": 4}
        with working(proxy.url, runtime, **options) as done:
            eventually(lambda: done.has(ids), 20)
            assert trap.count == 1
            eventually(lambda: places(url)["outcome"] == 20)
        assert set(done.runs.values()) == {1}
        lost = [trail for trail in map(partial(audit, bus), ids) if AuditEventType.RELEASED in trail]
        assert bool(lost) == (harm == "after"), "only a claim that was made can be lost"
        for trail in lost:
            released = trail[AuditEventType.RELEASED]
            assert released.details["reason"] == NOT_BEGUN
            held = released.timestamp - trail[AuditEventType.RECEIVED].timestamp
            assert held.total_seconds() >= options["visibility_timeout"], "its lease had not ended"
        records = [bus.get_command(command_id, domain=DOMAIN) for command_id in ids]
        assert {record.crashes for record in records if record} == {0}, "none of them had begun"


def audit(bus: SyncCommandBus, command_id: UUID) -> dict[AuditEventType, AuditEvent]:
    """The first event of each type."""
    events = bus.get_audit_trail(command_id, domain=DOMAIN)
    return {event.event_type: event for event in reversed(events)}


# Cut, frozen, half open.


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_worker_survives_cuts_at_any_moment(url: str, proxy: Proxy, runtime: str) -> None:
    options = {"visibility_timeout": 2.0, "poll_interval": 0.5, "concurrency": 8}
    with SyncCommandBus(url) as bus, working(proxy.url, runtime, **options) as done:
        ids = []
        for _ in range(15):
            ids += [r.command_id for r in bus.send_many([SendRequest(DOMAIN, "ship")] * 40)]
            proxy.cut()
            time.sleep(0.02)
        eventually(lambda: done.has(ids), 30)
        eventually(lambda: places(url)["outcome"] == len(ids), 20)
        assert places(url)["queue"] == places(url)["lease"] == 0


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_frozen_connection_is_given_up_and_replaced(url: str, proxy: Proxy, runtime: str) -> None:
    """The peer's kernel still acknowledges, so TCP itself would wait for ever."""
    options = {"visibility_timeout": 2.0, "poll_interval": 0.5}
    with SyncCommandBus(url) as bus, working(proxy.url, runtime, **options) as done:
        first = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: first in done)
        trap = proxy.on_statement(CLAIM, "freeze")
        second = bus.send(DOMAIN, "ship").command_id
        assert trap.sprung.wait(30)
        eventually(lambda: second in done, 20)
        eventually(lambda: places(url)["outcome"] == 2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_worker_with_half_open_connections_finds_new_ones(
    url: str, proxy: Proxy, runtime: str
) -> None:
    options = {"visibility_timeout": 2.0, "poll_interval": 0.5}
    # A connection may be abandoned while it is being made.
    impatient_url = f"{proxy.url}&connect_timeout=2"
    with SyncCommandBus(url) as bus, working(impatient_url, runtime, **options) as done:
        first = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: first in done)
        assert proxy.half_open() >= 2
        second = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: second in done, 20)


@pytest.mark.usefixtures("impatient")
def test_a_listener_whose_server_is_gone_does_not_delay_the_close(proxy: Proxy) -> None:
    """Its farewell is never answered: that is known after a second, and the bus is closed."""
    with SyncCommandBus(proxy.url) as bus:
        with working(f"{proxy.url}&connect_timeout=2", poll_interval=0.5) as done:
            sent = bus.send(DOMAIN, "ship").command_id
            eventually(lambda: sent in done)
            thread = done.worker._engine._listener._thread
            assert proxy.half_open() >= 2
        assert not thread.is_alive(), "it was left behind"


def test_a_listener_whose_server_does_not_answer_finds_another(
    url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows that it is alive now and then; without an answer its connection is given up."""
    monkeypatch.setattr(listener, "RENEW_SECONDS", 0.3)
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 0.5)
    with SyncCommandBus(url) as bus, working(proxy.url, poll_interval=3600.0) as done:
        first = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: first in done)
        trap = proxy.on_statement("update [^;]*sleeper", "freeze")
        assert trap.sprung.wait(30), "it gave a sign of life"
        second = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: second in done, 20)


@pytest.mark.usefixtures("impatient")
def test_a_frozen_renewal_does_not_cost_the_lease(url: str, proxy: Proxy) -> None:
    """It is tried again in time, on another connection."""
    let_go = threading.Event()
    with SyncCommandBus(url) as bus:
        command_id = bus.send(DOMAIN, "ship").command_id
        options = {"visibility_timeout": 2.0, "poll_interval": 0.5}
        trap = proxy.on_statement("update .*lease .*until", "freeze")
        with working(proxy.url, handle=lambda *_: let_go.wait(60) and None, **options) as done:
            assert trap.sprung.wait(20), "a renewal was frozen"
            time.sleep(2.3)  # longer than the lease would have lasted
            let_go.set()
            eventually(lambda: command_id in done)
            eventually(lambda: places(url)["outcome"] == 1)
            assert done.worker.metrics.leases_lost == 0
        record = bus.get_command(command_id, domain=DOMAIN)
        assert record is not None
        assert record.crashes == 0


@pytest.mark.usefixtures("impatient")
def test_a_caller_of_a_frozen_server_gets_an_error_in_time(proxy: Proxy) -> None:
    with SyncCommandBus(proxy.url) as bus:
        bus.send(DOMAIN, "ship")
        with proxy.frozen(), pytest.raises(StoreUnavailable):
            bus.send(DOMAIN, "ship")


@pytest.mark.usefixtures("impatient")
async def test_an_awaiting_caller_of_a_frozen_server_gets_an_error_in_time(proxy: Proxy) -> None:
    async with CommandBus(proxy.url) as bus:
        await bus.send(DOMAIN, "ship")
        with proxy.frozen(), pytest.raises(StoreUnavailable):
            await bus.send(DOMAIN, "ship")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_server_that_does_not_greet_is_not_waited_for_beyond_the_pool_timeout(
    proxy: Proxy, runtime: str
) -> None:
    bus = Configuration("postgres", f"{proxy.url}&pool_timeout=1").open(runtime)
    try:
        with proxy.frozen():
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                bus.stats()
            assert time.monotonic() - began < 1 + CONNECT_SECONDS_MIN + 1
        assert bus.stats().depth == 0
    finally:
        bus.close()


@pytest.mark.parametrize("weather", [{"delay": 0.02}, {"bytes_per_second": 20_000}])
def test_slow_lines_only_take_longer(url: str, proxy: Proxy, weather: dict[str, float]) -> None:
    with SyncCommandBus(url) as bus, working(proxy.url, poll_interval=0.5) as done:
        proxy.weather(**weather)
        ids = [r.command_id for r in bus.send_many([SendRequest(DOMAIN, "ship")] * 40)]
        eventually(lambda: done.has(ids), 60)
        proxy.weather()
    assert set(done.runs.values()) == {1}


def test_an_exhausted_pool_refuses_in_words_and_recovers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncCommandBus(url + "&pool_size=2") as bus:
        bus.send(DOMAIN, "ship")
        pool = bus.engine.sources_of_threads().pool
        held = [Checkout(pool, bus.engine), Checkout(pool, bus.engine)]
        for line in held:
            finish(line.take())
        monkeypatch.setattr(pool, "patience", 0.2)
        with pytest.raises(PoolExhausted, match="pool_size"):
            bus.stats(DOMAIN)
        bus.send(DOMAIN, "ship")  # single sends have a connection of their own
        for line in held:
            line.release()
        assert bus.stats(DOMAIN).ready == 2


# What the server resolves or forgets.


def test_a_plan_that_a_migration_made_stale_is_made_again(url: str) -> None:
    """ "cached plan must not change result type": the statement has done nothing, and is repeated."""
    with SyncCommandBus(url + "&pool_size=2") as bus, psycopg.connect(url, autocommit=True) as admin:
        worker = SyncWorker(bus, DOMAIN, concurrency=2)
        bus.send(DOMAIN, "ship")
        assert len(worker.receive(1)) == 1
        # A column that claims return becomes another type, as a migration may do it.
        admin.execute("alter table commandbus.command alter column command_type type varchar(200)")
        try:
            sent = bus.send(DOMAIN, "ship").command_id
            assert [got.command.command_id for got in worker.receive(1)] == [sent]
            assert bus.get_command(sent, domain=DOMAIN) is not None
        finally:
            admin.execute("alter table commandbus.command alter column command_type type text")


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_transaction_that_was_in_the_way_is_tried_again(url: str, state: str) -> None:
    """Serialization failures and deadlocks changed nothing, so the bus repeats what it can."""
    with SyncCommandBus(url) as bus, psycopg.connect(url, autocommit=True) as admin:
        admin.execute("create sequence commandbus.tries")
        admin.execute(
            "create function commandbus.fail_twice() returns trigger language plpgsql as $$ begin"
            " if nextval('commandbus.tries') <= 2 then"
            f" raise exception 'in the way' using errcode = '{state}'; end if; return new; end $$"
        )
        admin.execute(
            "create trigger fail_twice before insert on commandbus.command for each row"
            " execute function commandbus.fail_twice()"
        )
        try:
            bus.send(DOMAIN, "ship")
            assert bus.stats(DOMAIN).ready == 1
        finally:
            admin.execute("drop function commandbus.fail_twice cascade")
            admin.execute("drop sequence commandbus.tries")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_worker_in_a_real_deadlock_records_its_outcome_in_the_end(url: str, runtime: str) -> None:
    """Somebody locks rows that a settle writes, in the other order."""
    with SyncCommandBus(url) as bus, working(url, runtime, poll_interval=0.5) as done:
        first = bus.send(DOMAIN, "ship").command_id
        eventually(lambda: first in done)
        eventually(lambda: places(url)["lease"] == 0)
        with psycopg.connect(url) as rival:
            rival.execute("set deadlock_timeout = '20s'")  # the worker's settle is the victim
            rival.execute("lock table commandbus.outcome in exclusive mode")
            second = bus.send(DOMAIN, "ship").command_id
            eventually(lambda: second in done)
            eventually(lambda: _waits_for_lock(url))
            # The settle has its lease row, and waits for the table that we have.
            rival.execute("lock table commandbus.lease in exclusive mode")
            rival.commit()
        eventually(lambda: places(url)["outcome"] == 2, 20)
        assert done.runs[str(second)] == 1


def _waits_for_lock(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(
            connection.execute(
                "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
            ).fetchone()
        )
