"""A message belongs to whoever read it last: nobody else can end its command or delete it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry, TransientCommandError
from commandbus.domain.outcome import Succeeded
from commandbus.engines.postgres.pgmq.settling import QUICK_MIN
from commandbus.engines.postgres.receipts import MEMBERS_MIN
from commandbus.errors import LeaseLost
from commandbus.store.records import Settlement
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import Harness
from commandbus.testing.waiting import eventually
from tests.pgmq.database import empty_url, pgmq_configuration, shared_url

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

ROOT = Path(__file__).resolve().parents[2]
QUEUE = "orders__commands"


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = pgmq_configuration().open(request.param)
    yield harness
    harness.close()


def sql(query: Any, *params: Any) -> list[Any]:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def messages() -> list[Any]:
    return sql(f"select read_ct from pgmq.q_{QUEUE} order by msg_id")


@pytest.mark.parametrize("ending", ["complete", "fail", "release"])
def test_a_zombie_is_refused_and_the_message_survives(bus: Harness, ending: str) -> None:
    command_id = bus.send()
    zombie, other = bus.worker(name="zombie"), bus.worker(name="other")
    old = bus.take(zombie)
    bus.advance(60)
    new = bus.take(other)
    assert (new.command.command_id, new.attempt) == (command_id, 2)
    argument = (TransientCommandError("X", "x"),) if ending == "fail" else ()
    with pytest.raises(LeaseLost):
        bus.call(getattr(zombie, ending), old, *argument)
    assert messages() == [(2,)]
    assert bus.get(command_id).status is CommandStatus.IN_PROGRESS
    bus.call(other.complete, new, "by the other")
    assert messages() == []
    assert bus.get(command_id).result == "by the other"


def test_a_message_that_another_program_took_away_is_not_ours_to_end(bus: Harness) -> None:
    """The lease is still valid: another client has made the message visible, and read it."""
    command_id = bus.send()
    worker = bus.worker()
    received = bus.take(worker)
    ((number,),) = sql(f"select msg_id from pgmq.q_{QUEUE}")
    sql("select pgmq.set_vt(%s, %s, 0)", QUEUE, number)
    assert len(sql("select * from pgmq.read(%s, 30, 1)", QUEUE)) == 1
    with pytest.raises(LeaseLost):
        bus.call(worker.complete, received)
    assert messages() == [(2,)]
    assert bus.get(command_id).status is not CommandStatus.COMPLETED


@pytest.mark.parametrize("count", [3, 3 * QUICK_MIN, 2 * MEMBERS_MIN])
def test_one_stolen_message_does_not_spoil_the_others_of_its_lease(bus: Harness, count: int) -> None:
    """Few are looked at first; many are trusted, and looked at when the server has undone it."""
    ids = [bus.send(data=n) for n in range(count)]
    worker = bus.worker()
    received = bus.receive(worker, batch_size=count)
    assert len({each.claimed.lease_id for each in received}) == 1
    sql(f"update pgmq.q_{QUEUE} set read_ct = read_ct + 1 where (message ->> 'data')::int = 1")
    settlements = [
        Settlement(each.claimed.seq, each.claimed.lease_id, each.claimed.attempt, Succeeded(None))
        for each in received
    ]
    report = bus.run(bus.store.settle(settlements))
    assert report.lost == (received[1].claimed.seq,)
    assert messages() == [(2,)]
    completed = [bus.get(i).status is CommandStatus.COMPLETED for i in ids]
    assert completed == [True, False, *[True] * (count - 2)]


def test_one_lost_lease_does_not_spoil_the_others_of_a_settle(bus: Harness) -> None:
    for n in range(2 * QUICK_MIN):
        bus.send(data=n)
    worker = bus.worker()
    lost = bus.receive(worker, batch_size=QUICK_MIN)
    good = bus.receive(worker, batch_size=QUICK_MIN)
    sql("delete from commandbus.lease where lease_id = %s", lost[0].claimed.lease_id)
    settlements = [
        Settlement(each.claimed.seq, each.claimed.lease_id, each.claimed.attempt, Succeeded(None))
        for each in [*lost, *good]
    ]
    report = bus.run(bus.store.settle(settlements))
    assert sorted(report.lost) == [each.claimed.seq for each in lost]
    assert messages() == [(1,)] * QUICK_MIN
    assert bus.stats().completed == QUICK_MIN


def test_a_message_that_is_visible_before_its_lease_is_rescued_counts_a_crash(bus: Harness) -> None:
    """As after an outage that outlasts the lease and the time that messages stay hidden longer: here
    the rescue is held up by a lock."""
    command_id = bus.send()
    bus.take(bus.worker(name="dead"), visibility_timeout=5)
    bus.advance(60)
    next_worker = bus.worker(name="next")
    with psycopg.connect(shared_url()) as connection:
        connection.execute("select 1 from commandbus.lease for update")
        assert sql(f"select vt < clock_timestamp() from pgmq.q_{QUEUE}") == [(True,)]
        assert bus.receive(next_worker) == []
    again = bus.take(next_worker)
    assert (again.command.command_id, again.attempt, again.claimed.crashes) == (command_id, 2, 1)
    assert [event.event_type for event in bus.trail(command_id)].count("WORKER_LOST") == 1


def test_a_late_renewal_does_not_hide_what_waits_for_its_next_attempt(bus: Harness) -> None:
    """The renewal was prepared while a command was under the lease, and runs after it went back."""
    for n in range(2):
        bus.send(data=n)
    worker = bus.worker()
    failing, running = bus.receive(worker, batch_size=2)
    lease_id = running.claimed.lease_id
    before = bus.store.context.leases.get(lease_id)
    bus.call(worker.fail, failing, TransientCommandError("X", "x"))
    bus.store.context.leases.keep(before)
    assert bus.run(bus.store.renew([lease_id], 60)) == []
    hidden = f"select (vt > clock_timestamp() + '10 s') from pgmq.q_{QUEUE} order by msg_id"
    assert sql(hidden) == [(False,), (True,)]


def test_a_crash_is_counted_when_the_lease_is_taken_back(bus: Harness) -> None:
    command_id = bus.send()
    for _ in range(3):
        bus.take(bus.worker(), visibility_timeout=5)
        bus.advance(6)
    assert bus.receive(bus.worker()) == []
    record = bus.get(command_id)
    assert (record.status, record.reason) == (CommandStatus.IN_TROUBLESHOOTING_QUEUE, "WORKER_LOST")
    assert messages() == []
    assert sql(f"select count(*) from pgmq.a_{QUEUE}") == [(1,)]


def test_a_message_stays_invisible_for_others_while_its_lease_is_renewed(bus: Harness) -> None:
    bus.send()
    worker = bus.worker()
    received = bus.take(worker, visibility_timeout=20)
    bus.advance(15)
    bus.run(bus.store.renew([received.claimed.lease_id], 20.0))
    bus.advance(15)
    assert sql("select * from pgmq.read(%s, 30, 1)", QUEUE) == []
    bus.call(worker.complete, received)


def test_a_stopped_process_changes_nothing_when_it_goes_on() -> None:
    """SIGSTOP past the visibility timeout, and SIGCONT when another worker has the message."""
    url = empty_url()
    with SyncCommandBus(url, transport="pgmq") as bus:
        sent = bus.send("orders", "ship")
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.pgmq.zombie", url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "started\n"
            child.send_signal(signal.SIGSTOP)
            worker = SyncWorker(bus, "orders", HandlerRegistry())
            taken: list[Any] = []
            eventually(lambda: taken.extend(worker.receive()) or taken)
            child.stdin.write("go on\n")
            child.stdin.flush()
            child.send_signal(signal.SIGCONT)
            assert child.stdout.readline() == "settled 0 lost 1\n"
            assert child.wait(30) == 0
        finally:
            child.kill()
            child.communicate()
        assert messages() == [(2,)]
        worker.complete(taken[0], "by the other")
        record = bus.get_command(sent.command_id)
        assert record is not None
        assert (record.result, record.crashes) == ("by the other", 1)
        assert messages() == []


def test_a_message_that_is_read_again_before_it_is_a_command_becomes_one_command(
    bus: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first reader stood still for longer than the message was invisible."""
    bus.receive(bus.worker())
    sql("select pgmq.send(%s, %s::jsonb)", QUEUE, '{"command_type": "ship"}')
    claimer, taken = bus.store.transport.claimer, list[Any]()
    admit = claimer._admit_others
    with SyncCommandBus(shared_url(), transport="pgmq") as other:

        def late(*args: Any) -> Any:
            bus.advance(60)
            taken.extend(SyncWorker(other, "orders").receive())
            yield from admit(*args)

        monkeypatch.setattr(claimer, "_admit_others", late)
        assert bus.receive(bus.worker()) == []
    assert (len(taken), messages()) == (1, [(2,)])
    assert sql("select command_id from commandbus.command") == [(taken[0].command.command_id,)]
