"""The queue of commands that were claimed and not begun."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

from commandbus.worker.ready import OVERTAKEN_MAX, ReadyQueue

SEQUENCE = count(1)


def commands(*priorities: int, domain: str = "orders", lease_id: int = 1, age: int = 0) -> list[Any]:
    return [
        SimpleNamespace(priority=each, domain=domain, lease_id=lease_id, age=age, seq=next(SEQUENCE))
        for each in priorities
    ]


def test_equal_ones_keep_the_order_in_which_they_were_claimed() -> None:
    ready = ReadyQueue()
    first, second = commands(5, 5), commands(5, 5)
    ready.add(first)
    ready.add(second)
    assert list(ready.waiting) == first + second


def test_a_more_urgent_one_overtakes_those_that_were_claimed_before() -> None:
    ready = ReadyQueue()
    ahead, later = commands(5, 5, 10), commands(0, 5)
    ready.add(ahead)
    ready.add(later)
    assert list(ready.waiting) == [later[0], ahead[0], ahead[1], later[1], ahead[2]]


def test_one_that_was_overtaken_often_enough_is_next() -> None:
    ready = ReadyQueue()
    (patient,) = commands(10)
    ready.add([patient])
    for number in range(OVERTAKEN_MAX):
        ready.add(commands(0))
        assert ready.waiting[0] is not patient, number
        ready.waiting.popleft()
    ready.add(commands(0))
    assert ready.waiting[0] is patient


def test_the_least_urgent_one_is_known_after_others_were_taken() -> None:
    ready = ReadyQueue()
    ready.add(commands(0, 10))
    ready.waiting.popleft()
    urgent = commands(5)
    ready.add(urgent)
    assert ready.waiting[0] is urgent[0]


def test_domains_keep_their_turns() -> None:
    ready = ReadyQueue()
    mail, orders = commands(5, 5, domain="mail"), commands(5)
    ready.add([*mail, *orders])
    urgent = commands(0)
    ready.add(urgent)
    assert list(ready.waiting) == [*mail, *urgent, *orders]


def test_a_command_that_has_waited_for_a_step_counts_as_more_urgent() -> None:
    ready = ReadyQueue(ageing=60_000_000)
    old, new = commands(10, age=660_000_000), commands(0)
    ready.add(old)
    ready.add(new)
    assert list(ready.waiting) == [*old, *new]


def test_those_of_other_leases_stay_when_some_are_withdrawn() -> None:
    ready = ReadyQueue()
    first, gone, second = commands(5, lease_id=1), commands(5, 5, lease_id=2), commands(5, lease_id=3)
    ready.add([*first, *gone, *second])
    assert ready.withdraw(frozenset({2})) == gone
    assert list(ready.waiting) == [*first, *second]
    assert ready.withdraw(None) == [*first, *second]
