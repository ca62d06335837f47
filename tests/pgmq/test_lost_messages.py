"""Messages that other programs delete, archive or read while their commands run: the lease ends, other
claims go on, and no command stays IN_PROGRESS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from commandbus import CommandStatus
from commandbus.domain.outcome import Succeeded
from commandbus.engines.postgres.pgmq.rounds import INTERVAL_SECONDS, PIECE, WHOLE_EVERY, Rounds
from commandbus.engines.postgres.pgmq.settling import PgmqSettler
from commandbus.store.op import Statement
from commandbus.store.records import Settlement
from commandbus.testing import Harness
from tests.pgmq.database import pgmq_configuration, shared_url

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

QUEUE = "orders__commands"
LEASE_SECONDS = 5


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = pgmq_configuration().open(request.param)
    yield harness
    harness.close()


def sql(query: Any, *params: Any) -> list[Any]:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def message_ids() -> list[int]:
    return [row[0] for row in sql(f"select msg_id from pgmq.q_{QUEUE} order by msg_id")]


def delete(numbers: list[int]) -> None:
    assert len(sql("select * from pgmq.delete(%s, %s::bigint[])", QUEUE, numbers)) == len(numbers)


def archive(numbers: list[int]) -> None:
    assert len(sql("select * from pgmq.archive(%s, %s::bigint[])", QUEUE, numbers)) == len(numbers)


def read_again(numbers: list[int]) -> None:
    """As pgmq.set_vt and pgmq.read by another program."""
    sql(
        f"update pgmq.q_{QUEUE} set read_ct = read_ct + 1, vt = clock_timestamp() + '1 minute'"
        " where msg_id = any (%s)",
        numbers,
    )


REMOVALS = pytest.mark.parametrize("remove", [delete, archive])


def claim(bus: Harness, count: int) -> list[Any]:
    for n in range(count):
        bus.send(data=n)
    received = bus.receive(bus.worker(name="dead"), batch_size=count, visibility_timeout=LEASE_SECONDS)
    assert len({each.claimed.lease_id for each in received}) == 1
    return received


def leases() -> int:
    return int(sql("select count(*) from commandbus.lease")[0][0])


@pytest.mark.alternating
@REMOVALS
@pytest.mark.parametrize("gone", [1, 3])
def test_commands_whose_messages_are_gone_when_their_lease_ends_run_again(
    bus: Harness, remove: Callable[[list[int]], None], gone: int
) -> None:
    received = claim(bus, 3)
    remove(message_ids()[:gone])
    bus.advance(LEASE_SECONDS + 1)
    worker = bus.worker(name="next")
    again = bus.receive(worker, batch_size=10)
    assert sorted(each.command.data for each in again) == [0, 1, 2]
    assert {each.attempt for each in again} == {2}
    assert {each.claimed.crashes for each in again} == {1}
    for each in again:
        bus.call(worker.complete, each)
    assert {bus.get(each.command.command_id).status for each in received} == {CommandStatus.COMPLETED}
    assert (message_ids(), leases()) == ([], 0)


def test_the_audit_says_that_a_message_was_gone(bus: Harness, caplog: pytest.LogCaptureFixture) -> None:
    (received,) = claim(bus, 1)
    delete(message_ids())
    bus.advance(LEASE_SECONDS + 1)
    bus.take(bus.worker(name="next"))
    command_id = received.command.command_id
    notes = [event.details.get("reason") for event in bus.trail(command_id)]
    assert notes.count("MESSAGE_GONE") == 1
    assert f"the message of command {command_id} is gone" in caplog.text


def test_a_command_whose_message_goes_again_and_again_is_parked(bus: Harness) -> None:
    (received,) = claim(bus, 1)
    for _ in range(3):
        delete(message_ids())
        bus.advance(LEASE_SECONDS + 1)
        bus.receive(bus.worker(name="next"), visibility_timeout=LEASE_SECONDS)
    record = bus.get(received.command.command_id)
    assert (record.status, record.reason) == (CommandStatus.IN_TROUBLESHOOTING_QUEUE, "WORKER_LOST")
    assert (message_ids(), leases()) == ([], 0)


@pytest.mark.parametrize("read", [1, 3])
def test_messages_that_another_program_read_come_back_when_it_lets_them_go(
    bus: Harness, read: int
) -> None:
    claim(bus, 3)
    read_again(message_ids()[:read])
    bus.advance(LEASE_SECONDS + 1)
    worker = bus.worker(name="next")
    first = bus.receive(worker, batch_size=10, visibility_timeout=300)
    assert sorted(each.command.data for each in first) == list(range(read, 3))
    assert leases() == (read < 3)
    bus.advance(60)
    rest = bus.receive(worker, batch_size=10)
    assert sorted(each.command.data for each in rest) == list(range(read))
    assert {each.attempt for each in rest} == {3}


@pytest.mark.parametrize("harm", [delete, archive, read_again])
def test_a_dead_lease_is_not_in_the_way_of_other_domains(
    bus: Harness, harm: Callable[[list[int]], None]
) -> None:
    claim(bus, 2)
    harm(message_ids())
    other = bus.send("billing", "charge")
    bus.advance(LEASE_SECONDS + 1)
    assert bus.take(bus.worker("billing")).command.command_id == other
    assert leases() == 1


def test_a_command_that_ended_elsewhere_is_not_brought_back(bus: Harness) -> None:
    """An older lease of a command that a later one has ended, as a crash between the two leaves it."""
    (received,) = claim(bus, 1)
    sql(f"update pgmq.q_{QUEUE} set vt = 'epoch'")
    worker = bus.worker(name="next")
    with_old_lease = bus.take(worker)
    assert with_old_lease.attempt == 2
    bus.call(worker.complete, with_old_lease)
    bus.advance(LEASE_SECONDS + 1)
    assert bus.receive(worker) == []
    assert (message_ids(), leases()) == ([], 0)
    assert bus.get(received.command.command_id).status is CommandStatus.COMPLETED


def test_a_command_that_runs_under_another_lease_is_not_brought_back(bus: Harness) -> None:
    claim(bus, 1)
    sql(f"update pgmq.q_{QUEUE} set vt = 'epoch'")
    bus.take(bus.worker(name="next"), visibility_timeout=300)
    delete(message_ids())
    bus.advance(LEASE_SECONDS + 1)
    assert bus.receive(bus.worker(name="third")) == []
    assert (message_ids(), leases()) == ([], 1)


def test_commands_of_a_dropped_queue_come_back_in_a_new_one(bus: Harness) -> None:
    bus.send("parcels", "ship", 7)
    bus.receive(bus.worker("parcels", name="dead"), visibility_timeout=LEASE_SECONDS)
    sql("select pgmq.drop_queue('parcels__commands')")
    other = bus.send("billing", "charge")
    bus.advance(LEASE_SECONDS + 1)
    assert bus.take(bus.worker("billing")).command.command_id == other
    assert bus.take(bus.worker("parcels")).command.data == 7


def test_a_queue_that_is_made_again_gives_no_number_twice(bus: Harness) -> None:
    """Else what an operator does about a command of the dropped one would hit another command."""
    old = bus.send("parcels", "ship", 1)
    sql("select pgmq.drop_queue('parcels__commands')")
    new = bus.send("parcels", "ship", 2)
    bus.cancel(old, domain="parcels")
    assert bus.take(bus.worker("parcels")).command.command_id == new


def test_a_lease_that_cannot_be_taken_back_stops_nothing_else(
    bus: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A net for what is not foreseen: the other leases are taken back, and claims go on."""
    poisoned, good = claim(bus, 1)[0], claim(bus, 1)[0]
    fine = PgmqSettler.still_held

    def still_held(settler: Any, members: Any) -> Any:
        if any(member.seq == poisoned.claimed.seq for member in members):
            yield Statement("select 1 / 0")
        return (yield from fine(settler, members))

    monkeypatch.setattr(PgmqSettler, "still_held", still_held)
    bus.advance(LEASE_SECONDS + 1)
    assert bus.take(bus.worker(name="next")).command.command_id == good.command.command_id
    assert f"lease {poisoned.claimed.lease_id} has ended and cannot be taken back" in caplog.text
    assert leases() == 2


@pytest.mark.alternating
@REMOVALS
@pytest.mark.parametrize("gone", [1, 3])
def test_a_worker_ends_commands_whose_messages_are_gone_while_its_lease_is_valid(
    bus: Harness, remove: Callable[[list[int]], None], gone: int
) -> None:
    """Nobody else can have them, so the outcome counts, and nothing runs twice."""
    received = claim(bus, 3)
    remove(message_ids()[:gone])
    settlements = [
        Settlement(each.claimed.seq, each.claimed.lease_id, each.claimed.attempt, Succeeded(None))
        for each in received[:2]
    ]
    assert bus.run(bus.store.settle(settlements)).lost == ()
    assert bus.stats().completed == 2
    assert bus.receive(bus.worker(name="next"), batch_size=10) == []
    bus.advance(LEASE_SECONDS + 1)
    (last,) = bus.receive(bus.worker(name="next"), batch_size=10)
    assert last.command.command_id == received[2].command.command_id


@REMOVALS
def test_a_command_whose_message_was_removed_while_it_waited_can_be_canceled(
    bus: Harness, remove: Callable[[list[int]], None]
) -> None:
    command_id = bus.send()
    remove(message_ids())
    bus.cancel(command_id)
    assert bus.get(command_id).status is CommandStatus.CANCELED


@REMOVALS
def test_a_command_whose_message_was_removed_while_it_waited_is_parked(
    bus: Harness, remove: Callable[[list[int]], None]
) -> None:
    removed, running, waiting = bus.send(data=1), bus.send(data=2), bus.send(data=3)
    late = bus.send(data=4, delay=60)
    remove(message_ids()[:1])
    bus.store.transport.claimer._rounds = Rounds()
    worker = bus.worker()
    assert bus.take(worker).command.command_id == running
    record = bus.get(removed)
    assert (record.status, record.reason) == (CommandStatus.IN_TROUBLESHOOTING_QUEUE, "MESSAGE_GONE")
    assert record.error is not None
    assert "removed it while the command waited" in record.error.message
    statuses = [bus.get(command_id).status for command_id in (running, waiting, late)]
    assert statuses == [CommandStatus.IN_PROGRESS, CommandStatus.PENDING, CommandStatus.PENDING]
    bus.operator_retry(removed)
    received = bus.receive(worker, batch_size=10)
    assert sorted(each.command.data for each in received) == [1, 3]


def test_commands_of_domains_without_a_worker_of_the_bus_are_left_to_other_programs(
    bus: Harness,
) -> None:
    command_id = bus.send()
    delete(message_ids())
    bus.store.transport.claimer._rounds = Rounds()
    bus.receive(bus.worker("billing"))
    assert bus.get(command_id).status is CommandStatus.IN_PROGRESS


def test_rounds_go_on_where_commands_are_open() -> None:
    rounds, now = Rounds(), 0.0

    def look(last: int | None, first_open: int | None) -> int:
        nonlocal now
        now += INTERVAL_SECONDS
        piece = rounds.piece(now)
        assert piece is not None
        assert piece[1] == PIECE
        assert rounds.piece(now) is None
        rounds.looked(last, first_open)
        return piece[0]

    assert look(1_000, None) == 0
    assert look(1_500, 1_200) == 1_000
    assert look(None, None) == 1_500
    assert look(1_500, None) == 1_199
    assert look(None, None) == 1_500
    assert look(None, None) == 1_500
    assert 0 in [look(None, None) for _ in range(WHOLE_EVERY)]
    idle = rounds.piece(now + 3 * INTERVAL_SECONDS)
    assert idle is not None
    assert idle[1] == 3 * PIECE
