"""The clients, on both versions of PGMQ and in both runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from commandbus.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidOperationError,
    PayloadError,
)
from commandbus.pgmq import PgmqClient, SyncPgmqClient

pytestmark = [pytest.mark.postgres, pytest.mark.pgmq]


class Calls:
    """Either client by blocking calls: `calls.send("queue", 1)`."""

    def __init__(self, client: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._loop is None:
                return method(*args, **kwargs)
            return self._loop.run_until_complete(method(*args, **kwargs))

        return call


@pytest.fixture(params=["asyncio", "threads"])
def calls(request: pytest.FixtureRequest, versioned_url: str) -> Iterator[Calls]:
    if request.param == "threads":
        with SyncPgmqClient(versioned_url) as client:
            yield Calls(client, None)
        return
    loop = asyncio.new_event_loop()
    awaited = PgmqClient(versioned_url)
    loop.run_until_complete(awaited.__aenter__())
    yield Calls(awaited, loop)
    loop.run_until_complete(awaited.__aexit__(None, None, None))
    loop.close()


@pytest.fixture
def queue(calls: Calls) -> Iterator[str]:
    name = f"q{uuid4().hex[:10]}"
    calls.create(name)
    yield name
    calls.drop(name)


def test_a_message_is_sent_read_and_deleted(calls: Calls, queue: str) -> None:
    number = calls.send(queue, {"a": [1, None, "ü"]}, headers={"trace": 1})
    (message,) = calls.read(queue, vt=30, quantity=5)
    assert (message.msg_id, message.read_ct, message.message) == (number, 1, {"a": [1, None, "ü"]})
    assert message.headers == {"trace": 1}
    assert message.vt > message.enqueued_at
    assert calls.read(queue) == []
    assert calls.delete(queue, number) == [number]
    assert calls.delete(queue, number) == []


def test_many_at_once(calls: Calls, queue: str) -> None:
    numbers = calls.send_batch(queue, [{"n": n} for n in range(5)])
    assert len(numbers) == 5
    headed = calls.send_batch(queue, ["x", "y"], headers=[{"k": 1}, None])
    found = calls.read(queue, quantity=10)
    assert [m.message for m in found] == [*({"n": n} for n in range(5)), "x", "y"]
    assert [m.headers for m in found][5:] == [{"k": 1}, None]
    assert calls.archive(queue, numbers[:2]) == numbers[:2]
    assert sorted(calls.delete(queue, numbers + headed)) == numbers[2:] + headed
    assert calls.send_batch(queue, []) == []


def test_a_delay_hides_a_message_and_set_vt_shows_it(calls: Calls, queue: str) -> None:
    number = calls.send(queue, 1, delay=3_600)
    assert calls.read(queue) == []
    changed = calls.set_vt(queue, number, 0)
    assert changed.msg_id == number
    assert [m.msg_id for m in calls.read(queue)] == [number]
    assert calls.set_vt(queue, number + 100, 0) is None
    calls.send_batch(queue, [1, 2], delay=3_600)
    assert calls.read(queue) == []


def test_pop_takes_one_for_good(calls: Calls, queue: str) -> None:
    calls.send(queue, "once")
    assert calls.pop(queue).message == "once"
    assert calls.pop(queue) is None


def test_a_read_may_wait_for_the_first_message(calls: Calls, queue: str) -> None:
    assert calls.read_with_poll(queue, max_wait=1, poll_interval=0.01) == []
    calls.send(queue, "there")
    assert [m.message for m in calls.read_with_poll(queue, max_wait=5)] == ["there"]


def test_groups_are_read_in_order(calls: Calls, queue: str) -> None:
    for group, n in (("a", 1), ("b", 1), ("a", 2)):
        calls.send(queue, f"{group}{n}", headers={"x-pgmq-group": group})
    assert [m.message for m in calls.read_grouped(queue, quantity=2)] == ["a1", "a2"]
    assert [m.message for m in calls.read_grouped_rr(queue, quantity=2)] == ["b1"]


def test_topics_reach_the_queues_that_are_bound(calls: Calls, queue: str) -> None:
    calls.bind_topic("orders.*", queue)
    assert calls.send_topic("orders.eu", {"n": 1}) == 1
    assert calls.send_topic("invoices.eu", {"n": 2}) == 0
    assert [m.message for m in calls.read(queue, quantity=5)] == [{"n": 1}]
    assert calls.unbind_topic("orders.*", queue) is True
    assert calls.unbind_topic("orders.*", queue) is False


def test_metrics_count(calls: Calls, queue: str) -> None:
    calls.send_batch(queue, [1, 2, 3])
    calls.read(queue)
    found = calls.metrics(queue)
    assert (found.queue_name, found.queue_length, found.queue_visible_length) == (queue, 3, 2)
    assert found.total_messages == 3
    assert queue in [each.queue_name for each in calls.metrics_all()]
    assert calls.purge(queue) == 3
    assert calls.metrics(queue).queue_length == 0


def test_queues_are_created_listed_and_dropped(calls: Calls) -> None:
    name = f"u{uuid4().hex[:10]}"
    calls.create_unlogged(name)
    calls.create_unlogged(name)
    (found,) = [each for each in calls.list_queues() if each.queue_name == name]
    assert (found.is_unlogged, found.is_partitioned) == (True, False)
    assert calls.drop(name) is True
    assert name not in [each.queue_name for each in calls.list_queues()]


def test_a_partitioned_queue_needs_pg_partman(calls: Calls) -> None:
    """Which the servers of these tests do not have: the words are PGMQ's own."""
    with pytest.raises(InvalidOperationError, match=r"refuses this: .*pg_partman"):
        calls.create_partitioned(f"p{uuid4().hex[:10]}")


def test_notifications_are_switched(calls: Calls, queue: str, versioned_url: str) -> None:
    calls.enable_notify(queue, throttle=0)
    with psycopg.connect(versioned_url, autocommit=True) as listener:
        listener.execute(f'listen "pgmq.q_{queue}.INSERT"')
        calls.send(queue, 1)
        heard = list(listener.notifies(timeout=10, stop_after=1))
        assert [each.channel for each in heard] == [f"pgmq.q_{queue}.INSERT"]
        calls.disable_notify(queue)
        calls.send(queue, 2)
        listener.execute(f"notify \"pgmq.q_{queue}.INSERT\", 'last'")
        (after,) = listener.notifies(timeout=10, stop_after=1)
        assert after.payload == "last"


def test_within_a_transaction_of_the_caller(versioned_url: str) -> None:
    with SyncPgmqClient(versioned_url) as client, psycopg.connect(versioned_url) as connection:
        inside = client.within(connection)
        name = f"w{uuid4().hex[:10]}"
        client.create(name)
        inside.send(name, "undone")
        connection.rollback()
        inside.send(name, "done")
        assert client.read(name) == []
        connection.commit()
        assert [m.message for m in client.read(name)] == ["done"]
        client.drop(name)


def test_within_a_transaction_of_an_asyncio_caller(versioned_url: str) -> None:
    async def main() -> None:
        name = f"w{uuid4().hex[:10]}"
        async with PgmqClient(versioned_url) as client:
            await client.create(name)
            async with await psycopg.AsyncConnection.connect(versioned_url) as connection:
                await client.within(connection).send(name, 1)
                assert await client.read(name) == []
            assert len(await client.read(name)) == 1
            await client.drop(name)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["", "1st", "a b", 'x"; drop table y; --', "q" * 48, "a-b", None, 7])
def test_names_are_checked(name: Any, versioned_url: str) -> None:
    with SyncPgmqClient(versioned_url) as client:
        for method in (client.create, client.drop, client.read, client.metrics, client.pop):
            with pytest.raises(InvalidArgumentError, match="47"):
                method(name)


def test_bad_arguments_are_refused(calls: Calls, queue: str) -> None:
    refused: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (calls.read, (queue,), {"quantity": 0}),
        (calls.read, (queue,), {"vt": 0.5}),
        (calls.read, (queue,), {"vt": -1}),
        (calls.read_with_poll, (queue,), {"max_wait": 60}),
        (calls.delete, (queue, "1"), {}),
        (calls.delete, (queue, [0]), {}),
        (calls.send, (queue, 1), {"headers": [1]}),
        (calls.send_batch, (queue, [1, 2]), {"headers": [{}]}),
    ]
    for method, args, kwargs in refused:
        with pytest.raises(InvalidArgumentError):
            method(*args, **kwargs)
    with pytest.raises(PayloadError):
        calls.send(queue, float("nan"))


def test_a_client_needs_a_database_with_pgmq(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        SyncPgmqClient(f"sqlite:///{tmp_path}/x.db")


def test_a_closed_client_says_so(versioned_url: str) -> None:
    client = SyncPgmqClient(versioned_url)
    with pytest.raises(InvalidOperationError):
        client.read("anything")
