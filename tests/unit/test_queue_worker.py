"""The worker of a queue in memory: order, errors, contexts and its end."""

from __future__ import annotations

import contextvars
import logging
import threading
from typing import Any

import pytest

from commandbus import PriorityDelayQueue, QueueWorker
from commandbus.errors import ConfigurationError, InvalidArgumentError, InvalidOperationError
from commandbus.testing.waiting import eventually

Queue = PriorityDelayQueue[Any]


def test_a_queue_worker_handles_items_in_order_in_one_daemon_thread() -> None:
    queue, handled = Queue(), list[Any]()
    threads = set[threading.Thread]()

    def handle(item: Any) -> None:
        handled.append(item)
        threads.add(threading.current_thread())

    for number in range(3):
        queue.enqueue(number, priority=9 - number)
    with QueueWorker(queue, handle, name="reports"):
        queue.enqueue("last", priority="low")
        eventually(lambda: len(handled) == 4)
    assert handled == [2, 1, 0, "last"]
    (thread,) = threads
    assert (thread.name, thread.daemon, thread.is_alive()) == ("reports", True, False)


def test_a_queue_worker_logs_and_keeps_exceptions_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    queue, handled = Queue(), list[Any]()

    def handle(item: Any) -> None:
        if item == "bad":
            raise SystemExit("no such report")
        handled.append(item)

    worker = QueueWorker(queue, handle)
    with caplog.at_level(logging.ERROR, "commandbus.queue"), worker:
        queue.enqueue("bad")
        queue.enqueue("good")
        eventually(lambda: handled)
    (caught,) = worker.last_exceptions
    assert (caught.item.item, caught.error, caught.type) == ("bad", "no such report", "SystemExit")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_each_item_of_a_queue_worker_has_a_context_of_its_own() -> None:
    queue, seen = Queue(), list[str]()
    tenant = contextvars.ContextVar("tenant", default="none")

    def handle(item: str) -> None:
        seen.append(tenant.get())
        tenant.set(item)

    with QueueWorker(queue, handle):
        queue.enqueue("a")
        queue.enqueue("b")
    assert seen == ["none", "none"]


def test_a_stopped_queue_worker_handles_what_is_ready_and_leaves_the_rest() -> None:
    queue, handled = Queue(), list[Any]()
    worker = QueueWorker(queue, handled.append)
    queue.enqueue("ready")
    queue.enqueue("later", delay_seconds=60)
    worker.start()
    assert worker.stop(10)
    assert handled == ["ready"]
    assert len(queue) == 1


def test_a_queue_worker_ends_when_its_queue_is_shut_down_and_drained() -> None:
    queue, handled = Queue(), list[Any]()
    worker = QueueWorker(queue, handled.append)
    queue.enqueue("soon", delay_seconds=0.05)
    worker.start()
    queue.shutdown()
    eventually(lambda: not worker.is_running)
    assert handled == ["soon"]


def test_a_queue_worker_may_be_stopped_by_its_handler() -> None:
    queue = Queue()
    worker = QueueWorker(queue, lambda _: worker.stop())
    queue.enqueue("x")
    worker.start()
    assert eventually(lambda: not worker.is_running)


def test_a_queue_worker_refuses_what_cannot_work() -> None:
    with pytest.raises(ConfigurationError, match="function of one item"):
        QueueWorker(Queue(), "handle")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="poll_timeout"):
        QueueWorker(Queue(), print, poll_timeout=-1)
    worker = QueueWorker(Queue(), print)
    worker.start()
    with pytest.raises(InvalidOperationError, match="make another one"):
        worker.start()
    assert worker.stop(10)
