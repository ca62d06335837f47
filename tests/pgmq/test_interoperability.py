"""PGMQ both ways: what others send runs as commands, and what the bus sends others can read."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pgmq import PGMQueue

from commandbus import CommandStatus, HandlerRegistry, TransientCommandError
from commandbus.errors import InvalidArgumentError, InvalidOperationError
from commandbus.pgmq import QueueMapping
from commandbus.records import REPLY_TYPE
from commandbus.sync import SyncCommandBus, SyncWorker
from commandbus.testing import Harness
from commandbus.testing.waiting import eventually
from tests.pgmq.database import empty_url, pgmq_configuration, shared_url

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]

QUEUE = "orders__commands"


@pytest.fixture(params=["asyncio", "threads"])
def bus(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = pgmq_configuration().open(request.param)
    yield harness
    harness.close()


@pytest.fixture
def others() -> Iterator[PGMQueue]:
    """The client that the makers of PGMQ publish."""
    parts = psycopg.conninfo.conninfo_to_dict(shared_url())
    client = PGMQueue(
        host=str(parts["host"]),
        port=str(parts.get("port", 5432)),
        database=str(parts["dbname"]),
        username=str(parts["user"]),
        password=str(parts.get("password", "")),
        init_extension=False,
    )
    yield client
    client.close()


def sql(query: Any, *params: Any) -> list[Any]:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        cursor = connection.execute(query, params)
        return cursor.fetchall() if cursor.description else []


def registry_of(function: Any, command_type: str = "ship") -> HandlerRegistry:
    registry = HandlerRegistry()
    registry.register("orders", command_type, function)
    return registry


def serve(bus: Harness) -> None:
    """A claim creates the queue of a domain that was never sent to."""
    bus.receive(bus.worker("orders"))


def test_a_thousand_messages_of_another_client_are_handled_once_each(
    bus: Harness, others: PGMQueue
) -> None:
    serve(bus)
    messages = [{"command_type": "ship", "data": {"order": n}} for n in range(1_000)]
    for first in range(0, 1_000, 100):
        others.send_batch(QUEUE, messages[first : first + 100])
    seen: Counter[int] = Counter()

    def ship(command: Any, context: Any) -> None:
        seen[command.data["order"]] += 1

    with bus.run_worker(registry_of(ship), concurrency=8):
        eventually(lambda: bus.stats().completed == 1_000)
    assert seen == Counter(range(1_000))
    assert sql(f"select count(*) from pgmq.q_{QUEUE}") == [(0,)]


def test_plain_sql_sends_a_command_with_all_its_columns(bus: Harness) -> None:
    serve(bus)
    command_id, cause = uuid4(), uuid4()
    envelope = {
        "command_type": "ship",
        "command_id": str(command_id),
        "correlation_id": str(cause),
        "causation_id": str(cause),
        "reply_to": "answers",
        "max_attempts": 7,
        "tags": ["express"],
        "expires_at": "2999-01-01T00:00:00Z",
        "data": {"order": 7},
    }
    sql("select pgmq.send(%s, %s::jsonb, %s::jsonb)", QUEUE, json.dumps(envelope), '{"trace": "t-1"}')
    worker = bus.worker("orders")
    received = bus.take(worker)
    assert received.command.data == {"order": 7}
    assert (received.attempt, received.max_attempts) == (1, 7)
    record = bus.get(command_id)
    assert record.status is CommandStatus.IN_PROGRESS
    assert (record.correlation_id, record.causation_id) == (cause, cause)
    assert (record.tags, record.headers) == (("express",), {"trace": "t-1"})
    bus.call(worker.complete, received, {"parcel": 1})
    assert bus.get(command_id).result == {"parcel": 1}
    assert bus.kinds(command_id) == ["SENT", "RECEIVED", "COMPLETED"]
    ((reply, headers),) = sql("select message, headers from pgmq.q_answers__replies")
    assert reply["command_type"] == REPLY_TYPE
    assert reply["data"]["outcome"] == "SUCCESS"
    assert reply["data"]["result"] == {"parcel": 1}
    assert "commandbus" in headers


def test_another_client_reads_what_the_bus_sends(bus: Harness, others: PGMQueue) -> None:
    correlation_id = uuid4()
    command_id = bus.send(
        "orders", "ship", {"order": 1}, correlation_id=correlation_id, headers={"trace": "t-2"}
    )
    message = others.read(QUEUE, vt=30)
    assert message is not None
    assert message.message["command_id"] == str(command_id)
    assert message.message["correlation_id"] == str(correlation_id)
    assert message.message["domain"] == "orders"
    assert message.message["command_type"] == "ship"
    assert message.message["data"] == {"order": 1}
    assert message.headers is not None
    assert message.headers["trace"] == "t-2"


def test_a_foreign_message_is_retried_and_parked_like_a_command(bus: Harness) -> None:
    serve(bus)
    sql("select pgmq.send(%s, %s::jsonb)", QUEUE, '{"command_type": "ship", "max_attempts": 2}')
    worker = bus.worker("orders")
    first = bus.take(worker)
    bus.call(worker.fail, first, TransientCommandError("BUSY", "later"))
    bus.advance(3_600)
    second = bus.take(worker)
    assert (second.command.command_id, second.attempt) == (first.command.command_id, 2)
    bus.call(worker.fail, second, TransientCommandError("BUSY", "later"))
    assert bus.get(first.command.command_id).status is CommandStatus.IN_TROUBLESHOOTING_QUEUE
    assert sql(f"select count(*) from pgmq.q_{QUEUE}") == [(0,)]
    assert sql(f"select count(*) from pgmq.a_{QUEUE}") == [(1,)]
    bus.operator_retry(first.command.command_id)
    third = bus.take(worker)
    assert (third.command.command_id, third.attempt) == (first.command.command_id, 1)


BAD = [
    "5",
    "null",
    "[]",
    '{"data": 1}',
    '{"command_type": "no spaces allowed"}',
    '{"command_type": "ship", "command_id": "x"}',
    '{"command_type": "ship", "max_attempts": 0}',
    '{"command_type": "ship", "expires_at": "soon"}',
    '{"command_type": "ship", "tags": "one"}',
]


def test_an_invalid_message_is_archived_and_reported_and_the_worker_continues(
    bus: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    serve(bus)
    for message in BAD:
        sql("select pgmq.send(%s, %s::jsonb)", QUEUE, message)
    sql(
        "select pgmq.send(%s, %s::jsonb, %s::jsonb)",
        QUEUE,
        '{"command_type": "ship", "data": "fine"}',
        '{"commandbus": ["999999999999999999999999", "1"]}',
    )
    worker = bus.worker("orders")
    (received,) = bus.receive(worker, batch_size=50)
    assert received.command.data == "fine"
    rows = sql(f"select headers ->> 'commandbus_refused' from pgmq.a_{QUEUE} order by msg_id")
    assert len(rows) == len(BAD)
    assert all(row[0].startswith("MALFORMED: ") for row in rows)
    assert caplog.text.count("is archived, because it is no command") == len(BAD)


@pytest.mark.parametrize(
    "token", ['["", "1"]', '["x", 1]', '["-1", 1]', f'["{"9" * 24}", 1]', "[null, 1]", "[4711, 1]", "7"]
)
def test_a_token_that_is_not_ours_does_not_stand_for_a_command(bus: Harness, token: str) -> None:
    serve(bus)
    sql(
        "insert into pgmq.q_orders__commands (msg_id, vt, message, headers) overriding system value"
        " values (1, now(), %s::jsonb, jsonb_build_object('commandbus', %s::jsonb))",
        '{"command_type": "ship", "data": "fine"}',
        token,
    )
    worker = bus.worker("orders")
    received = bus.take(worker)
    assert received.command.data == "fine"
    bus.call(worker.complete, received)
    assert bus.get(received.command.command_id).status is CommandStatus.COMPLETED


def test_a_second_message_with_a_known_id_is_archived(bus: Harness) -> None:
    command_id = bus.send("orders", "ship", 1)
    sql(
        "insert into pgmq.q_orders__commands (vt, message, headers)"
        " select vt, message, headers from pgmq.q_orders__commands"
    )
    worker = bus.worker("orders")
    (received,) = bus.receive(worker, batch_size=10)
    assert received.command.command_id == command_id
    bus.call(worker.complete, received)
    ((reason,),) = sql(f"select headers ->> 'commandbus_refused' from pgmq.a_{QUEUE}")
    assert reason.startswith("DUPLICATE: ")


def test_a_message_that_is_restored_after_its_end_does_not_run_again(bus: Harness) -> None:
    command_id = bus.send("orders", "ship", 1)
    sql("create table if not exists kept as select * from pgmq.q_orders__commands")
    worker = bus.worker("orders")
    bus.call(worker.complete, bus.take(worker))
    sql(
        "insert into pgmq.q_orders__commands (msg_id, read_ct, vt, message, headers)"
        " overriding system value select msg_id, 1, vt, message, headers from kept"
    )
    sql("drop table kept")
    assert bus.receive(worker) == []
    assert bus.get(command_id).status is CommandStatus.COMPLETED


def test_priorities_are_queues_read_in_order(bus: Harness) -> None:
    for priority in ("low", "normal", "high", -3):
        bus.send("orders", "ship", priority, priority=priority)
    names = {row[0] for row in sql("select queue_name from pgmq.meta")}
    assert {QUEUE, f"{QUEUE}_p0", f"{QUEUE}_p10", f"{QUEUE}_n3"} <= names
    received = bus.receive(bus.worker("orders"), batch_size=10)
    assert [each.command.data for each in received] == [-3, "high", "normal", "low"]


def test_a_running_worker_finds_a_priority_that_is_new() -> None:
    """Its queue is created by another process after the worker has begun."""
    url = empty_url()
    domain = f"d{uuid4().hex[:8]}"
    seen: list[Any] = []
    registry = HandlerRegistry()
    registry.register(domain, "ship", lambda command, context: seen.append(command.data))
    with (
        SyncCommandBus(url, transport="pgmq") as sender,
        SyncCommandBus(url, transport="pgmq") as receiver,
    ):
        worker = SyncWorker(receiver, domain, registry)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: worker.is_running)
            sent = sender.send(domain, "ship", 1, priority=77)
            assert sender.wait(sent.command_id, 10).status is CommandStatus.COMPLETED
        finally:
            worker.stop()
            thread.join(30)
    assert seen == [1]


def test_what_others_send_wakes_a_worker_at_once(bus: Harness) -> None:
    with bus.run_worker(registry_of(lambda command, context: None), poll_interval=60) as running:
        running.wait_until_idle()
        sql("select pgmq.send(%s, %s::jsonb)", QUEUE, '{"command_type": "ship"}')
        eventually(lambda: bus.stats().completed == 1)
        assert running.metrics.wakeups["notify"] >= 1


def test_what_waits_in_queues_is_found_by_its_status(bus: Harness) -> None:
    running, waiting = bus.send(data=1), bus.send(data=2)
    bus.take(bus.worker())
    assert [r.command_id for r in bus.query(status="PENDING")] == [waiting]
    assert [r.command_id for r in bus.query(status="IN_PROGRESS")] == [running]


def test_what_is_pruned_leaves_no_place_behind(bus: Harness) -> None:
    bus.send(data=1)
    kept = bus.send(data=2)
    worker = bus.worker()
    bus.call(worker.complete, bus.take(worker))
    bus.run(bus.store.prune({"COMPLETED": 2**62}, 0, 100))
    assert sql("select count(*) from commandbus.pgmq_message") == [(1,)]
    assert bus.get(kept).status is CommandStatus.PENDING


class TestAdopted:
    """A queue of plain JSON, whose senders know nothing of the bus."""

    @pytest.fixture
    def queue(self, bus: Harness) -> Iterator[str]:
        name = f"legacy_{uuid4().hex[:8]}"
        sql("select pgmq.create(%s)", name)
        yield name
        sql("delete from commandbus.pgmq_queue where queue = %s", name)
        sql("select pgmq.drop_queue(%s)", name)

    def test_its_messages_become_commands(self, bus: Harness, queue: str) -> None:
        mapping = QueueMapping(
            type_field="event.kind",
            types={"order-shipped": "shipped"},
            command_type="other",
            data_field="body",
        )
        bus.call(bus.bus.adopt_queue, "orders", queue, mapping)
        shipped = {"event": {"kind": "order-shipped"}, "body": {"order": 1}}
        sql("select pgmq.send(%s, %s::jsonb)", queue, json.dumps(shipped))
        sql("select pgmq.send(%s, %s::jsonb)", queue, json.dumps({"body": [2]}))
        worker = bus.worker("orders")
        received = bus.receive(worker, batch_size=5)
        assert [(r.command.command_type, r.command.data) for r in received] == [
            ("shipped", {"order": 1}),
            ("other", [2]),
        ]
        bus.call(worker.fail, received[0], TransientCommandError("BUSY", "later"))
        bus.call(worker.complete, received[1])
        bus.advance(3_600)
        (again,) = bus.receive(worker, batch_size=5)
        assert (again.command.command_id, again.attempt) == (received[0].command.command_id, 2)
        bus.call(worker.complete, again)
        assert bus.kinds(again.command.command_id).count("FAILED") == 1
        assert sql("select queue_length from pgmq.metrics(%s)", queue) == [(0,)]

    def test_messages_that_were_there_before_are_taken_whole(self, bus: Harness, queue: str) -> None:
        sql("select pgmq.send(%s, %s::jsonb)", queue, '{"anything": true}')
        bus.call(bus.bus.adopt_queue, "orders", queue, QueueMapping(command_type="legacy"))
        assert bus.take(bus.worker("orders")).command.data == {"anything": True}

    def test_a_repeated_id_is_done_once(self, bus: Harness, queue: str) -> None:
        mapping = QueueMapping(command_type="legacy", id_field="id")
        bus.call(bus.bus.adopt_queue, "orders", queue, mapping)
        message = json.dumps({"id": str(uuid4())})
        sql("select pgmq.send(%s, %s::jsonb)", queue, message)
        sql("select pgmq.send(%s, %s::jsonb)", queue, message)
        assert len(bus.receive(bus.worker("orders"), batch_size=5)) == 1

    def test_it_wakes_a_worker(self, bus: Harness, queue: str) -> None:
        bus.call(bus.bus.adopt_queue, "orders", queue, QueueMapping(command_type="ship"))
        with bus.run_worker(registry_of(lambda command, context: None)) as running:
            running.wait_until_idle()
            sql("select pgmq.send(%s, '{}'::jsonb)", queue)
            eventually(lambda: bus.stats().completed == 1)
            assert running.metrics.wakeups["notify"] >= 1

    def test_what_cannot_be_adopted_is_refused(self, bus: Harness, queue: str) -> None:
        adopt = bus.bus.adopt_queue
        mapping = QueueMapping(command_type="ship")
        for bad in ("nothing_here", 'a"; drop table x; --', ""):
            with pytest.raises(InvalidArgumentError):
                bus.call(adopt, "orders", bad, mapping)
        with pytest.raises(InvalidArgumentError, match="type_field"):
            bus.call(adopt, "orders", queue, QueueMapping())
        with pytest.raises(InvalidArgumentError, match="QueueMapping"):
            bus.call(adopt, "orders", queue, {"command_type": "ship"})
        bus.call(adopt, "orders", queue, mapping)
        with pytest.raises(InvalidArgumentError, match="bound to the domain orders"):
            bus.call(adopt, "billing", queue, mapping)

    def test_other_engines_say_that_they_have_no_queues(self) -> None:
        with SyncCommandBus("memory://") as bus, pytest.raises(InvalidOperationError, match="pgmq"):
            bus.adopt_queue("orders", "legacy", QueueMapping(command_type="ship"))


def test_pgmqs_own_notifications_serve_where_there_is_no_trigger_of_ours() -> None:
    """As on a queue that belongs to a role who does not let us make one."""
    url = empty_url()
    domain = f"d{uuid4().hex[:8]}"
    queue = f"{domain}__commands"
    registry = HandlerRegistry()
    registry.register(domain, "ship", lambda command, context: None)
    with SyncCommandBus(url, transport="pgmq") as bus:
        worker = SyncWorker(bus, domain, registry, poll_interval=60)
        worker.receive()
        sql(f"drop trigger commandbus_tell on pgmq.q_{queue}")
        sql("select pgmq.enable_notify_insert(%s, 400)", queue)
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: f"pgmq.q_{queue}.INSERT" in bus.engine._listener._heard)  # type: ignore[attr-defined]
            # A worker whose first claim is still under way finds the commands without a notification.
            eventually(lambda: worker._core.idle)
            for _ in range(3):  # the second and third within the throttle, that is, in silence
                sql("select pgmq.send(%s, %s::jsonb)", queue, '{"command_type": "ship"}')
            eventually(lambda: bus.stats(domain).completed == 3)
        finally:
            worker.stop()
            thread.join(30)
        assert worker.metrics.wakeups["notify"] >= 1
