"""The slots of the thread runtime: whatever threads do at the same time, each run ends exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from commandbus.runtimes.threads.slots import Slot, Slots
from commandbus.testing.waiting import eventually


class Counts:
    """What the slots have told."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.given_up = self.returned = 0

    def gave_up(self) -> None:
        self.given_up += 1

    def came_back(self) -> None:
        self.returned += 1


class CountingCondition(threading.Condition):
    """Counts how often it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = 0

    def __enter__(self) -> bool:
        found = super().__enter__()
        self.entered += 1
        return found


def claimed(number: int, lease_id: int = 1) -> Any:
    return SimpleNamespace(seq=number, lease_id=lease_id, priority=5, domain="orders")


@contextmanager
def slots_of(size: int, work: Callable[[Any], Any]) -> Iterator[tuple[Slots, Counts]]:
    counts = Counts()

    def run(slot: Slot, taken: Any) -> Any:
        call: Any = SimpleNamespace(claimed=taken)
        slots.begin(slot, call, 60.0)
        return work(taken)

    slots = Slots(
        "slot",
        run,
        begun=lambda: None,
        finished=counts.told.set,
        given_up=counts.gave_up,
        returned=counts.came_back,
    )
    slots._changed = CountingCondition()
    slots.resize(size)
    try:
        yield slots, counts
    finally:
        slots.close(timeout=10)


def collect(slots: Slots, counts: Counts, count: int) -> list[Any]:
    """As the worker's loop does: wait to be told, then take all there is."""
    found: list[Any] = []
    while len(found) < count:
        assert counts.told.wait(30), f"only {len(found)} of {count} were handed in"
        counts.told.clear()
        found += slots.collect()
    return found


def test_every_command_is_run_and_handed_in_once() -> None:
    with slots_of(32, lambda taken: taken.seq) as (slots, counts):
        found: list[int] = []
        for start in range(0, 20_000, 500):
            slots.start([claimed(n) for n in range(start, start + 500)])
            found += slots.collect()
        found += collect(slots, counts, 20_000 - len(found))
    assert sorted(found) == list(range(20_000))
    assert slots.collect() == []


def test_fast_commands_take_no_lock_each() -> None:
    """Threads that meet at a lock for every command are slower than an event loop."""
    with slots_of(16, lambda taken: taken.seq) as (slots, counts):
        slots.start([claimed(n) for n in range(20_000)])
        collect(slots, counts, 20_000)
        changed: Any = slots._changed
        assert changed.entered < 2_000


def test_what_was_given_up_is_not_handed_in() -> None:
    gate = threading.Event()

    def wait(taken: Any) -> int:
        gate.wait(10)
        return int(taken.seq)

    with slots_of(4, wait) as (slots, counts):
        slots.start([claimed(n) for n in range(4)])
        eventually(lambda: len(slots._running) == 4)
        given_up = slots.abandon(lambda _, call: call.claimed.seq < 2)
        assert sorted(call.claimed.seq for _, call in given_up) == [0, 1]
        assert slots.abandon(lambda _, call: call.claimed.seq < 2) == []
        gate.set()
        assert sorted(collect(slots, counts, 2)) == [2, 3]
        eventually(lambda: counts.returned == 2)
        assert counts.given_up == 2
        # Others are in their places.
        slots.start([claimed(n) for n in range(10, 14)])
        assert sorted(collect(slots, counts, 4)) == [10, 11, 12, 13]


def test_a_run_that_ends_while_it_is_given_up_ends_once() -> None:
    with slots_of(8, lambda taken: taken.seq) as (slots, counts):
        found: list[int] = []
        lost = 0
        for start in range(0, 4_000, 100):
            slots.start([claimed(n) for n in range(start, start + 100)])
            lost += len(slots.abandon(lambda *_: True))
            found += slots.collect()

        def ended() -> bool:
            # A command that a thread has taken may be in neither list for a moment.
            found.extend(slots.collect())
            return len(found) + lost >= 4_000

        eventually(ended)
        eventually(lambda: counts.returned == lost)
    assert len(set(found)) == len(found) == 4_000 - lost
    assert counts.given_up == lost


def test_what_is_withdrawn_is_not_run() -> None:
    with slots_of(4, lambda taken: taken.seq) as (slots, counts):
        slots.start([claimed(n, lease_id=n % 2) for n in range(4_000)])
        back = [taken.seq for taken in slots.withdraw(frozenset([1]))]
        assert all(seq % 2 for seq in back)
        found = collect(slots, counts, 4_000 - len(back))
        assert sorted(found + back) == list(range(4_000))


def test_fewer_slots_end_their_threads() -> None:
    with slots_of(8, lambda taken: taken.seq) as (slots, counts):
        slots.resize(2)
        eventually(lambda: len(slots._members) == 2)
        slots.start([claimed(n) for n in range(100)])
        assert len(collect(slots, counts, 100)) == 100
