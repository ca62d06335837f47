"""Attacks by programs that may send to a PGMQ queue of the bus, and no more: none of them stops a
domain, replays a command, stands for the bus, or makes a record unreadable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus import CommandStatus, HandlerRegistry, TransientCommandError
from commandbus.engines.postgres.pgmq.names import quoted_table
from commandbus.engines.postgres.pgmq.queues import Queue, Texts
from commandbus.errors import InvalidArgumentError
from commandbus.pgmq import QueueMapping
from commandbus.records import REPLY_TYPE
from commandbus.testing import Harness
from commandbus.testing.waiting import eventually
from tests.pgmq.database import pgmq_configuration, shared_url

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

QUEUE = "orders__commands"
ENVELOPE = {"command_type": "ship", "data": "fine"}


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = pgmq_configuration().open(request.param)
    yield harness
    harness.close()


def sql(query: Any, *params: Any) -> list[Any]:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def send(envelope: Any, token: Any = None, queue: str = QUEUE) -> int:
    """A message with a forged token; MSG in it stands for the message's own number, which is the last
    one and 1."""
    last = sql(f"select last_value, is_called from pgmq.q_{QUEUE}_msg_id_seq")[0]
    number = last[0] + last[1]
    headers = None if token is None else json.dumps({"commandbus": token}).replace('"MSG"', str(number))
    sent = sql("select pgmq.send(%s, %s::jsonb, %s::jsonb)", queue, json.dumps(envelope), headers)
    assert sent == [(number,)] or queue != QUEUE
    return int(sent[0][0])


def refusals(queue: str = QUEUE) -> list[str]:
    rows = sql(f"select headers ->> 'commandbus_refused' from pgmq.a_{queue} order by msg_id")
    return [row[0] for row in rows if row[0] is not None]


def readable(bus: Harness) -> int:
    """All that people look at can be read; returns how many commands there are."""
    records = bus.query(domain="orders")
    for record in records:
        bus.trail(record.command_id)
    bus.stats()
    return len(list(records))


SHAPES = [
    [1, "MSG", "abc"],
    [1, "MSG", 99_999_999],
    [1, "MSG", {"a": 1}],
    [1, "MSG", 0, "x"],
    [1, "MSG", -5, -5],
    [1, "MSG", 1e300],
    [1, "MSG", None, [[]]],
    [2**62, "MSG"],
    ["1e2", "MSG"],
    ["\u0661", "MSG"],
    {"0": 1},
    "text",
]


@pytest.mark.alternating
@pytest.mark.parametrize("token", SHAPES, ids=str)
def test_no_token_breaks_a_claim(bus: Harness, token: Any) -> None:
    bus.send(data="first")
    ((seq,),) = sql("select seq from commandbus.command")
    send(ENVELOPE, [seq, *token[1:]] if isinstance(token, list) and token[0] == 1 else token)
    bus.send(data="last")
    worker = bus.worker()
    received = bus.receive(worker, batch_size=10)
    assert sorted(each.command.data for each in received) == ["fine", "first", "last"]
    for each in received:
        bus.call(worker.complete, each)
    assert (bus.stats().completed, readable(bus)) == (3, 3)


def test_a_token_does_not_replay_a_command_that_has_ended(bus: Harness) -> None:
    command_id = bus.send(data="once")
    ((seq,),) = sql("select seq from commandbus.command")
    ((message,),) = sql(f"select message from pgmq.q_{QUEUE}")
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker))
    send(message, [seq, "MSG"])
    assert bus.receive(worker, batch_size=10) == []
    assert bus.get(command_id).status is CommandStatus.COMPLETED
    assert [reason.partition(":")[0] for reason in refusals()] == ["DUPLICATE"]


@pytest.mark.parametrize("read_ct", [0, 1])
def test_a_message_that_is_put_back_does_not_replay_its_command(bus: Harness, read_ct: int) -> None:
    bus.send(data="once")
    ((number, message, headers),) = sql(f"select msg_id, message, headers from pgmq.q_{QUEUE}")
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker))
    sql(
        f"insert into pgmq.q_{QUEUE} (msg_id, read_ct, vt, message, headers) overriding system value"
        " values (%s, %s, now(), %s, %s)",
        number,
        read_ct,
        json.dumps(message),
        json.dumps(headers),
    )
    assert bus.receive(worker, batch_size=10) == []
    assert [reason.partition(":")[0] for reason in refusals()] == ["ENDED"]


def test_a_token_does_not_stand_for_a_command_that_waits(bus: Harness) -> None:
    """Else it would run twice at once: by the forged message and by its own."""
    command_id = bus.send(data="mine")
    ((seq,),) = sql("select seq from commandbus.command")
    send(ENVELOPE, [seq, "MSG"])
    received = bus.receive(bus.worker(), batch_size=10)
    assert [each.command.data for each in received] == ["mine", "fine"]
    assert received[0].command.command_id == command_id
    assert received[1].command.command_id != command_id
    assert readable(bus) == 2


MOMENTS = ["infinity", "-infinity", "290000-01-01", "4713-01-01 BC", "0001-01-01", "9999-12-31 23:59"]


@pytest.mark.alternating
@pytest.mark.parametrize("moment", MOMENTS)
def test_no_time_of_sending_breaks_a_claim_or_a_record(bus: Harness, moment: str) -> None:
    bus.send(data="first")
    sql(
        f"insert into pgmq.q_{QUEUE} (enqueued_at, vt, message) values (%s, now(), %s)",
        moment,
        json.dumps(ENVELOPE),
    )
    worker = bus.worker()
    received = bus.receive(worker, batch_size=10)
    assert [each.command.data for each in received] == ["first", "fine"]
    bus.call(worker.complete, received[1])
    assert readable(bus) == 2
    assert bus.get(received[1].command.command_id).created_at <= bus.now


@pytest.mark.alternating
@pytest.mark.parametrize("moment", [m for m in MOMENTS if m != "9999-12-31 23:59"])
def test_no_visibility_time_breaks_a_claim_or_the_figures(bus: Harness, moment: str) -> None:
    bus.send(data="first")
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker))
    sql(f"insert into pgmq.q_{QUEUE} (vt, message) values (%s, %s)", moment, json.dumps(ENVELOPE))
    assert readable(bus) == 1
    received = bus.receive(worker, batch_size=10)
    assert [each.command.data for each in received] == ["fine"] * (
        moment not in {"infinity", "290000-01-01"}
    )
    assert bus.receive(worker) == []
    assert readable(bus) == 1 + len(received)


@pytest.mark.alternating
@pytest.mark.parametrize("read_ct", [2**31 - 1, 2**31 - 2, 40_000, 32_767, -7, -(2**31)])
def test_no_read_count_breaks_a_claim_or_a_settle(bus: Harness, read_ct: int) -> None:
    own = bus.send(data="own")
    sql(f"update pgmq.q_{QUEUE} set read_ct = %s", read_ct)
    sql(
        f"insert into pgmq.q_{QUEUE} (read_ct, vt, message) values (%s, now(), %s)",
        read_ct,
        json.dumps(ENVELOPE),
    )
    worker = bus.worker()
    first, second = bus.receive(worker, batch_size=10)
    assert [first.command.data, second.command.data] == ["own", "fine"]
    bus.call(worker.complete, first)
    bus.call(worker.fail, second, TransientCommandError("BUSY", "later"))
    assert bus.get(own).status is CommandStatus.COMPLETED
    assert readable(bus) == 2


@pytest.mark.alternating
@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00"]
)
def test_no_time_of_expiry_makes_a_record_unreadable(bus: Harness, moment: str) -> None:
    bus.send(data="first")
    send(ENVELOPE | {"expires_at": moment})
    bus.receive(bus.worker(), batch_size=10)
    assert readable(bus) == 2 - len(refusals())
    assert len(refusals()) == (not moment.endswith("Z"))


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


ODD = {
    "5 MB of data": json.dumps(ENVELOPE | {"data": "x" * 5_000_000}),
    "64 levels": f'{{"command_type": "ship", "data": {nested(64)}}}',
    "65 levels": f'{{"command_type": "ship", "data": {nested(65)}}}',
    "2,000 levels": f'{{"command_type": "ship", "data": {nested(2_000)}}}',
    "a number beyond a double": '{"command_type": "ship", "data": 1e400}',
    "a number of 100,000 digits": f'{{"command_type": "ship", "data": {"9" * 100_000}}}',
    "20,000 keys": json.dumps(ENVELOPE | {f"k{n}": n for n in range(20_000)}),
    "a long type": json.dumps({"command_type": "x" * 100_000}),
    "a domain of others": json.dumps(ENVELOPE | {"domain": "bank"}),
    "a batch of others": json.dumps(ENVELOPE | {"batch_id": str(uuid4())}),
    "many tags": json.dumps(ENVELOPE | {"tags": ["t" * 100] * 5_000}),
    "attempts": json.dumps(ENVELOPE | {"max_attempts": 2**40}),
    "a reply to a domain of others": json.dumps(ENVELOPE | {"reply_to": "others"}),
}
HEADERS = {
    "1 MB": {"h": "x" * 1_000_000},
    "a list": [1],
    "deep": {"h": json.loads(nested(500))},
    "a reason of ours": {"commandbus_refused": "MALFORMED: no"},
}


@pytest.mark.alternating
@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_no_message_stops_the_domain_or_makes_a_record_unreadable(bus: Harness, message: str) -> None:
    bus.send(data="first")
    sql("select pgmq.send(%s, %s::jsonb)", QUEUE, message)
    bus.send(data="last")
    assert {"first", "last"} <= handled(bus)
    assert bus.stats().ready == 0
    assert {record.domain for record in bus.query()} <= {"orders", "others"}


@pytest.mark.alternating
@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_no_headers_stop_the_domain_or_make_a_record_unreadable(bus: Harness, headers: Any) -> None:
    bus.send(data="first")
    message = json.dumps(ENVELOPE)
    sql("select pgmq.send(%s, %s::jsonb, %s::jsonb)", QUEUE, message, json.dumps(headers))
    bus.send(data="last")
    assert {"first", "last"} <= handled(bus)
    assert bus.stats().ready == 0
    assert {record.domain for record in bus.query()} <= {"orders", "others"}


def handled(bus: Harness) -> set[str]:
    """What is received and completed; everything else is refused or parked, and all can be read."""
    worker = bus.worker()
    received = bus.receive(worker, batch_size=10)
    for each in received:
        bus.call(worker.complete, each)
    assert bus.receive(worker) == []
    assert readable(bus) == len(received)
    assert len(received) + len(refusals()) >= 3 or bus.stats().parked == 1
    return {str(each.command.data) for each in received}


def test_thousands_of_messages_that_are_no_commands_do_not_starve_a_command(bus: Harness) -> None:
    bus.send(data="first")
    sql("select pgmq.send_batch(%s, array_fill('[]'::jsonb, array[3000]))", QUEUE)
    command_id = bus.send(data="last")
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with bus.run_worker(registry):
        eventually(lambda: bus.get(command_id).status is CommandStatus.COMPLETED, 30)
    assert len(refusals()) == 3_000


RESERVED = [REPLY_TYPE, "commandbus.signal", "commandbus.control", "commandbus.new"]


@pytest.mark.alternating
@pytest.mark.parametrize("command_type", RESERVED)
def test_types_of_the_bus_itself_are_archived(bus: Harness, command_type: str) -> None:
    bus.send(data="first")
    send({"command_type": command_type, "correlation_id": str(uuid4()), "data": {}})
    (received,) = bus.receive(bus.worker(), batch_size=10)
    assert received.command.data == "first"
    (reason,) = refusals()
    assert reason.startswith(f"MALFORMED: command_type '{command_type}' is reserved")


def test_a_forged_reply_to_a_reply_queue_is_archived_and_a_real_one_arrives(bus: Harness) -> None:
    bus.send(reply_to="answers")
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker), "done")
    forged = {"command_type": REPLY_TYPE, "data": {"outcome": "SUCCESS", "result": "forged"}}
    send(forged, queue="answers__replies")
    (received,) = bus.receive(bus.worker("answers"), batch_size=10)
    assert received.command.data["result"] == "done"
    assert len(refusals("answers__replies")) == 1


def test_an_adopted_queue_does_not_bring_types_of_the_bus_itself(bus: Harness) -> None:
    queue = f"legacy_{uuid4().hex[:8]}"
    sql("select pgmq.create(%s)", queue)
    try:
        with pytest.raises(InvalidArgumentError, match="reserved"):
            bus.call(
                bus.bus.adopt_queue,
                "orders",
                queue,
                QueueMapping(types={"x": REPLY_TYPE}, type_field="t"),
            )
        bus.call(bus.bus.adopt_queue, "orders", queue, QueueMapping(type_field="t"))
        send({"t": REPLY_TYPE}, queue=queue)
        assert bus.receive(bus.worker(), batch_size=10) == []
        assert len(refusals(queue)) == 1
    finally:
        sql("delete from commandbus.pgmq_queue where queue = %s", queue)
        sql("select pgmq.drop_queue(%s)", queue)


def test_names_in_the_text_of_statements_are_quoted() -> None:
    """A role that may write the table of queues reaches no statement of a worker with other rights."""
    name = "x'; drop table commandbus.command; --\""
    text = Texts("commandbus", last_read_at=True)
    for statement in ("draw", "draw_again", "next_of"):
        made = text.of_one(statement, Queue(1, "orders__commands", name, 5, False, None, "1"))
        assert name not in made
        assert name.replace("'", "''") in made
    with pytest.raises(InvalidArgumentError):
        quoted_table("q", name)


def test_a_payload_that_pgmq_cannot_keep_does_not_stop_the_domain(bus: Harness) -> None:
    """Written to the engine's own tables, past all checks, and on its way into the queue."""
    bus.send(data="first")
    sql(
        "insert into commandbus.command (seq, command_id, domain, command_type, data, correlation_id,"
        " priority, created_at, due_at) select 1000, gen_random_uuid(), domain, command_type,"
        " '1e200000', correlation_id, priority, created_at, due_at from commandbus.command"
    )
    sql(
        "insert into commandbus.queue (domain, priority, seq, available_at, attempts, crashes,"
        " releases, keyed) select domain, priority, seq, 0, 0, 0, 0, false from commandbus.command"
        " where seq = 1000"
    )
    registry = HandlerRegistry()
    registry.register("orders", "ship", lambda command, context: None)
    with bus.run_worker(registry):
        eventually(lambda: (bus.stats().completed, bus.stats().parked) == (1, 1))
    assert sql("select count(*) from commandbus.queue") == [(0,)]


@pytest.fixture
def poison(bus: Harness) -> Iterator[Callable[[str, str], None]]:
    """Lets a table refuse rows of a kind, whatever the reason may be."""
    bus.send("orders")
    sql(f"truncate pgmq.q_{QUEUE}, commandbus.command, commandbus.pgmq_message")
    sql(
        "create function pgmq.poison() returns trigger language plpgsql as"
        " $$ begin raise exception 'poisoned' using errcode = 'numeric_value_out_of_range'; end $$"
    )

    def refuse(writing: str, rows: str) -> None:
        sql(
            f"create trigger poison before {writing} for each row when ({rows})"
            " execute function pgmq.poison()"
        )

    yield refuse
    sql("drop function pgmq.poison() cascade")


def refuse_reads(poison: Callable[[str, str], None]) -> None:
    poison(f"update on pgmq.q_{QUEUE}", "old.message ->> 'data' = 'poison'")


def refuse_commands(poison: Callable[[str, str], None]) -> None:
    poison("insert on commandbus.command", "new.data = '\"poison\"'")


@pytest.mark.parametrize("harm", [refuse_reads, refuse_commands])
def test_a_message_that_breaks_every_claim_is_archived_alone(
    bus: Harness, poison: Any, harm: Callable[[Any], None]
) -> None:
    harm(poison)
    bus.send(data="first")
    send({"command_type": "ship", "data": "poison"})
    send({"command_type": "ship", "data": "fine"})
    bus.send(data="last")
    worker = bus.worker()
    received = bus.receive(worker, batch_size=10)
    assert sorted(each.command.data for each in received) == ["fine", "first", "last"]
    (reason,) = refusals()
    assert reason.startswith("UNREADABLE: ")
    assert "poisoned" in reason
    for each in received:
        bus.call(worker.complete, each)
    assert bus.receive(worker) == []


def test_a_command_whose_message_breaks_every_claim_is_parked(bus: Harness, poison: Any) -> None:
    refuse_reads(poison)
    bus.send(data="first")
    command_id = bus.send(data="poison")
    worker = bus.worker()
    assert [each.command.data for each in bus.receive(worker, batch_size=10)] == ["first"]
    record = bus.get(command_id)
    assert (record.status, record.reason) == (CommandStatus.IN_TROUBLESHOOTING_QUEUE, "UNREADABLE")
    assert record.error is not None
    assert "poisoned" in record.error.message
    assert sql(f"select count(*) from pgmq.a_{QUEUE}") == [(1,)]
