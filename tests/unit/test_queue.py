"""`PriorityDelayQueue`: priorities, delays, capacity, and consumers that wake when they must."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from commandbus import PriorityDelayQueue, QueueFull
from commandbus.errors import ConfigurationError, InvalidArgumentError, InvalidOperationError
from commandbus.records import QueueItem
from commandbus.testing.waiting import eventually

Queue = PriorityDelayQueue[Any]


class Seconds:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Waits:
    """Stands in for the queue's condition: notes how long a consumer would wait, and lets the clock
    pass exactly that, or does what a test has planned for that wait."""

    def __init__(self, queue: Queue, clock: Seconds) -> None:
        self.seconds: list[float | None] = []
        self.meanwhile: list[Callable[[], object]] = []
        self._clock = clock
        queue._changed.wait = self  # type: ignore[method-assign, assignment]

    def __call__(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        if self.meanwhile:
            self.meanwhile.pop(0)()
            return True
        assert timeout is not None, "the consumer would wait for ever"
        self._clock.now += timeout
        return False


def drain(queue: Queue) -> list[Any]:
    items = []
    while (item := queue.dequeue(block=False)) is not None:
        items.append(item)
    return items


def consume(queue: Queue, into: list[Any]) -> threading.Thread:
    """A consumer in a thread, until the queue is shut down."""

    def work() -> None:
        while (item := queue.dequeue()) is not None:
            into.append(item)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_lower_priorities_come_first() -> None:
    queue = Queue()
    for priority in ("low", "normal", 7, "high", -1):
        queue.enqueue(priority, priority=priority)
    assert drain(queue) == [-1, "high", "normal", 7, "low"]


def test_equal_priorities_come_in_order_of_enqueueing() -> None:
    queue = Queue()
    for number in range(100):
        queue.enqueue(number)
    assert drain(queue) == list(range(100))


def test_items_are_never_compared_with_each_other() -> None:
    queue = Queue()
    items = [object(), {"a": 1}, object()]
    for item in items:
        queue.enqueue(item)
    assert drain(queue) == items


def test_enqueue_returns_growing_sequence_numbers() -> None:
    queue = Queue()
    assert [queue.enqueue("x") for _ in range(3)] == [1, 2, 3]


def test_the_heaps_are_what_they_are_called() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("now", priority="high")
    queue.enqueue("later", delay_seconds=5)
    now = QueueItem("now", "high", 0, 1_000.0, 1_000.0, 1)
    later = QueueItem("later", "normal", 5, 1_000.0, 1_005.0, 2)
    assert queue._ready_heap == [(0, 1, now)]
    assert queue._scheduled_heap == [(1_005.0, 5, 2, later)]


def test_take_gives_an_item_with_its_label_value_times_and_sequence() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("first", priority="low", delay_seconds=2)
    queue.enqueue("second", priority=3)
    assert queue.take() == QueueItem("second", None, 3, 1_000.0, 1_000.0, 2)
    assert queue.take(block=False) is None
    clock.now += 2
    assert queue.take() == QueueItem("first", "low", 10, 1_000.0, 1_002.0, 1)


def test_a_delayed_item_is_not_given_out_early() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("later", delay_seconds=5)
    assert queue.dequeue(block=False) is None
    clock.now += 4.999
    assert queue.dequeue(block=False) is None
    clock.now += 0.001
    assert queue.dequeue(block=False) == "later"


def test_a_future_item_of_high_priority_never_delays_a_ready_one() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("urgent, later", priority="high", delay_seconds=5)
    queue.enqueue("any, now", priority="low")
    assert queue.dequeue() == "any, now"


def test_due_items_join_by_priority_then_sequence() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("a", delay_seconds=3)
    queue.enqueue("b", delay_seconds=1)
    queue.enqueue("c", priority="high", delay_seconds=2)
    queue.enqueue("d")
    clock.now += 3
    assert drain(queue) == ["c", "a", "b", "d"]


def test_a_blocked_consumer_waits_exactly_until_the_next_item_is_due() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("later", delay_seconds=7.25)
    queue.enqueue("much later", delay_seconds=60)
    waits = Waits(queue, clock)
    assert queue.dequeue() == "later"
    assert waits.seconds == [7.25], "one wait, of the right length: no polling"
    assert queue.dequeue() == "much later"
    assert waits.seconds == [7.25, 52.75]


def test_a_blocked_consumer_of_an_empty_queue_does_not_poll() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    waits = Waits(queue, clock)
    waits.meanwhile = [lambda: queue.enqueue("x")]
    assert queue.dequeue() == "x"
    assert waits.seconds == [None]


def test_an_earlier_item_replaces_the_planned_wakeup() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("late", delay_seconds=60)
    waits = Waits(queue, clock)
    waits.meanwhile = [lambda: queue.enqueue("soon", delay_seconds=2)]
    assert queue.dequeue() == "soon"
    assert waits.seconds == [60, 2]


def test_a_timeout_ends_the_wait() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("later", delay_seconds=60)
    waits = Waits(queue, clock)
    assert queue.dequeue(timeout=1.5) is None
    assert waits.seconds == [1.5]


def test_a_timeout_longer_than_the_delay_gets_the_item() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("later", delay_seconds=2)
    waits = Waits(queue, clock)
    assert queue.dequeue(timeout=60) == "later"
    assert waits.seconds == [2]


def test_without_blocking_an_empty_queue_gives_none_at_once() -> None:
    assert Queue().dequeue(block=False) is None


def test_a_consumer_in_another_thread_is_woken_at_once() -> None:
    asked, got = threading.Event(), threading.Event()
    consumer = threading.Thread(target=lambda: queue.dequeue(timeout=60) and got.set(), daemon=True)

    def clock() -> float:
        if threading.current_thread() is consumer:
            asked.set()  # it has the lock, which only its wait lets go of
        return time.monotonic()

    queue = Queue(clock=clock)
    consumer.start()
    assert asked.wait(30)
    queue.enqueue("x")
    assert got.wait(30), "nothing but a shutdown or its timeout would wake the consumer"


def test_a_delayed_item_reaches_a_blocked_consumer_on_the_real_clock() -> None:
    queue = Queue()
    began = time.monotonic()
    queue.enqueue("later", delay_seconds=0.1)
    assert queue.dequeue(timeout=60) == "later"
    assert 0.1 <= time.monotonic() - began < 30


def test_every_item_reaches_one_of_several_blocked_consumers() -> None:
    queue, got = Queue(), []
    threads = [consume(queue, got) for _ in range(5)]
    for number in range(200):
        queue.enqueue(number, delay_seconds=0.01 if number % 3 == 0 else 0)
    queue.shutdown()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(got) == list(range(200))


def test_a_consumer_that_got_an_item_wakes_the_next_one() -> None:
    """Many items become due at one moment, and only one consumer has a timer for it."""
    queue = Queue()
    both = threading.Barrier(3)

    def work() -> None:
        assert queue.dequeue(timeout=10) is not None
        both.wait(10)  # passes only when all three hold an item at once

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    with queue._lock:
        for number in range(3):
            queue.enqueue(number, delay_seconds=0.05)
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not both.broken


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    queue = Queue(max_in_memory=2)
    queue.enqueue(1)
    queue.enqueue(2, delay_seconds=60)
    with pytest.raises(QueueFull, match="max_in_memory=2") as caught:
        queue.enqueue(3)
    assert caught.value.retry_after > 0
    assert queue.dequeue() == 1
    queue.enqueue(4)
    assert len(queue) == 2


def test_the_warning_depth_is_logged_once_per_crossing(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue(warn_depth=3)
    with caplog.at_level(logging.WARNING, logger="commandbus.queue"):
        for _ in range(2):
            queue.enqueue("x")
        assert caplog.records == []
        for _ in range(3):
            queue.enqueue("x")
        assert len(caplog.records) == 1
        drain(queue)
        for _ in range(4):
            queue.enqueue("x")
        assert len(caplog.records) == 2
    assert "warn_depth=3" in caplog.text


@pytest.mark.parametrize("bound", ["max_in_memory", "warn_depth"])
def test_a_bound_below_one_is_refused(bound: str) -> None:
    with pytest.raises(ConfigurationError, match=bound):
        Queue(**{bound: 0})


def test_an_unknown_label_is_refused_with_the_known_ones() -> None:
    queue = Queue()
    with pytest.raises(ValueError, match=r"'urgent'.*high.*normal.*low"):
        queue.enqueue("x", priority="urgent")
    assert len(queue) == 0


def test_labels_may_be_chosen() -> None:
    queue = Queue(priorities={"now": 0, "normal": 3, "whenever": 9})
    queue.enqueue("b", priority="whenever")
    queue.enqueue("a", priority="now")
    assert drain(queue) == ["a", "b"]
    with pytest.raises(ValueError, match="whenever"):
        queue.enqueue("x", priority="high")


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), "1"])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    queue = Queue()
    with pytest.raises(InvalidArgumentError, match="delay_seconds"):
        queue.enqueue("x", delay_seconds=delay)
    assert len(queue) == 0


def test_a_snapshot_counts_ready_and_scheduled() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("a")
    queue.enqueue("b", delay_seconds=5)
    expected = {"depth": 2, "ready": 1, "scheduled": 1, "shutdown": False}
    assert queue.snapshot() == expected
    clock.now += 5
    assert queue.snapshot() == {"depth": 2, "ready": 2, "scheduled": 0, "shutdown": False}


def test_a_purge_forgets_everything() -> None:
    queue = Queue()
    queue.enqueue("a")
    queue.enqueue("b", delay_seconds=5)
    assert queue.purge() == 2
    assert queue.snapshot() == {"depth": 0, "ready": 0, "scheduled": 0, "shutdown": False}
    assert queue.dequeue(block=False) is None
    assert queue.purge() == 0


def test_after_a_shutdown_everything_is_drained_then_none() -> None:
    clock = Seconds()
    queue = Queue(clock=clock)
    queue.enqueue("now")
    queue.enqueue("later", delay_seconds=5)
    queue.shutdown()
    assert queue.snapshot()["shutdown"] is True
    waits = Waits(queue, clock)
    assert [queue.dequeue() for _ in range(4)] == ["now", "later", None, None]
    assert waits.seconds == [5], "what was accepted is still given out when it is due, and not before"


def test_a_queue_that_is_shut_down_accepts_nothing() -> None:
    queue = Queue()
    queue.shutdown()
    with pytest.raises(InvalidOperationError, match="shut down"):
        queue.enqueue("x")


def test_a_shutdown_releases_every_blocked_consumer() -> None:
    queue, got = Queue(), []
    threads = [consume(queue, got) for _ in range(4)]
    queue.shutdown()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert got == []


def test_a_purge_after_a_shutdown_releases_waiters_for_a_delayed_item() -> None:
    queue, got = Queue(), []
    queue.enqueue("in an hour", delay_seconds=3_600)
    threads = [consume(queue, got) for _ in range(2)]
    queue.shutdown()
    queue.purge()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert got == []


def test_the_last_item_after_a_shutdown_releases_the_other_consumers() -> None:
    queue, got = Queue(), []
    queue.enqueue("soon", delay_seconds=0.05)
    threads = [consume(queue, got) for _ in range(3)]
    queue.shutdown()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert got == ["soon"]


def test_producers_and_consumers_in_many_threads_lose_nothing() -> None:
    queue, got = Queue(), []
    consumers = [consume(queue, got) for _ in range(4)]

    def produce(start: int) -> None:
        for number in range(start, start + 250):
            queue.enqueue(number, priority=number % 3)

    producers = [threading.Thread(target=produce, args=(n * 250,), daemon=True) for n in range(4)]
    for thread in producers:
        thread.start()
    for thread in producers:
        thread.join(30)
    queue.shutdown()
    for thread in consumers:
        thread.join(30)
    assert sorted(got) == list(range(1_000))


def test_an_enqueue_ends_the_wait_of_a_consumer() -> None:
    queue, taken = Queue(), list[Any]()
    consumer = consume(queue, taken)
    eventually(lambda: queue._changed._waiters)  # type: ignore[attr-defined]
    queue.enqueue("x")
    eventually(lambda: taken == ["x"])
    queue.shutdown()
    consumer.join(30)
    assert not consumer.is_alive()
