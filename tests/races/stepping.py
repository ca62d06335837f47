"""Two threads on real connections, their statements in an order of the test's choice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from tests.support.failpoints import Passing, installed

BLOCKED_SECONDS = 0.15
"""Who has not come to its next statement by then waits for a lock of the other, who goes on."""


def orders(steps: int) -> Iterator[str]:
    """Every way to interleave so many statements of A with so many of B."""
    for places in combinations(range(2 * steps), steps):
        yield "".join("A" if number in places else "B" for number in range(2 * steps))


def race(order: str, first: Callable[[], Any], second: Callable[[], Any]) -> dict[str, Any]:
    """Run both, letting one statement begin after the other in this order; what each returned, or
    raised. Statements beyond the order go as they come."""
    turns = [threading.Semaphore(0) for _ in order]
    arrived = [threading.Event() for _ in order]
    results: dict[str, Any] = {}
    counts = {"A": 0, "B": 0}
    places = {name: [n for n, who in enumerate(order) if who == name] for name in "AB"}

    def meet(passing: Passing) -> None:
        name = threading.current_thread().name
        if name not in counts or passing.when != "before":
            return
        position, counts[name] = counts[name], counts[name] + 1
        if position < len(places[name]):
            place = places[name][position]
            arrived[place].set()
            turns[place].acquire()

    def run(name: str, act: Callable[[], Any]) -> None:
        try:
            results[name] = act()
        except Exception as error:  # what it was is the test's concern
            results[name] = error
        for place in places[name]:
            arrived[place].set()

    threads = [
        threading.Thread(target=run, args=(name, act), name=name, daemon=True)
        for name, act in (("A", first), ("B", second))
    ]
    with installed(meet):
        for thread in threads:
            thread.start()
        for turn, here in zip(turns, arrived, strict=True):
            here.wait(BLOCKED_SECONDS)
            turn.release()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive(), f"{thread.name} hangs in order {order}"
    return results
