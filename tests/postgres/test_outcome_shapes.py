"""Two copies of one store, in receipts and in rows: every read and every action is the same on both."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import psycopg
import pytest

from commandbus import (
    BusinessRuleException,
    Command,
    HandlerContext,
    HandlerRegistry,
    PermanentCommandError,
    RetryPolicy,
    SendRequest,
)
from commandbus.engines.postgres import receipts
from commandbus.engines.postgres.pgmq.installation import install
from commandbus.engines.postgres.schema import upgrade
from commandbus.errors import CommandBusError
from commandbus.processes import Process, step
from commandbus.sync import (
    SyncCommandBus,
    SyncProcessManager,
    SyncTroubleshootingQueue,
    SyncWorker,
)
from commandbus.testing import Configuration, Harness
from commandbus.testing.harness import DOMAIN
from commandbus.testing.postgres import create_database, drop_database
from commandbus.testing.waiting import eventually
from tests.pgmq.database import aging_messages
from tests.postgres.database import aging, server

OTHER = "parcels"
COUNT = 120
SAMPLE = 5
"""One in so many commands is asked for by its id."""
HOUR = 3_600.0
ENDS = ("COMPLETED", "FAILED", "CANCELED", "IN_TROUBLESHOOTING_QUEUE")
UNFOLD = (
    "insert into commandbus.outcome select * from commandbus.take_receipts("
    "array(select seq from commandbus.command))"
)
TABLES = (
    *("command", "queue", "scheduled", "held", "lease", "unique_key", "tally", "batch_count"),
    *("progress", "recorded_step", "permit", "process", "process_step", "ended"),
)

pytestmark = pytest.mark.postgres

Transport = str | None


class Errand(msgspec.Struct):
    n: int


class Errands(Process[Errand]):
    """Its commands simply complete."""

    @step
    def go(self, state: Errand) -> SendRequest:
        return SendRequest(OTHER, "ship", {"n": state.n})

    @step
    def back(self, state: Errand) -> SendRequest:
        return SendRequest(OTHER, "ship", {"n": state.n})


def registry() -> HandlerRegistry:
    """Most commands end without a word; one in twenty in every other way."""
    found = HandlerRegistry()

    def ship(command: Command[Any], context: HandlerContext) -> Any:
        match command.data["n"] % 20:
            case 3:
                return {"n": command.data["n"]}
            case 7:
                raise PermanentCommandError("LOST", "lost")
            case 9:
                raise BusinessRuleException("NO", "not today")
            case 11 if context.attempt == 1:
                raise ValueError("again")
            case 13:
                context.progress(50, "half")
        return None

    for domain in (DOMAIN, OTHER):
        found.handler(domain, "ship")(ship)
    found.process(Errands)
    return found


def requests(domain: str, numbers: Iterable[int], **options: Any) -> list[SendRequest]:
    return [SendRequest(domain, "ship", {"n": n}, **options) for n in numbers]


def fill(bus: SyncCommandBus, transport: Transport) -> None:
    """Commands of many kinds, nearly all of which have ended."""
    bus.send_many(requests(DOMAIN, range(COUNT // 2), tags=["red"]))
    bus.send_many(requests(DOMAIN, range(COUNT // 2)))
    bus.send_many(requests(OTHER, range(COUNT), priority="high"))
    bus.send_many(SendRequest(DOMAIN, "ship", {"n": n}, unique_key=f"k{n}") for n in range(40))
    if transport is None:
        bus.send_many(SendRequest(DOMAIN, "ship", {"n": n}, group_key=f"g{n % 3}") for n in range(40))
    bus.send_many(requests(OTHER, range(40), reply_to="answers"))
    done = SendRequest(DOMAIN, "ship", {"n": 0})
    bus.create_batch(requests(DOMAIN, (0, 1, 2, 4) * 15), on_complete=done)
    bus.create_batch(requests(OTHER, range(40)))
    canceled = bus.send(DOMAIN, "ship", {"n": 1}, delay=HOUR)
    bus.cancel(canceled.command_id, domain=DOMAIN)
    bus.send(DOMAIN, "ship", {"n": 1}, delay=10 * HOUR)
    manager = SyncProcessManager(bus, Errands)
    started = [manager.start(Errand(1)) for _ in range(20)]
    with SyncWorker(bus, registry(), concurrency=64, retry_policy=RetryPolicy(3, [0.0])):
        for one in started:
            manager.wait(one, timeout=60)
        eventually(lambda: all(is_done(bus, domain) for domain in (DOMAIN, OTHER)), 60)


def is_done(bus: SyncCommandBus, domain: str) -> bool:
    stats = bus.stats(domain)
    return stats.ready + stats.running == 0


@pytest.fixture(scope="module", params=[None, pytest.param("pgmq", marks=pytest.mark.pgmq)])
def original(request: pytest.FixtureRequest) -> Iterator[tuple[str, Transport]]:
    """A store with outcomes of both shapes."""
    transport: Transport = request.param
    url = create_database(server(os.getpid()))
    (install if transport else upgrade)(url)
    with pytest.MonkeyPatch.context() as patching, SyncCommandBus(url, transport=transport) as bus:
        patching.setattr(receipts, "MEMBERS_MIN", 2)
        fill(bus, transport)
    with psycopg.connect(url) as connection:
        members = connection.execute("select sum(members), count(*) from commandbus.receipt").fetchone()
        rows = connection.execute("select count(*) from commandbus.outcome").fetchone()
    assert members is not None
    assert rows is not None
    assert members[0] > COUNT // 4, members
    assert rows[0] > COUNT // 20, rows
    yield url, transport
    drop_database(server(os.getpid()), url)


@pytest.fixture
def copies(original: tuple[str, Transport]) -> Iterator[tuple[Harness, Harness]]:
    """The store as it is, and one with the same outcomes as rows."""
    url, transport = original
    urls = [create_database(server(os.getpid()), url) for _ in range(2)]
    with psycopg.connect(urls[1]) as connection:
        connection.execute(UNFOLD)
        left = connection.execute("select count(*) from commandbus.receipt").fetchone()
        assert left == (0,)
    both = [
        Configuration("copy", one, advance=(aging_messages if transport else aging)(one),
                      transport=transport).open("threads")
        for one in urls
    ]  # fmt: skip
    yield both[0], both[1]
    for one in both:
        one.close()
        drop_database(server(os.getpid()), one.configuration.url)


def paged(ask: Callable[..., Any], **options: Any) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page = ask(after=after, **options)
        found += page.items
        after = page.next
        if after is None:
            return found


def selections(bus: SyncCommandBus) -> Iterator[dict[str, Any]]:
    records = paged(bus.query_commands, limit=500)
    some = records[len(records) // 2]
    batches = [batch.batch_id for batch in bus.list_batches()]
    for status in (None, "PENDING", "IN_PROGRESS", *ENDS):
        yield {"status": status}
        yield {"status": status, "domain": OTHER}
        yield {"status": status, "tag": "red"}
        yield {"status": status, "data": {"n": "5"}}
        yield {"status": status, "error": "LOST"}
        yield {"status": status, "command_type": "none"}
        yield {"status": status, "created_after": some.created_at}
        yield {"status": status, "created_before": some.created_at}
        yield {"status": status, "correlation_id": some.correlation_id}
        yield from ({"status": status, "batch_id": one} for one in batches)


def reads(bus: SyncCommandBus, run: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """What every read tells, with a name for it."""
    for selection in selections(bus):
        yield f"query {selection}", paged(bus.query_commands, **selection, limit=500)
    for limit in (1, 7, 60):
        newest = partial(paged, bus.query_commands, limit=limit)
        yield f"pages of {limit}", newest(status="COMPLETED", data={"n": "5"})
        if limit > 1:
            yield f"more pages of {limit}", newest(status="COMPLETED", domain=OTHER)
    for record in paged(bus.query_commands, limit=500)[::SAMPLE]:
        place = {"domain": record.domain}
        yield "get", bus.get_command(record.command_id, **place)
        yield "trail", bus.get_audit_trail(record.command_id, **place)
        why = bus.why(record.command_id, **place)
        yield "why", [reason.code for reason in why.reasons]
        if record.status.value in ENDS[:3]:
            yield "wait", bus.wait(record.command_id, 5, **place)
    for domain in (DOMAIN, OTHER):
        stats = bus.stats(domain)
        yield "stats", msgspec.structs.replace(stats, oldest_ready_age=None)
        for kind in ENDS[3:]:
            yield "failures", bus.query_commands(domain=domain, status=kind).items
    for batch in bus.list_batches():
        yield "batch", bus.get_batch(batch.batch_id)
        members = partial(bus.list_batch_commands, batch.batch_id)
        for status in (None, *ENDS):
            yield "members", paged(members, status=status, limit=7)
            yield "all members", paged(members, status=status, limit=500)
    for process in bus.list_processes():
        yield "process", bus.get_process(process.process_id)
        yield "process audit", bus.get_process_audit(process.process_id)
    yield "audit", paged(bus.search_audit, limit=50)
    queue = SyncTroubleshootingQueue(bus)
    yield "desk", paged(queue.list_troubleshooting, limit=50)
    yield "groups", queue.group_failures()
    yield "runs", run(bus.engine.store.recent_runs(10_000))
    yield "some runs", run(bus.engine.store.recent_runs(37))
    yield "check", bus.check_payloads(registry())


def check_same_reads(receipted: Harness, rows: Harness) -> None:
    told = list(reads(receipted.bus, receipted.run))
    other = list(reads(rows.bus, rows.run))
    assert [name for name, _ in told] == [name for name, _ in other]
    for (name, mine), (_, its) in zip(told, other, strict=True):
        assert mine == its, name


def stored(bus: Harness) -> dict[str, list[Any]]:
    """What is in the tables that an action may change."""
    with psycopg.connect(bus.configuration.url) as connection:
        every = {table: f"select t::text from commandbus.{table} t order by 1" for table in TABLES}
        return {name: connection.execute(text.encode()).fetchall() for name, text in every.items()}


def test_every_read_tells_the_same(copies: tuple[Harness, Harness]) -> None:
    check_same_reads(*copies)


def prune(bus: Harness) -> Any:
    bus.advance(2 * HOUR)
    keep = {"COMPLETED": HOUR, "FAILED": 3 * HOUR}
    preview = bus.bus.prune(keep, preview=True)
    report = bus.bus.prune(keep)
    assert preview.gone == report.gone
    return report.gone


def erase(bus: Harness) -> Any:
    return bus.bus.acting("ann").erase(data={"n": "5"}, reason="asked").erased


def purge(bus: Harness) -> Any:
    return bus.bus.purge(DOMAIN)


def purge_everything(bus: Harness) -> Any:
    return bus.bus.purge()


def refuse(bus: Harness) -> Any:
    """Actions on what has completed."""
    queue = SyncTroubleshootingQueue(bus.bus)
    acts: list[Callable[..., Any]] = [
        bus.bus.cancel,
        queue.operator_retry,
        queue.operator_complete,
        partial(queue.operator_cancel, reason="no use"),
        lambda command_id, domain: bus.bus.reprioritise(command_id, "low", domain=domain),
    ]
    found = []
    for record in paged(bus.bus.query_commands, status="COMPLETED", limit=500):
        for act in acts:
            with pytest.raises(CommandBusError) as caught:
                act(record.command_id, domain=record.domain)
            found.append((type(caught.value), str(caught.value)))
    return found


def claim(bus: Harness) -> Any:
    """Places that another program gave to what has ended, on the transport that has places."""
    with psycopg.connect(bus.configuration.url) as connection:
        connection.execute(
            "insert into commandbus.queue (domain, priority, seq, available_at)"
            " select c.domain, c.priority, c.seq, 0 from commandbus.command c"
            " join commandbus.ended o on o.seq = c.seq"
        )
    return [len(SyncWorker(bus.bus, d).receive(100)) for d in (DOMAIN, OTHER)]


ACTIONS: Mapping[str, Callable[[Harness], Any]] = {
    "prune": prune, "erase": erase, "purge": purge, "purge everything": purge_everything,
    "refuse": refuse, "claim": claim,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIONS)
def test_every_action_does_the_same(copies: tuple[Harness, Harness], name: str) -> None:
    act = ACTIONS[name]
    receipted, rows = copies
    assert act(receipted) == act(rows)
    mine, its = stored(receipted), stored(rows)
    for table, content in mine.items():
        assert content == its[table], table
    for status in (None, *ENDS):
        lists = [paged(bus.bus.query_commands, status=status, limit=500) for bus in copies]
        assert lists[0] == lists[1], status


def test_what_completed_is_sent_again_from_both_shapes(copies: tuple[Harness, Harness]) -> None:
    for one in copies:
        one.bus.acting("ann").resend_many("COMPLETED", domain=OTHER, data={"n": "5"}, reason="again")
    depths = [one.stats(OTHER).depth for one in copies]
    assert depths[0] == depths[1] > 0


def test_a_dump_is_restored_with_both_shapes(copies: tuple[Harness, Harness]) -> None:
    found = server(os.getpid()).binaries.bin_dir
    if found is None or not (found / "pg_dump").exists():
        pytest.skip("there is no pg_dump beside this server")
    source, _ = copies
    target = create_database(server(os.getpid()))
    try:
        dump = [found / "pg_dump", "--format=custom", source.configuration.url]
        dumped = subprocess.run(dump, check=True, capture_output=True, timeout=60).stdout
        restore = [found / "pg_restore", "--exit-on-error", f"--dbname={target}"]
        subprocess.run(restore, check=True, input=dumped, timeout=60)
        restored = replace(source.configuration, url=target).open("threads")
        try:
            check_same_reads(source, restored)
            # Its numbers go on where those of the dump ended.
            newest = source.run(source.store.last_sequence())
            restored.send()
            assert restored.run(restored.store.last_sequence()) > newest
        finally:
            restored.close()
    finally:
        drop_database(server(os.getpid()), target)
