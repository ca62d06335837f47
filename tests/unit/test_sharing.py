"""Sends of several threads or tasks that travel in one statement."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from commandbus.engines.postgres import sharing
from commandbus.engines.postgres.sharing import AsyncSharedLane, SharedLane
from commandbus.engines.postgres.statements import Coalescing

SENDERS = 4


def one_row(number: int) -> Coalescing:
    return Coalescing(
        sql="many", params=[number], pack=tuple, single="one", pack_single=lambda row: (row,)
    )


class Server:
    """Answers each row with itself, and remembers what came together."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.busy = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def execute(self, statement: Coalescing) -> Any:
        self.groups.append(len(statement.params))
        self.busy.set()
        assert self.answers.wait(20)
        return [(row,) for row in statement.params]


def test_threads_that_were_carried_together_travel_together_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "GATHER_SECONDS", 20)
    server = Server()
    lane = SharedLane(server.execute)
    server.answers.clear()
    with ThreadPoolExecutor(SENDERS) as senders:
        first = senders.submit(lane.run, one_row(0))
        assert server.busy.wait(20)
        others = [senders.submit(lane.run, one_row(number)) for number in range(1, SENDERS)]
        while len(lane._waiting) < SENDERS - 1:
            threading.Event().wait(0.001)
        server.answers.set()
        assert [one.result(20) for one in (first, *others)] == [[(n,)] for n in range(SENDERS)]
        again = [senders.submit(lane.run, one_row(number)) for number in range(SENDERS - 1)]
        assert [one.result(20) for one in again] == [[(number,)] for number in range(SENDERS - 1)]
    assert server.groups == [1, SENDERS - 1, SENDERS - 1]


def test_a_sender_whose_companions_stay_away_goes_alone() -> None:
    server = Server()
    lane = SharedLane(server.execute)
    lane._crowd = 16
    assert [lane.run(one_row(number)) for number in range(5)] == [[(number,)] for number in range(5)]
    assert server.groups == [1] * 5
    assert lane._crowd == 1, "and soon none is waited for"


async def test_tasks_that_come_while_one_sends_travel_together() -> None:
    groups: list[int] = []
    answers = asyncio.Event()

    async def execute(statement: Coalescing) -> Any:
        groups.append(len(statement.params))
        await answers.wait()
        return [(row,) for row in statement.params]

    lane = AsyncSharedLane(execute)
    tasks = [asyncio.create_task(lane.run(one_row(number))) for number in range(SENDERS)]
    while len(groups) + len(lane._waiting) < SENDERS:
        await asyncio.sleep(0)
    answers.set()
    assert await asyncio.gather(*tasks) == [[(number,)] for number in range(SENDERS)]
    assert groups == [1, SENDERS - 1]
